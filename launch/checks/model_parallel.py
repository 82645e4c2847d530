"""A model's heads, layers and experts against the parallel sizes that a job wants."""

from collections.abc import Iterator

from launch.config import Job
from launch.finding import Finding, error, warning
from launch.model.shape import ModelShape

# Raw overrides that give the pipeline's stages other numbers of layers (megatron.core TransformerConfig).
_UNEVEN_STAGES = ("pipeline_stage", "in_pipeline_split", "pipeline_model_parallel_layout", "virtual_pipeline")
_ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
# Block of the FP8 weight scales, in Transformer Engine, vLLM and SGLang.
_FP8_BLOCK = 128


def _divisors(number: int, most: int = 64) -> str:
    return ", ".join(str(size) for size in range(1, min(number, most) + 1) if number % size == 0)


def _heads(
    shape: ModelShape, size: int, field: str, where: str, widths: tuple[int, ...] = ()
) -> Iterator[Finding]:
    """Query heads split evenly; key heads split evenly or are copied evenly. Other `widths` limit the remedy."""
    remedy = f"set {field} to one of {_tensor_sizes(shape, widths)}"
    if shape.heads % size:
        yield error("model-heads", f"{field}={size} does not divide the {shape.heads} heads of {where}", remedy)
    elif _uneven(shape.kv_heads, size):
        yield error(
            "model-heads",
            f"{field}={size}: the {shape.kv_heads} key-value heads of {where} neither divide by it nor divide it",
            remedy,
        )


def _tensor_sizes(shape: ModelShape, widths: tuple[int, ...]) -> str:
    """Sizes that divide the heads and the widths."""
    fits = [n for n in range(1, shape.heads + 1) if shape.heads % n == 0 and not _uneven(shape.kv_heads, n)]
    return ", ".join(str(n) for n in fits if not any(width % n for width in widths))


def _widths_of(job: Job, shape: ModelShape) -> dict[str, int]:
    """What the actor's tensor parallel size divides beside the heads."""
    widths = {"intermediate_size": shape.ffn if shape.dense_layers else 0}
    widths["width of the shared experts"] = shape.shared_ffn
    # Later versions build the model by Megatron-Bridge, which pads the vocabulary.
    if job.engine.verl == "0.6.1":
        widths["vocabulary, which verl 0.6.1 does not pad,"] = shape.vocab
    return widths


def _uneven(kv_heads: int, size: int) -> bool:
    return bool(kv_heads % size and size % kv_heads)


def check_actor_sizes(job: Job, shape: ModelShape, where: str) -> Iterator[Finding]:
    """Sizes of the training pool, for the actor or the critic; `where` is the model's field and path.

    Lengths need not divide by the context parallel size: verl pads each sequence (models/mcore/util.py).
    Sources: megatron-core 0.16.1 transformer_config.py (heads, layers), parallel_state.py (experts),
    transformer/moe/moe_layer.py (sequence parallel); verl 0.9.1 models/transformers/monkey_patch.py (Ulysses).
    """
    actor = job.actor
    if actor.strategy == "fsdp2":
        yield from _heads(shape, actor.context_parallel, "actor.context_parallel", where)
        return
    widths = tuple(_widths_of(job, shape).values())
    yield from _heads(shape, actor.tensor_parallel, "actor.tensor_parallel", where, widths)
    yield from _layers(job, shape, where)
    yield from _widths(job, shape, where)
    yield from _experts(job, shape, where)
    if actor.fp8 is not None:
        expert_split = actor.expert_tensor_parallel or actor.tensor_parallel
        yield from _fp8_blocks(shape, actor.tensor_parallel, expert_split, "actor.fp8", where)


def _layers(job: Job, shape: ModelShape, where: str) -> Iterator[Finding]:
    stages = job.actor.pipeline_parallel
    given = [text for text in job.overrides if any(word in text for word in _UNEVEN_STAGES)]
    if given:
        yield from _uneven_layers(given, stages, shape.layers, where)
    elif shape.layers % stages:
        yield error(
            "model-layers",
            f"actor.pipeline_parallel={stages} does not divide the {shape.layers} layers of {where}",
            f"set it to one of {_divisors(shape.layers)}, or give the first and last stage other numbers of "
            "layers by overrides of override_transformer_config.num_layers_in_{first,last}_pipeline_stage",
        )


