"""The image of stack cpu, as an unprivileged user builds it, and a job in it beside a poisoned Python."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import UP_S, render_stub, submitted
from harness import IMAGE, Cluster
from image_builds import build, present_image

from singularity import labels
from singularity.image import read_image
from singularity.inside import COMMANDS, IMPORTS
from singularity.stack import load_stack
from singularity.toolkit import VERSION, content_hash


def _here(cluster: Cluster, path: str) -> Path:
    """A path in /scratch as this machine sees it."""
    return cluster.scratch / Path(path).relative_to("/scratch")


def test_it_was_built_by_a_user_and_tested_itself(cluster: Cluster) -> None:
    image = _here(cluster, IMAGE)
    told = json.loads(image.with_suffix(".json").read_text(encoding="utf-8"))
    assert image.stat().st_uid == int(cluster.on("login", "id", "-u").stdout) != 0
    assert (told["path"], told["size"], told["stack"]) == (IMAGE, image.stat().st_size, "cpu")
    assert re.match(r"Apptainer 1\.\d", told["runtime"])
    # The checksum beside it is what sha256sum reads.
    cluster.on(
        "login", "sh", "-c", 'cd "$(dirname "$0")" && sha256sum --quiet -c "$(basename "$0").sha256"', IMAGE
    )
    assert told["sha256"] == image.with_name(image.name + ".sha256").read_text(encoding="utf-8").split()[0]
    # Its test, which runs before there is an image, imported every part.
    said = image.with_suffix(".log").read_text(encoding="utf-8")
    pins = load_stack("cpu").pins
    parts = [name for name in IMPORTS if name in pins]
    assert len(parts) > 8
    for name in parts:
        assert re.search(rf"^{name} {re.escape(pins[name])}(\+cpu)?$", said, re.MULTILINE), said
    assert f"{len(COMMANDS)} commands answer" in said


def test_labels_tell_what_is_inside(cluster: Cluster) -> None:
    told = read_image(_here(cluster, IMAGE))
    stack = load_stack("cpu")
    assert (told.labels[labels.STACK], told.labels[labels.STACK_CONTENT]) == ("cpu", stack.content)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", told.labels[labels.BUILT])
    assert stack.pins.items() - told.packages.items() == {("torch", stack.pins["torch"])}
    assert told.packages["torch"] == f"{stack.pins['torch']}+cpu"
    # The program says the same, and so does the image's own Python.
    asked = cluster.on("login", "singularity", "inspect", "--json", "--labels", IMAGE)
    assert json.loads(asked.stdout)["data"]["attributes"]["labels"] == told.labels
    inside = cluster.on("login", "singularity", "-q", "exec", IMAGE, "python3", "-m", "singularity.installed")
    assert json.loads(inside.stdout)["packages"] == told.packages


def test_an_image_from_an_image_has_the_present_toolkit(cluster: Cluster) -> None:
    path, done = present_image(cluster)
    told = read_image(_here(cluster, path))
    assert (told.labels[labels.VERSION], told.labels[labels.TOOLKIT]) == (VERSION, content_hash())
    assert told.packages == read_image(_here(cluster, IMAGE)).packages
    # Without a bind, from a folder without it.
    command = ["singularity", "-q", "exec", "--pwd", "/", path, "python3", "-m"]
    help_ = cluster.on("login", *command, "converters.merge", "--help")
    assert help_.stdout.startswith("usage: python -m converters.merge")
    where = "import launch, reward, sys; print(launch.__file__, reward.__file__)"
    found = cluster.on("login", *command[:-1], "-c", where).stdout.split()
    assert [str(Path(file).parent) for file in found] == ["/opt/toolkit/launch", "/opt/toolkit/reward"]
    # No password is kept or shown.
    definition = cluster.on("login", "singularity", "inspect", "--deffile", path).stdout
    for text in (definition, str(told.labels), done.stdout, done.stderr):
        assert "s3cr3t" not in text
    search = "grep -rl s3cr3t /opt/toolkit /.singularity.d /etc /root /mnt 2>/dev/null"
    assert cluster.on("login", "singularity", "-q", "exec", path, "sh", "-c", search, check=False).stdout == ""
    assert "compiling" in done.stderr


def test_an_image_that_is_there_stays(cluster: Cluster) -> None:
    path, _ = present_image(cluster)
    before = _here(cluster, path).stat()
    done = build(cluster, "--from", f"localimage://{IMAGE}", "-o", path)
    assert done.returncode == 1
    assert f"error: -o {path}: it exists; replace it with --force" in done.stderr
    assert _here(cluster, path).stat() == before


@pytest.fixture
def small(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A file system on the login node with the options that the test wants."""
    cluster.on("login", "install", "-d", "-m", "1777", "/opt/small", user="root")
    with cluster.mounted("login", "-t", "tmpfs", "-o", f"mode=1777,{request.param}", "tmpfs", "/opt/small"):
        yield "/opt/small"


