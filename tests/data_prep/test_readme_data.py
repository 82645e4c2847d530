"""What the README tells of data: its commands, its formats, its error."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from data_prep import convert
from data_prep.formats.registry import FORMATS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("\n## Data\n") : README.index("\n## Rewards\n")]


def test_the_commands(tmp_path: Path) -> None:
    (block,) = re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL)
    commands = block.splitlines()
    assert len(commands) == 3
    for command in [*commands, commands[0]]:
        done = subprocess.run(
            [sys.executable, *shlex.split(command)[1:]],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stderr
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        "train.parquet",
        "test.parquet",
        "dataset.json",
    }


def test_every_format_is_in_the_table() -> None:
    rows = [line for line in SECTION.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.rsplit(" | ", 1)[-1])}
    assert named == FORMATS.keys()


def test_every_option_it_names_is_one() -> None:
    from data_prep.arguments import parser

    known = parser().format_help()
    options = set(re.findall(r"--[a-z][a-z-]+", SECTION))
    assert options
    assert [option for option in options if option not in known] == []


def test_the_error(tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    good = '{"question": "q", "answer": "#### 1"}\n'
    Path("rows.jsonl").write_text(good * 2 + '{"question": "q", "answer": "about nine"}\n')
    assert convert.main(["rows.jsonl", "--out", "data", "--quiet"]) == 1
    (told,) = re.findall(r"^error: rows\.jsonl.*$", SECTION, re.MULTILINE)
    assert capsys.readouterr().err.strip() == told
    assert not Path("data").exists()
