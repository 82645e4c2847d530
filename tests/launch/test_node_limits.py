"""What a node allows and what a job gets of it: open files, object store, caches, and who is reached directly."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.supervisor import limits, nodelist
from launch.supervisor.devices import driver_warnings
from launch.supervisor.environment import base_environment, make_caches, slurm_hosts, with_direct, with_head
from launch.supervisor.ports import port_plan
from launch.supervisor.ray_cluster import head_command, worker_arguments
from launch.supervisor.settings import Settings, read_settings

GIB = 2**30
ARGS = [
    "--run-dir", "/r", "--checkpoint-dir", "/r/c", "--nodes", "1", "--ray-gpus-head", "1", "--ray-gpus-other", "1",
    "--ray-cpus", "9",
]  # fmt: skip


def here(*words: str, **slurm: str) -> Settings:
    return read_settings([*ARGS, *words, "::trainer", "t"], slurm)


# ---- A01: Slurm's short form of node names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[01-03]", ["n01", "n02", "n03"]),
        ("n01", ["n01"]),
        ("gpu-a[1,3-4],gpu-b7", ["gpu-a1", "gpu-a3", "gpu-a4", "gpu-b7"]),
        ("n[1-2].cluster.example", ["n1.cluster.example", "n2.cluster.example"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("a,b[5],c", ["a", "b5", "c"]),
        ("", []),
        ("n[", ["n"]),
        ("n[1-2", ["n", "1-2"]),
    ],
)
def test_a01_node_lists_are_expanded_to_single_names(text: str, names: list[str]):
    assert nodelist.expand(text) == names


@given(st.text(alphabet="n[]-,0123a ", max_size=30))
def test_a01_no_name_holds_a_separator(text: str):
    assert not [name for name in nodelist.expand(text) if set(name) & set("[], \n")]


def test_names_that_do_not_resolve_have_no_address():
    assert nodelist.addresses_of(["localhost", "no-such-node.invalid", "a..b", "x" * 300]) == ["127.0.0.1"]


# ---- A23: proxies


def test_a23_every_node_is_reached_without_a_proxy():
    """A23: the user's entries stay, all names and addresses are added, in both cases, without doubled commas."""
    settings = here(SLURM_JOB_ID="7", SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_JOB_NODELIST="localhost,n[1-2]")
    host = {"http_proxy": "http://proxy:3128", "no_proxy": "example.org,,", "NO_PROXY": " b ,example.org"}
    env = with_head(base_environment(settings, host), settings, "10.0.0.5", 1, "http://10.0.0.5:2")
    env = with_direct(env, ["10.0.0.6", "10.0.0.5"])
    wanted = ["example.org", "b", "localhost", "127.0.0.1", "10.0.0.5", "n1", "n2", "10.0.0.6"]
    assert env["no_proxy"] == env["NO_PROXY"] == ",".join(wanted)
    assert env["http_proxy"] == "http://proxy:3128"


def test_a23_hosts_are_names_and_addresses():
    assert list(slurm_hosts("localhost")) == ["localhost", "127.0.0.1"]


# ---- B08, A07: folders of the job on the node


def test_b08_caches_are_local_and_outside_of_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """B08: all of them, also where the login shell points into the home directory; what is downloaded stays."""
    monkeypatch.setattr(Settings, "temp_dir", tmp_path / "local")
    home = tmp_path / "home"
    own = {"HOME": str(home), "TRITON_CACHE_DIR": str(home / "triton"), "VLLM_CACHE_ROOT": "/shared/vllm"}
    env = base_environment(here(), own)
    names = (
        "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
        "DG_JIT_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "SGLANG_DG_CACHE_DIR",
    )  # fmt: skip
    assert {name for name in names if not env[name].startswith(f"{tmp_path}/local/cache/")} == set()
    assert env["VLLM_CACHE_ROOT"] == "/shared/vllm"
    assert env["HF_HOME"] == f"{home}/.cache/huggingface"
    make_caches({**env, "VLLM_CACHE_ROOT": str(tmp_path / "vllm")})
    assert all(os.access(env[name], os.W_OK) for name in names)
    assert not home.exists()


