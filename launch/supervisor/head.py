"""The head node: Ray head, reward server, all nodes joined, trainer, merge, verdict; and the end of it all."""

import json
import os
import secrets
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Callable, Dict, List, Optional, Union

from launch.supervisor.control import Hub, Message
from launch.supervisor.environment import base_environment, device_environments, with_head
from launch.supervisor.log_follower import LogFollower
from launch.supervisor.ports import free_plan
from launch.supervisor.processes import Component, reap_orphans
from launch.supervisor.ray_cluster import RayNodes, head_command, watch_command
from launch.supervisor.settings import Settings
from launch.supervisor.training_log import latest_checkpoint, parse_steps, read_steps
from launch.supervisor.verdict import (
    EXIT_CODES,
    Evidence,
    Failure,
    JobFailed,
    SetupError,
    find_evidence,
    noted_failures,
    read_failure,
    write_json,
    write_verdict,
)

_POLL_S = 0.2
_RAY_START_S = 120.0
# A part that died takes the trainer with it; the part is the cause, and is noticed within this time.
_ROOT_CAUSE_S = 4.0
_WORKERS_END_S = 15.0

Cancelled = Callable[[], Optional[int]]


def say(settings: Settings, text: str) -> None:
    """One line of progress on stdout, which is the job's log."""
    print(f"[{time.strftime('%H:%M:%S')} {settings.node}] {text}", flush=True)


