"""FP8 needs a GPU, a CUDA and a version that have it."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.image_stack import JobStack, why_not
from launch.sizing.gpus import find_gpu

_SCALES = "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"


def check_precision(job: Job, said: JobStack) -> Iterator[Finding]:
    """FP8 of the actor and of the rollout."""
    yield from _actor_fp8(job, said)
    yield from _rollout_fp8(job, said)


def _version(cuda: str | None) -> tuple[int, int] | None:
    if cuda is None:
        return None
    major, minor = cuda.split(".")[:2]
    return int(major), int(minor)


def _actor_fp8(job: Job, said: JobStack) -> Iterator[Finding]:
    """Sources: verl docs/low_precision/fp8.md (0.9), check_fp8_block_scaling_support of transformer_engine."""
    stated = job.container.cuda or said.cuda
    gpu, cuda = find_gpu(job.cluster.gpu), _version(stated)
    if gpu is not None and gpu.fp8_fp32_scales not in (None, job.container.env.get(_SCALES, gpu.fp8_fp32_scales)):
        yield error(
            "fp8-scales",
            f"container.env.{_SCALES}={job.container.env[_SCALES]}: on {gpu.name} (compute capability "
            f"{gpu.capability_text}) it must be {gpu.fp8_fp32_scales}",
            "remove it: the launcher sets it",
        )
    if job.actor.fp8 != "blockwise" or job.actor.strategy != "megatron":
        return
    way_out = "set actor.fp8=null to train in bf16"
    wrong_gpu = gpu is not None and gpu.fp8_blockwise != "native"
    able = said.stack.can.fp8_training
    # What is known of an image that has no recipe at all says more than its CUDA.
    wrong_cuda = cuda is not None and cuda < (12, 9) and (able.able or not said.known)
    if gpu is not None and wrong_gpu:
        yield error(
            "fp8-gpu",
            f"actor.fp8=blockwise needs a Hopper GPU (compute capability 9.0); cluster.gpu={job.cluster.gpu} is "
            f"{gpu.name} with {gpu.capability_text}",
            way_out,
        )
    if wrong_cuda:
        yield error(
            "fp8-cuda",
            f"actor.fp8=blockwise needs CUDA 12.9 or newer; the image has {stated}",
            f"{way_out}, or use an image with CUDA 12.9",
        )
    if (gpu is None or cuda is None) and not (wrong_gpu or wrong_cuda):
        unknown = [name for name, known in (("cluster.gpu", gpu), ("container.cuda", cuda)) if known is None]
        # The stack of this verl says its CUDA; whether the image is one of it is the user's to say.
        stack = f", or container.stack={said.stack.name} for that CUDA" if cuda is None and able.able else ""
        yield warning(
            "fp8-unknown",
            f"actor.fp8=blockwise needs a Hopper GPU and CUDA 12.9 or newer; {' and '.join(unknown)} not known",
            f"set {' and '.join(unknown)}{stack}, or actor.fp8=null",
        )
    if not able.able:
        # Another image may have a newer Transformer Engine with this verl.
        yield Finding(
            "fp8-version",
            "error" if said.known else "warning",
            f"actor.fp8=blockwise with verl {job.engine.verl}: {why_not(able)}",
            able.instead or way_out,
        )


def _rollout_fp8(job: Job, said: JobStack) -> Iterator[Finding]:
    if not job.rollout.fp8:
        return
    gpu, can = find_gpu(job.cluster.gpu), said.stack.can
    if not can.fp8_rollout.able:
        yield error("rollout-fp8", f"rollout.fp8: {why_not(can.fp8_rollout)}", can.fp8_rollout.instead)
        return
    if gpu is not None and not gpu.fp8:
        yield error(
            "rollout-fp8",
            f"rollout.fp8 needs a GPU with FP8 (capability 8.9 or newer); {gpu.name} has {gpu.capability_text}",
            "set rollout.fp8=false",
        )
    both = can.fp8_both_sglang
    if job.actor.fp8 is not None and job.rollout.engine == "sglang" and not both.able:
        # An image whose stack nobody names may have it.
        vllm = ", or rollout.engine=vllm where the image has vLLM" if can.vllm.able or not said.known else ""
        told = f"actor.fp8 and rollout.fp8 with SGLang: {why_not(both)}"
        yield warning("fp8-end-to-end", told, f"{both.instead}{vllm}")
