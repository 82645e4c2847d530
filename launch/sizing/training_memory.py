"""GPU memory of a model in training, in bytes on the GPU that holds the most, from its shape and the job's sizes.

Every formula says what it counts. Sources: megatron-core 0.16.1 `distributed/distributed_data_parallel.py` and
`optimizer/distrib_optimizer.py`; verl 0.9.1 `utils/megatron_utils.py` (gradients reduced in fp32) and
`workers/engine/fsdp/transformer_impl.py` (fp32 weights); activations after Korthikanti et al., arXiv 2205.05198,
for gated MLPs, grouped key heads and flash attention, which keeps no score matrix.
"""

from dataclasses import dataclass

from launch.config import Job
from launch.model.shape import ModelShape
from launch.sizing.layout import Layout

_BF16, _FP32 = 2, 4
# verl's actor.ppo_max_token_len_per_gpu (0.6.1, 0.8.0, 0.9.1).
DEFAULT_TOKENS_PER_GPU = 16384


@dataclass(frozen=True)
class States:
    """Bytes of what training keeps for one model on one GPU.

    `gathered` is what FSDP2 puts together again for the layers at work; `fp8`, copies of the weights for FP8.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float = 0.0
    fp8: float = 0.0

    @property
    def total(self) -> float:
        """All of it, as during an update."""
        return self.weights + self.gradients + self.optimizer + self.gathered + self.fp8

    def resident(self, offload: list[str]) -> float:
        """What stays on the GPU while this model rests. verl moves gradients with the weights."""
        kept = 0.0 if "param" in offload else self.weights + self.gradients
        return kept + (0.0 if "optimizer" in offload else self.optimizer)


@dataclass(frozen=True)
class Split:
    """Parameters on the GPU that holds the most: outside the experts, and of the experts."""

    dense: float
    experts: float

    @property
    def total(self) -> float:
        """Both."""
        return self.dense + self.experts


def largest_split(shape: ModelShape, tp: int, pp: int, ep: int, etp: int, *, value_model: bool) -> Split:
    """Parameters of the largest pipeline stage, an end with the embedding or the head.

    Tied embeddings stand on both ends of a pipeline. A value model has a head of one row, never tied.
    """
    layers = -(-shape.layers // pp)
    moe = min(shape.moe_layers, layers)
    split = (
        layers * shape.attention_per_layer + (layers - moe) * shape.mlp_per_layer + moe * shape.shared_per_layer
    )
    embedding = shape.vocab * shape.hidden
    head = 0 if value_model or (shape.tied and pp == 1) else embedding
    split += embedding + head if pp == 1 else embedding
    whole = (2 * layers + 1) * shape.hidden + moe * shape.experts * shape.hidden
    return Split(split / tp + whole, moe * shape.experts / ep * shape.expert / etp)


def megatron_states(job: Job, shape: ModelShape, world: int, *, value_model: bool = False) -> States:
    """bf16 weights, an fp32 gradient buffer, and Adam's fp32 master weights and two moments.

    The distributed optimizer spreads these over the data- and context-parallel ranks; those of experts over the
    ranks that hold the same experts.
    """
    actor = job.actor
    tp, pp, ep = actor.tensor_parallel, actor.pipeline_parallel, actor.expert_parallel
    etp = actor.expert_tensor_parallel or tp
    held = largest_split(shape, tp, pp, ep, etp, value_model=value_model)
    copies, expert_copies = max(world / (tp * pp), 1), max(world / (etp * ep * pp), 1)
    optimizer = 3 * _FP32 * (held.dense / copies + held.experts / expert_copies)
    # Transformer Engine keeps each linear weight by rows and by columns, one byte each, during an update.
    in_layers = max(held.total - shape.vocab * shape.hidden / tp, 0)
    fp8 = 2 * in_layers if actor.fp8 is not None and not value_model else 0.0
    return States(_BF16 * held.total, _FP32 * held.total, optimizer, fp8=fp8)


def fsdp_states(shape: ModelShape, world: int, *, value_model: bool = False) -> States:
    """fp32 weights, gradients and two moments, spread over all ranks.

    In bf16 and whole: the embedding, the head and two layers, one at work and one fetched ahead.
    """
    counted = shape.parameters()
    total = counted.total - (counted.head if value_model else 0)
    layer = shape.attention_per_layer + max(
        shape.mlp_per_layer if shape.dense_layers else 0,
        shape.shared_per_layer + shape.experts * (shape.expert + shape.hidden) if shape.moe_layers else 0,
    )
    gathered = _BF16 * (counted.embedding + (0 if value_model else counted.head) + 2 * layer)
    share = _FP32 * total / world
    return States(share, share, 2 * share, gathered=gathered)


def states(job: Job, shape: ModelShape, layout: Layout, *, value_model: bool = False) -> States:
    """Bytes for the strategy of the job."""
    world = max(layout.train_world, 1)
    if job.actor.strategy == "fsdp2":
        return fsdp_states(shape, world, value_model=value_model)
    return megatron_states(job, shape, world, value_model=value_model)


def tokens_per_gpu(job: Job, micro: int) -> int:
    """Tokens of one micro batch on one GPU, all sequences at full length."""
    if job.actor.dynamic_batch:
        return job.actor.max_tokens_per_gpu or DEFAULT_TOKENS_PER_GPU
    longest = job.longest_sequence
    return -(-micro * longest // job.actor.context_parallel)


def recomputes(job: Job) -> bool:
    """Whether only the inputs of the layers are kept: verl's default is yes for FSDP2 and no for Megatron."""
    if job.actor.recompute is None:
        return job.actor.strategy == "fsdp2"
    return job.actor.recompute


