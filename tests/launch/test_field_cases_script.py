"""Faults that people met with scripts of this kind, each by its number, where no other test file has it.

A01, A07, A08, A23, A30, A33, B08: test_node_limits.py. A04, A05, A10: test_node_basics.py. A20, A24:
test_node_settings.py. A17, A18, A25, B01, B02, B05, B13, B15, B16: test_script.py.
A27: test_batch_part.py. A29, A32, A34: test_slurm_rules.py. B03, C01: test_quoting.py. B09: test_image_rules.py.
C10, C29: test_file_rules.py. C31: test_secrets.py.

A19, C05 and C07 are numbers without a case.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from launch.status import summarize
from launch.supervisor import node_part, watch, worker
from launch.supervisor.control import Hub, Link
from launch.supervisor.devices import DeviceError, one_variable, split_devices, visible_variable
from launch.supervisor.environment import base_environment, device_environments, with_head
from launch.supervisor.parts import Parts
from launch.supervisor.ports import port_plan
from launch.supervisor.ray_cluster import head_command, worker_arguments
from launch.supervisor.ray_head import RayHead
from launch.supervisor.settings import Settings, read_settings
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, note_failure, write_verdict
from launch.supervisor.watch import Watch
from launch.supervisor.worker import run_worker

pytestmark = pytest.mark.usefixtures("ends_its_own_only")

ARGS = [
    "--run-dir",
    "/r",
    "--checkpoint-dir",
    "/r/c",
    "--ray-gpus-head",
    "1",
    "--ray-gpus-other",
    "1",
    "--ray-cpus",
    "9",
]
LAUNCH = Path(worker.__file__).resolve().parents[1]
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.sh"))


def node(rank: int, address: str = "10.0.0.5", nodes: int = 3) -> Settings:
    slurm = {
        "SLURM_JOB_ID": "77",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(nodes),
        "SLURMD_NODENAME": f"n{rank}",
    }
    found = read_settings([*ARGS, "--nodes", str(nodes), "::trainer", "t"], slurm)
    object.__setattr__(found, "address", address)
    object.__setattr__(found, "interface", "ib0")
    return found


def value(command: list[str], option: str) -> str:
    (found,) = (word.partition("=")[2] for word in command if word.startswith(f"{option}="))
    return found


def test_a02_the_driver_has_the_address_of_the_jobs_ray():
    """A02: without it a driver starts a Ray of its own, with the GPUs of one node."""
    settings, ports = node(0), port_plan(77)
    env = with_head(
        base_environment(settings, {"RAY_ADDRESS": "other:1"}), settings, settings.address, ports.gcs, "http://r"
    )
    command = head_command(settings, ports)
    assert env["RAY_ADDRESS"] == f"{value(command, '--node-ip-address')}:{value(command, '--port')}"


def test_a03_ray_gets_the_jobs_cpus_and_verl_is_not_asked():
    """A03: a number for `ray start`; ray_init.num_cpus beside an existing Ray is an error of Ray."""
    for command in (head_command(node(0), port_plan(77)), worker_arguments(node(1), port_plan(77), "h:1")):
        assert value(command, "--num-cpus") == "9"
    for file in RECORDED:
        assert "ray_init.num_cpus" not in file.read_text()
        assert "--ray-cpus " in file.read_text()


@pytest.mark.parametrize(("cpus", "few"), [("1", True), ("23", True), ("24", False)])
def test_a29_too_few_cpus_at_run_time_are_named(tmp_path: Path, cpus: str, few: bool):
    """A29: where the job does not say, a site's default may be one CPU; verl would wait for ever."""
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURMD_NODENAME": "n1"}
    words = ["--run-dir", str(tmp_path), "--checkpoint-dir", "/r/c", "--nodes", "3", "--ray-gpus-head", "1"]
    words += ["--ray-gpus-other", "1", "--ray-cpus", cpus, "--min-cpus", "24", "--interface", "no-such"]
    command = [sys.executable, str(LAUNCH / "node.py"), *words, "::trainer", "t"]
    done = subprocess.run(command, env={**os.environ, **slurm}, capture_output=True, text=True, check=False)
    assert done.returncode == 20
    assert (f"gives this job {cpus} CPUs" in done.stderr) is few
    assert ("no interface 'no-such'" in done.stderr) is not few