class Head:
    """State of the head node while the job runs."""

    def __init__(self, settings: Settings, cancelled: Cancelled) -> None:
        self._settings = settings
        self._cancelled = cancelled
        self._ports = free_plan(settings.job_number)
        token = secrets.token_hex(32)
        self._hub = Hub(settings.address, self._ports.control, token)
        self._reward_url = f"http://{settings.address}:{self._ports.reward}"
        base = base_environment(settings, os.environ)
        self._env = with_head(base, settings.address, self._ports.gcs, self._reward_url)
        ray_env, self._reward_env = device_environments(self._env, settings)
        # The head is what the address names; `ray start --head` would look for another one there.
        self._ray_env = {name: value for name, value in ray_env.items() if name != "RAY_ADDRESS"}
        for name in ("ray_token", "reward_token"):
            _write_secret(settings.run_dir / name, secrets.token_hex(32))
        write_json(
            settings.rendezvous,
            {
                "address": settings.address,
                "control_port": self._ports.control,
                "gcs_port": self._ports.gcs,
                "reward_url": self._reward_url,
                "token": token,
            },
            mode=0o600,
        )
        for old in settings.reward_log.glob("failure-*.json"):
            old.unlink()  # of an earlier attempt in the same run directory
        self._running: List[Component] = []
        self._ray_nodes = RayNodes(LogFollower(settings.log("ray nodes")))
        self._reaped = time.monotonic()
        self.hf_model: Optional[Path] = None

    # ---- the order of the job

    def run(self) -> None:
        """Everything up to the merged model.

        Raises:
            JobFailed: with the first failure.
        """
        settings = self._settings
        say(settings, f"head at {settings.address} ({settings.interface}), {settings.nodes} nodes")
        self._start("ray head", head_command(settings, self._ports), self._ray_env)
        for command in settings.prepare:
            self._run_to_end("prepare", command)
        reward = self._start_reward_server()
        self._join()
        if reward is not None:
            self._wait(lambda: _ready(self._reward_url), settings.ready_s, "reward server")
            say(settings, f"reward server ready at {self._reward_url}")
        self._train()
        if settings.merge:
            self._merge()

    def _start_reward_server(self) -> Optional[Component]:
        if not self._settings.reward:
            return None
        where = ["--host", self._settings.address, "--port", str(self._ports.reward)]
        where += ["--token-file", self._env["REWARD_SERVER_TOKEN_FILE"]]
        return self._start("reward server", [*self._settings.reward, *where], self._reward_env)

    def _join(self) -> None:
        settings = self._settings
        self._wait(lambda: len(self._hub.nodes) == settings.nodes - 1, settings.join_s, "nodes")
        self._start("ray nodes", watch_command())
        self._wait(
            lambda: self._ray_nodes.alive == settings.nodes,
            settings.join_s,
            "nodes",
        )
        found = self._ray_nodes.gpus
        if found != settings.gpus_expected:
            shown = {address: gpus for address, (_, gpus) in self._ray_nodes.nodes.items()}
            cause = f"Ray has {found:g} GPUs, the job needs {settings.gpus_expected}: {shown}"
            raise self._failed("nodes", cause, EXIT_CODES["nodes"])
        say(settings, f"{settings.nodes} Ray nodes with {found:g} GPUs: {', '.join(self._ray_nodes.nodes)}")

    def _train(self) -> None:
        say(self._settings, "trainer starts; its log: " + str(self._settings.log("trainer")))
        trainer = self._component("trainer", self._settings.trainer)
        follower = LogFollower(trainer.log)
        try:
            while trainer.poll() is None:
                self._turn()
                self._tell_steps(follower)
        finally:
            trainer.stop(grace_s=5.0)
            self._tell_steps(follower)
        if trainer.exit_code != 0:
            self._let_root_cause_show()
            raise JobFailed(self._failure(trainer, int(trainer.exit_code or 1)))
        say(self._settings, f"trainer ended well after {self._steps_done()} steps")

    def _tell_steps(self, follower: LogFollower) -> None:
        for line in follower.lines():
            for step in parse_steps(line):
                told = {"score": step.reward, "seconds": step.metrics.get("timing_s/step")}
                numbers = "  ".join(f"{name} {value:.4g}" for name, value in told.items() if value is not None)
                say(self._settings, f"step {step.number}  {numbers}")

    def _merge(self) -> None:
        self._run_to_end("merge", self._settings.merge)
        self.hf_model = self._settings.run_dir / "hf_model"
        say(self._settings, f"merged model: {self.hf_model}")

    # ---- the parts

    def _start(self, name: str, command: List[str], env: Optional[Dict[str, str]] = None) -> Component:
        part = self._component(name, command, env)
        self._running.append(part)
        return part

    def _component(self, name: str, command: List[str], env: Optional[Dict[str, str]] = None) -> Component:
        try:
            return Component(name, command, self._settings.log(name), env or self._env, self._settings.run_dir)
        except OSError as error:
            raise self._failed(name, f"cannot be started: {error}", EXIT_CODES.get(name, 127)) from error

    def _run_to_end(self, name: str, command: List[str]) -> None:
        say(self._settings, f"{name}: {' '.join(command)}")
        part = self._component(name, command)
        try:
            while part.poll() is None:
                self._turn()
        finally:
            part.stop(grace_s=3.0)
        if part.exit_code != 0:
            raise JobFailed(self._failure(part, EXIT_CODES[name]))

    def _failure(self, part: Component, exit_code: int) -> Failure:
        ended = f"ended with {part.exit_code}"
        if part.exit_code is not None and part.exit_code > 128:
            ended = f"killed by signal {part.exit_code - 128}"
        return Failure(part.name, self._settings.node, ended, exit_code, find_evidence(part.log))

    def _failed(self, component: str, cause: str, exit_code: int) -> JobFailed:
        return JobFailed(Failure(component, self._settings.node, cause, exit_code))

    # ---- watching

    def _wait(self, ready: Callable[[], bool], limit_s: float, component: str) -> None:
        deadline = time.monotonic() + limit_s
        while not ready():
            self._turn()
            if time.monotonic() > deadline:
                cause = f"not ready after {limit_s:.0f} s: {self._missing(component)}"
                raise self._failed(component, cause, EXIT_CODES[component])

    def _missing(self, component: str) -> str:
        if component != "nodes":
            evidence = find_evidence(self._settings.log(component))
            return f"{evidence.file}: {evidence.text}" if evidence else "it has written no log"
        here = [f"{info['node']} ({info['address']})" for _, info in sorted(self._hub.nodes.items())]
        return (
            f"of {self._settings.nodes} nodes, {len(here)} besides the head said hello ({', '.join(here) or '-'})"
            f" and {self._ray_nodes.alive} are in Ray"
        )

    def _turn(self) -> None:
        """One round of watching; raises JobFailed for whatever failed, nodes before parts before signals."""
        for event in self._hub.poll(_POLL_S):
            self._on_event(event)
        for address in self._ray_nodes.update():
            names = {info["address"]: str(info["node"]) for info in self._hub.nodes.values()}
            node = names.get(address, self._settings.node)
            cause = f"Ray lost the node at {address}"
            raise JobFailed(Failure("ray worker", node, cause, EXIT_CODES["ray worker"]))
        for part in self._running:
            if part.poll() is not None:
                code = EXIT_CODES.get(part.name, EXIT_CODES["ray head"])
                raise JobFailed(self._failure(part, code))
        self._see_reward_outage()
        number = self._cancelled()
        if number is not None:
            noted = noted_failures(self._settings.run_dir)
            if noted:
                raise JobFailed(noted[0])
            raise self._failed("job", f"cancelled or out of time: signal {number}", EXIT_CODES["cancelled"])
        if time.monotonic() - self._reaped > 5.0:
            self._reaped = time.monotonic()
            reap_orphans()

    def _see_reward_outage(self) -> None:
        """verl does not end for every exception of a reward function; the client's file says that it raised."""
        for file in sorted(self._settings.reward_log.glob("failure-*.json")):
            told = json.loads(file.read_text())
            evidence = Evidence(str(file), None, str(told["error"])[:500])
            code = EXIT_CODES["reward outage"]
            raise JobFailed(Failure("reward client", str(told["node"]), "reward outage", code, evidence))

    def _on_event(self, event: Message) -> None:
        info = self._hub.nodes.get(int(event["rank"]), {})
        if event["type"] == "failed":
            raise JobFailed(read_failure(event["failure"]))
        if event["type"] == "lost":
            node = str(info.get("node"))
            raise JobFailed(Failure("node", node, f"node lost: {event['why']}", EXIT_CODES["node"]))
        if event["type"] == "hello":
            say(self._settings, f"{info['node']} joined from {info['address']}")

    def _let_root_cause_show(self) -> None:
        until = time.monotonic() + _ROOT_CAUSE_S
        while time.monotonic() < until:
            self._turn()

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
        """End the other nodes, then the parts on this one, last started first."""
        late = self._hub.end(exit_code, _WORKERS_END_S)
        if late:
            names = [str(self._hub.nodes[rank]["node"]) for rank in late]
            say(self._settings, f"did not confirm the end: {', '.join(names)}")
        for part in reversed(self._running):
            part.stop(grace_s=3.0)
        self._hub.close()


