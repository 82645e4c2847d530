"""The head node: Ray head, reward server, all nodes joined, canary, trainer, merge; and the end of all parts."""

import os
import secrets
import shlex
import time
import traceback
from pathlib import Path
from typing import List, Optional, Tuple

from launch.supervisor.control import Hub
from launch.supervisor.environment import (
    base_environment,
    make_caches,
    with_direct,
    with_head,
)
from launch.supervisor.limits import oom_kills
from launch.supervisor.manifest import hash_command, write_manifest
from launch.supervisor.merging import forget_trained, note_trained, only_to_merge
from launch.supervisor.node_folder import remove_secrets
from launch.supervisor.outcome import conclude
from launch.supervisor.parts import Parts, failure_of, say
from launch.supervisor.ports import ephemeral_warning, free_plan
from launch.supervisor.processes import Component, stop
from launch.supervisor.ray_head import RayHead
from launch.supervisor.rewards import Rewards
from launch.supervisor.settings import Settings
from launch.supervisor.training import STOP_S, train
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, SetupError, write_json
from launch.supervisor.watch import Cancelled, Wait, Watch

# Ray's own imports may come from a slow shared file system.
_RAY_START_S = 300.0
_WORKERS_END_S = 15.0
_LATE_NODES_S = 10.0
# The trainer's overrides are in the script; in the log they would fill a page.
_SHOWN_WORDS = 12
_SHOWN_LINES = 10


def run_head(settings: Settings, cancelled: Cancelled) -> int:
    """Run the job and write its verdict; returns the job's exit code."""
    started = time.time()
    before = oom_kills() or 0
    head, failure = _run(settings, cancelled)
    kills = (oom_kills() or 0) - before + (head.oom_kills_elsewhere if head is not None else 0)
    # The verdict first: what follows takes time, and a cancelled job has little.
    hf_model = head.hf_model if head is not None else None
    exit_code = conclude(settings, failure, started, oom_kills=kills, hf_model=hf_model)
    if head is not None:
        for last in (head.record, lambda: head.close(exit_code)):
            try:
                last()
            except Exception as error:  # noqa: BLE001  the job is over, and the other nodes must hear of it
                say(settings, f"while ending the job: {type(error).__name__}: {error}")
    remove_secrets(settings.secret_files)
    return exit_code


def _run(settings: Settings, cancelled: Cancelled) -> "Tuple[Optional[Head], Optional[Failure]]":
    """Whatever happens becomes a failure, since the other nodes wait for the end."""
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