def test_the_reward_servers_own_node_needs_no_cpus_for_ray(tmp_path: Path):
    """It is the last one, and not in Ray."""
    for rank, few in ((1, True), (2, False)):
        slurm = {
            "SLURM_JOB_ID": "77", "SLURM_PROCID": str(rank), "SLURM_NTASKS": "3", "SLURMD_NODENAME": "n",
        }  # fmt: skip
        words = ["--run-dir", str(tmp_path), "--checkpoint-dir", "/r/c", "--nodes", "3", "--ray-gpus-head", "1"]
        words += ["--ray-gpus-other", "1", "--ray-cpus", "2", "--min-cpus", "24", "--interface", "no-such"]
        command = [sys.executable, str(LAUNCH / "node.py"), *words, "--reward-node", "::trainer", "t"]
        done = subprocess.run(command, env={**os.environ, **slurm}, capture_output=True, text=True, check=False)
        assert ("gives this job 2 CPUs" in done.stderr) is few


def test_a04_every_port_of_ray_is_said():
    """A04: nothing that Ray would choose by itself is left to it."""
    options = (
        "node-manager-port", "object-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port",
        "metrics-export-port", "runtime-env-agent-port", "min-worker-port", "max-worker-port",
    )  # fmt: skip
    head, other = (head_command(node(0), port_plan(77)), worker_arguments(node(1), port_plan(77), "h:1"))
    for command in (head, other):
        numbers = [value(command, f"--{option}") for option in options]
        assert len(set(numbers)) == len(numbers)
    assert int(value(head, "--ray-client-server-port")) in port_plan(77).services.values()


def test_a10_one_address_on_every_node_and_one_interface():
    """A10: the head and each worker say the address that the others know."""
    assert value(head_command(node(0), port_plan(77)), "--node-ip-address") == "10.0.0.5"
    assert value(worker_arguments(node(1, "10.0.0.6"), port_plan(77), "h:1"), "--node-ip-address") == "10.0.0.6"


def test_a14_a36_ray_start_in_the_foreground():
    """A14: no symmetric-run, whose workers time out; A36: --block, so that the step has a foreground process."""
    for command in (head_command(node(0), port_plan(77)), worker_arguments(node(1), port_plan(77), "h:1")):
        assert "start" in command
        assert "--block" in command
        assert "symmetric-run" not in command


