"""What a node is told, the environment of its parts, and its GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import node
from launch.supervisor import devices, settings, verdict
from launch.supervisor.environment import base_environment, device_environments, with_head
from singularity.toolkit import content_hash

LAUNCH = Path(verdict.__file__).resolve().parents[1]


# ---- settings and environment

ARGS = [
    "--run-dir", "/r", "--checkpoint-dir", "/r/c", "--nodes", "3", "--ray-gpus-head", "1", "--ray-gpus-other", "2",
    "--ray-cpus", "9",
]  # fmt: skip


def test_commands_behind_markers():
    options, commands = settings.split_commands(
        ["--x", "::prepare", "a", "::prepare", "b", "--c", "::trainer", "t"]
    )
    assert options == ["--x"]
    assert commands["::prepare"] == [["a"], ["b", "--c"]]
    assert commands["::trainer"] == [["t"]]


@pytest.mark.parametrize(
    "words", [[], ["::trainer"], ["::trainer", "a", "::trainer", "b"], ["::reward", "::trainer", "x"]]
)
def test_wrong_commands_are_usage_errors(words: list[str]):
    with pytest.raises(settings.UsageError):
        settings.split_commands(words)


def test_outside_slurm_one_machine_has_all_slots():
    here = settings.read_settings([*ARGS, "::trainer", "t"], {})
    assert (here.nodes, here.rank, here.ray_gpus, here.gpus_expected, here.address) == (1, 0, 5, 5, "127.0.0.1")
    assert here.job_number == os.getpid()


def node_of(run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The supervisor of this machine, up to what it says before it starts anything."""
    options = ["--run-dir", str(run_dir), "--checkpoint-dir", str(run_dir / "c"), *ARGS[4:]]
    command = [sys.executable, str(LAUNCH / "node.py"), *options, *words, "::trainer", "false"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_another_toolkit_in_the_image_ends_the_job_before_ray(tmp_path: Path):
    """container.toolkit=image, and the image was not there when the job was rendered."""
    done = node_of(tmp_path, "--note", "toolkit=0123456789ab")
    assert done.returncode == 20, done.stderr
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert (told["component"], told["kind"]) == ("setup", "image")
    assert (
        told["cause"] == f"the image has the toolkit {content_hash()}, and the job was rendered with 0123456789ab"
    )
    assert "container.toolkit=bind" in told["what_to_do"]
    assert not list(tmp_path.rglob("*ray*"))


def test_options_of_another_toolkit_are_told_as_such(tmp_path: Path):
    done = node_of(tmp_path, "--of-tomorrow", "--note", "toolkit=0123456789ab")
    assert done.returncode == 2
    assert "rendered with 0123456789ab" in done.stderr
    assert "--of-tomorrow" in done.stderr
    done = node_of(tmp_path, "--of-tomorrow", "--note", f"toolkit={content_hash()}")
    assert "rendered with" not in done.stderr


def test_in_slurm_each_node_has_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "interfaces", lambda: {"eth0": "10.0.0.5", "ib0": "10.1.0.5"})
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURMD_NODENAME": "n3"}
    here = settings.read_settings([*ARGS, "--interface", "eth0", "::trainer", "t"], slurm)
    assert (here.nodes, here.rank, here.ray_gpus, here.node, here.address) == (3, 2, 2, "n3", "")
    found = here.with_address()
    assert (found.interface, found.address) == ("eth0", "10.0.0.5")
    assert here.temp_dir == Path(f"/tmp/rl-{os.getuid()}-77")
    with pytest.raises(settings.UsageError, match="2 tasks but the job was rendered for 3"):
        settings.read_settings([*ARGS, "::trainer", "t"], {**slurm, "SLURM_NTASKS": "2"})


def test_a_reward_node_is_the_last_one_and_not_in_ray():
    slurm = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "3", "SLURMD_NODENAME": "n"}
    words = [*ARGS, "--reward-node", "--reward-gpus", "4", "::reward", "r", "::trainer", "t"]
    nodes = [settings.read_settings(words, {**slurm, "SLURM_PROCID": str(rank)}) for rank in range(3)]
    assert [(node.ray_gpus, node.reward_gpus) for node in nodes] == [(1, 0), (2, 0), (0, 4)]
    assert {(node.reward_rank, node.ray_nodes, node.gpus_expected) for node in nodes} == {(2, 2, 3)}
    alone = settings.read_settings(words, {})  # one machine for all
    assert (alone.reward_rank, alone.ray_nodes, alone.ray_gpus, alone.reward_gpus) == (0, 1, 3, 4)
    with pytest.raises(settings.UsageError, match="2 nodes or more"):
        settings.read_settings([*words[:-4], "--nodes", "1", *words[-4:]], {})


def test_what_needs_slurm_is_off_without_it():
    words = [*ARGS, "--ends-at", "1e9", "--max-restarts", "3", "--note", "slurm=24.11 a=b", "::trainer", "t"]
    here = settings.read_settings(words, {})
    assert (here.ends_at, here.max_restarts, here.notes) == (None, 0, {"slurm": "24.11 a=b"})


def test_rays_folder_leaves_room_for_its_sockets(monkeypatch: pytest.MonkeyPatch):
    """A07: at most 43 bytes."""
    monkeypatch.setattr(os, "getuid", lambda: 4294967294)
    here = settings.read_settings([*ARGS, "::trainer", "t"], {})
    object.__setattr__(here, "job_number", 4294967295)
    assert len(str(here.temp_dir / "ray").encode()) <= 43


