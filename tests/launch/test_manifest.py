"""What manifest.json tells of a run, and the hashes that come later."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.supervisor import hash_files, manifest
from launch.supervisor.ports import port_plan
from launch.supervisor.settings import Settings, read_settings
from launch.supervisor.verdict import Failure, write_verdict
from singularity.toolkit import VERSION

SIF = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\x0002\0" + bytes(range(16)) + b"\1" * 5000
TOKEN = "hf_" + "A1b2C3d4E5" * 3


@pytest.fixture
def job(tmp_path: Path) -> Settings:
    """The settings of a head in Slurm with an image, data and a job file."""
    for name, data in (("x.sif", SIF), ("train.parquet", b"PAR1" * 1000), ("test.parquet", b"PAR1")):
        (tmp_path / name).write_bytes(data)
    env = {"HF_TOKEN": "short", "RUN_NAME": f"x {TOKEN}", "NCCL_DEBUG": "INFO"}
    resolved = {"name": "j", "container": {"env": env}, "model": {"tokenizer_path": "/m", "token_budget": "4096"}}
    (tmp_path / "job.json").write_text(json.dumps(resolved))
    (tmp_path / "run").mkdir()
    words = f"""--run-dir {tmp_path}/run --checkpoint-dir {tmp_path}/ckpt --nodes 2 --ray-gpus-head 4
        --ray-gpus-other 4 --ray-cpus 8 --image {tmp_path}/x.sif --data {tmp_path}/train.parquet
        --data {tmp_path}/test.parquet --data {tmp_path}/none --job-file {tmp_path}/job.json --ends-at 1700000000
        --note slurm=24.11 --note runtime=1.4 ::trainer true""".split()
    environ = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURMD_NODENAME": "n1"}
    return read_settings(words, environ)


PORTS = port_plan(77)


def told(job: Settings) -> dict[str, Any]:
    return manifest.read_manifest(job.run_dir)


def test_what_is_known_at_once(job: Settings, tmp_path: Path):
    hello = {"rank": 1, "node": "n2", "address": "10.0.0.2", "ports": {"control": 9}, "token": "t0ken"}
    manifest.write_manifest(job, PORTS, [hello])
    shown = told(job)
    assert (shown["toolkit"], shown["job"], shown["attempt"]) == (VERSION, 77, 0)
    assert [(node["node"], node["address"]) for node in shown["nodes"]] == [
        ("n1", job.address),
        ("n2", "10.0.0.2"),
    ]
    assert shown["nodes"][0]["ports"] == shown["ports"] == PORTS.services
    assert "t0ken" not in json.dumps(shown)
    assert shown["image"]["sif_id"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (shown["image"]["size"], shown["image"]["sha256"]) == (len(SIF), None)
    assert [file.get("size") for file in shown["data"]] == [4000, 4, None]
    assert shown["data"][2]["error"] == "No such file or directory"
    assert shown["notes"] == {"slurm": "24.11", "runtime": "1.4"}
    assert shown["logs"] == str(job.run_dir / "logs")
    assert shown["checkpoint_dir"] == str(tmp_path / "ckpt")
    assert shown["engines"]["ray"]
    assert shown["resolved_job"]["name"] == "j"


def test_no_secret_is_told(job: Settings):
    manifest.write_manifest(job, PORTS)
    resolved = told(job)["resolved_job"]
    assert resolved["container"]["env"] == {
        "HF_TOKEN": "<hidden>",
        "RUN_NAME": "x <a Hugging Face token>",
        "NCCL_DEBUG": "INFO",
    }
    assert resolved["model"] == {"tokenizer_path": "/m", "token_budget": "4096"}


def test_hashes_come_from_a_process_beside_the_job(job: Settings):
    manifest.write_manifest(job, PORTS)
    subprocess.run(manifest.hash_command(job), check=True, env={}, cwd="/")
    # Known to readers at once, and in the file with the next write of the head.
    assert told(job)["image"]["sha256"] == hashlib.sha256(SIF).hexdigest()
    assert told(job)["data"][1]["sha256"] == hashlib.sha256(b"PAR1").hexdigest()
    assert json.loads((job.run_dir / "manifest.json").read_text())["image"]["sha256"] is None
    manifest.write_manifest(job, PORTS)
    assert (
        json.loads((job.run_dir / "manifest.json").read_text())["image"]["sha256"] == told(job)["image"]["sha256"]
    )
    assert "No such file" in told(job)["data"][2].get("hash_error", "") + told(job)["data"][2]["error"]


def test_a_hash_of_what_the_file_was_is_not_its_hash(job: Settings):
    manifest.write_manifest(job, PORTS)
    subprocess.run(manifest.hash_command(job), check=True)
    assert job.image is not None
    job.image.write_bytes(SIF + b"more")
    manifest.write_manifest(job, PORTS)
    assert told(job)["image"]["sha256"] is None


def test_a_hash_that_the_script_made_is_not_made_again(job: Settings):
    job.notes["image_sha256"] = "a" * 64
    assert str(job.image) not in manifest.hash_command(job)
    manifest.write_manifest(job, PORTS)
    assert told(job)["image"]["sha256"] == "a" * 64
    job.notes["image_sha256"] = "no hash"
    assert str(job.image) in manifest.hash_command(job)


def test_an_image_that_its_container_does_not_see(job: Settings):
    assert job.image is not None
    job.image.unlink()
    assert manifest.describe_image(job.image, {})["error"] == "No such file or directory"
    assert manifest.describe_image(job.image, {"image_sha256": "b" * 64})["sha256"] == "b" * 64


def test_outside_slurm_a_run_is_no_job(job: Settings):
    """Its number is a process id there."""
    assert manifest.describe(replace(job, in_slurm=False), PORTS)["job"] is None


def test_no_update_is_lost_when_head_and_hashes_write_at_once(job: Settings):
    """Writers own one file each: whoever reads sees both, whole, at any moment."""
    manifest.write_manifest(job, PORTS)
    files = [str(path) for path in [job.image, *job.data]]
    hashing = threading.Thread(target=lambda: [hash_files.main([str(job.run_dir), *files]) for _ in range(30)])
    hashing.start()
    while hashing.is_alive():
        manifest.write_manifest(job, PORTS)
        assert told(job)["job"] == 77
    assert told(job)["image"]["sha256"] == hashlib.sha256(SIF).hexdigest()
    assert not list(job.run_dir.glob(".*"))


def test_a_file_that_is_written_meanwhile_has_no_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "x"
    file.write_bytes(b"1" * 100)
    monkeypatch.setattr(hash_files.time, "sleep", lambda _: file.write_bytes(b"2" * 101))
    assert hash_files.hash_file(file) == {"error": "changed while it was read"}


def test_reading_is_paced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(hash_files.time, "sleep", slept.append)
    (tmp_path / "x").write_bytes(b"1" * 10_000_000)
    hash_files.hash_file(tmp_path / "x", bytes_per_s=1e6)
    assert max(slept) > 9


@pytest.mark.parametrize("text", ["", "{", "[1]", "\0"])
def test_a_damaged_job_file_or_attempt_is_told(job: Settings, text: str):
    assert job.job_file is not None
    job.job_file.write_text(text)
    (job.run_dir / "verdict.0.json").write_text(text)
    (job.run_dir / "verdict.x.json").write_text(text)
    (job.run_dir / "hashes.json").write_text(text)
    manifest.write_manifest(job, PORTS)
    assert len(told(job)["attempts"]) == 1
    assert told(job)["attempts"][0]["state"] == "unknown"
    assert text == "[1]" or "job.json" in told(job)["resolved_job"]["error"]


def test_attempts_so_far(job: Settings):
    for attempt in (0, 1):
        failure = Failure("node", "n2", "node lost", 24, kind="ray-node-lost")
        write_verdict(job.run_dir, state="requeued", started=0.0, failure=failure, attempt=attempt, training={})
        (job.run_dir / "verdict.json").rename(job.run_dir / f"verdict.{attempt}.json")
    attempts = manifest.earlier_attempts(job.run_dir)
    assert [(one["attempt"], one["state"], one["kind"]) for one in attempts] == [
        (0, "requeued", "ray-node-lost"),
        (1, "requeued", "ray-node-lost"),
    ]


def test_it_needs_no_engine_and_little_time(job: Settings):
    """Nothing of the engine is imported: that takes longer than the rest of the start."""
    code = "import sys, launch.supervisor.manifest as m; m.engine_versions(); print({'torch'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "set()"


def test_other_files_have_no_sif_id(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"SIF")
    assert manifest.sif_id(tmp_path / "x") is None
    assert manifest.sif_id(tmp_path / "none") is None
