"""FP8 needs a GPU, a CUDA and a version that have it."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.sizing.gpus import find_gpu

_SCALES = "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"


def check_precision(job: Job) -> Iterator[Finding]:
    """FP8 of the actor and of the rollout."""
    yield from _actor_fp8(job)
    yield from _rollout_fp8(job)


def _cuda(job: Job) -> tuple[int, int] | None:
    if job.container.cuda is None:
        return None
    major, minor = job.container.cuda.split(".")
    return int(major), int(minor)


def _actor_fp8(job: Job) -> Iterator[Finding]:
    """Sources: verl docs/low_precision/fp8.md (0.9), check_fp8_block_scaling_support of transformer_engine."""
    gpu, cuda = find_gpu(job.cluster.gpu), _cuda(job)
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
    wrong_cuda = cuda is not None and cuda < (12, 9)
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
            f"actor.fp8=blockwise needs CUDA 12.9 or newer; container.cuda={job.container.cuda}",
            f"{way_out}, or use an image with CUDA 12.9",
        )
    if (gpu is None or cuda is None) and not (wrong_gpu or wrong_cuda):
        unknown = [name for name, known in (("cluster.gpu", gpu), ("container.cuda", cuda)) if known is None]
        yield warning(
            "fp8-unknown",
            f"actor.fp8=blockwise needs a Hopper GPU and CUDA 12.9 or newer; {' and '.join(unknown)} not known",
            f"set {' and '.join(unknown)}, or actor.fp8=null",
        )
    if job.engine.verl == "0.6.1":
        # megatron-core 0.13 fp8_utils.py: blockwise from Transformer Engine 2.3 on; the image has 2.2.
        yield warning(
            "fp8-version",
            "actor.fp8=blockwise with verl 0.6.1: its image (TE 2.2) has no blockwise recipe, which megatron-core "
            "takes from Transformer Engine 2.3 on; verl documents FP8 training from 0.7 on",
            f"{way_out}, or engine.verl=0.9.1",
        )


def _rollout_fp8(job: Job) -> Iterator[Finding]:
    if not job.rollout.fp8:
        return
    gpu = find_gpu(job.cluster.gpu)
    if job.engine.verl == "0.6.1":
        yield error("rollout-fp8", "verl 0.6.1 has no FP8 rollout", "set rollout.fp8=false")
    if gpu is not None and not gpu.fp8:
        yield error(
            "rollout-fp8",
            f"rollout.fp8 needs a GPU with FP8 (capability 8.9 or newer); {gpu.name} has {gpu.capability_text}",
            "set rollout.fp8=false",
        )
    if job.actor.fp8 is not None and job.rollout.engine == "sglang":
        yield warning(
            "fp8-end-to-end",
            "actor.fp8 and rollout.fp8 with SGLang: verl documents FP8 on both sides with vLLM alone",
            "set rollout.fp8=false or rollout.engine=vllm",
        )
