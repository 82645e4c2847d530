"""The environment file: read as text on every node, given to every part, shown nowhere."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.supervisor.env_file import EnvFileError, read_env_file
from launch.supervisor.environment import base_environment
from launch.supervisor.settings import read_settings

SECRET = "s3cr3t value"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my env"
    path.touch(mode=0o600)
    return path


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "a b",
        "'q'",
        '"q"',
        "it's",
        "a=b=c",
        "x#y",
        "$HOME",
        "`id`",
        "$(id)",
        "",
        " lead",
        "\\n",
        "a;b",
        "é日本",
    ],
)
def test_values_are_text_to_the_end_of_their_line(file: Path, value: str):
    file.write_text(f"# my tokens\n\nA={value}\nB=2", encoding="utf-8")
    assert read_env_file(file) == {"A": value, "B": "2"}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0")))
def test_any_line_comes_back(tmp_path_factory: pytest.TempPathFactory, value: str):
    path = tmp_path_factory.mktemp("env") / "file"
    path.touch(mode=0o600)
    path.write_text(f"A={value}\n", encoding="utf-8", newline="")
    assert read_env_file(path) == {"A": value}


@pytest.mark.parametrize("start", ["export A=", "A = ", "", "=", "1A=", "A-B="])
def test_other_lines_are_refused_by_number_without_their_text(file: Path, start: str):
    file.write_text(f"B=2\n{start}{SECRET}\n")
    with pytest.raises(EnvFileError, match=r"line 2 of .*my env is not NAME=VALUE") as refused:
        read_env_file(file)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o777, 0o610])
def test_others_must_not_read_it(file: Path, mode: int):
    file.write_text(f"A={SECRET}\n")
    file.chmod(mode)
    with pytest.raises(EnvFileError, match=rf"mode 0{mode:o}, which lets others in; run: chmod 600"):
        read_env_file(file)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_private_modes(file: Path, mode: int):
    file.write_text("A=1\n")
    file.chmod(mode)
    assert read_env_file(file) == {"A": "1"}


def test_anothers_file_a_folder_and_a_missing_one_are_refused(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(EnvFileError, match="No such file"):
        read_env_file(tmp_path / "none")
    with pytest.raises(EnvFileError, match="not a regular file"):
        read_env_file(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(EnvFileError, match="not a regular file"):
        read_env_file(tmp_path / "pipe")
    file.write_bytes(b"A=\xff\n")
    with pytest.raises(EnvFileError, match="not UTF-8 text at byte 2"):
        read_env_file(file)
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(EnvFileError, match="belongs to user"):
        read_env_file(file)


def test_every_part_gets_it_and_the_job_keeps_the_last_word(file: Path):
    file.write_text(f"HF_TOKEN={SECRET}\nRUN_DIR=/elsewhere\nPYTHONHOME=/host\n")
    words = [
        "--run-dir", "/r", "--checkpoint-dir", "/r/c", "--nodes", "1", "--ray-gpus-head", "1", "--ray-gpus-other",
        "1", "--ray-cpus", "9", "--env-file", str(file), "::trainer", "t",
    ]  # fmt: skip
    env = base_environment(read_settings(words, {}), {"HF_TOKEN": "old"})
    assert (env["HF_TOKEN"], env["RUN_DIR"]) == (SECRET, "/r")
    assert "PYTHONHOME" not in env
