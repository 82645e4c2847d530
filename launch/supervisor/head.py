"""The head node: Ray head, reward server, all nodes joined, canary, trainer, merge; and the end of all parts."""

import os
import secrets
import shlex
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Optional

from launch.supervisor.control import Hub
from launch.supervisor.environment import (
    base_environment,
    device_environments,
    make_caches,
    with_direct,
    with_head,
)
from launch.supervisor.manifest import hash_command, write_manifest
from launch.supervisor.ports import ephemeral_warning, free_plan
from launch.supervisor.processes import Component, stop
from launch.supervisor.ray_cluster import head_command, port_was_taken, watch_command
from launch.supervisor.reward_server import is_ready, server_command
from launch.supervisor.reward_server import watch_command as reward_watch_command
from launch.supervisor.settings import Settings
from launch.supervisor.training import STOP_S, train
from launch.supervisor.verdict import EXIT_CODES, Failure, JobFailed, write_json
from launch.supervisor.watch import Cancelled, Watch, failure_of, say

# Ray's own imports may come from a slow shared file system.
_RAY_START_S = 300.0
_RAY_TRIES = 3
_WORKERS_END_S = 15.0
_LATE_NODES_S = 10.0
# The trainer's overrides are in the script; in the log they would fill a page.
_SHOWN_WORDS = 12
_SHOWN_LINES = 10


