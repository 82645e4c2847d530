"""Which cause a failure has: the first telling one in long logs, and none where there is none."""

# ruff: noqa: E501  real lines of logs are long

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_logs import (
    ACTOR_DIED,
    GOODBYE,
    NCCL_NOISE,
    OTHER,
    RAYLET,
    RAYLET_KILLED,
    RUNNER,
    START,
    WORKER,
    WORKER_DIED,
    in_worker,
    raised_in_worker,
    steps,
)

from launch.supervisor import causes, symptoms
from launch.supervisor.cause_finder import cause_in
from launch.supervisor.causes import CAUSES, diagnose
from launch.supervisor.log_tail import Line
from launch.supervisor.verdict import EXIT_CODES, Evidence, Failure

README = (Path(causes.__file__).parents[2] / "README.md").read_text()
CAUSES_MD = (Path(causes.__file__).parents[1] / "causes.md").read_text()
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.02 GiB is free."
)
RAY_MEMORY = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    "Memory on the node (IP: 10.0.2.101, ID: 8c7b) where the task (actor ID: 0dab, name=WorkerDict.__init__, "
    "pid=5101, memory used=11.15GB) was running was 59.49GB / 62.58GB (0.950744), which exceeds the memory usage "
    "threshold of 0.95. Ray killed this worker (ID: 79a5) because it was the most recently scheduled task"
)
HYDRA_TARGET = """\
Error executing job with overrides: ['trainer.logger=console']
Error in call to target 'verl.workers.config.model.HFModelConfig':
{}
full_key: critic.model

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
VALIDATE = """\
Error executing job with overrides: ['data.train_batch_size=8']
Traceback (most recent call last):
  File "/opt/verl/trainer/main_ppo.py", line 45, in main
    run_ppo(config)
