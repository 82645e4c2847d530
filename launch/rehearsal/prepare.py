# PYTHON_ARGCOMPLETE_OK
"""Make the models of a rehearsal, without any download.

python -m launch.rehearsal.prepare --out DIR --verl 0.9.1 --actor megatron --rollout hf
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launch.rehearsal.overrides import ACTORS, ROLLOUTS, VERSIONS, cpu_environment
from launch.rehearsal.tiny_policy import FAMILIES
from singularity.command_line import CommandParser, fail, named, run, told

_RECORD = "rehearsal.json"
_NOTES = """\
  DIR/policy        tiny causal LM (bfloat16) and its tokenizer
  DIR/reward_model  tiny AutoModelForSequenceClassification (num_labels 1) and
                    the same tokenizer
  DIR/policy_mcore  the policy as a Megatron torch_dist checkpoint, with
                    --actor megatron

Each folder appears complete or not at all; what is there already is kept.
"""
# The tokenizer learns from it too, so that a question takes half the tokens (see training_text).
SAMPLE = Path(__file__).resolve().parents[2] / "data_prep" / "samples" / "gsm8k" / "train.jsonl"


class PrepareError(RuntimeError):
    """A folder is in the way, or a step failed."""


def _made_already(folder: Path, recipe: dict[str, object]) -> bool:
    """Whether `folder` was made by this very recipe.

    Raises:
        PrepareError: It holds something else.
    """
    if not folder.exists():
        return False
    record = folder / _RECORD
    found = json.loads(record.read_text()) if record.is_file() else None
    if found == recipe:
        return True
    raise PrepareError(
        f"{folder} exists and was made by another recipe ({found}, wanted {recipe}): "
        "remove it, or choose another --out"
    )


def _make(folder: Path, recipe: dict[str, object], build: Callable[[Path], str]) -> None:
    """Build into a folder beside the target, then rename it into place; print one line."""
    if _made_already(folder, recipe):
        print(f"{folder}: there already")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        part = Path(scratch) / "part"
        what = build(part)
        (part / _RECORD).write_text(json.dumps(recipe, sort_keys=True) + "\n")
        try:
            part.rename(folder)
        except OSError:
            if not _made_already(folder, recipe):  # else another run was faster
                raise
    print(f"{folder}: {what}")


def _build_mcore(policy: Path, target: Path, verl: str, rollout: str) -> str:
    """Convert in a process of its own: the CPU backend changes torch for good.

    Raises:
        PrepareError: The conversion failed; its output is in the message.
    """
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | cpu_environment(verl, "megatron", rollout)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "launch.rehearsal.mcore_weights", str(policy), str(target)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PrepareError(
            f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return f"Megatron torch_dist checkpoint of {policy}"


def _tokenizer(corpus: Sequence[Path]) -> Any:
    from transformers.utils import logging as transformers_logging

    from launch.rehearsal.tokenizer import build_tokenizer

    transformers_logging.disable_progress_bar()
    return build_tokenizer(corpus)


def prepare(
    out: Path, *, verl: str, actor: str, rollout: str, family: str = "qwen3", corpus: Sequence[Path] = (SAMPLE,)
) -> None:
    """Make the folders that a run of this kind needs (see the module's text).

    Args:
        out: Parent folder.
        verl: The engine's version, in whose environment this runs.
        actor: "megatron" adds policy_mcore.
        rollout: "hf" or "vllm"; the models are the same.
        family: Architecture of the policy.
        corpus: JSONL files whose strings the tokenizer learns too; by default the shipped GSM8K sample.

    Raises:
        PrepareError: A folder of another recipe is in the way, or the conversion failed.
        ValueError: An argument is unknown.
    """
    cpu_environment(verl, actor, rollout)  # refuses what has no backend
    out = out.resolve()
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in corpus)).hexdigest()
    recipe: dict[str, object] = {"family": family, "corpus_sha256": digest, "format": 1}

    # transformers takes seconds to import: only where something is to be made.
    def make_policy(part: Path) -> str:
        from launch.rehearsal.tiny_policy import build_policy

        parameters = build_policy(family, _tokenizer(corpus), part)
        return f"{family}, {parameters:,} parameters"

    def make_reward_model(part: Path) -> str:
        from launch.rehearsal.tiny_reward_model import build_reward_model

        digits = build_reward_model(_tokenizer(corpus), part)
        return f"score rises with the share of the {digits} digit tokens"

    _make(out / "policy", recipe, make_policy)
    _make(out / "reward_model", {**recipe, "family": "qwen3"}, make_reward_model)
    if actor == "megatron":
        _make(
            out / "policy_mcore",
            # verl 0.8.0 and 0.9.1 on the same packages share it.
            {**recipe, "megatron_core": version("megatron-core")},
            lambda part: _build_mcore(out / "policy", part, verl, rollout),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 made, 1 failed, 2 usage."""
    parser = CommandParser(
        "launch.rehearsal.prepare",
        "Make the models of a rehearsal, without any download.",
        notes=_NOTES,
        examples=["python -m launch.rehearsal.prepare --out models --verl 0.9.1 --actor megatron"],
        exit_codes={0: "made, or there already", 1: "not made", 2: "usage"},
    )
    parser.add_argument("--out", type=named, required=True, metavar="DIR", help="folder to make them in")
    parser.add_argument("--verl", choices=VERSIONS, required=True, help="version of verl that is installed here")
    parser.add_argument("--actor", choices=ACTORS, required=True, help="actor.strategy of the job")
    parser.add_argument("--rollout", choices=ROLLOUTS, default="hf", help="what generates [%(default)s]")
    parser.add_argument(
        "--family", choices=FAMILIES, default="qwen3", help="architecture of the policy [%(default)s]"
    )
    parser.add_argument(
        "--corpus",
        type=named,
        nargs="+",
        default=[SAMPLE],
        metavar="FILE",
        help="JSONL texts for the tokenizer [the GSM8K sample]",
    )
    arguments = parser.parse_args(argv)
    try:
        prepare(
            arguments.out,
            verl=arguments.verl,
            actor=arguments.actor,
            rollout=arguments.rollout,
            family=arguments.family,
            corpus=arguments.corpus,
        )
    except (PrepareError, OSError, ValueError) as error:
        return fail(told(error))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
