"""The supervisor of one machine, with a real Ray head and reward server: how a job ends, and what is left."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.engine

# Connects to the job's Ray as verl does, then does what the test says.
TRAINER = "import ray, sys, time; ray.init(log_to_driver=False); print('trainer up', flush=True); "


@dataclass
class Run:
    """A supervisor that was started, and its run directory."""

    process: subprocess.Popen[str]
    run_dir: Path

    def wait(self, limit_s: float = 300.0) -> int:
        return self.process.wait(limit_s)

    @property
    def verdict(self) -> dict:
        return json.loads((self.run_dir / "verdict.json").read_text())

    def log(self, component: str) -> str:
        (file,) = (self.run_dir / "logs").glob(f"*-{component}.log")
        return file.read_text(errors="replace")

    def until(self, component: str, text: str, limit_s: float = 300.0) -> None:
        """Wait until a component's log has `text`; fails with the supervisor's output."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.process.poll() is None:
            files = list((self.run_dir / "logs").glob(f"*-{component}.log"))
            if files and text in files[0].read_text(errors="replace"):
                return
            time.sleep(0.1)
        out = (self.run_dir / "out").read_text()
        pytest.fail(f"{component} never said {text!r}; the supervisor said:\n{out}")

    def left(self) -> str:
        """What runs of it anywhere."""
        command = ["pgrep", "-af", str(self.run_dir)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def below(self, levels: int = 99) -> dict[int, str]:
        """Process id -> command line of everything that the supervisor runs, down to some level."""
        table = subprocess.run(
            ["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        ).stdout
        rows = [line.split(None, 2) for line in table.splitlines()]
        found: dict[int, str] = {}
        parents = {self.process.pid}
        while parents and levels:
            levels -= 1
            children = {int(pid): args for pid, parent, args in rows if int(parent) in parents}
            found |= children
            parents = set(children)
        return found

    def pid_of(self, text: str) -> int:
        (pid,) = [pid for pid, args in self.below().items() if text in args and "launch/node.py" not in args]
        return pid


@pytest.fixture
def start(tmp_path: Path):
    runs: list[Run] = []

    def make(trainer: str, *commands: str, name: str = "run dir", before: str = TRAINER) -> Run:
        run_dir = tmp_path / name
        run_dir.mkdir(exist_ok=True)
        words = [
            sys.executable, str(ROOT / "launch" / "node.py"), "--run-dir", str(run_dir),
            "--checkpoint-dir", str(run_dir / "checkpoints"), "--nodes", "1", "--ray-gpus-head", "2",
            "--ray-gpus-other", "0", "--ray-cpus", "4", "--logical-gpus", "--object-store", "100000000",
            *commands, "::trainer", sys.executable, "-c", before + trainer,
        ]  # fmt: skip
        with (run_dir / "out").open("w") as out:
            env = {**os.environ, "RAY_prestart_worker_first_driver": "0"}
            process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env=env, text=True)
        runs.append(Run(process, run_dir))
        return runs[-1]

    yield make
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            run.process.wait(300)
        assert not Path(f"/tmp/rl-{os.getuid()}-{run.process.pid}").exists()
        assert run.left() == ""


@pytest.fixture(scope="session")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    command = [
        sys.executable, "-m", "launch.rehearsal.prepare", "--out", str(folder), "--verl", "0.9.1",
        "--actor", "fsdp2", "--rollout", "hf",
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=ROOT, timeout=300)
    return folder / "reward_model"


def reward_server(model: Path) -> list[str]:
    return ["::reward", sys.executable, "-m", "reward.server", "--model", str(model), "--device", "cpu"]


def test_success_runs_everything_in_order(start, reward_model: Path, tmp_path: Path):
    """A02: the driver finds the job's Ray; A27: ending the Ray head afterwards leaves the code 0."""
    secrets = tmp_path / "my env"
    secrets.touch(mode=0o600)
    secrets.write_text('MY_TOKEN=s3cr3t "va=lue" # all of it\n')
    score = (
        "import os; from reward.client import compute_score; "
        "print('token of', len(os.environ['MY_TOKEN']), flush=True); "
        "print('scored', compute_score('d', '1 2 3', '4')['score'], os.environ['REWARD_SERVER_URL'], flush=True); "
        "print('gpus', ray.cluster_resources()['GPU'], flush=True)"
    )
    prepare = [
        "::check",
        sys.executable,
        "-c",
        "print('good')",
        "::prepare",
        sys.executable,
        "-c",
        "print('first')",
    ]
    merge = ["::merge", sys.executable, "-c", "print('merged')"]
    canary = ["::canary", sys.executable, "-m", "reward.canary"]
    resume = ["::resume", sys.executable, "-c", "print('resumes from global_step_7')"]
    (tmp_path / "run dir" / "checkpoints" / "global_step_7").mkdir(parents=True)
    image = tmp_path / "x.sif"
    image.write_bytes(b"an image")
    told = ["--image", str(image), "--note", "slurm=none", "--staged", str(tmp_path / "copy.sif")]
    (tmp_path / "copy.sif").touch()
    run = start(
        score, "--env-file", str(secrets), *told, *prepare, *reward_server(reward_model), *merge, *canary, *resume
    )
    assert run.wait() == 0, (run.run_dir / "out").read_text()
    out = (run.run_dir / "out").read_text()
    for log in (run.run_dir / "logs").iterdir():
        text = log.read_text(errors="replace")
        assert "\x1b[" not in text, f"colours in {log.name}: {text}"
        assert "SIGTERM received" not in text, f"{log.name} of a job that went well tells of a crash: {text}"
    steps = ["resume: resumes from global_step_7", "reward server ready", "canary: ", "trainer starts", "merged"]
    assert sorted(steps, key=out.index) == steps
    assert (run.run_dir / "heartbeat").exists()
    assert (run.run_dir / ".over-0").read_text() == "0\n"
    assert not (tmp_path / "copy.sif").exists()
    manifest = json.loads((run.run_dir / "manifest.json").read_text())
    assert manifest["notes"] == {"slurm": "none"}
    assert manifest["engines"]["verl"] == "0.9.1"
    assert manifest["image"]["sha256"] == hashlib.sha256(b"an image").hexdigest()
    assert "good" in run.log("check")
    assert "first" in run.log("prepare")
    assert "scored" in run.log("trainer")
    assert "gpus 2.0" in run.log("trainer")
    assert "merged" in run.log("merge")
    assert "token of 27" in run.log("trainer")
    # C31: in no log, verdict or manifest.
    assert not [file for file in run.run_dir.rglob("*") if file.is_file() and b"s3cr3t" in file.read_bytes()]
    assert run.verdict["state"] == "completed"
    assert run.verdict["exit_code"] == 0
    assert list((run.run_dir / "reward_log").glob("*.jsonl"))


@pytest.mark.parametrize(
    ("trainer", "code", "cause"),
    [
        ("print('ValueError: bad batch'); sys.exit(42)", 42, "ended with 42"),
        ("import os; os.kill(os.getpid(), 9)", 137, "killed by signal 9"),
    ],
)
def test_the_trainers_code_is_the_jobs(start, trainer: str, code: int, cause: str):
    """A27: 42 stays 42, and a signal stays a signal; the Ray head that is ended with it does not matter."""
    run = start(trainer, "::merge", sys.executable, "-c", "print('must not run')")
    assert run.wait() == code
    assert (run.verdict["component"], run.verdict["cause"]) == ("trainer", cause)
    assert not list((run.run_dir / "logs").glob("*-merge.log"))
    if code == 42:
        assert run.verdict["evidence"]["text"] == "ValueError: bad batch"


@pytest.mark.parametrize(
    ("victim", "component", "code"),
    [
        ("reward.server", "reward server", 25),
        ("raylet/raylet --", "ray head", 22),
        ("gcs/gcs_server --", "ray head", 22),
    ],
)
def test_a_part_that_dies_ends_the_job(start, reward_model: Path, victim: str, component: str, code: int):
    run = start("time.sleep(600)", *(reward_server(reward_model) if victim == "reward.server" else []))
    run.until("trainer", "trainer up")
    run.until(
        "ray-head", "Ray runtime started"
    )  # before, `ray start` itself waits for its parts, for half a minute
    killed = time.monotonic()
    os.kill(run.pid_of(victim), signal.SIGKILL)
    assert run.wait(30) == code
    assert time.monotonic() - killed < 30
    assert run.verdict["component"] == component


def test_a_reward_outage_ends_a_trainer_that_goes_on(start, tmp_path: Path):
    nobody = "import os; os.environ.update(REWARD_SERVER_URL='http://127.0.0.1:9', REWARD_DEADLINE='1'); "
    goes_on = (
        "import threading; from reward.client import compute_score; "
        "threading.Thread(target=compute_score, args=('d', 'text', '4')).start(); time.sleep(600)"
    )
    run = start(nobody + goes_on)
    assert run.wait() == 29
    assert (run.verdict["component"], run.verdict["cause"]) == ("reward client", "reward outage")
    assert "http://127.0.0.1:9" in run.verdict["evidence"]["text"]


def test_a_trainer_that_hangs_ends_with_what_it_did(start):
    """C24: nothing new in the log; a hang of NCCL or of one request lasts until the time limit otherwise."""
    # Without Ray, whose start may be as long a silence.
    trainer = "print('step:1 - a:1', flush=True); time.sleep(600)"
    run = start(trainer, "--stalled-after", "6", before="import time; ")
    assert run.wait() == 39, (run.run_dir / "out").read_text()
    assert (run.verdict["component"], run.verdict["kind"], run.verdict["steps_done"]) == ("trainer", "stalled", 1)
    assert "time.sleep(600)" in run.log("stacks")
    assert run.verdict["what_to_do"]


def test_a_reward_server_that_hangs_ends_the_job(start, reward_model: Path):
    run = start("time.sleep(600)", "--reward-unresponsive", "15", *reward_server(reward_model))
    run.until("trainer", "trainer up")
    os.kill(run.pid_of("reward.server"), signal.SIGSTOP)
    assert run.wait() == 25
    assert (run.verdict["component"], run.verdict["kind"]) == ("reward server", "reward-hang")


def test_no_step_is_no_success(start):
    run = start("print('Usage: ...')", "--expect-steps")
    assert run.wait() == 31
    assert "without a training step" in run.verdict["cause"]


def test_a_signal_ends_the_job_cleanly(start):
    run = start("time.sleep(600)")
    run.until("trainer", "trainer up")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    assert (run.verdict["state"], run.verdict["cause"]) == ("cancelled", "cancelled: SIGTERM")


@pytest.mark.parametrize(
    ("marker", "code", "state"),
    [
        ("::check", 19, "failed"),
        ("::prepare", 26, "failed"),
        ("::reward", 25, "failed"),
        ("::merge", 27, "failed"),
    ],
)
def test_each_other_part_has_its_code(start, marker: str, code: int, state: str):
    run = start("print('trained')", marker, sys.executable, "-c", "import sys; sys.exit('no such model')")
    assert run.wait() == code
    assert (run.verdict["state"], run.verdict["evidence"]["text"]) == (state, "no such model")
    # The check is over before Ray is started at all.
    assert bool(list((run.run_dir / "logs").glob("*-ray-head.log"))) is (marker != "::check")
    assert bool(list((run.run_dir / "logs").glob("*-trainer.log"))) is (marker == "::merge")
    # A failed merge does not hide that the training was fine.
    assert run.verdict["training"]["state"] == ("completed" if marker == "::merge" else "not started")
    assert (run.verdict["merge"] or {}).get("state") == ("failed" if marker == "::merge" else None)


def test_a_signal_during_the_merge(start):
    run = start(
        "print('step:1 - a:1')",
        "::merge",
        sys.executable,
        "-c",
        "import time; print('at it', flush=True); time.sleep(600)",
    )
    (run.run_dir / "checkpoints" / "global_step_1").mkdir(parents=True)
    (run.run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")
    run.until("merge", "at it")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    told = run.verdict
    assert (told["state"], told["training"]["state"], told["training"]["step"]) == ("cancelled", "completed", 1)
    assert told["merge"]["state"] == "interrupted"
    assert told["merge"]["command"].endswith("--step 1 --resume")


def test_a_second_run_in_the_same_directory_is_not_misled(start):
    """The first one's Ray, logs and failures are no news for the second."""
    first = start("sys.exit(3)", "::merge", sys.executable, "-c", "print('merged')")
    assert first.wait() == 3
    (first.run_dir / "reward_log").mkdir()
    (first.run_dir / "reward_log" / "failure-n1-1.json").write_text('{"error": "old", "node": "n1"}')
    second = start("print('step:1 - critic/score/mean:1')", "::merge", sys.executable, "-c", "print('merged')")
    assert second.wait() == 0, (second.run_dir / "out").read_text()
    assert second.verdict["state"] == "completed"
    assert "merged" in second.log("merge")


def test_a_killed_supervisor_leaves_a_verdict_and_a_clean_machine(start):
    run = start("time.sleep(600)")
    run.until("trainer", "trainer up")
    (supervisor,) = run.below(levels=1)
    os.kill(supervisor, signal.SIGKILL)
    assert run.wait() == 28
    assert (run.verdict["component"], run.verdict["cause"]) == ("head", "the supervisor was killed by signal 9")
    assert not (run.run_dir / "ray_token").exists()


def test_a_killed_guard_ends_the_job(start):
    run = start("time.sleep(600)")
    run.until("trainer", "trainer up")
    run.process.kill()
    assert run.wait() == -signal.SIGKILL
    deadline = time.monotonic() + 300
    while run.left() and time.monotonic() < deadline:  # nobody waits for the supervisor
        time.sleep(0.2)
    assert (run.verdict["component"], run.verdict["cause"]) == ("head", "the guard of the supervisor was killed")


def test_secrets_do_not_outlive_the_job(start):
    run = start("time.sleep(600)")
    run.until("trainer", "trainer up")
    secrets = ["ray_token", "reward_token", *(path.name for path in run.run_dir.glob("rendezvous-*"))]
    assert len(secrets) == 3
    for name in secrets:
        assert (run.run_dir / name).stat().st_mode & 0o777 == 0o600
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    assert not [name for name in secrets if (run.run_dir / name).exists()]


def test_two_jobs_at_once_do_not_meet(start):
    """A04: on one machine, with real Rays."""
    trainer = "time.sleep(8); print('nodes', len(ray.nodes()), flush=True)"
    runs = [start(trainer, name=name) for name in ("first", "second")]
    for run in runs:
        assert run.wait() == 0, (run.run_dir / "out").read_text()
        assert "nodes 1" in run.log("trainer")