class Head:
    """The head node while the job runs. `hf_model` is the merged model, once there is one."""

    def __init__(self, settings: Settings, cancelled: Cancelled) -> None:
        self._settings = settings
        self._ports = free_plan(settings.job_number)
        self._base = base_environment(settings, os.environ)
        make_caches(self._base)
        self._reward_url = "" if settings.reward_node else f"http://{settings.address}:{self._ports.reward}"
        self._env = self._with_head()
        for file in (settings.ray_token, settings.reward_token):
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
        self._publish()
        say(settings, f"head at {settings.address} ({settings.interface}), {settings.nodes} nodes")
        self.record()
        warning = ephemeral_warning(self._ports)
        if warning:
            say(settings, f"warning: {warning}")
        if settings.check:
            self._run_to_end("check", settings.check)
        if settings.resume and any(settings.checkpoint_dir.glob("global_step_*")):
            self._run_to_end("resume", settings.resume, shown=True)
        self._find_reward_node()
        self._start_ray()
        for command in settings.prepare:
            self._run_to_end("prepare", command)
        self._start_reward_server()
        self._join()
        self._await_rewards()
        self._train()
        if settings.merge:
            # Nothing but this node is needed any more, and nothing else may fail the job.
            self.close(0)
            self._run_to_end("merge", settings.merge)
            self.hf_model = settings.run_dir / "hf_model"
            say(settings, f"merged model: {self.hf_model}")

    def _publish(self) -> None:
        """Let the other nodes come. They start Ray when it is up here, and learn of a failure before that."""
        told = {"address": self._settings.address, "control_port": self._ports.control, "token": self._token}
        write_json(self._settings.rendezvous, told, mode=0o600)

    def record(self) -> None:
        """Write the manifest with what is known by now."""
        others = [{"rank": rank, **info} for rank, info in sorted(self._hub.nodes.items())]
        write_manifest(self._settings, self._ports, others)

    def _find_reward_node(self) -> None:
        """Ray's processes inherit where rewards come from, so the node that gives them must be known first."""
        settings, nodes = self._settings, self._hub.nodes
        if settings.reward_node:
            self._watch.wait(lambda: settings.reward_rank in nodes, settings.join_s, "nodes")
            told = nodes[settings.reward_rank]
            self._reward_url = f"http://{told['address']}:{told['ports'].get('reward')}"
            self._env = self._with_head()

    def _start_ray(self) -> None:
        """Start Ray's head; again on other ports where another program was quicker to take one."""
        for tries in range(1, _RAY_TRIES + 1):
            ray_env, _ = device_environments(self._env, self._settings)
            # The head is what the address names; `ray start --head` would look for another one there.
            ray_env = {name: value for name, value in ray_env.items() if name != "RAY_ADDRESS"}
            self._start("ray head", head_command(self._settings, self._ports), ray_env)
            try:
                self._watch.wait(self._ray_listens, _RAY_START_S, "ray head")
                break
            except JobFailed as error:
                if tries == _RAY_TRIES or error.failure.component != "ray head":
                    raise
                if not port_was_taken(self._settings.log("ray head")):
                    raise
                say(self._settings, f"a port of Ray was taken: {error.failure.cause}; trying others")
                self._watch.parts.clear()
                own = {"control": self._ports.control, "reward": self._ports.reward}
                self._ports = replace(free_plan(self._settings.job_number), **own)
                self._env = self._with_head()
        self._watch.ray_is_up({"gcs_port": self._ports.gcs, "reward_url": self._reward_url})
        self._start("ray watch", watch_command(), self._env)

    def _ray_listens(self) -> bool:
        return _listens(self._settings.address, self._ports.gcs)

    def _start_reward_server(self) -> None:
        settings = self._settings
        if settings.reward_node:
            self._hub.tell({"type": "serve"})
        elif settings.reward:
            _, env = device_environments(self._env, settings)
            command = server_command(settings, settings.address, self._ports.reward)
            self._start("reward server", command, env)

    def _join(self) -> None:
        settings, ray = self._settings, self._watch.ray_nodes
        self._watch.wait(lambda: len(self._hub.nodes) == settings.nodes - 1, settings.join_s, "nodes")
        # Their addresses need not be what their names resolve to.
        self._env = with_direct(self._env, (str(info["address"]) for info in self._hub.nodes.values()))
        self.record()
        self._watch.wait(lambda: ray.alive == settings.ray_nodes, settings.join_s, "nodes")
        if ray.gpus != settings.gpus_expected:
            shown = {address: gpus for address, (_, gpus) in ray.nodes.items()}
            cause = f"Ray has {ray.gpus:g} GPUs, the job needs {settings.gpus_expected}: {shown}"
            raise self._watch.failed("nodes", cause, self._node_with_other_gpus())
        say(settings, f"{settings.ray_nodes} Ray nodes with {ray.gpus:g} GPUs: {', '.join(ray.nodes)}")

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

    def _await_rewards(self) -> None:
        """The server has its model, is watched from now on, and has answered a request as verl will send them."""
        settings = self._settings
        if not settings.reward:
            return
        self._watch.wait(lambda: is_ready(self._reward_url), settings.ready_s, "reward server")
        say(settings, f"reward server ready at {self._reward_url}")
        self._start("reward watch", reward_watch_command(settings, self._reward_url), self._env)
        if settings.canary:
            self._run_to_end("canary", settings.canary, shown=True)

    def _train(self) -> None:
        settings = self._settings
        say(settings, f"trainer starts, its first step takes a minute or more; its log: {settings.log('trainer')}")
        train(settings, self._watch, self._start_trainer)

    def _start_trainer(self) -> Component:
        trainer = self._component("trainer", self._settings.trainer, self._env)
        hashing = hash_command(self._settings)
        if hashing:
            # It reads the whole image: not before the trainer has started, and nobody waits for it.
            self._component("hashes", hashing, self._env)
        return trainer

    # ---- the parts

    def _with_head(self) -> Dict[str, str]:
        return with_head(self._base, self._settings, self._settings.address, self._ports.gcs, self._reward_url)

    def _start(self, name: str, command: List[str], env: Dict[str, str]) -> None:
        self._watch.parts.append(self._component(name, command, env))

    def _component(self, name: str, command: List[str], env: Dict[str, str]) -> Component:
        self._watch.logs.append(self._settings.log(name))
        try:
            return Component(name, command, self._settings.log(name), env, self._settings.run_dir)
        except OSError as error:
            cause, code = f"cannot be started: {error}", EXIT_CODES.get(name, 127)
            raise JobFailed(Failure(name, self._settings.node, cause, code)) from error

    def _run_to_end(self, name: str, command: List[str], *, shown: bool = False) -> None:
        """Run a step of the job; `shown`: what it says is of interest in the job's log as well."""
        words = command if len(command) <= _SHOWN_WORDS else [*command[:_SHOWN_WORDS], "..."]
        say(self._settings, f"{name}: {shlex.join(words)}")
        part = self._component(name, command, self._env)
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
        parts = self._watch.parts
        self._watch.nodes_are_over()
        stop(parts, STOP_S)
        self._hub.close()
        for file in self._settings.secret_files:
            file.unlink(missing_ok=True)

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


def _listens(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0
