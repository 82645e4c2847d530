"""The folder of the reward model: one score, a template where one is asked for, no code unless it is wanted."""

from collections.abc import Iterator
from pathlib import Path

from launch.checks.lengths import check_reward_length
from launch.checks.model import check_folder, no_folder
from launch.config import Job
from launch.finding import Finding, error, warning
from launch.model.config_json import Keys, ShapeError, read_json
from launch.model.folder import has_chat_template

# Their positions start behind the padding token's id (transformers 4.56: create_position_ids_from_input_ids).
_OFFSET_POSITIONS = (
    "camembert", "data2vec-text", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
)  # fmt: skip
# GPT-2 calls them n_positions.
_POSITIONS = ("max_position_embeddings", "n_positions")


def check_reward_model(job: Job, project: Path) -> Iterator[Finding]:
    """A reward model gives one number (reward/model_dir.py refuses others when the job runs)."""
    if job.reward.kind != "server":
        return
    folder = project / job.reward.model
    if not folder.is_dir():
        yield from no_folder("reward.model", job.reward.model, folder)
        yield from check_reward_length(job)
        return
    # The server behind reward.upstream has the weights.
    yield from check_folder("reward.model", folder, weights=job.reward.backend == "transformers")
    try:
        config = Keys(folder / "config.json", read_json(folder / "config.json"))
    except ShapeError as broken:
        yield error("reward-model-config", f"reward.model: {broken}", "download the model again")
        yield from check_reward_length(job)
        return
    yield from _one_label(config)
    yield from _code(job, folder, config)
    if job.reward.input == "chat" and not has_chat_template(folder):
        yield error(
            "reward-model-template",
            f"reward.input=chat, and {folder} has no chat template (tokenizer_config.json, chat_template.jinja)",
            "set reward.input=pair, or add the template that the reward model was trained with",
        )
    yield from check_reward_length(job, *(_limit(folder, config) or ()))


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


def _code(job: Job, folder: Path, config: Keys) -> Iterator[Finding]:
    """Python code beside the model: run only where the job says so, and only what is there."""
    if "auto_map" not in config.data:
        if job.reward.trust_remote_code and "auto_map" not in _tokenizer_config(folder):
            yield warning(
                "ignored-field",
                f"reward.trust_remote_code has no effect: {folder} names no code of its own (auto_map)",
                "remove it",
            )
        return
    if not job.reward.trust_remote_code:
        yield error(
            "reward-model-code",
            f"reward.model: {config.path} has auto_map, code of its own, which the reward server does not run",
            "take a reward model whose architecture is a part of transformers, or read that code and set "
            "reward.trust_remote_code=true",
        )
        return
    named = config.section("auto_map")
    for name in named.data.values() if named is not None else ():
        # [REPOSITORY--]MODULE.CLASS
        module = str(name).rpartition(".")[0]
        file = folder / f"{module.rpartition('--')[2]}.py"
        if "--" in module or not file.is_file():
            yield error(
                "reward-model-code",
                f"reward.model: auto_map of {config.path} names {name}, and nothing is downloaded in a job",
                f"put the code into {file}, and {file.stem}.CLASS into auto_map",
            )


def _tokenizer_config(folder: Path) -> dict[str, object]:
    try:
        return read_json(folder / "tokenizer_config.json")
    except ShapeError:
        return {}  # absent, or reported by check_folder


def _limit(folder: Path, config: Keys) -> tuple[int, str] | None:
    """The lower of the model's and the tokenizer's limit (reward/inputs.py), and whose it is."""
    limits = []
    text = config.section("text_config") or config
    named = (text.data.get(name) for name in _POSITIONS)
    positions = next((number for number in named if isinstance(number, int)), 0)
    if positions > 0:
        padding = config.data.get("pad_token_id")
        first = 0
        if isinstance(padding, int) and config.text("model_type") in _OFFSET_POSITIONS:
            first = padding + 1
        limits.append((positions - first, f"positions of reward.model {folder}"))
    longest = _tokenizer_config(folder).get("model_max_length")
    if isinstance(longest, int) and longest > 0:
        limits.append((longest, f"tokens of model_max_length in {folder / 'tokenizer_config.json'}"))
    return min(limits) if limits else None