def test_environment_is_cleaned():
    """A24: what MPI, PMIx and Lightning read; A22, B02, B11: GPUs of another vendor, the host's Python, XDG."""
    here = settings.read_settings([*ARGS, "::trainer", "t"], {})
    host = {
        "PATH": "/bin", "PYTHONPATH": "/image", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "3",
        "SLURM_LOCALID": "0", "PMIX_RANK": "0", "PMI_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "VIRTUAL_ENV": "/v",
        "CONDA_PREFIX": "/c", "PYTHONHOME": "/h", "CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1",
        "XDG_RUNTIME_DIR": "/run/user/1000", "RAY_ADDRESS": "other:1", "WANDB_API_KEY": "secret",
    }  # fmt: skip
    env = base_environment(here, host)
    assert env["PYTHONPATH"] == f"{LAUNCH.parent}:/image"
    assert {"PATH", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "WANDB_API_KEY"} <= set(env)
    gone = set(host) - set(env)
    assert gone == set(host) - {"PATH", "PYTHONPATH", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "WANDB_API_KEY"}
    assert env["PYTHONNOUSERSITE"] == "1"


def test_proxies_are_bypassed_without_losing_the_users_entries():
    here = settings.read_settings([*ARGS, "::trainer", "t"], {})
    env = with_head({"no_proxy": "example.org,,", "NO_PROXY": "b"}, here, "10.0.0.5", 1, "http://10.0.0.5:2")
    assert env["no_proxy"] == env["NO_PROXY"] == "example.org,b,localhost,127.0.0.1,10.0.0.5"


# ---- GPUs


@pytest.mark.parametrize(
    ("value", "ray", "reward", "split"),
    [
        (None, 2, 1, (["0", "1"], ["2"])),
        ("4,5,6,7", 3, 1, (["4", "5", "6"], ["7"])),
        ("GPU-aaaa, GPU-bbbb", 1, 1, (["GPU-aaaa"], ["GPU-bbbb"])),
        ("MIG-1/2/3", 1, 0, (["MIG-1/2/3"], [])),
        ("0,1,2", 1, 0, (["0"], [])),
        ("NoDevFiles", 0, 0, ([], [])),
        ("", 0, 0, ([], [])),
    ],
)
def test_gpus_are_split(value: str | None, ray: int, reward: int, split: tuple[list[str], list[str]]):
    """A20: indices, uuids, MIG slices, nothing, and Slurm's word for nothing."""
    assert devices.split_devices(value, ray, reward, "n1") == split


@pytest.mark.parametrize("value", ["", "NoDevFiles", "0,1", "GPU-aaaa"])
def test_too_few_gpus_name_node_and_numbers(value: str):
    """A20: one clear line, no traceback."""
    with pytest.raises(devices.DeviceError, match=r"node n1 has \d GPUs .* needs 2 for Ray and 1 for"):
        devices.split_devices(value, 2, 1, "n1")


def test_each_part_sees_its_own_gpus():
    here = settings.read_settings([*ARGS, "--reward-gpus", "1", "::trainer", "t"], {})
    env = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5", "ROCR_VISIBLE_DEVICES": "0", "A": "b"}
    ray, reward = device_environments(base_environment(here, env), here)
    assert (ray["CUDA_VISIBLE_DEVICES"], reward["CUDA_VISIBLE_DEVICES"], ray["A"]) == ("0,1,2,3,4", "5", "b")
    assert "ROCR_VISIBLE_DEVICES" not in ray


def test_a_rehearsal_hides_the_hosts_gpus_from_ray():
    here = settings.read_settings([*ARGS, "--logical-gpus", "::trainer", "t"], {})
    env = base_environment(here, {"CUDA_VISIBLE_DEVICES": "NoDevFiles", "ROCR_VISIBLE_DEVICES": "0"})
    for part in device_environments(env, here):
        assert not [name for name in part if name.endswith("VISIBLE_DEVICES")]


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "SLURM_NTASKS"])
@pytest.mark.parametrize("value", [None, "x", "", "-1"])
def test_wrong_slurm_variables_are_usage_errors(missing: str, value: str | None):
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "3", missing: value}
    environ = {name: text for name, text in slurm.items() if text is not None}
    with pytest.raises(settings.UsageError, match=missing):
        settings.read_settings([*ARGS, "::trainer", "t"], environ)


def test_an_empty_job_id_is_no_slurm():
    assert settings.read_settings([*ARGS, "::trainer", "t"], {"SLURM_JOB_ID": ""}).nodes == 1


def test_another_run_in_a_run_directory_is_another_attempt(tmp_path: Path):
    """Outside Slurm: what the script put aside tells how many there were."""
    words = ["--run-dir", str(tmp_path), *ARGS[2:], "::trainer", "t"]
    assert settings.read_settings(words, {}).attempt == 0
    for name in ("verdict.json", "verdict.0.json", "verdict.2.json", "verdict.x.json"):
        (tmp_path / name).touch()
    assert settings.read_settings(words, {}).attempt == 3


def test_attempts_have_their_own_files():
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "3"}
    words = [*ARGS, "::trainer", "t"]
    first, second = (
        settings.read_settings(words, {**slurm, **more}) for more in ({}, {"SLURM_RESTART_COUNT": "1"})
    )
    for path in ("rendezvous", "reward_log"):
        assert getattr(first, path) != getattr(second, path)
    assert first.log("trainer").parent.name == "logs"
    assert second.log("trainer").parent.name == "logs.1"


def test_the_toolkit_is_not_read_where_nothing_asks_for_its_hash(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node, "content_hash", lambda: pytest.fail("every file of the toolkit would be read"))
    assert node._other_toolkit(None) is None