def _base(cluster: Cluster) -> str:
    (found,) = (cluster.scratch / "img").glob("base-*")
    return f"localimage:///scratch/img/{found.name}"


def _nothing_left(cluster: Cluster, name: str) -> None:
    left = [path.name for path in (cluster.scratch / "img").iterdir() if path.name.startswith(name)]
    assert left == []


@pytest.mark.parametrize(
    ("small", "words"),
    [
        ("size=64m", "0.1 GB free, about 3 GB needed (3 GB for its unpacked files in /opt/small); choose"),
        ("size=8g,noexec", "/opt/small is on /opt/small, mounted noexec"),
        # Room for the bytes, and for so few files that unpacking the base fails.
        ("size=8g,nr_inodes=3000", "a file system is full, one of: output /scratch/img ("),
    ],
    indirect=["small"],
    ids=["too-small", "noexec", "full-meanwhile"],
)  # fmt: skip
def test_a_place_that_will_not_do(cluster: Cluster, small: str, words: str) -> None:
    done = build(cluster, "--from", _base(cluster), "-o", "/scratch/img/bad.sif", "--tmp-dir", small)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: "), done.stderr
    assert words in last, done.stderr
    assert "--tmp-dir" in last
    _nothing_left(cluster, "bad.sif")
    assert cluster.on("login", "ls", "-A", small).stdout == ""


def test_no_way_to_a_package_index(cluster: Cluster) -> None:
    environment = {"PIP_RETRIES": "1", "PIP_INDEX_URL": "https://10.77.0.99:9/simple", "PIP_TIMEOUT": "2"}
    done = build(cluster, "--from", _base(cluster), "-o", "/scratch/img/bad.sif", environment=environment)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "no way from this machine to localimage:///scratch/img/base-" in last, done.stderr
    assert "--wheels DIR" in last
    _nothing_left(cluster, "bad.sif")


def test_a_build_that_is_ended_leaves_nothing(cluster: Cluster) -> None:
    script = (
        'cd "$0"; "$@" >/dev/null 2>/tmp/ended.log & '
        "until grep -q 'Running post' /tmp/ended.log; do sleep 0.1; done; "
        "kill -TERM $!; wait $!; code=$?; cat /tmp/ended.log >&2; rm /tmp/ended.log; "
        "ps -u alice -o args= | grep -c '[a]pptainer'; exit $code"
    )
    words = ["python3", "-m", "singularity.build", "--stack", "cpu", "--from", _base(cluster)]
    folder = str(Path(__file__).parents[2])
    words = ["sh", "-c", script, folder, *words, "-o", "/scratch/img/ended.sif"]
    done = cluster.on("login", *words, check=False, timeout_s=600)
    assert (done.returncode, done.stdout.strip()) == (128 + 15, "0"), done.stderr
    _nothing_left(cluster, "ended.sif")  # the fixture looks into /tmp


