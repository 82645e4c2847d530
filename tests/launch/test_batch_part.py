"""What the script does around its srun, with a real bash and stubs for Slurm's programs."""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
from slurm_stubs import Node, Outcome, named_options

from launch.config import load_job
from launch.rehearsal.shrink import rehearse
from launch.script import RenderRequest, render_script
from launch.supervisor.causes import CAUSES
from launch.supervisor.settings import read_settings
from launch.supervisor.verdict import read_failure

DONE = 'echo "{}" >"$STUB_RUN_DIR/verdict.json"; echo %d >"$STUB_RUN_DIR/.over-%d"; exit %d'
# Ends at the first signal, as a supervisor does, and tells which it was.
SUPERVISOR = """
end() {
  echo "$1" >"$STUB_LOG/../signal"
  echo "{}" >"$STUB_RUN_DIR/verdict.json"
  echo 143 >"$STUB_RUN_DIR/.over-0"
  exit 143
}
for name in TERM HUP USR1 USR2; do trap "end $name" $name; done
touch "$STUB_LOG/../up"
while :; do sleep 0.1; done
"""
_AGAIN = json.dumps({"state": "requeued", "requeue": True, "requeue_why": "a node was lost"}, indent=2)
REQUEUE = f'echo \'{_AGAIN}\' >"$STUB_RUN_DIR/verdict.json"; echo 24 >"$STUB_RUN_DIR/.over-0"; exit 24'
SCONTROL = '#!/bin/bash\necho "$*" >>"$STUB_LOG/../scontrol"\n'
# A copy to the one node of these tests, which may be damaged or fail.
SBCAST = """#!/bin/bash
[[ $1 == --force && $2 == -- ]] || exit 2
[[ -z ${STUB_FULL:-} ]] || { echo "sbcast: error: No space left on device" >&2; head -c 3 "$3" >"$4"; exit 1; }
cp -- "$3" "$4"
eval "${STUB_DAMAGE:-:}"
"""


RECOVERS = ("recovery.requeue=true",)


class Batch:
    """A rehearsal in a project with an image, and a node of stubs to run it on."""

    def __init__(self, root: Path, *assignments: str, project: str = "p") -> None:
        self.project = root / project
        image = self.project / "images" / "verl-cpu.sif"
        image.parent.mkdir(parents=True)
        image.write_bytes(b"SIF " * 1000)
        self.image = image
        self.folder = root / "node"
        self.node = Node(self.folder)
        self.node.program("scontrol", SCONTROL)
        self.node.program("sbcast", SBCAST)
        job = load_job("grpo", None, assignments)
        self.script = root / "job.sh"
        request = RenderRequest(rehearse(job), self.project, "run.sh", True, True, given=job)
        self.script.write_text(render_script(request))
        self.run_dir = self.project / "outputs" / "qwen3-4b-grpo" / "run-77"

    def run(self, inside: str, **environ: str) -> Outcome:
        """The job with `inside` in the place of the supervisor."""
        return self.node.sbatch(self.script, {"STUB_INSIDE": inside, **environ})

    @property
    def verdict(self) -> dict:
        """verdict.json of the run."""
        return json.loads((self.run_dir / "verdict.json").read_text())

    @property
    def scontrols(self) -> list[str]:
        """The calls of scontrol that change something."""
        file = self.folder / "scontrol"
        calls = file.read_text().splitlines() if file.exists() else []
        return [call for call in calls if not call.startswith("show ")]

    def await_file(self, name: str) -> None:
        """Wait for a file of the node."""
        until = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < until, name
            time.sleep(0.05)


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


@pytest.mark.parametrize("code", [0, 42, 137, 143])
def test_a27_the_heads_exit_code_is_the_jobs(batch: Batch, code: int):
    """A27: srun has the highest of all nodes, so the head's own word counts."""
    done = batch.run(DONE % (code, 0, 143))
    assert done.code == code
    assert batch.verdict == {}


@pytest.mark.parametrize(
    ("inside", "code"), [("exit 42", 42), ("exit 0", 28), ("exit 137", 28), ("kill -KILL $$", 28)]
)
def test_a_head_that_leaves_no_verdict_gets_one(batch: Batch, inside: str, code: int):
    done = batch.run(inside)
    assert done.code == code
    verdict = batch.verdict
    assert (verdict["state"], verdict["component"], verdict["exit_code"]) == ("failed", "head", code)
    assert "ended without a verdict (exit code" in verdict["cause"]
    assert verdict["cause"] in done.err
    assert (verdict["attempt"], verdict["requeue"], verdict["last_checkpoint"]) == (0, False, None)
    assert read_failure(verdict).exit_code == code
    assert verdict["kind"] in CAUSES


