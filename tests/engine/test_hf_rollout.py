"""The Hugging Face rollout: sampling, batching, failures, weight updates; no trainer."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

from launch.rehearsal.backend import hf_server, weights
from launch.rehearsal.backend.generation import Sampling, generate, read_sampling
from launch.rehearsal.backend.hf_server import HFServer
from launch.rehearsal.backend.mailbox import WeightMailbox

END, PAD = 1, 0
LIMIT_S = 120


def tiny_config(**how) -> LlamaConfig:
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": PAD,
    }
    return LlamaConfig(**(sizes | how))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # far enough from uniform for top_p to mean something
    return model


@pytest.fixture
def server(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    return HFServer(
        str(tmp_path / "model"),
        dtype="float32",
        prompt_length=8,
        response_length=6,
        ignore_eos=False,
        seed=0,
        replica=3,
    )


PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13]]


def test_log_probs_are_the_models(model):
    sampling = Sampling(max_new_tokens=5, temperature=0.7, top_p=0.8, ignore_eos=True)
    for prompt, answer in zip(PROMPTS, generate(model, PROMPTS, sampling), strict=True):
        assert len(answer.token_ids) == len(answer.log_probs) == 5
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer.token_ids])).logits[0, len(prompt) - 1 : -1]
        expected = (logits / 0.7).log_softmax(-1).gather(-1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        assert answer.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_greedy_is_the_argmax_whatever_the_batch(model):
    sampling = Sampling(max_new_tokens=4, temperature=0, ignore_eos=True)
    together = [answer.token_ids for answer in generate(model, PROMPTS, sampling)]
    alone = [generate(model, [prompt], sampling)[0].token_ids for prompt in PROMPTS]
    assert together == alone
    with torch.no_grad():
        first = model(torch.tensor([PROMPTS[0]])).logits[0, -1].argmax().item()
    assert together[0][0] == first


def test_a_small_nucleus_is_greedy(model):
    greedy = generate(model, PROMPTS, Sampling(max_new_tokens=4, temperature=0, ignore_eos=True))
    nucleus = generate(model, PROMPTS, Sampling(max_new_tokens=4, top_p=1e-6, ignore_eos=True))
    one_token = generate(model, PROMPTS, Sampling(max_new_tokens=4, top_k=1, ignore_eos=True))
    tokens = [answer.token_ids for answer in greedy]
    assert [answer.token_ids for answer in nucleus] == tokens
    assert [answer.token_ids for answer in one_token] == tokens


def test_temperature_spreads(model):
    def distinct(temperature: float) -> int:
        torch.manual_seed(0)
        sampling = Sampling(max_new_tokens=1, temperature=temperature)
        return len({answer.token_ids[0] for answer in generate(model, [[5]] * 200, sampling)})

    assert distinct(0.05) < distinct(5.0)


def test_a_response_ends_with_the_end_token(model):
    torch.manual_seed(0)
    answers = generate(model, [[5, 6]] * 64, Sampling(max_new_tokens=40, temperature=3.0))
    ended = [answer for answer in answers if answer.token_ids[-1] == END]
    assert ended
    for answer in answers:
        assert END not in answer.token_ids[:-1]
        assert len(answer.token_ids) == len(answer.log_probs) <= 40


@pytest.mark.parametrize(
    ("params", "prompt", "limit"),
    [({}, 5, 6), ({}, 10, 4), ({"max_tokens": 3}, 5, 3), ({"max_new_tokens": 2}, 5, 2)],
)
def test_limit_of_new_tokens(params, prompt, limit):
    assert read_sampling(params, prompt, prompt_length=8, response_length=6).max_new_tokens == limit


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_p": 0.1}, "does not know the sampling parameters"),
        ({"temperature": -1}, "temperature=-1"),
        ({"top_p": 0}, "top_p=0"),
        ({"max_tokens": -3}, "max_new_tokens=-3"),
    ],
)
def test_bad_sampling_is_refused(params, message):
    with pytest.raises(ValueError, match=message):
        read_sampling(params, 5, prompt_length=8, response_length=6)


def test_server_batches_requests_of_equal_sampling(server, monkeypatch):
    sizes = []

    def counted(model, prompts, sampling):
        sizes.append((len(prompts), sampling.temperature))
        return generate(model, prompts, sampling)

    monkeypatch.setattr(hf_server, "generate", counted)

    async def ask():
        hot = [server.generate(prompt, {"temperature": 1.0}, str(prompt)) for prompt in PROMPTS]
        cold = [
            server.generate(
                prompt,
                {"temperature": 0},
                str(prompt),
            )
            for prompt in PROMPTS[:2]
        ]
        return await asyncio.gather(*hot, *cold)

    answers = asyncio.run(ask())
    assert sizes == [(3, 1.0), (2, 0.0)]
    assert all(1 <= len(answer.token_ids) <= 6 for answer in answers)
    assert all(answer.extra_fields == {"global_steps": None} for answer in answers)


def test_a_failed_batch_reaches_every_caller_and_the_next_works(server, monkeypatch):
    def fails(model, prompts, sampling):
        raise RuntimeError("the model broke")

    async def ask():
        with monkeypatch.context() as patched:
            patched.setattr(hf_server, "generate", fails)
            calls = [server.generate(prompt, {}, "r") for prompt in PROMPTS]
            errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), LIMIT_S)
        return errors, await asyncio.wait_for(server.generate(PROMPTS[0], {}, "r"), LIMIT_S)

    errors, answer = asyncio.run(ask())
    assert [str(error) for error in errors] == ["the model broke"] * 3
    assert answer.token_ids


def test_the_event_loop_runs_while_the_model_works(server, monkeypatch):
    working, release = threading.Event(), threading.Event()

    def waits(model, prompts, sampling):
        working.set()
        assert release.wait(LIMIT_S)
        return generate(model, prompts, sampling)

    monkeypatch.setattr(hf_server, "generate", waits)

    async def ask():
        pending = asyncio.create_task(server.generate(PROMPTS[0], {}, "r"))
        assert await asyncio.to_thread(working.wait, LIMIT_S)
        assert await server.ready()  # answered during generation
        release.set()
        return await asyncio.wait_for(pending, LIMIT_S)

    assert asyncio.run(ask()).token_ids


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"prompt_ids": []}, "the prompt is empty"),
        ({"prompt_ids": [5], "image_data": ["x"]}, "text only"),
        ({"prompt_ids": [5] * 15}, "leaves no room"),
    ],
)
def test_what_the_server_cannot_do_is_an_error(server, request_, message):
    with pytest.raises(ValueError, match=message):
        asyncio.run(server.generate(sampling_params={}, request_id="r7", **request_))


def test_weights_are_loaded_and_written_down(server, model, tmp_path, monkeypatch):
    monkeypatch.setenv("REHEARSAL_DUMP_WEIGHTS", str(tmp_path / "dumps"))
    sent = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    asyncio.run(server.set_weights(list(sent.items()), global_steps=4))
    [dumped] = (tmp_path / "dumps").iterdir()
    assert dumped.name == "replica3_update0001.safetensors"
    with safe_open(dumped, "pt") as file:
        assert file.metadata() == {"global_steps": "4"}
    for name, tensor in load_file(dumped).items():
        assert torch.equal(tensor, sent[name])
        assert torch.equal(server._model.state_dict()[name], sent[name])
    assert asyncio.run(server.generate(PROMPTS[0], {}, "r")).extra_fields == {"global_steps": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("model.norm.weight"), r"missing: model\.norm\.weight"),
        (lambda state: state.update({"model.extra": torch.ones(1)}), r"not in the model: model\.extra"),
        (
            lambda state: state.update({"model.norm.weight": torch.ones(2)}),
            r"wrong shape: model\.norm\.weight \(2,\) instead of \(32,\)",
        ),
    ],
)
def test_another_weight_set_is_refused_whole(server, change, message):
    state = {name: tensor + 1 for name, tensor in server._model.state_dict().items()}
    before = {name: tensor.clone() for name, tensor in server._model.state_dict().items()}
    change(state)
    with pytest.raises(weights.WeightMismatchError, match=message):
        asyncio.run(server.set_weights(list(state.items())))
    for name, tensor in server._model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_tensor_sent_twice_is_refused(server):
    state = list(server._model.state_dict().items())
    with pytest.raises(weights.WeightMismatchError, match="sent twice"):
        asyncio.run(server.set_weights([*state, state[0]]))


def test_a_tied_head_may_be_left_out():
    model = AutoModelForCausalLM.from_config(tiny_config(tie_word_embeddings=True), dtype=torch.float32)
    state = {name: tensor + 1 for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert weights.load_exactly(model, state) == pytest.approx(1)
    assert torch.equal(model.lm_head.weight, state["model.embed_tokens.weight"])


def test_mailbox_gives_every_receiver_every_bucket():
    async def exchange():
        box = WeightMailbox()

        async def receive():
            buckets = []
            while (bucket := await box.get(len(buckets))) is not None:
                buckets.append(bucket)
            return buckets

        receivers = [asyncio.create_task(receive()) for _ in range(2)]
        for bucket in (["first"], ["second"]):
            await box.put(bucket)
            await asyncio.sleep(0)
        await box.close()
        return await asyncio.wait_for(asyncio.gather(*receivers, receive()), LIMIT_S)

    assert asyncio.run(exchange()) == [[["first"], ["second"]]] * 3
