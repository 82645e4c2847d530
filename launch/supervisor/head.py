"""The head node: Ray head, reward server, all nodes joined, trainer, merge, verdict; and the end of it all."""

import os
import secrets
import shlex
import socket
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, List, Optional, Union

from launch.supervisor.control import Hub
from launch.supervisor.environment import (
    base_environment,
    device_environments,
    make_caches,
    with_direct,
    with_head,
)
from launch.supervisor.log_follower import LogFollower
from launch.supervisor.ports import free_plan
from launch.supervisor.processes import Component, stop
from launch.supervisor.ray_cluster import head_command, watch_command
from launch.supervisor.settings import Settings
from launch.supervisor.training_log import latest_checkpoint, parse_steps, read_steps
from launch.supervisor.verdict import (
    EXIT_CODES,
    Failure,
    JobFailed,
    SetupError,
    find_evidence,
    write_json,
    write_verdict,
)
from launch.supervisor.watch import Cancelled, Watch, failure_of, say

# Ray's own imports may come from a slow shared file system.
_RAY_START_S = 300.0
_WORKERS_END_S = 15.0
_STOP_S = 3.0
_LATE_NODES_S = 10.0
# The trainer's overrides are in the script; in the log they would fill a page.
_SHOWN_WORDS = 12


class Head:
    """The head node while the job runs. `hf_model` is the merged model, once there is one."""

    def __init__(self, settings: Settings, cancelled: Cancelled) -> None:
        self._settings = settings
        self._ports = free_plan(settings.job_number)
        self._reward_url = f"http://{settings.address}:{self._ports.reward}"
        base = base_environment(settings, os.environ)
        make_caches(base)
        self._env = with_head(base, settings, settings.address, self._ports.gcs, self._reward_url)
        ray_env, self._reward_env = device_environments(self._env, settings)
        # The head is what the address names; `ray start --head` would look for another one there.
        self._ray_env = {name: value for name, value in ray_env.items() if name != "RAY_ADDRESS"}
        self._secrets = [Path(base[name]) for name in ("RAY_AUTH_TOKEN_PATH", "REWARD_SERVER_TOKEN_FILE")]
        for file in self._secrets:
            _write_secret(file, secrets.token_hex(32))
        for old in settings.reward_log.glob("failure-*.json"):
            old.unlink()  # of an earlier run in the same run directory
        self._token = secrets.token_hex(32)
        self._hub = Hub(settings.address, self._ports.control, self._token)
        self._watch = Watch(settings, self._hub, cancelled)
        self._cancelled = cancelled
        self._closed = False
        self.hf_model: Optional[Path] = None

    # ---- the order of the job

    def run(self) -> None:
        """Everything up to the merged model.

        Raises:
            JobFailed: with the first failure.
        """
        settings = self._settings
        self._write_manifest()
        say(settings, f"head at {settings.address} ({settings.interface}), {settings.nodes} nodes")
        self._publish()
        if settings.check:
            self._run_to_end("check", settings.check)
        self._start("ray head", head_command(settings, self._ports), self._ray_env)
        self._watch.wait(lambda: _listens(settings.address, self._ports.gcs), _RAY_START_S, "ray head")
        self._watch.ray_is_up()
        for command in settings.prepare:
            self._run_to_end("prepare", command)
        self._start_reward_server()
        self._join()
        if settings.reward:
            self._watch.wait(lambda: _ready(self._reward_url), settings.ready_s, "reward server")
            say(settings, f"reward server ready at {self._reward_url}")
        self._train()
        if settings.merge:
            # Nothing but this node is needed any more, and nothing else may fail the job.
            self.close(0)
            self._run_to_end("merge", settings.merge)
            self.hf_model = settings.run_dir / "hf_model"
            say(settings, f"merged model: {self.hf_model}")

    def _write_manifest(self) -> None:
        settings = self._settings
        told = {
            "job": settings.job_number,
            "attempt": settings.attempt,
            "nodes": settings.nodes,
            "head": {"node": settings.node, "interface": settings.interface, "address": settings.address},
            "ports": self._ports.services,
            "checkpoint_dir": str(settings.checkpoint_dir),
            "logs": str(settings.log("trainer").parent),
        }
        write_json(settings.run_dir / "manifest.json", told)

    def _publish(self) -> None:
        """Let the other nodes come. They start Ray when it is up here, and learn of a failure before that."""
        told = {
            "address": self._settings.address,
            "control_port": self._ports.control,
            "gcs_port": self._ports.gcs,
            "reward_url": self._reward_url,
            "token": self._token,
        }
        write_json(self._settings.rendezvous, told, mode=0o600)

    def _start_reward_server(self) -> None:
        if self._settings.reward:
            where = ["--host", self._settings.address, "--port", str(self._ports.reward)]
            where += ["--token-file", self._env["REWARD_SERVER_TOKEN_FILE"]]
            self._start("reward server", [*self._settings.reward, *where], self._reward_env)

    def _join(self) -> None:
        settings, ray = self._settings, self._watch.ray_nodes
        self._watch.wait(lambda: len(self._hub.nodes) == settings.nodes - 1, settings.join_s, "nodes")
        # Their addresses need not be what their names resolve to.
        self._env = with_direct(self._env, (str(info["address"]) for info in self._hub.nodes.values()))
        self._start("ray watch", watch_command(), self._env)
        self._watch.wait(lambda: ray.alive == settings.nodes, settings.join_s, "nodes")
        if ray.gpus != settings.gpus_expected:
            shown = {address: gpus for address, (_, gpus) in ray.nodes.items()}
            cause = f"Ray has {ray.gpus:g} GPUs, the job needs {settings.gpus_expected}: {shown}"
            raise self._watch.failed("nodes", cause)
        say(settings, f"{settings.nodes} Ray nodes with {ray.gpus:g} GPUs: {', '.join(ray.nodes)}")

    def _train(self) -> None:
        log = self._settings.log("trainer")
        say(self._settings, f"trainer starts, its first step takes a minute or more; its log: {log}")
        follower = LogFollower(log)
        trainer = self._component("trainer", self._settings.trainer, self._env)
        try:
            while trainer.poll() is None:
                self._watch.turn()
                self._tell_steps(follower)
        finally:
            stop([trainer], _STOP_S)
            self._tell_steps(follower)
        if trainer.exit_code != 0:
            self._watch.let_root_cause_show()
            raise JobFailed(failure_of(trainer, self._settings.node, int(trainer.exit_code or 1)))
        self._watch.turn()  # a reward outage that verl survived to its end is still one
        steps = self._steps_done()
        saved = latest_checkpoint(self._settings.checkpoint_dir)
        if self._settings.expect_steps and not steps and not saved:
            cause = "ended with 0 without a training step or a checkpoint; is the data empty after filtering?"
            raise JobFailed(
                Failure("trainer", self._settings.node, cause, EXIT_CODES["no step"], find_evidence(log))
            )
        say(self._settings, f"trainer ended well; steps in its log: {steps}")

    def _tell_steps(self, follower: LogFollower) -> None:
        for step in parse_steps(follower.lines()):
            told = {"score": step.reward, "seconds": step.metrics.get("timing_s/step")}
            numbers = "  ".join(f"{name} {value:.4g}" for name, value in told.items() if value is not None)
            say(self._settings, f"step {step.number}  {numbers}")

    # ---- the parts

    def _start(self, name: str, command: List[str], env: Dict[str, str]) -> None:
        self._watch.parts.append(self._component(name, command, env))

    def _component(self, name: str, command: List[str], env: Dict[str, str]) -> Component:
        try:
            return Component(name, command, self._settings.log(name), env, self._settings.run_dir)
        except OSError as error:
            cause, code = f"cannot be started: {error}", EXIT_CODES.get(name, 127)
            raise JobFailed(Failure(name, self._settings.node, cause, code)) from error

    def _run_to_end(self, name: str, command: List[str]) -> None:
        shown = command if len(command) <= _SHOWN_WORDS else [*command[:_SHOWN_WORDS], "..."]
        say(self._settings, f"{name}: {shlex.join(shown)}")
        part = self._component(name, command, self._env)
        try:
            while part.poll() is None:
                self._watch.turn()
        finally:
            stop([part], _STOP_S)
        if part.exit_code != 0:
            raise JobFailed(failure_of(part, self._settings.node, EXIT_CODES[name]))

    # ---- the end

    def _steps_done(self) -> int:
        steps = read_steps(self._settings.log("trainer"))
        return steps[-1].number if steps else 0

    def training(self) -> Dict[str, Union[int, str, None]]:
        """What there is to show, for the verdict."""
        saved = latest_checkpoint(self._settings.checkpoint_dir)
        return {
            "steps_done": self._steps_done(),
            "last_checkpoint": str(saved) if saved else None,
            "hf_model": str(self.hf_model) if self.hf_model else None,
        }

    def close(self, exit_code: int) -> None:
        """End the other nodes, then the parts on this one. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        if exit_code and self._cancelled() is None:
            self._await_the_rest()
        late = self._hub.end(exit_code, _WORKERS_END_S)
        if late:
            names = [str(self._hub.nodes[rank]["node"]) for rank in late]
            say(self._settings, f"did not confirm the end: {', '.join(names)}")
        parts = self._watch.parts
        self._watch.nodes_are_over()
        stop(parts, _STOP_S)
        self._hub.close()
        for file in (*self._secrets, self._settings.rendezvous):
            file.unlink(missing_ok=True)

    def _await_the_rest(self) -> None:
        """Let nodes that are still starting join. One that srun has to end may end with a code above the cause's,
        and srun takes the highest."""
        until = time.monotonic() + _LATE_NODES_S
        while len(self._hub.nodes) < self._settings.nodes - 1 and time.monotonic() < until:
            if self._cancelled() is not None:
                return
            self._hub.poll(0.2)


def _write_secret(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)


def _listens(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0


def _ready(url: str) -> bool:
    """Whether the reward server answers GET /ready with 200, asked directly, not through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/ready", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False  # not yet; the deadline is the caller's