def test_a_verdict_of_the_head_stays(batch: Batch):
    done = batch.run("""echo '{"cause": "x"}' >"$STUB_RUN_DIR/verdict.json"; exit 9""")
    assert (done.code, batch.verdict) == (9, {"cause": "x"})


def test_the_heads_verdict_has_the_jobs_code(batch: Batch):
    """srun killed the head after its verdict, and has the code of that."""
    assert batch.run("""echo '{"exit_code": 24}' >"$STUB_RUN_DIR/verdict.json"; kill -KILL $$""").code == 24


LOST = "srun: error: Task launch for StepId=77.0 failed on node n2: Communication connection failure"


@pytest.mark.parametrize(
    ("lines", "node"),
    [
        (["run directory: x", LOST, "srun: error: Application launch failed: Unspecified error"], "n2"),
        (["run directory: x", "srun: error: Node failure on n3"], "n3"),
        ([LOST, "run directory: x", "srun: error: n1: task 0: Killed"], None),  # of an earlier attempt
        (["run directory: x", f"[n1] {LOST}"], None),
    ],
)
@pytest.mark.parametrize("recovers", [False, True])
def test_a_node_that_is_lost_before_it_joins_is_named(
    tmp_path: Path, lines: list[str], node: str | None, recovers: bool
):
    """srun then kills the head without a chance to say anything."""
    batch = Batch(tmp_path, *(RECOVERS if recovers else ()))
    output = tmp_path / "job 77.out"
    output.write_text("\n".join([*lines, ""]))
    shows = f'[[ $1 == show ]] && printf "   StdErr=\\n   StdIn=/dev/null\\n   StdOut={output}\\n"'
    batch.node.program("scontrol", f'{SCONTROL}{shows}\n[[ $1 != requeue ]] || kill -TERM "$PPID"\n')
    scratch = Path(f"/tmp/rl-{os.getuid()}-{os.getpid()}")
    scratch.mkdir(exist_ok=True)
    secrets = ["ray_token", "reward_token", "rendezvous-77-0.json"]
    writes = "; ".join(f'touch "$STUB_RUN_DIR/{name}"' for name in secrets)
    done = batch.run(f"{writes}; kill -KILL $$", SLURM_JOB_ID=str(os.getpid()))
    batch.run_dir = batch.run_dir.with_name(f"run-{os.getpid()}")
    again = recovers and node is not None
    assert done.code == (-signal.SIGTERM if again else 28 if node is None else 24)
    assert batch.verdict["exit_code"] == (28 if node is None else 24)
    assert (batch.verdict["state"], batch.verdict["requeue"]) == ("requeued" if again else "failed", again)
    if node:
        assert (batch.verdict["component"], batch.verdict["node"], batch.verdict["kind"]) == (
            "node",
            node,
            "node-lost",
        )
        assert node in batch.verdict["cause"]
    assert not scratch.exists()
    assert not [name for name in secrets if (batch.run_dir / name).exists()]


def test_what_a_node_noted_is_the_verdict(batch: Batch):
    """A node that was only cancelled tells nothing of the cause."""
    cancelled = {"component": "node", "node": "n1", "cause": "signal", "exit_code": 143}
    lost = {"component": "setup", "node": "n2", "kind": "missing-path", "cause": 'no "/x"', "exit_code": 20}
    notes = {"n1": json.dumps(cancelled), "n2": json.dumps(lost, indent=2)}
    writes = "; ".join(f"echo '{text}' >\"$STUB_RUN_DIR/failed-{name}.json\"" for name, text in notes.items())
    done = batch.run(f"{writes}; exit 21")
    assert done.code == 20
    assert (batch.verdict["node"], batch.verdict["cause"], batch.verdict["kind"]) == (
        "n2",
        'no "/x"',
        "missing-path",
    )


@pytest.mark.parametrize(
    "damage", ["", "{", '{"component": "setup", "cau', '{"exit_code": 20, "evidence": {}', "\\0\\0"]
)
def test_a_damaged_note_still_gives_a_verdict(batch: Batch, damage: str):
    done = batch.run(f"printf '{damage}' >\"$STUB_RUN_DIR/failed-n2.json\"; exit 21")
    assert (done.code, batch.verdict["component"], batch.verdict["node"]) == (24, "node", "n2")
    assert "failed-n2.json cannot be read" in batch.verdict["cause"]


