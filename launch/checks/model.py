"""The model folders of a job: complete, understood, and of a shape that the job's sizes fit."""

import re
from collections.abc import Iterator
from pathlib import Path

from launch.checks.lengths import check_lengths, check_model_limit
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
    """The models that are trained. A folder that is not there is reported by check_files."""
    yield from check_lengths(job)
    policy = project / job.model.path
    if policy.is_dir():
        yield from check_folder("model.path", policy)
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
        yield from no_folder("model.path", job.model.path, policy)
    if job.algorithm.estimator == "gae" and job.critic.path is not None:
        yield from _critic(job, job.critic.path, project)


def no_folder(field: str, name: str, path: Path) -> Iterator[Finding]:
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


def check_folder(field: str, folder: Path, *, weights: bool = True) -> Iterator[Finding]:
    """Weights and tokenizer are whole; `weights`: whether they must be there."""
    remedy = f"download the model again, or correct {field}"
    for problem in weight_problems(folder) if weights else ():
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
        yield from no_folder("critic.path", name, folder)
        return
    yield from check_folder("critic.path", folder)
    shape = _shape("critic.path", folder)
    if isinstance(shape, Finding):
        yield shape
    else:
        yield from check_actor_sizes(job, shape, f"critic.path {folder}")
        yield from check_model_limit(job, shape, f"critic.path {folder}")
