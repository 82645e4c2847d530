"""What a node stands on: the standard library, ports, addresses, processes."""

import ast
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.supervisor import addresses, ports, verdict
from launch.supervisor.node_folder import make_temp_dir
from launch.supervisor.processes import Component, reap_orphans

LAUNCH = Path(verdict.__file__).resolve().parents[1]
_TOOLKIT = "singularity.toolkit"


# ---- what the container's Python must be able to run


def supervisor_files() -> list[Path]:
    others = [LAUNCH / "node.py", LAUNCH / "tokens.py", LAUNCH.parent / "singularity" / "toolkit.py"]
    return [*others, *sorted((LAUNCH / "supervisor").glob("*.py"))]


@pytest.mark.parametrize("file", supervisor_files(), ids=lambda path: path.name)
def test_standard_library_only_and_python_3_9(file: Path):
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            own = node.module.startswith("launch.supervisor") or node.module in ("launch.tokens", _TOOLKIT)
            assert own or not node.module.startswith(("launch.", "singularity"))
            roots.add(node.module.partition(".")[0])
    allowed = {"launch", "singularity"} | ({"ray"} if file.name in ("ray_watch.py", "ray_start.py") else set())
    assert roots - allowed <= set(sys.stdlib_module_names)


# ---- ports


@given(st.integers(0, 2**31), st.integers(1, 99))
def test_near_jobs_share_no_port(job: int, distance: int):
    """A04: jobs that meet on a node have near ids; none of their ports is the same."""

    def all_ports(plan: ports.PortPlan) -> set[int]:
        return set(plan.services.values()) | set(range(plan.worker_min, plan.worker_max + 1))

    assert not all_ports(ports.port_plan(job)) & all_ports(ports.port_plan(job + distance))


@given(st.integers(0, 2**31))
def test_a_plan_is_consistent(job: int):
    """A04, A05, C25: Ray's workers, its services, SGLang and the kernel each have a range of their own."""
    plan = ports.port_plan(job)
    services = list(plan.services.values())
    assert len(services) == len(set(services)) == 12
    assert not set(services) & set(range(plan.worker_min, plan.worker_max + 1))
    assert min(services) >= 1024
    assert plan.worker_max < 30000  # below SGLang's own and the kernel's ephemeral ports
    assert plan.worker_max - plan.worker_min > 150


def test_a_taken_port_moves_the_block(monkeypatch: pytest.MonkeyPatch):
    """A04: what another program took moves the whole block."""
    plan, taken = ports.port_plan(21), ports.taken
    # What else listens on this machine is left out.
    monkeypatch.setattr(ports, "taken", lambda port: taken(port) if port == plan.gcs else None)
    with socket.create_server(("127.0.0.1", plan.gcs)):
        assert ports.taken(plan.gcs) == "EADDRINUSE"
        assert ports.free_plan(21, ports.Ephemeral(32768, 60999)) == ports.port_plan(21, 1)


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
    """A10: one interface for a node, never loopback, docker or 127.0.1.1 by itself."""
    assert addresses.choose(found, wanted, "n1") == (chosen, found[chosen])


@pytest.mark.parametrize(
    ("found", "wanted"), [(MANY, "ib7"), ({"lo": "127.0.0.1", "docker0": "172.17.0.1"}, None)]
)
def test_no_address_names_node_and_interfaces(found: dict[str, str], wanted: str | None):
    """A10: an interface that a node lacks."""
    with pytest.raises(addresses.AddressError, match=r"node n1 .*docker0 172\.17\.0\.1.*network_interface"):
        addresses.choose(found, wanted, "n1")


def test_a10_a_wanted_loopback_address_is_for_one_node():
    assert addresses.choose(MANY, "lo", "n1", nodes=1) == ("lo", "127.0.0.1")
    with pytest.raises(addresses.AddressError, match=r"'lo' of node n1 has the address 127\.0\.0\.1, .*other 3 "):
        addresses.choose(MANY, "lo", "n1", nodes=4)


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
    parent = os.getpid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while os.getppid() == parent:
            time.sleep(0.01)
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


def test_the_jobs_folder_is_private_or_refused(tmp_path: Path):
    """A08: another user's folder under our name is not used."""
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


def test_collecting_orphans_loses_no_exit_code(tmp_path: Path):
    part = Component(
        "part", [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path / "log", {}, tmp_path
    )
    deadline = time.monotonic() + 60
    while Path(f"/proc/{part.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    reap_orphans()
    assert part.poll() == 137