def test_a_damaged_verdict_takes_no_earlier_ones_place(batch: Batch):
    batch.run("exit 42")
    batch.run("exit 43", SLURM_RESTART_COUNT="1")
    for number, text in ((2, "{"), (3, '{"attempt": 0}'), (4, "\0" * 9)):
        (batch.run_dir / "verdict.json").write_text(text)
        assert batch.run("exit 44", SLURM_RESTART_COUNT=str(number)).code == 44
    assert json.loads((batch.run_dir / "verdict.0.json").read_text())["exit_code"] == 42
    assert sorted(path.name for path in batch.run_dir.glob("verdict.*.json")) == [
        f"verdict.{number}.json" for number in range(4)
    ]


@pytest.mark.parametrize(
    ("text", "step"), [("7", 7), ("7\\n", 7), ("7\\n8", None), ("\\0\\0", None), ('x"', None)]
)
def test_the_newest_checkpoint_is_in_that_verdict(batch: Batch, text: str, step: int | None):
    checkpoints = batch.run_dir / "checkpoints"
    marker = checkpoints / "latest_checkpointed_iteration.txt"
    batch.run(f"mkdir -p '{checkpoints}'; printf '{text}' >'{marker}'; exit 1")
    assert batch.verdict["last_checkpoint"] == (f"{checkpoints}/global_step_{step}" if step else None)


@pytest.mark.parametrize(
    ("marker", "says"), [("7", "goes on from its last checkpoint"), ("", "begins at step 1: no ")]
)
def test_another_start_is_told_by_the_checkpoint(batch: Batch, marker: str, says: str):
    text = batch.script.read_text()
    batch.script.write_text(text.replace("CHECKPOINT_DIR=$RUN_DIR/", "CHECKPOINT_DIR=$OUTPUT/"))
    checkpoints = batch.run_dir.parent / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text(marker)
    job = batch.node.start(
        batch.script, {"STUB_INSIDE": SUPERVISOR.replace("end() {", "end() {\n  kill -KILL $$")}
    )
    batch.await_file("up")
    job.terminate()
    batch.node.end(job)
    assert says in batch.verdict["what_to_do"]


@pytest.mark.parametrize(
    ("number", "arrives"),
    [
        (signal.SIGTERM, "USR1"),  # srun would kill its tasks for SIGTERM and SIGHUP
        (signal.SIGINT, "USR1"),
        (signal.SIGHUP, "USR1"),
        (signal.SIGUSR1, "USR1"),
        (signal.SIGUSR2, "USR2"),
    ],
)
def test_a_signal_reaches_the_nodes_and_is_waited_for(batch: Batch, number: int, arrives: str):
    job = batch.node.start(batch.script, {"STUB_INSIDE": SUPERVISOR})
    batch.await_file("up")
    job.send_signal(number)
    assert batch.node.end(job).code == 143
    assert (batch.folder / "signal").read_text().strip() == arrives
    assert batch.verdict == {}


def test_a_cancelled_job_whose_head_is_killed_is_cancelled(batch: Batch):
    dies = SUPERVISOR.replace("end() {", "end() {\n  kill -KILL $$")
    job = batch.node.start(batch.script, {"STUB_INSIDE": dies})
    batch.await_file("up")
    job.terminate()
    assert batch.node.end(job).code == 143
    assert (batch.verdict["state"], batch.verdict["kind"], batch.verdict["exit_code"]) == (
        "cancelled",
        "cancelled",
        143,
    )


@pytest.mark.parametrize("due", ["", " DUE TO TIME LIMIT", " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"])
@pytest.mark.parametrize("lost", [True, False])
def test_a_cancelled_job_is_never_started_again(tmp_path: Path, lost: bool, due: str):
    """Neither by a head that has decided so before, nor for a node that srun lost meanwhile.

    Slurm itself ends a job in the same way, and says why.
    """
    batch = Batch(tmp_path, *RECOVERS)
    output = tmp_path / "job.out"
    told = f"slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-01T00:00:00{due} ***"
    output.write_text("before\n" * 100_000 + f"run directory: x\n{told}\nsrun: error: Node failure on n3\n")
    shows = f'[[ $1 != show ]] || echo "   StdOut={output}"\n[[ $1 != requeue ]] || kill -TERM "$PPID"\n'
    batch.node.program("scontrol", f"{SCONTROL}{shows}")
    end = "kill -KILL $$" if lost else REQUEUE
    job = batch.node.start(batch.script, {"STUB_INSIDE": SUPERVISOR.replace("end() {", f"end() {{\n{end}")})
    batch.await_file("up")
    job.terminate()
    if due:
        assert (batch.node.end(job).code, batch.scontrols) == (-signal.SIGTERM, ["requeue 77"])
        return
    assert (batch.node.end(job).code, batch.scontrols) == (24, [])
    assert (batch.verdict["state"], batch.verdict["requeue"]) == ("failed" if lost else "cancelled", False)


