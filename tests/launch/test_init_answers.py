"""launch.init: the questions on a terminal, and the file that is written."""

import os
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
from recorded_sites import init, on_terminal

_DOWN = """\
cpu*|down|infinite|4|idle|64|256000|(null)|(null)
gpu|down|1-00:00:00|2|idle|64|512000|gpu:a100:8|(null)
"""


@pytest.mark.parametrize(
    ("answers", "cluster", "image"),
    [
        ([b"\n"] * 4, {"partition": "gpu", "account": "ml_lab", "modules": ["apptainer/1.2.5"]}, None),
        (
            [b"nope\n", b"gpu-devel\n", b"astro_cpu\n", b"-\n", b"/data/my images/\n"],
            {"partition": "gpu-devel", "account": "astro_cpu", "modules": None},
            "/data/my images/verl-0.9.1.sif",
        ),
        (
            [b"gpu-devel\n", b"\x04"],
            {"partition": "gpu-devel", "account": "astro_cpu", "modules": ["apptainer/1.2.5"]},
            None,
        ),
        ([b"\x04"], {"partition": "gpu", "account": "ml_lab", "modules": ["apptainer/1.2.5"]}, None),
    ],
    ids=["enter", "answers", "end-after-one", "end-of-input"],
)
def test_questions_on_a_terminal(
    answers: list[bytes], cluster: dict[str, Any], image: str | None, tmp_path: Path
) -> None:
    done = on_terminal(tmp_path, "lmod-a100", answers)
    assert done.code == 0, done.err
    assert {name: done.data["cluster"].get(name) for name in cluster} == cluster
    assert (done.data.get("container") or {}).get("image") == image
    if image is not None:
        assert "nope is none of standard, gpu" in done.err
        assert done.data["rehearsal"] == {"image": "/data/my images/verl-cpu.sif"}


def test_a_site_where_every_partition_is_down(tmp_path: Path) -> None:
    (tmp_path / "sinfo.txt").write_text(_DOWN)
    done = on_terminal(tmp_path, tmp_path, [b"nope\n", b"cpu\n", b"\n", b"\n", b"\n"])
    assert done.code == 0, done.err
    assert "nope is none of cpu, gpu" in done.err
    assert done.data["cluster"]["partition"] == "cpu"


@pytest.mark.parametrize("answer", [b"/data/im\xffages\n", b"/data/\x1b[D\n"], ids=["no-utf8", "arrow-key"])
def test_an_answer_that_cannot_be_written_is_asked_again(answer: bytes, tmp_path: Path) -> None:
    done = on_terminal(tmp_path, "lmod-a100", [b"\n", b"\n", b"\n", answer, "/data/Bücher\n".encode()])
    assert done.code == 0, done.err
    assert "an answer is text in UTF-8" in done.err
    assert done.data["container"]["image"] == "/data/Bücher/verl-0.9.1.sif"


@pytest.mark.parametrize(
    ("answers", "folder"),
    [
        ([b"~/img/\n"], "HOME/img"),
        ([b"$HOME/img\n"], "HOME/img"),
        ([b"${NOWHERE}/img\n", b"/data\n"], "/data"),
        ([b"~no.such.user/img\n", b"\x04"], None),
    ],
)
def test_the_folder_of_images_is_written_as_it_is(
    answers: list[bytes], folder: str | None, tmp_path: Path
) -> None:
    done = on_terminal(tmp_path, "lmod-a100", [b"\n"] * 3 + answers)
    assert done.code == 0, done.err
    assert ("write the path itself" in done.err) is (len(answers) > 1)
    image = folder and f"{folder.replace('HOME', str(tmp_path))}/verl-0.9.1.sif"
    assert (done.data.get("container") or {}).get("image") == image


@pytest.mark.parametrize(
    ("module", "runtime", "told"),
    [
        (b"apptainer\n", "apptainer", "the module's program"),
        (b"of/our/own\n", None, "apptainer if it is there, else singularity"),
    ],
)
def test_the_program_of_a_module_that_is_named(
    module: bytes, runtime: str | None, told: str, tmp_path: Path
) -> None:
    done = on_terminal(tmp_path, "lmod-a100", [b"\n", b"\n", module, b"\n"])
    assert done.data["cluster"]["modules"] == [module.decode().strip()]
    assert (done.data.get("container") or {}).get("runtime") == runtime
    assert f"runtime: {runtime or 'auto'}  # {told}\n" in done.text


@pytest.mark.parametrize(
    ("output", "site"),
    [("none", "./none"), ("./none", "./none"), ("my site's.yaml", "my site's.yaml"), ("-x.yaml", "./-x.yaml")],
)
def test_the_next_command_can_be_typed(output: str, site: str, tmp_path: Path) -> None:
    done = init(tmp_path, "debian-24.11", f"--output={output}")
    assert done.code == 0, done.err
    _, _, following = done.err.splitlines()[-1].rpartition("then: ")
    assert shlex.split(following)[-2:] == ["--site", site]
    assert (tmp_path / "work" / site).is_file()


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    first = init(tmp_path, "debian-24.11")
    again = init(tmp_path, "lmod-a100")
    assert (again.code, again.text) == (1, first.text)
    assert again.err.startswith("error: -o cluster.yaml: exists; use --force")
    forced = init(tmp_path, "lmod-a100", "--force")
    assert forced.code == 0
    assert forced.text != first.text


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere.yaml").write_text("")
    (tmp_path / "work" / "cluster.yaml").symlink_to("../elsewhere.yaml")
    assert init(tmp_path, "debian-24.11", "--force").code == 0
    assert (tmp_path / "work" / "cluster.yaml").is_symlink()
    assert "partition: gpu" in (tmp_path / "elsewhere.yaml").read_text(encoding="utf-8")
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["cluster.yaml"]


@pytest.mark.parametrize("options", [(), ("--force",)], ids=["as-it-is", "force"])
@pytest.mark.parametrize("kind", ["fifo", "socket", "link"])
def test_what_is_no_file_is_not_replaced(
    kind: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)  # the name of a socket is short
    place, name = work / "cluster.yaml", "cluster.yaml"
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("cluster.yaml")
    else:
        os.mkfifo(work / "fifo" if kind == "link" else place)
        name = "link" if kind == "link" else name
    if kind == "link":
        (work / name).symlink_to("fifo")
    before = sorted((path.name, path.lstat().st_mode, path.lstat().st_ino) for path in work.iterdir())
    done = init(tmp_path, "debian-24.11", "-o", name, *options)
    assert done.code == 1
    assert done.err == f"error: -o {name}: is no regular file; use another name, or - for standard output\n"
    assert sorted((path.name, path.lstat().st_mode, path.lstat().st_ino) for path in work.iterdir()) == before


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664], ids=oct)
def test_a_file_that_is_overwritten_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    init(tmp_path, "lmod-a100")
    place = tmp_path / "work" / "cluster.yaml"
    place.chmod(mode)
    assert init(tmp_path, "debian-24.11", "--force").code == 0
    assert place.stat().st_mode & 0o7777 == mode