def layer_bytes_per_token(shape: ModelShape, tp: int = 1, *, sequence_parallel: bool = True) -> float:
    """bf16 activations that the backward pass of one layer needs, for each token, on one of `tp` GPUs.

    Queries and attention output, keys and values, and of the MLP gate, up and their product (3 times its width);
    of experts also their inputs and outputs. Inputs and outputs of the two norms (4 hidden) are split by sequence
    parallelism only.
    """
    query, key = shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    if shape.mla is not None:
        key = shape.heads * (shape.mla.nope + shape.mla.rope + shape.mla.value)
    mlp = 3 * shape.ffn
    if shape.moe_layers:
        chosen = shape.experts_per_token
        sparse = 3 * (chosen * shape.moe_ffn + shape.shared_ffn) + 2 * chosen * shape.hidden
        mlp = max(mlp if shape.dense_layers else 0, sparse)
    return _BF16 * (4 * shape.hidden / (tp if sequence_parallel else 1) + (2 * query + key + mlp) / tp)


def activation_bytes(
    job: Job, shape: ModelShape, tokens: int, *, value_model: bool = False
) -> tuple[float, float]:
    """(activations, logits) of one GPU. With a pipeline, the first stage holds as many micro batches as there are
    stages, the last one holds the logits; the larger of the two counts.

    Logits and their gradient are fp32 [tokens, vocabulary / tensor_parallel].
    """
    megatron = job.actor.strategy == "megatron"
    tp = job.actor.tensor_parallel if megatron else 1
    pp = job.actor.pipeline_parallel if megatron else 1
    layers = -(-shape.layers // pp)
    sequence_parallel = job.actor.sequence_parallel
    full = tokens * layer_bytes_per_token(shape, tp, sequence_parallel=sequence_parallel)
    inputs = tokens * _BF16 * shape.hidden / (tp if sequence_parallel else 1)
    stage = layers * inputs + full if recomputes(job) else layers * full
    logits = 0.0 if value_model else 2.0 * _FP32 * tokens * shape.vocab / tp
    if pp > 1 and pp * stage > stage + logits:
        return pp * stage, 0.0
    return stage, logits
