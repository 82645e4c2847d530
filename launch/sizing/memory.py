"""An estimate of GPU memory before the queue: from config.json, the job's sizes and the GPU's name, without a GPU.

The estimate takes every sequence at full length. It leaves out what the CUDA context, NCCL and the allocator's
fragments take (1 to 3 GiB), which is why 90 % of a GPU counts as full.
"""

from dataclasses import dataclass

from launch.config import Job
from launch.model.shape import ModelShape
from launch.sizing.gpus import find_gpu
from launch.sizing.layout import Layout
from launch.sizing.training_memory import (
    DEFAULT_TOKENS_PER_GPU,
    States,
    activation_bytes,
    recomputes,
    states,
    tokens_per_gpu,
)

GIB = 1024**3


@dataclass(frozen=True)
class GpuMemory:
    """Memory of one GPU in GiB; not `sure` where its name covers several sizes and the smallest is assumed."""

    gib: float
    sure: bool
    source: str


@dataclass(frozen=True)
class Training:
    """One GPU of the training pool during an update, in GiB.

    `parts` add up to `total`; `floor` is what no setting of batches or recomputation lowers: weights, gradients
    and optimizer of the model that trains; `resident` stays on the GPU between updates.
    """

    parts: tuple[tuple[str, float], ...]
    floor: float
    resident: float

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return sum(gib for _, gib in self.parts)


@dataclass(frozen=True)
class Rollout:
    """One GPU of a generation engine, in GiB. Without the GPU's memory only the weights are known.

    `sequences` counts full-length sequences that fit in the KV cache of one engine at once.
    """

    weights: float
    budget: float | None
    kv_gib_per_sequence: float
    longest: int

    @property
    def kv(self) -> float | None:
        """Room for the KV cache: the engine's share of the GPU without the weights."""
        return None if self.budget is None else self.budget - self.weights

    @property
    def sequences(self) -> float | None:
        """Full-length sequences that fit at once."""
        return None if self.kv is None else self.kv / self.kv_gib_per_sequence


@dataclass(frozen=True)
class MemoryEstimate:
    """GiB on the fullest GPU of each pool, and what was assumed.

    `together` is, in sync mode, what lies on one GPU while responses are generated: the engine's share and what
    the training keeps there (all of it where the engine never gives its memory back). None in one_step_off mode
    and without the GPU's memory.
    """

    gpu: GpuMemory | None
    training: Training
    rollout: Rollout
    together: float | None
    assumptions: tuple[str, ...]

    def lines(self, *, assumptions: bool = False) -> list[str]:
        """For a person: a line of numbers for each pool, and on request one with every assumption."""
        size = f" of {self.gpu.gib:.1f}" if self.gpu else ""
        parts = ", ".join(f"{name} {gib:.1f}" for name, gib in self.training.parts)
        lines = [f"training {self.training.total:.1f}{size} GiB on a GPU: {parts}"]
        rollout = self.rollout
        text = f"weights {rollout.weights:.1f}"
        if rollout.budget is not None and rollout.kv is not None and rollout.sequences is not None:
            text += f", KV cache {max(rollout.kv, 0):.1f} = {max(rollout.sequences, 0):,.0f} sequences of "
            text += f"{rollout.longest} tokens"
            lines.append(f"rollout {rollout.budget:.1f}{size} GiB on a GPU: {text}")
        else:
            text += f", KV cache {rollout.kv_gib_per_sequence:.2f} for each sequence of {rollout.longest} tokens"
            lines.append(f"rollout, GiB on a GPU: {text}")
        if self.together is not None:
            lines.append(f"both on one GPU while generating: {self.together:.1f}{size} GiB")
        return [*lines, f"assumed: {'; '.join(self.assumptions)}"] if assumptions else lines


def gpu_memory(job: Job) -> GpuMemory | None:
    """What the job says about a GPU's memory, or what its name says; None where neither does."""
    if job.cluster.gpu_memory_gb is not None:
        return GpuMemory(job.cluster.gpu_memory_gb, True, f"cluster.gpu_memory_gb={job.cluster.gpu_memory_gb:g}")
    gpu = find_gpu(job.cluster.gpu)
    if gpu is None:
        return None
    sure = gpu.memory_gib is not None
    named = f"{gpu.name} by cluster.gpu={job.cluster.gpu}"
    return GpuMemory(
        gpu.assumed_gib, sure, named if sure else f"the smallest usual {gpu.name}, cluster.gpu={job.cluster.gpu}"
    )


