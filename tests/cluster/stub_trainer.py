"""A trainer without an engine: verl's lines on the console, verl's marker and folders of checkpoints, no training.

Runs in the image in the place of verl and reads its overrides: trainer.total_training_steps, trainer.save_freq.
"""

import argparse
import os
import sys
import time
import zipfile
from pathlib import Path


def _saved(folder: Path) -> int:
    """The step that verl's marker names; 0: none."""
    marker = folder / "latest_checkpointed_iteration.txt"
    return int(marker.read_text()) if marker.exists() else 0


def _torch_file(path: Path, size: int) -> None:
    """A file of torch.save is a zip file."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/0", b"0" * size)


def _save(folder: Path, step: int, size: int) -> None:
    """What verl writes with FSDP, in its order: the actor, the data loader, the marker."""
    actor = folder / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True, exist_ok=True)
    _torch_file(actor / "model_world_size_1_rank_0.pt", size)
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    _torch_file(folder / f"global_step_{step}" / "data.pt", 64)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def main() -> int:
    """Returns the exit code that --exit asks for, behind the last step."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--step-s", type=float, default=0.1, help="seconds of a step")
    parser.add_argument("--read", type=Path, help="a file that is read before the first step")
    parser.add_argument("--exit", type=int, default=0, help="exit code at the end")
    parser.add_argument("--stop-at", type=int, help="sleep for ever behind this step, if the first was 1")
    parser.add_argument("--save-bytes", type=int, default=64, help="size of a checkpoint")
    args, others = parser.parse_known_args()
    overrides = dict(word.partition("=")[::2] for word in others)
    steps, every = int(overrides["trainer.total_training_steps"]), int(overrides["trainer.save_freq"])
    checkpoints = Path(os.environ["CHECKPOINT_DIR"])
    first = _saved(checkpoints) + 1
    print(f"stub trainer: steps {first} to {steps}, began {time.time():.3f}", flush=True)
    if args.read:
        print(len(args.read.read_bytes()))
    for step in range(first, steps + 1):
        time.sleep(args.step_s)
        print(f"step:{step} - critic/score/mean:{step / steps:.3f} - timing_s/step:{args.step_s}", flush=True)
        if step % every == 0 or step == steps:
            _save(checkpoints, step, args.save_bytes)
        if step == args.stop_at and first == 1:
            time.sleep(3600)
    return args.exit


if __name__ == "__main__":
    sys.exit(main())
