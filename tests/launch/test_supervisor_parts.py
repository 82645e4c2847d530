"""The parts of the node supervisor: ports, addresses, processes, environment, settings, logs, verdict."""

import ast
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.supervisor import addresses, devices, ports, settings, training_log, verdict
from launch.supervisor.environment import base_environment, device_environments, with_head
from launch.supervisor.log_follower import LogFollower
from launch.supervisor.node_folder import make_temp_dir
from launch.supervisor.processes import Component, reap_orphans

LAUNCH = Path(verdict.__file__).resolve().parents[1]


# ---- what the container's Python must be able to run


def supervisor_files() -> list[Path]:
    return [LAUNCH / "node.py", *sorted((LAUNCH / "supervisor").glob("*.py"))]


@pytest.mark.parametrize("file", supervisor_files(), ids=lambda path: path.name)
def test_standard_library_only_and_python_3_9(file: Path):
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.module.startswith("launch.supervisor") or not node.module.startswith("launch.")
            roots.add(node.module.partition(".")[0])
    allowed = {"launch", "ray"} if file.name == "ray_watch.py" else {"launch"}
    assert roots - allowed <= set(sys.stdlib_module_names)


# ---- ports


@given(st.integers(0, 2**31), st.integers(1, 99))
def test_near_jobs_share_no_port(job: int, distance: int):
    def all_ports(plan: ports.PortPlan) -> set[int]:
        return set(plan.services.values()) | set(range(plan.worker_min, plan.worker_max + 1))

    assert not all_ports(ports.port_plan(job)) & all_ports(ports.port_plan(job + distance))


@given(st.integers(0, 2**31))
def test_a_plan_is_consistent(job: int):
    plan = ports.port_plan(job)
    services = list(plan.services.values())
    assert len(services) == len(set(services)) == 12
    assert not set(services) & set(range(plan.worker_min, plan.worker_max + 1))
    assert min(services) >= 1024
    assert plan.worker_max < 30000  # below SGLang's own and the kernel's ephemeral ports
    assert plan.worker_max - plan.worker_min > 150


def test_a_taken_port_moves_the_block():
    plan = ports.port_plan(77)
    with socket.create_server(("127.0.0.1", plan.gcs)):
        assert ports.taken(plan.gcs) == "EADDRINUSE"
        assert ports.free_plan(77) == ports.port_plan(77, 1)


# ---- addresses

MANY = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.5", "ib0": "192.168.100.5"}


@pytest.mark.parametrize(
    ("found", "wanted", "chosen"),
    [
        (MANY, None, "ib0"),
        (MANY, "eth0", "eth0"),
        ({"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.5"}, None, "eth0"),
        ({"eth0": "10.0.0.5", "bond0.1505": "10.1.0.5"}, None, "bond0.1505"),
        ({"eth0": "127.0.1.1", "eth1": "10.0.0.5"}, None, "eth1"),
    ],
)
def test_address_choice(found: dict[str, str], wanted: str | None, chosen: str):
    assert addresses.choose(found, wanted, "n1") == (chosen, found[chosen])


@pytest.mark.parametrize(
    ("found", "wanted"), [(MANY, "ib7"), ({"lo": "127.0.0.1", "docker0": "172.17.0.1"}, None)]
)
def test_no_address_names_node_and_interfaces(found: dict[str, str], wanted: str | None):
    with pytest.raises(addresses.AddressError, match=r"node n1 .*docker0 172\.17\.0\.1.*network_interface"):
        addresses.choose(found, wanted, "n1")


def test_this_machines_interfaces_have_loopback():
    assert addresses.interfaces()["lo"] == "127.0.0.1"


# ---- processes: a real supervisor process with children that try to get away

ESCAPE = """
import os, sys, time
from pathlib import Path
from launch.supervisor.processes import Component, adopt_orphans, descendants, end_descendants
adopt_orphans()
child = '''
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("escaped", "w").write(str(os.getpid()))
        time.sleep(600)
    sys.exit(0)
time.sleep(600)
'''
part = Component("part", [sys.executable, "-c", child], Path("log"), dict(os.environ), Path("."))
while not (os.path.exists("escaped") and open("escaped").read()):
    time.sleep(0.02)
os.kill(part.pid, 9)
while part.poll() is None:
    time.sleep(0.02)
print(part.exit_code, int(open("escaped").read()) in descendants(os.getpid()), end_descendants(grace_s=0.5))
"""