def _uneven_layers(given: list[str], stages: int, layers: int, where: str) -> Iterator[Finding]:
    """Layers of the first and last stage by raw overrides; any other way of uneven stages is left to Megatron.

    Source: megatron-core 0.16.1 transformer_config.py: the stages between share the other layers evenly.
    """
    role = "critic." if where.startswith("critic.") else "actor_rollout_ref.actor."
    ends: dict[str, int] = {}
    for text in given:
        key, _, value = text.partition("=")
        key = key.lstrip("+")
        if not key.startswith(("critic.", "actor_rollout_ref.")):
            return
        if key.startswith(role):
            name = key.rpartition(".")[2]
            if name not in _ENDS or not value.strip().isdecimal():
                return
            ends[name] = int(value)
    if not ends or _fills(layers - sum(ends.values()), stages - len(ends)):
        return
    numbers = range(1, min(layers, 256))
    pairs = ((one, two) for one in numbers for two in (numbers if len(ends) == 2 else (0,)))
    wanted = tuple(ends.values())
    fitting = [pair for pair in pairs if _fills(layers - sum(pair), stages - len(ends))]
    nearest = min(
        fitting, key=lambda pair: sum((a - b) ** 2 for a, b in zip(pair, wanted, strict=False)), default=()
    )
    named = " and ".join(f"{name}={value}" for name, value in zip(ends, nearest, strict=False))
    yield error(
        "model-layers",
        f"{', '.join(f'{name}={value}' for name, value in ends.items())}: {layers - sum(wanted)} of the {layers} "
        f"layers of {where} are left for {stages - len(ends)} of actor.pipeline_parallel={stages} stages",
        f"set {named}" if named else f"lower actor.pipeline_parallel to one of {_divisors(layers)}",
    )


def _fills(layers: int, stages: int) -> bool:
    return layers == stages == 0 or (layers > 0 and stages > 0 and layers % stages == 0)


def _widths(job: Job, shape: ModelShape, where: str) -> Iterator[Finding]:
    size, widths = job.actor.tensor_parallel, _widths_of(job, shape)
    fitting = _tensor_sizes(shape, tuple(widths.values()))
    for name, width in widths.items():
        if width % size:
            yield error(
                "model-width",
                f"actor.tensor_parallel={size} does not divide the {name} {width} of {where}",
                f"set it to one of {fitting}",
            )


def _experts(job: Job, shape: ModelShape, where: str) -> Iterator[Finding]:
    actor = job.actor
    ep, etp = actor.expert_parallel, actor.expert_tensor_parallel or actor.tensor_parallel
    if not shape.moe_layers:
        if ep > 1 or (actor.expert_tensor_parallel or 1) > 1:
            yield error(
                "model-experts",
                f"actor.expert_parallel={ep}, expert_tensor_parallel={actor.expert_tensor_parallel}: {where} is a "
                "dense model without experts",
                "set actor.expert_parallel=1 and actor.expert_tensor_parallel=null",
            )
        return
    if shape.experts % ep:
        yield error(
            "model-experts",
            f"actor.expert_parallel={ep} does not divide the {shape.experts} experts of {where}",
            f"set it to one of {_divisors(shape.experts)}",
        )
    if shape.moe_ffn % etp:
        yield error(
            "model-experts",
            f"the experts of {where} are {shape.moe_ffn} wide, which actor.expert_tensor_parallel={etp} does not "
            "divide",
            f"set it to one of {_divisors(shape.moe_ffn)}",
        )
    if actor.tensor_parallel > 1 and not actor.sequence_parallel and job.engine.verl != "0.6.1":
        yield error(
            "model-experts",
            f"actor.tensor_parallel={actor.tensor_parallel} without sequence_parallel: Megatron trains no model "
            f"with experts so ({where})",
            "set actor.sequence_parallel=true",
        )


def check_rollout_sizes(job: Job, shape: ModelShape, where: str) -> Iterator[Finding]:
    """Sizes of a generation engine: vLLM and SGLang split heads, key-value heads and experts alike."""
    size = job.rollout.tensor_parallel
    yield from _heads(shape, size, "rollout.tensor_parallel", where)
    if shape.moe_layers and shape.moe_ffn % size:
        yield error(
            "model-experts",
            f"the experts of {where} are {shape.moe_ffn} wide, which rollout.tensor_parallel={size} does not "
            "divide",
            f"set it to one of {_divisors(shape.moe_ffn)}",
        )
    if job.rollout.fp8:
        yield from _fp8_blocks(shape, size, size, "rollout.fp8", where)


def _fp8_blocks(shape: ModelShape, split: int, expert_split: int, field: str, where: str) -> Iterator[Finding]:
    """Weights are scaled in blocks of 128*128; a part of a weight that is no whole number of blocks is refused by
    some kernels and padded by others."""
    parts = {"hidden_size": float(shape.hidden)}
    if shape.dense_layers:
        parts[f"intermediate_size/{split}"] = shape.ffn / split
    if shape.moe_layers:
        parts[f"moe_intermediate_size/{expert_split}"] = shape.moe_ffn / expert_split
    if shape.mla is None:
        parts[f"query size/{split}"] = shape.heads * shape.head_dim / split
    uneven = [f"{name} = {value:g}" for name, value in parts.items() if value % _FP8_BLOCK]
    if uneven:
        yield warning(
            "fp8-shape",
            f"{field}: of {where} {', '.join(uneven)} is not a multiple of the FP8 block of {_FP8_BLOCK}",
            "lower the tensor parallel size, or switch FP8 off for this model",
        )