@pytest.mark.parametrize("deaf", [{}, {"STUB_DEAF": "1"}])
def test_srun_that_waits_for_a_dead_node_is_ended(batch: Batch, deaf: dict[str, str]):
    """Slurm gives a node up after minutes; the head is done and has said so."""
    begun = time.monotonic()
    child = 'echo $$ >"$STUB_LOG/../child"; '
    done = batch.run(child + (DONE % (24, 0, 24)).replace("exit 24", "exec sleep 600"), **deaf)
    assert done.code == 24
    assert time.monotonic() - begun > 2
    # srun's own child would end the step in its place, and the job with it, once the node answers.
    assert not Path("/proc", (batch.folder / "child").read_text().strip(), "exe").exists()


def test_the_verdict_says_whether_the_job_starts_again(tmp_path: Path):
    again = Batch(tmp_path / "a", *RECOVERS)
    # Slurm ends the script when it has the job back in its queue.
    again.node.program("scontrol", SCONTROL + '[[ $1 != requeue ]] || kill -TERM "$PPID"\n')
    done = again.run(REQUEUE)
    assert (done.code, again.scontrols) == (-signal.SIGTERM, ["requeue 77"])
    final = Batch(tmp_path / "b", *RECOVERS)
    done = final.run(DONE % (24, 0, 24))
    assert (done.code, final.scontrols) == (24, [])
    never = Batch(tmp_path / "c")
    assert (never.run(REQUEUE).code, never.scontrols) == (24, [])
    text = '{"evidence": {"text": "\\"requeue\\": true"}, "requeue": false}'
    told = Batch(tmp_path / "d", *RECOVERS)
    told.run(f"""echo '{text}' >"$STUB_RUN_DIR/verdict.json"; echo 24 >"$STUB_RUN_DIR/.over-0" """)
    assert told.scontrols == []


def test_a_refused_requeue_keeps_the_causes_code(tmp_path: Path):
    batch = Batch(tmp_path, *RECOVERS)
    batch.node.program("scontrol", SCONTROL + "[[ $1 != requeue ]] || exit 1\n")
    done = batch.run(REQUEUE)
    assert (done.code, batch.scontrols) == (24, ["requeue 77"])
    assert "was not started again" in done.err
    assert "it begins at step 1" in done.err
    left = {"state": "failed", "requeue": False, "requeue_why": "Slurm did not start the job again"}
    assert {name: batch.verdict.get(name) for name in left} == left


def test_each_attempt_keeps_its_verdict(tmp_path: Path):
    batch = Batch(tmp_path, *RECOVERS)
    batch.run("exit 42")
    (batch.run_dir / "failed-n2.json").write_text("{}")
    batch.run("exit 43", SLURM_RESTART_COUNT="1")
    first = json.loads((batch.run_dir / "verdict.0.json").read_text())
    assert (first["exit_code"], first["attempt"]) == (42, 0)
    assert (batch.verdict["exit_code"], batch.verdict["attempt"]) == (43, 1)
    # Slurm may have started an attempt that came to nothing.
    assert batch.run("exit 44", SLURM_RESTART_COUNT="3").code == 44
    done = batch.run("exit 0", SLURM_RESTART_COUNT="4")
    assert (done.code, done.containers) == (20, [])
    assert batch.verdict["cause"] == "started again 4 times"
    assert sorted(path.name for path in batch.run_dir.glob("verdict.*.json")) == [
        "verdict.0.json", "verdict.1.json", "verdict.3.json",
    ]  # fmt: skip


def test_a_run_directory_of_an_earlier_run_is_put_aside(batch: Batch):
    batch.run_dir.mkdir(parents=True)
    (batch.run_dir / "verdict.json").write_text('{"state": "completed"}')
    done = batch.run(DONE % (0, 0, 0))
    (old,) = batch.run_dir.parent.glob("run-77.before-*")
    assert json.loads((old / "verdict.json").read_text()) == {"state": "completed"}
    assert (done.code, batch.verdict, list(batch.run_dir.glob("verdict.*.json"))) == (0, {}, [])