def test_a_daemon_that_ignores_sigterm_is_ended(tmp_path: Path):
    result = subprocess.run(
        [sys.executable, "-c", ESCAPE], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(LAUNCH.parent)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert result.stdout.strip() == "137 True []", result.stderr
    assert not Path(f"/proc/{(tmp_path / 'escaped').read_text()}").exists()


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


def test_rays_folder_leaves_room_for_its_sockets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getuid", lambda: 4294967294)
    here = settings.read_settings([*ARGS, "::trainer", "t"], {})
    object.__setattr__(here, "job_number", 4294967295)
    assert len(str(here.temp_dir / "ray").encode()) <= 43


def test_environment_is_cleaned():
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
    env = with_head({"no_proxy": "example.org,,", "NO_PROXY": "b"}, "10.0.0.5", 1, "http://10.0.0.5:2")
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
    assert devices.split_devices(value, ray, reward, "n1") == split


@pytest.mark.parametrize("value", ["", "NoDevFiles", "0,1", "GPU-aaaa"])
def test_too_few_gpus_name_node_and_numbers(value: str):
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


# ---- logs and verdict

STEPS = textwrap.dedent("""\
    noise step:oops
    (TaskRunner pid=1) step:1 - critic/score/mean:0.25 - timing_s/step:np.float64(1.5) - actor/lr:1e-06 - x/y:nan
    (TaskRunner pid=1) step:2 - critic/score/mean:np.float32(-3.5e-1) - timing_s/step:2
    (TaskRunner pid=1) step:2 - critic/score/mean:0.5 - timing_s/step:2
    Training Progress: 2/2
""")


def test_steps_are_read():
    first, second = training_log.parse_steps(STEPS.splitlines())
    assert (first.number, first.reward, first.metrics["timing_s/step"], first.metrics["actor/lr"]) == (
        1, 0.25, 1.5, 1e-06,
    )  # fmt: skip
    assert (second.number, second.reward) == (2, 0.5)


@pytest.mark.parametrize(
    "text", ["step:5 - version:0.9.1 - a:1", "step:5 - a:1.2.3 - b:--1 - c:1e - a:1", "step:5 - "]
)
def test_odd_numbers_are_no_metrics(text: str):
    assert [step.metrics for step in training_log.parse_steps([text])] in ([{"a": 1.0}], [])


def test_a_follower_starts_at_the_end(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("of an earlier attempt\n")
    follower = LogFollower(log)
    with log.open("a") as stream:
        stream.write("news\n")
    assert follower.lines() == ["news"]


def test_a_follower_takes_a_flood_in_pieces(tmp_path: Path):
    log = tmp_path / "log"
    follower = LogFollower(log)
    lines = [f"{n}" * 50 for n in range(30000)]
    log.write_text("\n".join(lines) + "\nrest")
    first = follower.lines()
    assert 0 < len(first) < len(lines)
    read = list(first)
    while more := follower.lines():
        read += more
    assert read == lines


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "SLURM_NTASKS"])
@pytest.mark.parametrize("value", [None, "x", "", "-1"])
def test_wrong_slurm_variables_are_usage_errors(missing: str, value: str | None):
    slurm = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "3", missing: value}
    environ = {name: text for name, text in slurm.items() if text is not None}
    with pytest.raises(settings.UsageError, match=missing):
        settings.read_settings([*ARGS, "::trainer", "t"], environ)


def test_an_empty_job_id_is_no_slurm():
    assert settings.read_settings([*ARGS, "::trainer", "t"], {"SLURM_JOB_ID": ""}).nodes == 1


def test_evidence_is_printable(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(b"\0\0\x1b[31mValueError: red\x1b[0m\x07\n\0\0\n")
    found = verdict.find_evidence(log)
    assert found is not None
    assert found.text == "ValueError: red"


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


def test_the_jobs_folder_is_private_or_refused(tmp_path: Path):
    folder = tmp_path / "rl"
    make_temp_dir(folder)
    make_temp_dir(folder)  # of an earlier attempt
    folder.chmod(0o777)
    with pytest.raises(verdict.SetupError, match="mode 0700"):
        make_temp_dir(folder)
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(verdict.SetupError, match="not a folder of this user"):
        make_temp_dir(folder)


def test_follower_gives_whole_lines_once(tmp_path: Path):
    log = tmp_path / "log"
    follower = LogFollower(log)
    assert follower.lines() == []
    log.write_bytes(b"one\ntw")
    assert follower.lines() == ["one"]
    with log.open("ab") as stream:
        stream.write(b"o \xff\n\nthree\n")
    assert follower.lines() == ["two \ufffd", "", "three"]
    assert follower.lines() == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nTraceback\nRewardOutageError: no server\nINFO bye\n", "RewardOutageError: no server"),
        (
            "Could not override 'a.b'.\nKey 'b' is not in struct\n\nSet HYDRA_FULL_ERROR=1\n",
            "Could not override 'a.b'.",
        ),
        ("start\nlast words\n", "last words"),
        ("x\nbind: Address already in use, refused\nmore\n", "bind: Address already in use, refused"),
    ],
)
def test_evidence_is_the_telling_line(tmp_path: Path, text: str, line: str):
    log = tmp_path / "log"
    log.write_text(text)
    found = verdict.find_evidence(log)
    assert found is not None
    assert found.text == line
    assert text.splitlines()[(found.line or 0) - 1] == line


def test_no_log_no_evidence(tmp_path: Path):
    assert verdict.find_evidence(tmp_path / "none") is None
    (tmp_path / "empty").write_text("\n\n")
    assert verdict.find_evidence(tmp_path / "empty") is None


def test_a_verdict_is_complete_json(tmp_path: Path):
    failure = verdict.Failure("trainer", "n1", "ended with 42", 42, verdict.Evidence("/log", 3, "boom"))
    verdict.write_verdict(
        tmp_path, state="failed", started=time.time(), failure=failure, training={"steps_done": 3}
    )
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert (told["state"], told["exit_code"], told["evidence"]["text"], told["steps_done"]) == (
        "failed",
        42,
        "boom",
        3,
    )
    assert verdict.read_failure(json.loads(json.dumps(failure.__dict__, default=lambda e: e.__dict__))) == failure
    assert [path.name for path in tmp_path.iterdir()] == ["verdict.json"]


def test_exit_codes_are_distinct_and_leave_room():
    codes = list(verdict.EXIT_CODES.values())
    assert len(codes) == len(set(codes))
    assert all(2 < code < 126 or code == 128 + signal.SIGTERM for code in codes)


def test_collecting_orphans_loses_no_exit_code(tmp_path: Path):
    part = Component(
        "part", [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path / "log", {}, tmp_path
    )
    deadline = time.monotonic() + 10
    while Path(f"/proc/{part.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    reap_orphans()
    assert part.poll() == 137
