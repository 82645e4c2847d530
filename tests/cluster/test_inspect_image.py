"""What is read of an image beside what the real Apptainer says of it."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import CHECKOUT, IMAGE, Cluster

from singularity.image import read_image
from singularity.sif import ImageDamaged, read_sif

_BUILD = r"""
set -e
mkdir -p root/bin keys
printf '#!/bin/sh\n' >root/bin/sh
chmod 755 root/bin/sh
head -c 3000000 /dev/urandom >root/data
cat >x.def <<'END'
Bootstrap: localimage
From: root

%labels
    launcher.stack cpu
    launcher.package.torch 2.8.0+cpu
    said "quoted" $HOME \ and ünïcode
END
apptainer -q build x.sif x.def
cp x.sif signed.sif
export APPTAINER_KEYSDIR=$PWD/keys
apptainer -q key newpair --name t --email t@example.org --comment t --password "" --push=false --bit-length 2048
apptainer -q sign signed.sif
"""


@pytest.fixture
def folder(cluster: Cluster) -> Iterator[Path]:
    made = cluster.scratch / "inspect-image"
    shutil.rmtree(made, ignore_errors=True)
    cluster.on("login", "mkdir", "/scratch/inspect-image")
    yield made
    shutil.rmtree(made)


def _in_folder(cluster: Cluster, script: str) -> str:
    words = ["sh", "-c", f"cd /scratch/inspect-image && {script}"]
    return cluster.on("login", *words, timeout_s=600).stdout


def test_a_sif_is_read_as_apptainer_reads_it(cluster: Cluster, folder: Path) -> None:
    _in_folder(cluster, _BUILD)
    found = read_image(folder / "x.sif")
    said = json.loads(_in_folder(cluster, "apptainer inspect --json --labels --deffile x.sif"))["data"][
        "attributes"
    ]
    assert found.labels == said["labels"]
    assert found.sif is not None
    assert found.sif.definition == said["deffile"]
    assert found.packages == {"torch": "2.8.0+cpu"}
    header = _in_folder(cluster, "apptainer sif header x.sif")
    assert found.sif.uuid in header
    assert re.search(rf"Primary Architecture: +{found.sif.architecture}\n", header)
    signed = read_sif(folder / "signed.sif")
    key = re.search(r"Entity: +([0-9A-F]{40})", _in_folder(cluster, "apptainer sif info 4 signed.sif"))
    assert key is not None
    assert signed.signatures == (key[1].lower(),)
    assert signed.labels == found.labels

    for damage in ("cut", "zeros", "hole"):
        content = bytearray((folder / "x.sif").read_bytes())
        if damage == "cut":
            del content[-1:]
        elif damage == "zeros":
            content[-1_000_000:] = bytes(1_000_000)
        else:
            content[1_000_000:1_600_000] = bytes(600_000)
        (folder / "damaged.sif").write_bytes(content)
        with pytest.raises(ImageDamaged, match=r"truncated|zero-filled"):
            read_image(folder / "damaged.sif")


def test_the_image_is_asked_apart_from_the_machine(cluster: Cluster, folder: Path) -> None:
    """Neither ~/.local nor a PYTHONPATH for containers changes the answer; no process stays when time is up."""
    poison = "poison-1.0.dist-info"
    home = cluster.home / ".local" / "lib" / "python3.11" / "site-packages" / poison
    existed = (cluster.home / ".local").exists()
    for place in (home, folder / poison):
        place.mkdir(parents=True)
        (place / "METADATA").write_text("Name: poison\nVersion: 1.0\n", encoding="utf-8")
    script = (
        "import json, shutil, sys\n"
        "from pathlib import Path\n"
        "from singularity.probe import ProbeError, ask\n"
        f"image, program = Path({IMAGE!r}), shutil.which('apptainer')\n"
        "inside = ask(image, program, 180)\n"
        "try:\n"
        "    ask(image, program, 0.2)\n"
        "except ProbeError as late:\n"
        "    print(json.dumps([inside.python, inside.packages, str(late)]))\n"
    )
    try:
        done = cluster.on(
            "n1",
            *("env", f"PYTHONPATH={CHECKOUT}", "PYTHONDONTWRITEBYTECODE=1"),
            *("APPTAINERENV_PYTHONPATH=/scratch/inspect-image", "APPTAINER_BIND=/scratch,/home"),
            *("python3", "-c", script),
            timeout_s=600,
        )
    finally:
        shutil.rmtree(home if existed else cluster.home / ".local")
    python, packages, late = json.loads(done.stdout)
    assert python.startswith("3.11.")
    assert {"torch", "ray", "verl"} <= set(packages)
    assert "poison" not in packages
    assert late.startswith("no answer within 0.2 s")


def test_a_sandbox_tells_what_its_python_tells(cluster: Cluster, folder: Path) -> None:
    script = r"""
    set -e
    mkdir -p box/opt/venv box/usr/bin box/bin
    apptainer -q exec --bind "$PWD:/mnt" %s sh -c 'cd /opt/venv && cp -a bin /mnt/box/opt/venv &&
      find lib -maxdepth 4 -name "*-info" -prune -exec cp -a --parents {} /mnt/box/opt/venv \; &&
      cp -a --parents /usr/bin/python3 /bin/sh /.singularity.d /mnt/box'
    rm box/.singularity.d/labels.json
    apptainer -q exec --cleanenv --contain %s python3 -s - <%s/singularity/installed.py
    """
    said = json.loads(_in_folder(cluster, script % (IMAGE, IMAGE, CHECKOUT)))
    found = read_image(folder / "box")
    assert found.kind == "sandbox"
    assert found.packages == said["packages"]