def test_the_job_is_in_the_run_directory(tmp_path: Path):
    name = "a 'b' \\ \"c\" $HOME `id` 日本"
    batch = Batch(tmp_path, f"logging.project={json.dumps(name)}", 'container.env={A: "x\\ny\\t\'"}')
    done = batch.run(DONE % (0, 0, 0))
    file = batch.run_dir / "resolved.json"
    assert named_options(done.containers[0]["command"])["--job-file"] == str(file)
    resolved, given = load_job(None, file), load_job(None, batch.run_dir / "job.json")
    for job in (resolved, given):
        assert (job.logging.project, job.container.env) == (name, {"A": "x\ny\t'"})
    assert f"; job {resolved.hash()}; " in batch.script.read_text()
    assert rehearse(given) == resolved


@pytest.mark.parametrize(
    ("shown", "environ", "told"),
    [
        (
            "JobId=77\n   StartTime=2026-01-01T00:00:00 EndTime=2026-01-01T00:10:00 Deadline=N/A\n",
            {},
            "1767226200",
        ),
        ("   StartTime=x EndTime=Unknown Deadline=N/A\n", {}, None),
        ("slurm_load_jobs error\n", {}, None),
        ("EndTime=2026-01-01T00:10:00\n", {"SLURM_JOB_END_TIME": "1767000000"}, "1767000000"),
    ],
)
def test_the_end_of_the_allocation_is_told_where_it_is_known(
    batch: Batch, shown: str, environ: dict[str, str], told: str | None
):
    batch.node.program("scontrol", f"#!/bin/bash\nprintf '{shown}'\n")
    done = batch.run(DONE % (0, 0, 0), TZ="UTC", **environ)
    assert named_options(done.containers[0]["command"]).get("--ends-at") == told


def test_programs_are_noted(batch: Batch):
    words = batch.run(DONE % (0, 0, 0)).containers[0]["command"]
    notes = [words[place + 1] for place, word in enumerate(words) if word == "--note"]
    assert notes == ["slurm=slurm 24.11.5", "runtime=apptainer version 1.4"]
    assert words[words.index("--image") + 1] == str(batch.image)


@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("reward.placement=separate", "cluster.nodes=3", "recovery={requeue: true, max_restarts: 7}"),
        ("recovery.stalled_s=null", "checkpoint.merge=false", "checkpoint.before_end_s=0"),
        ("reward={kind: function, function: f.py}", "container.stage=true", "engine.mode=sync"),
    ],
)
def test_the_supervisor_takes_what_the_script_gives(tmp_path: Path, assignments: tuple[str, ...]):
    batch = Batch(tmp_path, *assignments)
    (batch.project / "f.py").touch()
    done = batch.run(DONE % (0, 0, 0), SLURM_JOB_END_TIME="1767000000")
    assert done.code == 0, done.err
    job = load_job(None, batch.run_dir / "resolved.json")
    nodes = {"SLURM_NTASKS": str(job.cluster.nodes), "SLURM_PROCID": "0", "SLURMD_NODENAME": "n1"}
    got = read_settings(done.containers[0]["command"][2:], {"SLURM_JOB_ID": "77", **nodes})
    assert (got.ends_at, got.end_margin_s) == (1767000000.0, job.checkpoint.before_end_s)
    assert got.stalled_s == job.recovery.stalled_s
    assert got.max_restarts == (7 if job.recovery.requeue else 0)
    assert got.reward_node is (job.reward.placement == "separate")
    assert got.unresponsive_s == job.reward.unresponsive_s
    assert bool(got.reward) is bool(got.canary) is (job.reward.kind == "server")
    assert bool(got.merge) is job.checkpoint.merge
    assert got.resume[1:3] == ["-m", "converters.resume"]
    assert (got.image, got.job_file) == (batch.image, batch.run_dir / "resolved.json")
    assert (got.staged is not None) is job.container.stage
    assert got.notes["slurm"] == "slurm 24.11.5"


# ---- container.stage


@pytest.fixture
def staged(tmp_path: Path) -> Batch:
    """A job whose image is copied to a local disk with an awkward name."""
    disk = tmp_path / "local 'disk'"
    disk.mkdir()
    return Batch(tmp_path, f"container={{stage: true, stage_dir: {json.dumps(str(disk))}}}", project="a b$c")