def _outcome(settings: Settings, cancelled: Cancelled) -> "tuple[Optional[Head], Optional[Failure]]":
    """Run the job; whatever happens becomes a failure, since the other nodes wait for the end."""
    head: Optional[Head] = None
    try:
        head = Head(settings, cancelled)
        head.run()
    except JobFailed as error:
        return head, error.failure
    except SetupError as error:
        return head, Failure("setup", settings.node, str(error), EXIT_CODES["setup"])
    except Exception as error:  # noqa: BLE001  a full disk, a run directory that vanished, a mistake of ours
        traceback.print_exc()
        return head, Failure("head", settings.node, f"{type(error).__name__}: {error}", EXIT_CODES["head"])
    return head, None


def run_head(settings: Settings, cancelled: Cancelled) -> int:
    """Run the job and write its verdict; returns the job's exit code."""
    started = time.time()
    head, failure = _outcome(settings, cancelled)
    exit_code = failure.exit_code if failure else 0
    state = "completed" if failure is None else "failed"
    if failure is not None and (failure.component, exit_code) == ("job", EXIT_CODES["cancelled"]):
        state = "cancelled"
    say(settings, failure.line() if failure else f"completed; verdict: {settings.run_dir / 'verdict.json'}")
    # The verdict first: what follows takes time, and a cancelled job has little.
    try:
        training = head.training() if head is not None else {}
        write_verdict(settings.run_dir, state=state, started=started, failure=failure, training=training)
    except OSError as error:  # the exit code and the line above still tell
        say(settings, f"verdict.json cannot be written: {error}")
    if head is not None:
        try:
            head.close(exit_code)
        except OSError as error:
            say(settings, f"while ending the job: {error}")
    return exit_code