NVIDIA = {"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize("given", [NVIDIA, {**NVIDIA, "ROCR_VISIBLE_DEVICES": "7"}])
def test_a22_on_nvidia_only_cudas_variable_is_left(given: dict[str, str]):
    """A22: verl refuses ROCR_VISIBLE_DEVICES beside CUDA's; Slurm sets both."""
    settings = node(0)
    env = base_environment(settings, given)
    for part in (env, *device_environments(env, settings)):
        assert {name for name in part if name.endswith("VISIBLE_DEVICES")} == {"CUDA_VISIBLE_DEVICES"}


def test_a22_without_cudas_one_of_two_equal_ones_is_left():
    amd = {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4,5", "A": "b"}
    assert one_variable(amd) == {"HIP_VISIBLE_DEVICES": "4,5", "A": "b"}
    assert split_devices(visible_variable(one_variable(amd)), 1, 1, "n1") == (["4"], ["5"])


def test_a22_two_that_differ_are_an_error():
    with pytest.raises(DeviceError, match="they name different GPUs"):
        one_variable({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"})


@pytest.mark.parametrize("text", ["", "NoDevFiles", "0,1", "4,5,6,7", "GPU-aaaa,GPU-bbbb", "MIG-1/2/3"])
def test_a20_any_list_of_gpus_is_counted_or_named(text: str):
    """A20: never a traceback of int()."""
    try:
        ray, _ = split_devices(text, 2, 0, "n1")
    except DeviceError as error:
        assert "node n1 has" in str(error)  # noqa: PT017 - either outcome is right, by the text
    else:
        assert len(ray) == 2


@pytest.mark.parametrize(
    "name",
    ["SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "PMI_RANK", "PMIX_ID", "PMI2_X", "OMPI_COMM_WORLD_RANK"],
)
def test_a24_no_part_takes_itself_for_an_mpi_rank(name: str):
    """A24: gone for Ray and the trainer, after the supervisor has read them; the job's id stays."""
    env = base_environment(node(0), {name: "0", "SLURM_JOB_ID": "77"})
    assert name not in env
    assert env["SLURM_JOB_ID"] == "77"


def test_a34_gloo_gets_one_literal_name():
    """A34: NCCL's own variable says "exactly this one"."""
    env = base_environment(node(0), {"GLOO_SOCKET_IFNAME": "^lo,docker"})
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("ib0", "=ib0")


def test_a34_nccl_may_have_a_list_of_its_own():
    env = base_environment(node(0), {"NCCL_SOCKET_IFNAME": "ib0,ib1"})
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib0,ib1")


def test_b11_no_runtime_folder_of_a_login_session():
    """B11: /run/user/UID is not there on a compute node."""
    assert "XDG_RUNTIME_DIR" not in base_environment(node(0), {"XDG_RUNTIME_DIR": "/run/user/1000"})


def test_c14_the_reward_servers_address_is_the_heads():
    """C14: not 127.0.0.1, which is another machine on another node."""
    settings = node(1, "10.0.0.6")
    env = with_head(base_environment(settings, {}), settings, "10.0.0.5", 1, "http://10.0.0.5:22801")
    assert env["REWARD_SERVER_URL"] == "http://10.0.0.5:22801"


# ---- A23 across the nodes: the head tells everybody's address, and Ray starts on a node after that


class Part:
    """Stands for the Ray worker of a node, which has imported Ray and waits for its arguments."""

    name = "ray worker"

    def __init__(self, *_: object, **__: object) -> None:
        self.told: list[dict] = []

    def poll(self) -> None:
        return None

    def tell(self, line: str) -> None:
        self.told.append(json.loads(line))


def test_a23_a_node_starts_ray_when_it_knows_all_addresses(monkeypatch: pytest.MonkeyPatch):
    part = Part()
    monkeypatch.setattr(node_part, "Component", lambda *_, **__: part)
    monkeypatch.setattr(node_part, "make_caches", lambda _: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    waiting = node_part.NodePart(node(1), "10.0.0.5", port_plan(77), lambda: None)
    waiting.turn([])
    assert waiting.failure() is None
    assert part.told == []
    everybody = ["10.0.0.5", "10.0.0.6", "10.0.0.7"]
    for _ in range(2):
        waiting.turn([{"type": "nodes", "addresses": everybody, "gcs_port": 9, "reward_url": "http://r"}])
    (told,) = part.told
    assert "--address=10.0.0.5:9" in told["arguments"]
    for name in ("no_proxy", "NO_PROXY"):
        assert set(everybody) <= set(told["env"][name].split(","))
    assert waiting.failure() is None


RAY = {"gcs_port": port_plan(77).gcs, "reward_url": "http://r"}
Told = list[dict[str, object]]


def told_when(tmp_path: Path, *, joined: int, ray_is_up: bool) -> list[Told]:
    """What each of `joined` of the two other nodes is told, before or after Ray is up on the head."""
    settings = node(0)
    object.__setattr__(settings, "run_dir", tmp_path)
    token = "t" * 64
    hub = Hub("127.0.0.1", 0, token)
    port = hub._listener.getsockname()[1]
    ray = RayHead(settings, port_plan(77), Parts(settings))
    ray.env = {"REWARD_SERVER_URL": "http://r"}
    head = Watch(settings, hub, Parts(settings), ray, lambda: None)
    links = []
    for rank in range(1, joined + 1):
        hello = {"rank": rank, "node": f"n{rank}", "address": f"10.0.0.{5 + rank}", "token": token}
        links.append(Link("127.0.0.1", port, hello, 60.0, lambda: None))
        until = time.monotonic() + 60
        while len(hub.nodes) < rank and time.monotonic() < until:
            head.turn()
    ray.up = ray_is_up
    for _ in range(2):
        head.turn()
    hub.tell({"type": "last"})
    told = [until_the_last(link) for link in links]
    for link in links:
        link.close()
    hub.close()
    return told


def until_the_last(link: Link) -> Told:
    messages: Told = []
    while not messages or messages[-1]["type"] != "last":  # the link itself gives up a silent head
        messages += link.poll(0.1)
    return messages[:-1]


def test_a23_the_head_tells_all_addresses_once_all_are_there_and_ray_is_up(tmp_path: Path):
    everybody = {"type": "nodes", "addresses": ["10.0.0.5", "10.0.0.6", "10.0.0.7"], **RAY}
    assert told_when(tmp_path, joined=2, ray_is_up=False) == [[], []]
    assert told_when(tmp_path, joined=1, ray_is_up=True) == [[]]
    assert told_when(tmp_path, joined=2, ray_is_up=True) == [[everybody], [everybody]]


def test_a23_a_node_that_never_comes_does_not_hold_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "_ADDRESSES_S", -1.0)
    there = {"type": "nodes", "addresses": ["10.0.0.5", "10.0.0.6"], **RAY}
    assert told_when(tmp_path, joined=1, ray_is_up=True) == [[there]]


# ---- the end of a job that has not begun


def waiting(run_dir: Path, rank: int = 1) -> Settings:
    run_dir.mkdir(exist_ok=True)
    found = node(rank, "127.0.0.1")
    object.__setattr__(found, "run_dir", run_dir)
    return found


def write_rendezvous(settings: Settings, port: int) -> None:
    told = {"address": "127.0.0.1", "control_port": port, "gcs_port": 1, "reward_url": "", "token": "t" * 64}
    settings.rendezvous.write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("left", "code"), [("verdict", 0), ("failure", 0), ("signal", EXIT_CODES["cancelled"]), ("", 143)]
)
def test_a27_a_waiting_node_is_ended_without_a_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, code: int
):
    """A27: srun signals the others when one node fails, and the highest exit code would be the job's."""
    if left in ("signal", ""):  # these wait for the whole time, the others for what is there
        monkeypatch.setattr(worker, "_SEEN_S", 0.3)
    settings = waiting(tmp_path)
    if left == "verdict":
        write_verdict(tmp_path, state="failed", started=0.0, failure=None, training={})
    elif left:
        note_failure(tmp_path, Failure("setup", "n0", "no address", 20 if left == "failure" else 143))
    try:
        ended = run_worker(settings, lambda: signal.SIGTERM)
    except JobFailed as error:
        ended = error.failure.exit_code
    assert ended == code


@pytest.mark.parametrize("what", ["no head", "gone between", "refused", "breaks"])
def test_a27_a_node_that_comes_after_the_end_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
):
    monkeypatch.setattr(worker, "_SEEN_S", 0.3)
    settings = waiting(tmp_path)
    write_verdict(tmp_path, state="failed", started=0.0, failure=None, training={})
    if what == "no head":
        assert run_worker(settings, lambda: None) == 0
    elif what == "gone between":
        settings.rendezvous.symlink_to(tmp_path / "gone")  # listed, and not to be read
        threading.Timer(0.5, settings.rendezvous.unlink).start()
        assert run_worker(settings, lambda: None) == 0
    elif what == "refused":
        with socket.socket() as unheard:
            unheard.bind(("127.0.0.1", 0))
            write_rendezvous(settings, unheard.getsockname()[1])
            begun = time.monotonic()
            assert run_worker(settings, lambda: None) == 0
        assert time.monotonic() - begun < settings.join_s / 2
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            write_rendezvous(settings, listener.getsockname()[1])
            server = threading.Thread(target=lambda: listener.accept()[0].close())
            server.start()
            assert run_worker(settings, lambda: None) == 0
            server.join()


def test_a_link_that_breaks_without_a_verdict_is_a_failure(tmp_path: Path):
    settings = waiting(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        write_rendezvous(settings, listener.getsockname()[1])
        server = threading.Thread(target=lambda: listener.accept()[0].close())
        server.start()
        with pytest.raises(JobFailed, match="head"):
            run_worker(settings, lambda: None)
        server.join()


@pytest.mark.parametrize(("rank", "told"), [(0, True), (1, False)])
def test_a_head_that_cannot_begin_leaves_a_verdict(tmp_path: Path, rank: int, told: bool):
    slurm = {"SLURM_JOB_ID": "78", "SLURM_PROCID": str(rank), "SLURM_NTASKS": "3", "SLURMD_NODENAME": "n1"}
    words = ["--run-dir", str(tmp_path), "--checkpoint-dir", "/r/c", "--nodes", "3", "--ray-gpus-head", "1"]
    words += ["--ray-gpus-other", "1", "--ray-cpus", "1", "--min-cpus", "24", "::trainer", "t"]
    done = subprocess.run(
        [sys.executable, str(LAUNCH / "node.py"), *words],
        env={**os.environ, **slurm},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 20
    assert (tmp_path / "failed-n1.json").exists()
    assert (tmp_path / "verdict.json").exists() is told
    if told:
        shown = summarize(tmp_path)
        assert (shown["state"], shown["component"], shown["exit_code"]) == ("failed", "setup", 20)
        assert "gives this job 1 CPUs" in shown["cause"]


def test_the_tests_named_in_this_file_exist():
    """The table at the top is right."""
    folder = Path(__file__).parent
    for part in (__doc__ or "").replace("\n", " ").partition("has it.")[2].split(".py"):
        names, _, stem = part.strip(". ").rpartition(": ")
        if not names:
            continue
        text = (folder / f"{stem}.py").read_text()
        for number in names.split(", "):
            assert number in text, f"{number} in {stem}.py"