ray.exceptions.RayTaskError(AssertionError): ray::TaskRunner.run() (pid=4030, ip=10.0.2.100)
  File "/opt/verl/trainer/main_ppo.py", line 300, in run
    validate_config(
  File "/opt/verl/utils/config.py", line 124, in validate_config
    assert real_train_batch_size % minimal_bsz == 0, (
AssertionError: real_train_batch_size (8) must be divisible by minimal possible batch size (3)
"""


def judge(
    tmp_path: Path, text: str, component: str = "trainer", code: int = 1, cause: str = "", oom: int = 0
) -> Failure:
    """The diagnosis of a failure of a component whose log has this text."""
    log = tmp_path / "logs" / f"n1-{component.replace(' ', '-')}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text(text)
    return diagnose(Failure(component, "n1", cause or f"ended with {code}", code), [log], oom)


@pytest.mark.parametrize(
    ("kind", "text", "telling"),
    [
        ("cuda-out-of-memory", raised_in_worker(CUDA), "torch.OutOfMemoryError: CUDA"),
        ("cuda-out-of-memory", in_worker(CUDA) + NCCL_NOISE + WORKER_DIED + ACTOR_DIED + GOODBYE, "CUDA out of memory"),
        (
            "cuda-out-of-memory",
            raised_in_worker(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.2"
            ),
            "mem-fraction-static",
        ),
        ("cuda-out-of-memory", raised_in_worker("RuntimeError: CUDA error: out of memory"), "CUDA error"),
        (
            "cuda-out-of-memory",
            "(SGLangHttpServer pid=7) [torch_memory_saver.cpp] CUresult error: 2 (out of memory)  file=csrc/utils.h "
            "func=cu_mem_create line=194\n" + ACTOR_DIED,
            "CUresult error: 2",
        ),
        (
            "cuda-out-of-memory",
            "(EngineCore_0 pid=9) ERROR 11-29 22:00:00 [core.py:700] Traceback (most recent call last):\n"
            '(EngineCore_0 pid=9) ERROR 11-29 22:00:00 [core.py:700]   File "core.py", line 1, in f\n'
            f"(EngineCore_0 pid=9) ERROR 11-29 22:00:00 [core.py:700] {CUDA}\n"
            + raised_in_worker("RuntimeError: Engine core initialization failed. See root cause above. Failed core: {}"),
            "CUDA out of memory",
        ),
        ("out-of-memory", raised_in_worker(RAY_MEMORY), "node running low on memory"),
        (
            "out-of-memory",
            f"{RAYLET}[2026-11-29 22:30:00,000 E 901 901] (raylet) node_manager.cc:3193: 2 Workers (tasks / actors) "
            "killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 84)\n"
            + NCCL_NOISE + ACTOR_DIED,
            "2 Workers (tasks / actors) killed",
        ),
        (
            "out-of-memory",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=113.0. Some of the step tasks have been OOM Killed.\n"
            + ACTOR_DIED,
            "oom_kill event",
        ),
        ("out-of-memory", raised_in_worker("MemoryError"), "MemoryError"),
        (
            "out-of-memory",
            raised_in_worker("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.31 GiB for an array"),
            "Unable to allocate",
        ),
        (
            "nccl",
            raised_in_worker(
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2094, unhandled system error "
                "(run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
                "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."
            ),
            "NCCL error in",
        ),
        ("nccl", NCCL_NOISE + WORKER_DIED + ACTOR_DIED + GOODBYE, "Watchdog caught collective operation timeout"),
        (
            "reward-outage",
            raised_in_worker("reward.errors.RewardOutageError: no score from http://10.0.2.100:10001 for 120 s"),
            "no score from",
        ),
        (
            "ray-node-lost",
            "The node with node id: 84ab and address: 10.0.2.102 and node name: 10.0.2.102 has been marked dead because "
            "the detector has missed too many heartbeats from it.\n" + ACTOR_DIED,
            "marked dead",
        ),
        ("worker-died", WORKER_DIED + ACTOR_DIED + GOODBYE, "A worker died or was killed"),
        (
            "port-taken",
            raised_in_worker(
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
                "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
            ),
            "EADDRINUSE",
        ),
        (
            "missing-path",
            raised_in_worker("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.parquet'"),
            "/data/train.parquet",
        ),
        (
            "disk-full",
            raised_in_worker(
                "RuntimeError: [enforce fail at inline_container.cc:857] . PytorchStreamWriter failed writing file "
                "data/322: file write failed\n\n"
                "During handling of the above exception, another exception occurred:\n\n"
                "ray::WorkerDict.save_checkpoint() (pid=5101, ip=10.0.2.101)\n"
                '  File "torch/serialization.py", line 965, in save\n'
                "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 832 vs 726"
            ),
            "unexpected pos",
        ),
        ("disk-full", raised_in_worker("OSError: [Errno 122] Disk quota exceeded: '/ckpt/x.pt'"), "quota"),
        ("disk-full", raised_in_worker("OSError: [Errno 28] No space left on device"), "No space left"),
        (
            "disk-full",
            in_worker("OSError: [Errno 28] No space left on device: '/ckpt/global_step_3/model.pt'")
            + raised_in_worker("RuntimeError: a rank could not save its part"),
            "No space left",
        ),
        ("verl-config", VALIDATE, "must be divisible by minimal"),
        (
            "verl-config",
            "Could not override 'data.apply_chat_template_kwargs.enable_thinking'.\n"
            "To append to your config use +data.apply_chat_template_kwargs.enable_thinking=False\n"
            "Key 'enable_thinking' is not in struct\n    full_key: data.x\n    object_type=dict\n\n"
            "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n" + GOODBYE,
            "Could not override 'data.apply",
        ),
        ("verl-config", "no viable alternative at input '['\nSee https://hydra.cc/docs for details\n", "no viable"),
        (
            "verl-config",
            raised_in_worker("omegaconf.errors.ConfigAttributeError: Key 'foo' is not in struct\n    full_key: a.foo"),
            "Key 'foo'",
        ),
        ("missing-path", HYDRA_TARGET.format("OSError(\"Repo id must be in the form 'a/b': '~/models/x'.\")"), "Repo id"),
        (
            "missing-path",
            raised_in_worker(
                "hydra.errors.InstantiationException: Error in call to target 'verl.workers.config.model.HFModelConfig':\n"
                "OSError(\"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/nonexistent/m'.\")\n"
                "full_key: actor_rollout_ref.model"
            ),
            "/nonexistent/m",
        ),
        ("verl-config", HYDRA_TARGET.format("ValueError('use_remove_padding needs a GPU')"), "use_remove_padding"),
        ("permission-denied", raised_in_worker("PermissionError: [Errno 13] Permission denied: '/ckpt'"), "/ckpt"),
        ("gpu-unusable", raised_in_worker("RuntimeError: No CUDA GPUs are available"), "No CUDA GPUs"),
        ("import-error", raised_in_worker("ModuleNotFoundError: No module named 'transformer_engine'"), "transformer_en"),
    ],
)  # fmt: skip
def test_a_cause_of_the_trainer_in_a_long_log(tmp_path: Path, kind: str, text: str, telling: str):
    whole = START + steps(30) + text
    told = judge(tmp_path, whole)
    assert told.kind == kind
    assert told.exit_code == CAUSES[kind].code
    assert told.what_to_do == CAUSES[kind].what_to_do
    assert told.evidence is not None
    assert telling in told.evidence.text
    # The line is the line: an editor jumps there.
    number = told.evidence.line
    assert number is not None
    assert whole.splitlines()[number - 1].replace("\x1b[36m", "").replace("\x1b[0m", "").replace("\x1b[33m", "").replace(
        "\x1b[39m", ""
    ).strip()[:80] == told.evidence.text[:80]  # fmt: skip


def test_the_first_of_two_root_causes_wins_over_its_consequences(tmp_path: Path):
    """One rank is out of memory, another then cannot open what the first should have written."""
    later = in_worker("FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/rank0'", OTHER)
    told = judge(tmp_path, START + steps(3) + in_worker(CUDA) + later + NCCL_NOISE + ACTOR_DIED)
    assert told.kind == "cuda-out-of-memory"


def test_a_failure_while_a_step_is_logged(tmp_path: Path):
    """One-step-off makes the next batch while the step before it ends."""
    told = judge(tmp_path, START + steps(8) + in_worker(CUDA) + steps(1, 9) + WORKER_DIED + ACTOR_DIED)
    assert told.kind == "cuda-out-of-memory"


@pytest.mark.parametrize(
    "survived",
    [
        in_worker(CUDA),
        in_worker("OSError: [Errno 28] No space left on device"),
        "n1:5101:5230 [0] transport/net_ib.cc:295 NCCL WARN Call to ibv_create_cq failed\n",
        f"{RAYLET}1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed\n",
        NCCL_NOISE,
    ],
)
def test_what_a_run_survived_is_no_cause(tmp_path: Path, survived: str):
    text = START + steps(3) + survived + steps(5, 4) + raised_in_worker("KeyError: 'responses'")
    told = judge(tmp_path, text)
    assert (told.kind, told.exit_code) == ("unrecognised", 1)
    assert told.evidence is not None
    assert told.evidence.text == "KeyError: 'responses'"


@pytest.mark.parametrize("ending", ["", "KeyError", "killed"])
def test_a_healthy_log_has_no_cause(tmp_path: Path, ending: str):
    """Samples that quote errors, error=1, progress bars, warnings, retries."""
    if ending == "killed":
        told = judge(tmp_path, START + steps(20), code=137, cause="killed by signal 9")
        assert (told.kind, told.exit_code) == ("killed", 137)
        return
    told = judge(tmp_path, START + steps(20) + (raised_in_worker("KeyError: 'x'") if ending else ""))
    assert (told.kind, told.exit_code) == ("unrecognised", 1)


def test_actor_died_speaks_of_an_oom_killer_that_nobody_saw(tmp_path: Path):
    told = judge(tmp_path, START + steps(2) + ACTOR_DIED)
    assert (told.kind, told.exit_code) == ("worker-died", EXIT_CODES["worker died"])


@pytest.mark.parametrize(
    ("code", "cause", "text", "expected"),
    [
        (137, "killed by signal 9", steps(2), 32),
        (1, "ended with 1", steps(2) + ACTOR_DIED, 32),
        (1, "ended with 1", steps(2) + NCCL_NOISE + ACTOR_DIED, 32),
        (42, "ended with 42", steps(2), 42),
        (1, "ended with 1", steps(2) + raised_in_worker(CUDA), 33),
    ],
)
def test_kills_on_record(tmp_path: Path, code: int, cause: str, text: str, expected: int):
    told = judge(tmp_path, START + text, code=code, cause=cause, oom=2)
    assert told.exit_code == expected
    assert told.kind == ("cuda-out-of-memory" if expected == 33 else "out-of-memory")
    assert ("kernels killed 2" in told.cause) is (expected != 33)


@pytest.mark.parametrize(
    ("component", "code", "text", "kind", "expected"),
    [
        ("trainer", 42, raised_in_worker(CUDA), "cuda-out-of-memory", 42),
        ("trainer", 137, raised_in_worker(CUDA), "killed", 137),
        ("trainer", 134, NCCL_NOISE, "nccl", 134),
        ("reward server", 25, in_worker(CUDA, ""), "cuda-out-of-memory", 33),
        (
            "reward server",
            25,
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use\n",
            "port-taken",
            35,
        ),
        ("reward server", 25, "error: cannot listen on h:1: [Errno 98] Address already in use\n", "port-taken", 35),
        ("reward server", 25, "INFO: Application startup complete.\n", "unrecognised", 25),
        (
            "ray head",
            22,
            "Traceback (most recent call last):\n  File \"ray/_private/node.py\", line 455, in check\n"
            "AssertionError: Session name session_2026-11-29_1 does not match persisted value session_2026-11-29_2. "
            "Perhaps there was an error connecting to Redis.\n",
            "port-taken",
            35,
        ),
        ("ray worker", 23, "2026 INFO scripts.py:1163 -- Ray runtime started.\n", "ray-node-lost", 23),
        ("ray worker", 23, RAYLET_KILLED, "ray-node-lost", 23),
        (
            "check",
            19,
            "error: unreadable: data.train_files: /d/x.parquet: No such file or directory; correct the path, or add it\n",
            "missing-path",
            36,
        ),
        ("check", 19, "error: unknown-key: actor.foo is no key of verl 0.9.1; correct it\n", "verl-config", 38),
        ("merge", 27, "error: /c: No space left on device\n", "disk-full", 37),
        ("merge", 27, "error: no checkpoint\n", "unrecognised", 27),
        (
            "prepare",
            26,
            "FATAL:   could not open image /img/x.sif: failed to retrieve path for /img/x.sif: lstat /img/x.sif: "
            "no such file or directory\n",
            "missing-path",
            36,
        ),
    ],
)  # fmt: skip
def test_the_rule_of_codes(tmp_path: Path, component: str, code: int, text: str, kind: str, expected: int):
    cause = f"killed by signal {code - 128}" if code > 128 else ""
    told = judge(tmp_path, text, component, code, cause)
    assert (told.kind, told.exit_code) == (kind, expected)


@pytest.mark.parametrize(
    ("component", "cause", "code", "kind", "expected"),
    [
        ("setup", "no /img/x.sif on this node; have it mounted, or correct the job", 20, "missing-path", 20),
        ("setup", "no /no pe on this node", 20, "missing-path", 20),
        ("setup", "image /i/x.sif is not readable on n1", 20, "missing-path", 20),
        ("setup", "no 'module' command on n1", 20, "setup", 20),
        ("trainer", "cannot be started: [Errno 2] No such file or directory: '/x'", 127, "missing-path", 127),
        ("prepare", "cannot be started: [Errno 13] Permission denied: '/x'", 26, "permission-denied", 43),
        ("setup", "node n1 has no interface that other nodes can reach", 20, "setup", 20),
        ("setup", "none of the 100 port blocks from 10000 on is free; in this job's own block 1 are taken", 20,
         "port-taken", 20),
        ("head", "OSError: [Errno 28] No space left on device: '/run/x'", 28, "disk-full", 37),
        ("node", "OSError: [Errno 122] Disk quota exceeded", 24, "disk-full", 37),
        ("node", "node lost: connection closed", 24, "node-lost", 24),
        ("nodes", "not ready after 300 s: of 3 nodes, 1 besides the head said hello", 21, "nodes-missing", 21),
        ("job", "cancelled or out of time: signal 15", 143, "cancelled", 143),
        ("reward client", "reward outage", 29, "reward-outage", 29),
        ("trainer", "ended with 0 without a training step or a checkpoint; is the data empty?", 31, "no-step", 31),
    ],
)  # fmt: skip
def test_failures_without_a_log_of_their_own(component: str, cause: str, code: int, kind: str, expected: int):
    told = diagnose(Failure(component, "n1", cause, code), [], 0)
    assert (told.kind, told.exit_code, told.cause) == (kind, expected, cause)
    assert told.what_to_do


def test_an_exit_code_of_no_signal_is_none(tmp_path: Path):
    """sys.exit(-1) is 255; a signal hides what the log says."""
    log = tmp_path / "n1-trainer.log"
    log.write_text("Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n")
    told = diagnose(Failure("trainer", "n1", "ended with 255", 255), [log], 0)
    assert (told.kind, told.exit_code) == ("disk-full", 255)
    unknown = diagnose(Failure("trainer", "n1", "ended with 255", 255), [], 0)
    assert unknown.kind == "unrecognised"


def test_the_telling_line_of_a_killed_raylet(tmp_path: Path):
    evidence = judge(tmp_path, RAYLET_KILLED, "ray worker", 23).evidence
    assert evidence is not None
    assert (evidence.line, evidence.text.endswith("raylet [exit code=-9]")) == (2, True)


def test_a_kind_that_is_known_stays(tmp_path: Path):
    log = tmp_path / "n1-trainer.log"
    log.write_text(START + raised_in_worker(CUDA))
    given_ = Failure("trainer", "n1", "no new line for 3600 s", 39, Evidence("/log", 3, "x"), kind="stalled")
    told = diagnose(given_, [log], 5)
    assert (told.kind, told.exit_code, told.evidence) == ("stalled", 39, given_.evidence)
    assert told.what_to_do == CAUSES["stalled"].what_to_do


def test_another_log_counts_for_memory_and_disks_only(tmp_path: Path):
    for name, text in (
        ("n1-trainer", ACTOR_DIED),
        ("n2-ray-worker", in_worker("MemoryError", "")),
        ("n3-x", NCCL_NOISE),
    ):
        (tmp_path / f"{name}.log").write_text(text)
    failure = Failure("trainer", "n1", "ended with 1", 1)
    assert diagnose(failure, sorted(tmp_path.glob("n[13]*")), 0).kind == "worker-died"
    told = diagnose(failure, sorted(tmp_path.glob("*.log")), 0)
    assert (told.kind, told.evidence.file if told.evidence else "") == (
        "out-of-memory",
        str(tmp_path / "n2-ray-worker.log"),
    )


def test_missing_and_unreadable_logs_are_survived(tmp_path: Path):
    failure = Failure("trainer", "n1", "ended with 1", 1)
    for log in (tmp_path / "n1-trainer.log", tmp_path):
        assert diagnose(failure, [log], 0).kind == "unrecognised"


def test_a_sample_without_an_end_hides_nothing_that_others_say(tmp_path: Path):
    text = START + f"{RUNNER}[response] MemoryError is\n" + in_worker(CUDA) + ACTOR_DIED
    assert judge(tmp_path, text).kind == "cuda-out-of-memory"


def test_every_symptom_has_a_row():
    assert set(symptoms.RAISED) | set(symptoms.SAID) <= set(CAUSES)
    assert {*symptoms.ROOTS, *symptoms.LINKS} <= set(symptoms.RAISED)


def test_codes_of_causes_are_codes_of_the_table():
    coded = {kind: row.code for kind, row in CAUSES.items() if row.code is not None}
    assert set(coded.values()) <= set(EXIT_CODES.values())
    own = [kind for kind in coded if EXIT_CODES.get(kind.replace("-", " ")) == coded[kind]]
    assert {coded[kind] for kind in own} >= set(range(32, 40))


def test_the_readme_lists_every_code_once():
    rows = re.findall(r"^\| (\d+) \| ([\w ]+?) \| ", README, re.MULTILINE)
    codes = [int(code) for code, _ in rows]
    assert len(codes) == len(set(codes))
    assert [f"| {code} | {name} |" for name, code in EXIT_CODES.items() if (str(code), name) not in rows] == []


def test_the_documents_say_of_causes_what_the_table_says():
    assert [row for row in causes.exit_code_rows() if row not in README.splitlines()] == []
    table = [line for line in CAUSES_MD.splitlines() if line.startswith("| `")]
    assert table == causes.cause_rows()


@pytest.mark.parametrize(
    "part",
    ["a.cc:1: ", "error: ", "error ", "[x] ", "[x]: ", "x: ", "(raylet) ", "n1:1:1 [0] ", "a.b.", "CUDA error: ", "1 Workers ",
     "FATAL: ", "image ", "no a on this ", "In 'a': ", "kernel: ", "what(): ", "Failed to bind to ", "A", "_", " ", "port "],
)  # fmt: skip
def test_no_line_takes_long(part: str):
    """A model may print anything: a pattern that tries all ways to match would hang the head at the end of the job."""
    texts = [
        part * 200,
        "[x] " * 50 + part * 200,
        "error: " + part * 200,
        part * 40 + "Error: x",
        f"{WORKER}{part * 200}",
    ]

    def takes_s(*texts: str) -> float:
        began = time.process_time()
        cause_in([Line(number, texts[number % len(texts)][:500]) for number in range(500)])
        return time.process_time() - began

    # A log has some ten thousand lines in what is read of it. Plain words tell how quick this machine is.
    usual = max(takes_s("plain words " * 50) for _ in range(3))
    assert takes_s(*texts) < 50 * usual


words = st.sampled_from(
    ["Traceback (most recent call last):", '  File "x.py", line 1, in f', CUDA, "MemoryError", "step:3 - a/b:1",
     "[prompt] x", "[response] y", "[ground_truth] z", "[score] 0", "NCCL WARN", "KeyError: 'x'", "", "  ", "\x1b[31m",
     "The above exception was the direct cause of the following exception:", "(raylet)", "(A pid=1) ", "text"]
)  # fmt: skip


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from(["", RUNNER, WORKER, "[rank0]: "]), words | st.text(max_size=40)), max_size=40
    )
)
def test_any_lines_are_survived_and_the_found_line_is_one_of_them(pairs: list[tuple[str, str]]):
    lines = [Line(number, prefix + text) for number, (prefix, text) in enumerate(pairs, 1)]
    found = cause_in(lines)
    assert found is None or (found.line in lines and (found.kind == "" or found.kind in CAUSES))


@settings(max_examples=100)
@given(st.text(alphabet=st.characters(blacklist_characters="\n\r"), max_size=200))
def test_what_a_model_answers_is_no_cause(answer: str):
    quoted = [
        f"{RUNNER}[response] {answer}",
        f"{RUNNER}{answer}",
        f"{RUNNER}MemoryError",
        f"{RUNNER}[ground_truth] 1",
    ]
    assert cause_in([Line(number, text) for number, text in enumerate(quoted, 1)]) is None
