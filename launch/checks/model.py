"""The model folders of a job: complete, understood, and of a shape that the job's sizes fit."""

import re
from collections.abc import Iterator
from pathlib import Path

from launch.checks.lengths import check_lengths, check_model_limit, check_reward_limit
from launch.checks.model_parallel import check_actor_sizes, check_rollout_sizes
from launch.config import Job
from launch.finding import Finding, error, warning
from launch.model.config_json import Keys, read_json
from launch.model.folder import has_chat_template, only_pickles, tokenizer_problems, weight_problems
from launch.model.shape import ModelShape, ShapeError, UnknownModelError, read_shape

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# First parts of paths that people keep models under; no one owns them on the hub.
_FOLDERS = ("model", "models", "checkpoint", "checkpoints", "ckpt", "ckpts", "data", "outputs", "weights")


def check_model(job: Job, project: Path) -> Iterator[Finding]:
    """Every model of the job. A folder that is not there is reported by check_files."""
    yield from check_lengths(job)
    policy = project / job.model.path
    if policy.is_dir():
        yield from _folder("model.path", policy)
        yield from _prompts(job, policy)
        shape = _shape("model.path", policy)
        if isinstance(shape, Finding):
            yield shape
        else:
            where = f"model.path {policy}"
            yield from check_actor_sizes(job, shape, where)
            yield from check_rollout_sizes(job, shape, where)
            yield from check_model_limit(job, shape, where)
    else:
        yield from _no_folder("model.path", job.model.path, policy)
    if job.algorithm.estimator == "gae" and job.critic.path is not None:
        yield from _critic(job, job.critic.path, project)
    if job.reward.kind == "server":
        yield from _reward(job, project)


def _no_folder(field: str, name: str, path: Path) -> Iterator[Finding]:
    """A name on the hub; any other path that is no folder is reported by check_files."""
    owner, _, model = name.partition("/")
    if _HUB_NAME.fullmatch(name) and owner.lower() not in _FOLDERS and not path.parent.exists():
        yield error(
            "hub-name",
            f"{field}={name} looks like a name on the Hugging Face hub; a job takes a folder, since compute nodes "
            "may have no internet and all would download at once",
            f"hf download {name} --local-dir models/{model}, then set {field}=models/{model}",
        )


def _id(field: str) -> str:
    return "reward-model" if field == "reward.model" else "model"


def _folder(field: str, folder: Path) -> Iterator[Finding]:
    """Weights and tokenizer are whole."""
    remedy = f"download the model again, or correct {field}"
    for problem in weight_problems(folder):
        yield error(f"{_id(field)}-weights", f"{field}: {problem}", remedy)
    for problem in tokenizer_problems(folder):
        yield error(f"{_id(field)}-tokenizer", f"{field}: {problem}", remedy)


def _shape(field: str, folder: Path) -> ModelShape | Finding:
    """The shape in config.json, or what is wrong with it."""
    try:
        return read_shape(folder)
    except UnknownModelError as unknown:
        return warning(
            f"{_id(field)}-unknown",
            f"{field}: {unknown}; its sizes and memory are not checked",
            "compare heads, layers and experts with the parallel sizes yourself",
        )
    except ShapeError as broken:
        return error(f"{_id(field)}-config", f"{field}: {broken}", "download the model again, or correct the file")


def _overridden(job: Job, key: str) -> bool:
    return any(key in text.partition("=")[0] for text in job.overrides)


def _prompts(job: Job, folder: Path) -> Iterator[Finding]:
    """verl writes each prompt by the chat template; a row that fails is dropped as too long (rl_dataset.py)."""
    if not has_chat_template(folder) and not _overridden(job, "custom_chat_template"):
        yield error(
            "chat-template",
            f"model.path: {folder} has no chat template (tokenizer_config.json, chat_template.jinja): verl drops "
            "every prompt that it cannot write",
            "take an instruction-tuned model, or add chat_template.jinja to the folder",
        )
    if job.actor.strategy == "megatron" and only_pickles(folder):
        yield warning(
            "model-weights",
            f"model.path: {folder} has pytorch_model.bin only; the bridge from Hugging Face to Megatron reads "
            "safetensors",
            "save the model with save_pretrained of transformers, which writes safetensors",
        )
    try:
        config = read_json(folder / "config.json")
    except ShapeError:
        return  # reported by _shape
    if isinstance(config.get("quantization_config"), dict):
        method = Keys(folder / "config.json", config["quantization_config"]).text("quant_method") or "some method"
        yield warning(
            "model-quantized",
            f"model.path: {folder} holds weights quantized by {method}, which training does not expect",
            "start from the unquantized model",
        )


def _critic(job: Job, name: str, project: Path) -> Iterator[Finding]:
    folder = project / name
    if not folder.is_dir():
        yield from _no_folder("critic.path", name, folder)
        return
    yield from _folder("critic.path", folder)
    shape = _shape("critic.path", folder)
    if isinstance(shape, Finding):
        yield shape
    else:
        yield from check_actor_sizes(job, shape, f"critic.path {folder}")
        yield from check_model_limit(job, shape, f"critic.path {folder}")


def _reward(job: Job, project: Path) -> Iterator[Finding]:
    """A reward model gives one number (reward/model_dir.py refuses others when the job runs)."""
    folder = project / job.reward.model
    if not folder.is_dir():
        yield from _no_folder("reward.model", job.reward.model, folder)
        return
    yield from _folder("reward.model", folder)
    try:
        config = Keys(folder / "config.json", read_json(folder / "config.json"))
    except ShapeError as broken:
        yield error("reward-model-config", f"reward.model: {broken}", "download the model again")
        return
    yield from _one_label(config)
    if "auto_map" in config.data:
        yield error(
            "reward-model-code",
            f"reward.model: {config.path} has auto_map, code of its own, which the reward server never runs",
            "take a reward model whose architecture is a part of transformers",
        )
    positions = config.data.get("max_position_embeddings")
    if isinstance(positions, int):
        yield from check_reward_limit(job, positions, f"reward.model {folder}")


def _one_label(config: Keys) -> Iterator[Finding]:
    names = config.data.get("architectures")
    names = [str(name) for name in names] if isinstance(names, list) else []
    if not any(name.endswith("ForSequenceClassification") for name in names):
        yield error(
            "reward-model-kind",
            f"reward.model: architectures of {config.path} is {names}; a reward model is a "
            "*ForSequenceClassification with one label",
            "name the folder of a reward model, not of a language model",
        )
        return
    labels = config.section("id2label")
    count = len(labels.data) if labels is not None else config.data.get("num_labels", 2)
    if count != 1:
        yield error(
            "reward-model-kind",
            f"reward.model: {config.path} has {count} labels; a reward model has 1",
            "name the folder of a reward model (num_labels=1)",
        )