@pytest.mark.parametrize("job", ["1", "1234567", "4294967295", "9999999999"])
def test_a07_rays_folder_leaves_room_for_its_sockets(monkeypatch: pytest.MonkeyPatch, job: str):
    """A07: Ray adds 64 bytes and a socket's path may have 107: its folder has 43, whatever TMPDIR says."""
    monkeypatch.setattr(os, "getuid", lambda: 4294967294)
    monkeypatch.setenv("TMPDIR", "/a/very/long/folder/of/a/project/on/a/shared/file/system/" + "日" * 20)
    settings = here(SLURM_JOB_ID=job, SLURM_PROCID="0", SLURM_NTASKS="1")
    command = head_command(settings, port_plan(int(job)))
    (folder,) = (word.partition("=")[2] for word in command if word.startswith("--temp-dir="))
    assert len(os.fsencode(folder)) <= 43


def test_a08_no_folder_of_ray_is_shared_between_users(monkeypatch: pytest.MonkeyPatch):
    """A08: the head names a folder of the job for the whole cluster; the parts of each node have it as TMPDIR."""
    settings = here(SLURM_JOB_ID="7", SLURM_PROCID="0", SLURM_NTASKS="1")
    words = [*head_command(settings, port_plan(7)), *base_environment(settings, {"TMPDIR": "/tmp"}).values()]
    assert f"--temp-dir=/tmp/rl-{os.getuid()}-7/ray" in words
    assert not [word for word in words if "/tmp/ray" in word]


# ---- A30: the object store


@pytest.mark.parametrize(
    ("memory", "shared", "size"),
    [
        (64 * GIB, 500 * GIB, int(0.3 * 64 * GIB)),
        (64 * GIB, 10 * GIB, 9 * GIB),
        (64 * GIB, None, int(0.3 * 64 * GIB)),
        (4000 * GIB, 4000 * GIB, 200 * 10**9),
        (64 * 2**20, 10 * GIB, 75 * 2**20),
        (None, None, None),
    ],
)
def test_a30_the_object_store_follows_the_jobs_memory(memory: int | None, shared: int | None, size: int | None):
    """A30: at most 30 % of the job's memory and less than the free shared memory, not a part of the node's."""
    assert limits.object_store_bytes(memory, shared) == size


def test_a30_an_unknown_limit_is_the_nodes_memory():
    assert limits.object_store_bytes(None, 10 * GIB) <= 9 * GIB


@pytest.mark.parametrize(
    ("slurm", "cgroup", "memory"),
    [
        ("65536", None, 64 * GIB), ("0", None, None), ("", None, None), ("x", None, None),
        ("65536", str(32 * GIB), 32 * GIB), ("0", "max", None), ("", str(32 * GIB), 32 * GIB),
    ],
)  # fmt: skip
def test_a30_memory_comes_from_slurm_or_the_cgroup(
    tmp_path: Path, slurm: str, cgroup: str | None, memory: int | None
):
    if cgroup is not None:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            base, name = (
                (tmp_path, "memory.max") if not controllers else (tmp_path / "memory", "memory.limit_in_bytes")
            )
            folder = base / place.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{cgroup}\n")
    assert limits.job_memory({"SLURM_MEM_PER_NODE": slurm}, tmp_path) == memory


def test_a30_ray_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1024")
    settings, ports = here(SLURM_JOB_ID="7", SLURM_PROCID="0", SLURM_NTASKS="1"), port_plan(7)
    for command in (head_command(settings, ports), worker_arguments(settings, ports, "h:1")):
        (size,) = (int(word.partition("=")[2]) for word in command if word.startswith("--object-store-memory="))
        assert size <= 0.3 * GIB
    fixed = head_command(here("--object-store", "100000000"), ports)
    assert "--object-store-memory=100000000" in fixed