def copy_of(batch: Batch) -> Path:
    return batch.script.parent / "local 'disk'" / f"launch-{os.getuid()}-77.sif"


def test_the_container_runs_from_the_copy(staged: Batch):
    inside = 'stat -c %%a "$STUB_COPY" >"$STUB_LOG/../mode"; %s' % (DONE % (0, 0, 0))
    done = staged.run(inside, STUB_COPY=str(copy_of(staged)))
    assert done.code == 0, done.err
    (container,) = done.containers
    words = container["command"]
    assert container["image"] == str(copy_of(staged))
    assert ["--bind", str(copy_of(staged).parent)] in container["options"]
    assert words[words.index("--staged") + 1] == str(copy_of(staged))
    assert words[words.index("--image") + 1] == str(staged.image)
    assert f"image_sha256={hashlib.sha256(staged.image.read_bytes()).hexdigest()}" in words
    assert (staged.folder / "mode").read_text() == "600\n"
    assert list(copy_of(staged).parent.iterdir()) == []


@pytest.mark.parametrize("inside", ["exit 255", "kill -KILL $$"])
def test_the_copy_goes_when_the_container_fails(staged: Batch, inside: str):
    """255: what Apptainer ends with when it cannot start."""
    assert staged.run(inside).code == 28
    assert list(copy_of(staged).parent.iterdir()) == []


def test_the_copy_goes_when_the_job_is_cancelled(staged: Batch):
    job = staged.node.start(staged.script, {"STUB_INSIDE": SUPERVISOR})
    staged.await_file("up")
    assert copy_of(staged).exists()
    job.terminate()
    assert staged.node.end(job).code == 143
    assert list(copy_of(staged).parent.iterdir()) == []


@pytest.mark.parametrize(("damage", "cause"), [('echo >>"$4"', "has the SHA-256 sum"), ('rm -- "$4"', "no copy ")])
def test_a_wrong_copy_ends_the_job_before_the_container(staged: Batch, damage: str, cause: str):
    done = staged.run("exit 0", STUB_DAMAGE=damage)
    assert (done.code, done.containers) == (20, [])
    verdict = staged.verdict
    assert (verdict["component"], verdict["node"], verdict["kind"]) == ("setup", "n1", "setup")
    assert cause in verdict["cause"]
    if "sum" in cause:
        assert hashlib.sha256(staged.image.read_bytes()).hexdigest() in verdict["cause"]
        assert hashlib.sha256(staged.image.read_bytes() + b"\n").hexdigest() in verdict["cause"]
    assert list(copy_of(staged).parent.iterdir()) == []


def test_the_copy_goes_when_no_step_starts(staged: Batch):
    ends = (
        '[[ $1 == --version ]] && exit; for last; do :; done; [[ $* == *" rm -f -- "* ]] && exec rm -f -- "$last"'
    )
    staged.node.program("srun", f"#!/bin/bash\n{ends}\nexit 1\n")
    assert staged.run("exit 0").code == 1
    assert list(copy_of(staged).parent.iterdir()) == []


@pytest.mark.parametrize("program", ["sbcast", "sha256sum"])
def test_a_job_that_is_cancelled_while_the_image_is_copied(staged: Batch, program: str):
    starts = 'echo half >"$4"\n' if program == "sbcast" else ""
    staged.node.program(program, f'#!/bin/bash\n{starts}touch "$STUB_LOG/../up"\nexec sleep 600\n')
    job = staged.node.start(staged.script)
    staged.await_file("up")
    job.terminate()
    done = staged.node.end(job)
    assert (done.code, done.containers) == (143, [])
    assert (staged.verdict["state"], staged.verdict["kind"]) == ("cancelled", "cancelled")
    assert list(copy_of(staged).parent.iterdir()) == []


def test_a_full_local_disk_is_told_and_left_clean(staged: Batch):
    done = staged.run("exit 0", STUB_FULL="1")
    assert (done.code, done.containers) == (20, [])
    assert "No space left on device" in done.err
    assert "4000 bytes" in staged.verdict["cause"]
    assert "container.stage=false" in staged.verdict["what_to_do"]
    assert list(copy_of(staged).parent.iterdir()) == []


def test_a_copy_on_a_shared_disk_is_refused(staged: Batch):
    staged.node.program("stat", "#!/bin/bash\necho lustre\n")
    done = staged.run("exit 0")
    assert (done.code, done.sruns) == (20, [])
    assert "is on a shared file system" in staged.verdict["cause"]
