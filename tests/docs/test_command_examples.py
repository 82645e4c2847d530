"""The examples of docs/commands/ run as they are written, in a project that has what they name."""

import gzip
import re
import shutil
from pathlib import Path

import pytest
from chat_tokenizer import save_tokenizer
from command_parsers import commands
from doc_shell import DOCS, ROOT, run, sections
from model_folders import QWEN3_4B, model_folder
from ready_project import ready_project
from test_docs_commands import STANDS_IN

# They want a checkpoint, a running server, a download or half a minute; other tests give them data of their own.
PARSED_ONLY = {
    "converters.compare", "converters.merge", "launch.rehearsal.overlay", "launch.rehearsal.prepare",
    "reward.canary", "reward.client", "reward.server",
}  # fmt: skip
EXAMPLES = {command: sections(DOCS / "commands" / f"{command}.md") for command in commands()}
PAGER = """
less() { cat >shown; }
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the other pages, and files of the names that stand in the examples."""
    folder = ready_project(tmp_path_factory.mktemp("examples"))
    samples = ROOT / "data_prep" / "samples" / "gsm8k"
    (folder / "gsm8k").symlink_to(samples)
    # The sample has 400 rows.
    ppo = (ROOT / "jobs" / "ppo.yaml").read_text()
    (folder / "job.yaml").write_text(ppo.replace("train_batch_size: 1008", "train_batch_size: 252"))
    (folder / "rows.csv").write_text("ask,truth\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(300)))
    with gzip.open(folder / "math.jsonl.gz", "wt") as file:
        file.writelines(
            f'{{"problem": "Halve {2 * n}.", "solution": "It is \\\\boxed{{{n}}}"}}\n' for n in range(300)
        )
    shutil.copy(folder / "data" / "test.parquet", folder / "chat.parquet")
    save_tokenizer(model_folder(folder / "models" / "Qwen3-4B", QWEN3_4B))
    run_folder = folder / "outputs" / "qwen3-4b-grpo" / "run-1234"
    shutil.move(folder / "outputs" / "my-grpo" / "run-1234", run_folder)
    (run_folder.parent / "checkpoints").mkdir()
    (folder / "verl-cpu.sif").symlink_to("images/verl-cpu.sif")
    log = folder / "outputs" / "my-grpo" / "run-42" / "reward_log"
    log.mkdir(parents=True)
    (log / "n1.jsonl").write_text('{"status": "ok", "score": 1.0}\n')
    return folder


@pytest.mark.parametrize("command", [command for command in EXAMPLES if command not in PARSED_ONLY])
def test_the_examples_of_a_command_run(command: str, project: Path):
    ((_, text),) = EXAMPLES[command].items()
    if command == "data_prep.convert":
        # Each writes another data set: into one folder they are told to be different.
        text = re.sub(r"--out data$", '--out "$(mktemp -d -p .)/data"', text, flags=re.MULTILINE)
    try:
        said = run(text, project, STANDS_IN + PAGER)
    finally:
        # Of launch.init: it would lie under the jobs of launch.render.
        (project / "cluster.yaml").unlink(missing_ok=True)
    assert re.findall(r"^error: .*", said, re.MULTILINE) == []


def test_the_page_names_those_that_are_only_parsed():
    page = (DOCS / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"examples of (.*?) are only parsed", page, re.DOTALL)
    assert set(re.findall(r"`([\w.]+)`", sentence)) == PARSED_ONLY