class Head:
    """The head node while the job runs. `hf_model` is the merged model, once there is one."""

    def __init__(self, settings: Settings, cancelled: Cancelled) -> None:
        self._settings = settings
        ports = free_plan(settings.job_number)
        self._base = base_environment(settings, os.environ)
        make_caches(self._base)
        for file in (settings.ray_token, settings.reward_token):
            _write_secret(file, secrets.token_hex(32))
        for old in settings.reward_log.glob("failure-*.json"):
            old.unlink()  # of an earlier run in the same run directory
        forget_trained(settings)
        self._token = secrets.token_hex(32)
        self._hub = Hub(settings.address, ports.control, self._token)
        self._parts = Parts(settings)
        self._ray = RayHead(settings, ports, self._parts)
        self._rewards = Rewards(settings, self._parts, self._hub, ports.reward)
        self._watch = Watch(settings, self._hub, self._parts, self._ray, cancelled)
        self._env = with_head(self._base, settings, settings.address, ports.gcs, self._rewards.url)
        self._cancelled = cancelled
        self._joined = False
        self._closed = False
        self.hf_model: Optional[Path] = None

    @property
    def oom_kills_elsewhere(self) -> int:
        """Processes that the kernels of other nodes killed for want of memory, as these nodes told."""
        return sum(self._watch.oom_kills.values())

    # ---- the order of the job

    def run(self) -> None:
        """Everything up to the merged model.

        Raises:
            JobFailed: with the first failure.
        """
        settings = self._settings
        self._publish()
        nodes = f"{settings.nodes} node{'s' if settings.nodes > 1 else ''}"
        say(settings, f"head at {settings.address} ({settings.interface}), {nodes}")
        done = only_to_merge(settings)
        if done is not None:
            say(
                settings,
                f"attempt {done.attempt} completed the training at step {done.step}: only the merge is left",
            )
            self._watch.wait_for(Wait("nodes", self._all_said_hello, settings.join_s))
        else:
            self._train()
            note_trained(settings)
        if settings.merge:
            # Nothing but this node is needed any more, and nothing else may fail the job.
            self.close(0)
            say(settings, f"merge starts; its log: {settings.log('merge')}")
            self._run_to_end("merge", settings.merge)
            self.hf_model = settings.run_dir / "hf_model"
            say(settings, f"merged model: {self.hf_model}")

    def _train(self) -> None:
        settings = self._settings
        if settings.check:
            self._run_to_end("check", settings.check)
        if settings.resume and any(settings.checkpoint_dir.glob("global_step_*")):
            self._run_to_end("resume", settings.resume, shown=True)
        self._bring_up()
        say(settings, f"trainer starts, its first step takes a minute or more; its log: {settings.log('trainer')}")
        train(settings, self._watch, self._start_trainer)

    def _bring_up(self) -> None:
        """Ray, rewards and nodes, side by side."""
        settings, watch = self._settings, self._watch
        watch.wait_for(Wait("nodes", self._rewards.is_known, settings.join_s))
        self._ray.start(self._base, self._rewards.url)
        self._env = self._ray.env
        self.record()
        warning = ephemeral_warning(self._ray.ports)
        if warning:
            say(settings, f"warning: {warning}")
        for command in settings.prepare:
            self._run_to_end("prepare", command)
        self._rewards.start(self._env)
        watch.wait_for(Wait("ray head", lambda: self._ray.up, _RAY_START_S))
        watch.wait_for(
            Wait("nodes", self._all_joined, settings.join_s),
            Wait("reward server", self._rewards.answer, settings.ready_s),
        )
        # The nodes' addresses need not be what their names resolve to.
        self._env = with_direct(self._ray.env, (str(info["address"]) for info in self._hub.nodes.values()))
        self.record()

    def _publish(self) -> None:
        """Let the other nodes come. They start Ray when it is up here, and learn of a failure before that."""
        told = {"address": self._settings.address, "control_port": self._ray.ports.control, "token": self._token}
        write_json(self._settings.rendezvous, told, mode=0o600)

    def record(self) -> None:
        """Write the manifest with what is known by now."""
        others = [{"rank": rank, **info} for rank, info in sorted(self._hub.nodes.items())]
        write_manifest(self._settings, self._ray.ports, others)

    def _all_joined(self) -> bool:
        """Whether every node is there, with the GPUs that it should have; raises JobFailed where it has others."""
        if self._joined:
            return True
        self._joined = self._all_said_hello() and self._watch.ray_nodes.alive == self._settings.ray_nodes
        if self._joined:
            self._see_gpus()
        return self._joined

    def _all_said_hello(self) -> bool:
        return len(self._hub.nodes) == self._settings.nodes - 1

    def _see_gpus(self) -> None:
        settings, ray = self._settings, self._watch.ray_nodes
        if ray.gpus != settings.gpus_expected:
            shown = {address: gpus for address, (_, gpus) in ray.nodes.items()}
            cause = f"Ray has {ray.gpus:g} GPUs, the job needs {settings.gpus_expected}: {shown}"
            raise self._watch.failed("nodes", cause, self._node_with_other_gpus())
        nodes = f"{settings.ray_nodes} Ray node{'s' if settings.ray_nodes > 1 else ''}"
        say(settings, f"{nodes} with {ray.gpus:g} GPUs: {', '.join(ray.nodes)}")

    def _node_with_other_gpus(self) -> Optional[str]:
        """Name of the first node on which Ray has not the GPUs that it should have; None for this one."""
        settings, ray = self._settings, self._watch.ray_nodes.nodes
        others = settings.gpus_expected - settings.ray_gpus
        for rank, info in sorted(self._hub.nodes.items()):
            serves = settings.reward_node and rank == settings.reward_rank
            _, gpus = ray.get(str(info["address"]), (False, 0.0))
            if not serves and gpus * (settings.ray_nodes - 1) != others:
                return str(info["node"])
        return None

    def _start_trainer(self) -> Component:
        trainer = self._parts.start("trainer", self._settings.trainer, self._env)
        hashing = hash_command(self._settings)
        if hashing:
            # It reads the whole image: not before the trainer has started, and nobody waits for it.
            self._parts.start_aside("hashes", hashing, self._env)
        return trainer

    # ---- the parts

    def _run_to_end(self, name: str, command: List[str], *, shown: bool = False) -> None:
        """Run a step of the job; `shown`: what it says is of interest in the job's log as well."""
        words = command if len(command) <= _SHOWN_WORDS else [*command[:_SHOWN_WORDS], "..."]
        say(self._settings, f"{name}: {shlex.join(words)}")
        part = self._parts.start(name, command, self._env)
        try:
            while part.poll() is None:
                self._watch.turn()
        finally:
            stop([part], STOP_S)
        if part.exit_code != 0:
            raise JobFailed(failure_of(part, self._settings.node, EXIT_CODES[name]))
        if shown:
            for line in part.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]:
                say(self._settings, f"{name}: {line}")

    # ---- the end

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
        parts, self._parts.watched = self._parts.watched, []
        self._watch.nodes_are_over()
        stop(parts, STOP_S)
        self._hub.close()
        remove_secrets(self._settings.secret_files)

    def _await_the_rest(self) -> None:
        """Let nodes that are still starting join. One that srun has to end may end with a code above the cause's,
        and srun takes the highest."""
        until = time.monotonic() + _LATE_NODES_S
        others = self._settings.nodes - 1 - len(self._watch.dead)
        while len(self._hub.nodes) < others and time.monotonic() < until:
            if self._cancelled() is not None:
                return
            self._hub.poll(0.2)


def _write_secret(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