@pytest.fixture
def poisoned(cluster: Cluster) -> Iterator[dict[str, str]]:
    """B01, B02: alice's home and shell as years of pip and conda leave them; each module ends its process."""
    text = "import os, sys; sys.stderr.write('POISON ' + __name__ + chr(10)); sys.stderr.flush(); os._exit(97)\n"
    script = "#!/bin/sh\necho POISON python >&2\nexit 97\n"
    folders = ["/home/alice/.local/lib/python3.11/site-packages", "/scratch/poison/path", "/scratch/poison/home"]
    # Of an import by another interpreter, too: Python 3.13 on the host reads its own folder.
    modules = ["poison", "ray", "torch", "yaml", "launch", "usercustomize"]
    cluster.on("login", "mkdir", "-p", *folders, "/scratch/poison/conda/bin", "/home/alice/.config/pip")
    write = 'for folder in "$@"; do for name in $0; do printf "%s" "$TEXT" >"$folder/$name.py"; done; done'
    cluster.on("login", "env", f"TEXT={text}", "sh", "-c", write, " ".join(modules), *folders)
    for name in ("python", "python3"):
        words = [
            "sh",
            "-c",
            'printf "%s" "$0" >"$1" && chmod +x "$1"',
            script,
            f"/scratch/poison/conda/bin/{name}",
        ]
        cluster.on("login", *words)
    conf = "[global]\\ntarget = /nonexistent\\nindex-url = http://poison.invalid\\n"
    cluster.on("login", "sh", "-c", f'printf "{conf}" >/home/alice/.config/pip/pip.conf')
    yield {
        "PYTHONPATH": "/scratch/poison/path",
        "PYTHONHOME": "/scratch/poison/home",
        "PYTHONUSERBASE": "/home/alice/.local",
        "PYTHONSTARTUP": "/scratch/poison/path/poison.py",
        "VIRTUAL_ENV": "/scratch/poison/conda",
        "CONDA_PREFIX": "/scratch/poison/conda",
        "CONDA_DEFAULT_ENV": "base",
        "LD_LIBRARY_PATH": "/scratch/poison/conda/lib",
        "PATH": "/scratch/poison/conda/bin:/usr/local/bin:/usr/bin:/bin",
    }
    cluster.on("login", "rm", "-rf", "/home/alice/.local", "/home/alice/.config/pip", "/scratch/poison")


def test_the_hosts_python_stays_out_of_a_job(cluster: Cluster, poisoned: dict[str, str]) -> None:
    variables = [f"{name}={value}" for name, value in poisoned.items()]
    # It bites: the host's python is the fake one, and PYTHONPATH reaches a plain container.
    python = cluster.on("login", "env", *variables, "python3", "-c", "1", check=False)
    assert (python.returncode, python.stderr) == (97, "POISON python\n")
    plain = ["env", "PYTHONPATH=/scratch/poison/path", "singularity", "-q", "exec", "--bind", "/scratch", IMAGE]
    assert cluster.on("login", *plain, "python3", "-c", "import ray", check=False).returncode == 97

    script = render_stub(cluster, "poisoned", "", "rehearsal.steps=2", nodes=2)
    words = ["sh", "-c", "cd /scratch/poisoned && exec sbatch --parsable --export=ALL run_grpo.sh"]
    asked = cluster.on("login", "env", *variables, *words)
    run = submitted(script, asked.stdout.strip())
    ended = cluster.wait(run.job_id, UP_S)
    told = run.told()
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), told
    assert "2 Ray nodes" in told
    assert "POISON" not in told


@pytest.mark.parametrize("name", ["usercustomize", "poison"])
def test_a_users_packages_stay_out_of_the_image(cluster: Cluster, poisoned: dict[str, str], name: str) -> None:
    """B01: without the launcher, and for Debian's Python in the image, too; /opt/venv has no user site at all."""
    ask = ["/usr/bin/python3", "-c", f"import {name}"]
    command = ["singularity", "-q", "exec", IMAGE]
    assert cluster.on("login", *command, "env", "-u", "PYTHONNOUSERSITE", *ask, check=False).returncode == 97
    for words in (ask, ["python3", *ask[1:]]):
        done = cluster.on("login", *command, *words, check=False)
        assert done.returncode == 1
        assert f"No module named '{name}'" in done.stderr
