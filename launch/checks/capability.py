"""What a version of verl, a GPU or a CUDA cannot do."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error


def check_capability(job: Job, *, rehearse: bool) -> Iterator[Finding]:
    """What a version of verl cannot do."""
    if job.engine.verl == "0.6.1" and job.engine.mode == "one_step_off":
        yield error(
            "engine-mode",
            "verl 0.6.1 has no one_step_off trainer in its package, and its recipe has no Megatron with SGLang",
            "set engine.mode=sync, or engine.verl=0.9.1",
        )
    if rehearse and job.engine.verl == "0.6.1" and job.rehearsal.rollout == "vllm":
        yield error("rehearsal-rollout", "verl 0.6.1 has no vllm rehearsal on CPU", "set rehearsal.rollout=hf")
    if job.rollout.fp8 and job.engine.verl == "0.6.1":
        yield error("rollout-fp8", "verl 0.6.1 has no FP8 rollout", "set rollout.fp8=false")