def estimate(job: Job, shape: ModelShape, layout: Layout, *, critic: ModelShape | None = None) -> MemoryEstimate:
    """Memory of the training pool and of the rollout pool.

    Args:
        shape: of the policy.
        critic: of the value model where it starts from another model; the policy's shape otherwise.
    """
    gpu = gpu_memory(job)
    trained = states(job, shape, layout)
    value = states(job, critic or shape, layout, value_model=True) if job.algorithm.estimator == "gae" else None
    training = _training(job, shape, trained, value, critic or shape)
    rollout = _rollout(job, shape, gpu)
    together = None
    if job.engine.mode == "sync" and rollout.budget is not None:
        together = rollout.budget + (training.total if job.rollout.free_cache is False else training.resident)
    return MemoryEstimate(gpu, training, rollout, together, tuple(_assumptions(job, shape, gpu)))


def _training(
    job: Job, shape: ModelShape, trained: States, value: States | None, value_shape: ModelShape
) -> Training:
    reference = 0.0
    if job.needs_reference and "param" not in job.actor.offload:
        # Forward only: its weights in bf16, in the actor's sizes, offloaded with the actor's.
        reference = trained.weights / (2 if job.actor.strategy == "fsdp2" else 1)
    tokens = tokens_per_gpu(job, job.actor.micro_batch_size_per_gpu)
    activations, logits = activation_bytes(job, shape, tokens)
    resident = trained.resident(list(job.actor.offload)) + reference
    others = [("reference", reference)]
    working = trained
    if value is not None:
        critic_rests = value.resident(list(job.critic.offload))
        critic_tokens = tokens_per_gpu(
            job, job.critic.micro_batch_size_per_gpu or job.actor.micro_batch_size_per_gpu
        )
        critic_activations, _ = activation_bytes(job, value_shape, critic_tokens, value_model=True)
        actor_rests = trained.resident(list(job.actor.offload))
        resident += critic_rests
        if value.total + critic_activations + actor_rests > trained.total + activations + logits + critic_rests:
            working, activations, logits = value, critic_activations, 0.0
            others.append(("actor at rest", actor_rests))
        else:
            others.append(("critic at rest", critic_rests))
    parts = [
        ("weights", working.weights),
        ("FP8 copies", working.fp8),
        ("gradients", working.gradients),
        ("optimizer", working.optimizer),
        ("gathered layers", working.gathered),
        ("activations", activations),
        ("logits", logits),
        *others,
    ]
    floor = max(s.weights + s.gradients + s.optimizer for s in (trained, value) if s is not None)
    return Training(tuple((name, size / GIB) for name, size in parts if size), floor / GIB, resident / GIB)


def _rollout(job: Job, shape: ModelShape, gpu: GpuMemory | None) -> Rollout:
    """Linear layers are split over the engine's GPUs, and are one byte a weight with FP8; norms and the router are
    copied; the embedding is split too and stays bf16."""
    counted, size = shape.parameters(), job.rollout.tensor_parallel
    linear = counted.attention + counted.mlp + counted.experts
    whole = counted.norms + counted.router
    weights = (linear * (1 if job.rollout.fp8 else 2) + 2 * (counted.embedding + counted.head)) / size + 2 * whole
    longest = max(job.longest_sequence, job.rollout.max_model_len or 0)
    budget = None if gpu is None else gpu.gib * job.rollout.gpu_memory_utilization
    return Rollout(weights / GIB, budget, longest * shape.kv_bytes_per_token(size) / GIB, longest)


def _assumptions(job: Job, shape: ModelShape, gpu: GpuMemory | None) -> list[str]:
    actor = job.actor
    lines = [f"{gpu.gib:.1f} GiB a GPU: {gpu.source}"] if gpu else []
    if actor.strategy == "megatron":
        lines.append(
            "bf16 weights, fp32 gradients, fp32 master weights and two moments spread over the data-parallel GPUs"
        )
    else:
        lines.append(
            "fp32 weights, gradients and two moments, spread over all training GPUs; two layers whole in bf16"
        )
    longest = job.longest_sequence
    if actor.dynamic_batch:
        tokens = actor.max_tokens_per_gpu or DEFAULT_TOKENS_PER_GPU
        lines.append(f"a micro batch of {tokens} tokens on a GPU (dynamic_batch)")
    else:
        lines.append(
            f"a micro batch of {actor.micro_batch_size_per_gpu} sequences, all of {longest} tokens, over "
            f"{actor.context_parallel} context-parallel GPUs"
        )
    lines.append(
        "activations recomputed: the inputs of the layers and one layer"
        if recomputes(job)
        else "no activations recomputed; attention keeps no score matrix"
    )
    lines.append("logits and their gradient in fp32, on the last pipeline stage")
    if actor.offload:
        lines.append(f"offloaded {' and '.join(actor.offload)}: back on the GPU during an update")
    if job.engine.mode == "sync" and job.rollout.free_cache is not False:
        lines.append("the generation engine gives its memory back during an update")
    lines.append("KV cache in bf16, the engine's own buffers not counted")
    return [*lines, *shape.notes]