def test_ray_writes_no_colours_into_its_logs():
    settings, ports = here(), port_plan(7)
    for command in (head_command(settings, ports), worker_arguments(settings, ports, "h:1")):
        assert "--log-color=false" in command
    assert base_environment(settings, {})["RAY_COLOR_PREFIX"] == "0"
    assert base_environment(settings, {"RAY_COLOR_PREFIX": "1"})["RAY_COLOR_PREFIX"] == "1"


# ---- the kernel's own count of what it killed for memory


@pytest.mark.parametrize(
    ("text", "kills"),
    [
        ("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("oom_kill_disable 0\nunder_oom 0\n", None),  # v1 before Linux 4.13
        ("", None),
        (None, None),
    ],
)
def test_kills_for_memory_are_counted(tmp_path: Path, text: str | None, kills: int | None):
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if text is not None and (not controllers or "memory" in controllers.split(",")):
            folder = (tmp_path / "memory" if controllers else tmp_path) / place.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ("memory.oom_control" if controllers else "memory.events")).write_text(text)
    assert limits.oom_kills(tmp_path) == kills


def test_this_machine_says_a_count_or_nothing():
    found = limits.oom_kills()
    assert found is None or found >= 0


# ---- A33: limits of a process

RAISE = (
    "import resource; from launch.supervisor import limits; {before}; told = limits.raise_open_files(); "
    "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(told))"
)


@pytest.mark.parametrize(("soft", "hard", "after", "warnings"), [(256, 4096, 4096, 1), (4096, 4096, 4096, 1)])
def test_a33_open_files_are_raised_and_never_fatal(soft: int, hard: int, after: int, warnings: int):
    """A33: to the hard limit, at most 65535; a low hard limit is a warning."""
    before = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"
    code = RAISE.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(after), str(warnings)]


@pytest.mark.parametrize("hard", [65535, 10**6, resource.RLIM_INFINITY])
def test_a33_more_than_65535_is_not_asked_for(monkeypatch: pytest.MonkeyPatch, hard: int):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: asked.append(pair))
    assert limits.raise_open_files() == []
    assert asked == [(65535, hard)]


def test_a33_a_limit_that_cannot_be_raised_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert limits.raise_open_files() == ["the limit of open files stays at 1024: not permitted"]


@pytest.mark.parametrize(("processes", "told"), [(4096, True), (2**20, False), (resource.RLIM_INFINITY, False)])
def test_a33_few_processes_are_a_warning(monkeypatch: pytest.MonkeyPatch, processes: int, told: bool):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (processes, processes))
    assert bool(limits.low_limits(shared_memory=False)) is told
    if told:
        assert "4096" in limits.low_limits(shared_memory=False)[0]


def test_little_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "free_bytes", lambda _: 64 * 2**20)
    assert "/dev/shm has 0.1 GiB free" in limits.low_limits(shared_memory=True)[-1]


# ---- the driver that the image's CUDA wants


@pytest.mark.parametrize(
    ("there", "oldest", "warned"),
    [
        ("570.124.06\n", "580.65.06", True),
        ("580.65.06\n", "580.65.06", False),
        ("580.105.08\n", "580.65.06", False),
        ("1000.1\n", "580.65.06", False),
        ("535.54.03\n", "535.54", False),
        ("nonsense\n", "580.65.06", False),
        ("570.124.06\n", None, False),
        (None, "580.65.06", False),
    ],
)
def test_an_older_driver_is_told(tmp_path: Path, there: str | None, oldest: str | None, warned: bool):
    file = tmp_path / "version"
    if there is not None:
        file.write_text(there)
    told = list(driver_warnings(oldest, file))
    assert bool(told) == warned
    assert all(f"is {str(there).strip()}; CUDA in the image wants {oldest} or newer" in text for text in told)
    assert here("--min-driver", "580.65.06").min_driver == "580.65.06"
