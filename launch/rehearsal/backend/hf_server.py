"""A rollout server: a Ray actor that answers verl's generation requests with a Hugging Face model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from launch.rehearsal.backend import weights as weight_sets
from launch.rehearsal.backend.generation import Completion, Sampling, generate, read_sampling

logger = logging.getLogger(__name__)

BATCH_WINDOW_S = 0.02  # how long the first request waits for company
MAX_BATCH = 64


@dataclass(frozen=True)
class _Request:
    prompt: list[int]
    sampling: Sampling
    answer: asyncio.Future[Completion]


class HFServer:
    """Batches concurrent requests; generation and weight updates run in one thread, one at a time.

    An update waits for the batch in progress and never cuts it: a response comes from one weight set.
    """

    def __init__(
        self,
        model_path: str,
        *,
        dtype: str,
        prompt_length: int,
        response_length: int,
        ignore_eos: bool,
        seed: int,
        replica: int,
    ) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        self._prompt_length = prompt_length
        self._response_length = response_length
        self._ignore_eos = ignore_eos
        self._replica = replica
        self._updates = 0
        self._global_steps: int | None = None
        self._waiting: list[_Request] = []
        self._serving: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hf-model")

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
    ) -> Any:
        """One response; the signature is that of verl's vLLMHttpServer.generate (0.9.1).

        Returns:
            verl's TokenOutput.

        Raises:
            ValueError: The request asks for what this server cannot do.
            Exception: Whatever the model raised; every request of the batch gets it.
        """
        from verl.workers.rollout.replica import TokenOutput

        if image_data or video_data:
            raise ValueError(f"request {request_id}: the hf rollout takes text only, not images or videos")
        prompt = [int(token) for token in prompt_ids]
        if not prompt:
            raise ValueError(f"request {request_id}: the prompt is empty")
        sampling = read_sampling(
            sampling_params,
            len(prompt),
            prompt_length=self._prompt_length,
            response_length=self._response_length,
            ignore_eos=self._ignore_eos,
        )
        request = _Request(prompt, sampling, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        completion = await request.answer
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.log_probs,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": self._global_steps},
        )

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(BATCH_WINDOW_S)
            async with self._one_at_a_time:
                batch = self._take_batch()
                prompts = [request.prompt for request in batch]
                try:
                    answers = await loop.run_in_executor(
                        self._thread, generate, self._model, prompts, batch[0].sampling
                    )
                except Exception as error:
                    logger.exception("generation of %d prompts failed", len(batch))
                    for request in batch:
                        if not request.answer.done():
                            request.answer.set_exception(error)
                    continue
                for request, answer in zip(batch, answers, strict=True):
                    if not request.answer.done():  # the caller may have been cancelled
                        request.answer.set_result(answer)

    def _take_batch(self) -> list[_Request]:
        """The oldest request and those that share its sampling parameters."""
        sampling = self._waiting[0].sampling
        batch = [request for request in self._waiting if request.sampling == sampling][:MAX_BATCH]
        taken = set(map(id, batch))
        self._waiting = [request for request in self._waiting if id(request) not in taken]
        return batch

    async def set_weights(self, weights: list[tuple[str, Any]], global_steps: int | None = None) -> None:
        """Load a complete weight set.

        Raises:
            WeightMismatchError: It is not exactly the model's set of tensors.
        """
        received = weight_sets.collect(weights)
        async with self._one_at_a_time:
            loop = asyncio.get_running_loop()
            change = await loop.run_in_executor(self._thread, weight_sets.load_exactly, self._model, received)
            self._updates += 1
            self._global_steps = global_steps
            weight_sets.dump(received, replica=self._replica, update=self._updates, global_steps=global_steps)
        print(  # a Ray actor's stdout is what the driver's log shows
            f"[hf rollout {self._replica}] weights {self._updates}: {len(received)} tensors, "
            f"largest change {change:.3e}, global_steps {global_steps}",
            flush=True,
        )

    async def ready(self) -> bool:
        """Answers when the model is loaded."""
        return True

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Nothing to abort: set_weights waits for the batch in progress."""

    async def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """The model stays where it is: in memory, without a KV cache between batches."""

    wake_up = sleep = resume_generation = _nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    start_profile = stop_profile = _nothing