def _write_secret(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)


def _ready(url: str) -> bool:
    """Whether the reward server answers GET /ready with 200, asked directly, not through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/ready", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, json.JSONDecodeError):
        return False  # not yet; the deadline is the caller's


def run_head(settings: Settings, cancelled: Cancelled) -> int:
    """Run the job and write its verdict; returns the job's exit code."""
    started = time.time()
    head: Optional[Head] = None
    failure: Optional[Failure] = None
    try:
        head = Head(settings, cancelled)
        head.run()
    except JobFailed as error:
        failure = error.failure
    except SetupError as error:
        failure = Failure("setup", settings.node, str(error), EXIT_CODES["setup"])
    except OSError as error:  # a full disk, a run directory that vanished: the other nodes must end all the same
        failure = Failure("head", settings.node, f"{type(error).__name__}: {error}", EXIT_CODES["head"])
    exit_code = failure.exit_code if failure else 0
    if head is not None:
        head.close(exit_code)
    say(settings, failure.line() if failure else f"completed; verdict: {settings.run_dir / 'verdict.json'}")
    state = "completed" if failure is None else "failed"
    if failure is not None and (failure.component, exit_code) == ("job", EXIT_CODES["cancelled"]):
        state = "cancelled"
    training = head.training() if head is not None else {}
    try:
        write_verdict(settings.run_dir, state=state, started=started, failure=failure, training=training)
    except OSError as error:  # the exit code and the line above still tell
        say(settings, f"verdict.json cannot be written: {error}")
    return exit_code
