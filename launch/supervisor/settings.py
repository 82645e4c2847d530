"""What the script tells the supervisor of each node, and what Slurm's environment adds."""

import argparse
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from launch.supervisor.addresses import choose, interfaces

# Markers between the commands on the command line; render refuses a value that is equal to one.
COMMANDS = ("::check", "::resume", "::prepare", "::reward", "::canary", "::trainer", "::merge")


class UsageError(ValueError):
    """The supervisor was called wrongly."""


@dataclass(frozen=True)
class Settings:
    """Everything a node knows before it talks to others.

    Attributes:
        rank: 0 is the head.
        attempt: 0, or how often Slurm has requeued the job; each attempt has its own logs.
        job_number: Slurm's job id, or a process id outside Slurm; ports and temporary folders come from it.
        ray_gpus: what Ray may hand out on this node.
        reward_gpus: GPUs of this node that the reward server has to itself; Ray does not see them.
        expect_steps: the trainer tells its steps on the console, so that none means that none was done.
        logical_gpus: a rehearsal: GPUs are slots that Ray counts, no hardware.
        min_cpus: what verl's placement groups ask of `ray_cpus` at least.
        min_driver: oldest NVIDIA driver for the image's CUDA; None: not known.
        host_toolkit: this toolkit outside of the container, where the image's own copy runs; None: it is the same.
        gpus_expected: what Ray must show for all nodes together before the trainer starts.
        object_store_bytes: of Ray on this node; None: from the job's memory on the node.
        env_file: variables of this file of mode 0600 go to every part.
        reward_node: the last rank serves rewards and is not in Ray.
        unresponsive_s: a reward server that answers nothing for that long has hung.
        stalled_s: a trainer that writes nothing for that long has hung; None: it may be silent for ever.
        ends_at: end of the allocation in Unix seconds; None: not known.
        end_margin_s: kept free before that, so that the last checkpoint is whole.
        max_restarts: how often the job may be requeued.
        staged: this node's copy of the image, which goes away once this process runs from it.
        image, data, job_file, notes: for the manifest.
        check, resume: run to their ends before Ray starts; the job ends when one fails.
        canary: run to its end before the trainer starts, when everything is ready.
    """

    run_dir: Path
    checkpoint_dir: Path
    nodes: int
    rank: int
    node: str
    job_number: int
    in_slurm: bool
    attempt: int
    wanted_interface: Optional[str]
    interface: str
    address: str
    ray_gpus: int
    reward_gpus: int
    logical_gpus: bool
    expect_steps: bool
    gpus_expected: int
    ray_cpus: int
    min_cpus: int
    min_driver: Optional[str]
    host_toolkit: Optional[Path]
    object_store_bytes: Optional[int]
    env_file: Optional[Path]
    nodelist: str
    join_s: float
    ready_s: float
    reward_node: bool
    unresponsive_s: float
    stalled_s: Optional[float]
    ends_at: Optional[float]
    end_margin_s: float
    max_restarts: int
    staged: Optional[Path]
    image: Optional[Path]
    data: List[Path]
    job_file: Optional[Path]
    notes: Dict[str, str]
    prepare: List[List[str]]
    check: List[str]
    resume: List[str]
    canary: List[str]
    reward: List[str]
    trainer: List[str]
    merge: List[str]

    def with_address(self) -> "Settings":
        """These settings with this node's interface and address found.

        Raises:
            AddressError: naming the node, the wanted interface and what there is.
        """
        if self.address:
            return self
        interface, address = choose(interfaces(), self.wanted_interface, self.node, self.nodes)
        return replace(self, interface=interface, address=address)

    @property
    def reward_rank(self) -> int:
        """The rank that serves rewards, where there is a server."""
        return self.nodes - 1 if self.reward_node else 0

    @property
    def ray_nodes(self) -> int:
        """How many nodes of the job are in Ray."""
        return self.nodes - 1 if self.reward_node else self.nodes

    @property
    def temp_dir(self) -> Path:
        """Node-local folder of this job. Ray adds 64 bytes for its sockets and may use 107, so it is short."""
        return Path(f"/tmp/rl-{os.getuid()}-{self.job_number}")

    @property
    def rendezvous(self) -> Path:
        """File that tells the other nodes where the head is; holds the job's token, so mode 0600."""
        return self.run_dir / f"rendezvous-{self.job_number}-{self.attempt}.json"

    @property
    def ray_token(self) -> Path:
        """Who knows it may use the job's Ray."""
        return self.run_dir / "ray_token"

    @property
    def reward_token(self) -> Path:
        """Who knows it may use the job's reward server."""
        return self.run_dir / "reward_token"

    @property
    def secret_files(self) -> List[Path]:
        """What must not outlive the job."""
        return [self.ray_token, self.reward_token, self.rendezvous]

    @property
    def over(self) -> Path:
        """Written by the head at its very end: srun may have to wait for a node that is gone."""
        return self.run_dir / f".over-{self.attempt}"

    @property
    def heartbeat(self) -> Path:
        """Touched by the head while it lives."""
        return self.run_dir / "heartbeat"

    @property
    def reward_log(self) -> Path:
        """Folder where the reward client writes its log, and failure-NODE-PID.json before it raises."""
        return self.run_dir / self._of_attempt("reward_log")

    @property
    def logs(self) -> Path:
        """Folder of the logs of this attempt, of all nodes."""
        return self.run_dir / self._of_attempt("logs")

    def log(self, component: str, node: Optional[str] = None) -> Path:
        """Log file of a component on this node, or on another."""
        return self.logs / f"{node or self.node}-{component.replace(' ', '-')}.log"

    def _of_attempt(self, name: str) -> str:
        return f"{name}.{self.attempt}" if self.attempt else name


def split_commands(words: List[str]) -> "tuple[List[str], Dict[str, List[List[str]]]]":
    """Options before the first marker, and the commands behind each marker.

    Raises:
        UsageError: for a marker without a command.
    """
    options: List[str] = []
    commands: Dict[str, List[List[str]]] = {marker: [] for marker in COMMANDS}
    current = options
    for word in words:
        if word in COMMANDS:
            current = []
            commands[word].append(current)
        else:
            current.append(word)
    for marker, found in commands.items():
        if any(not command for command in found):
            raise UsageError(f"nothing follows {marker}; give the command and its arguments")
        if marker != "::prepare" and len(found) > 1:
            raise UsageError(f"{marker} is given {len(found)} times; give it once")
    if not commands["::trainer"]:
        raise UsageError("no trainer: give '::trainer COMMAND ARGUMENT...'")
    return options, commands


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch/node.py",
        description="Supervise one node of a job. Called by the rendered script, once on each node.",
        epilog="example: python3 launch/node.py --run-dir /tmp/run --checkpoint-dir /tmp/run/checkpoints "
        "--nodes 1 --ray-gpus-head 2 --ray-gpus-other 0 --ray-cpus 16 ::trainer python3 -c 'print(1)'",
    )
    parser.add_argument("--run-dir", type=Path, required=True, help="shared folder of this run")
    parser.add_argument("--checkpoint-dir", type=Path, required=True, help="shared folder of checkpoints")
    parser.add_argument("--nodes", type=_at_least(1), required=True, help="nodes that must join")
    parser.add_argument("--ray-gpus-head", type=_at_least(0), required=True, help="GPUs for Ray on the head node")
    parser.add_argument(
        "--ray-gpus-other", type=_at_least(0), required=True, help="GPUs for Ray on each other node"
    )
    parser.add_argument(
        "--reward-gpus", type=_at_least(0), default=0, help="GPUs of the head node for the reward server"
    )
    parser.add_argument("--logical-gpus", action="store_true", help="GPUs are slots that Ray counts (rehearsal)")
    parser.add_argument(
        "--expect-steps", action="store_true", help="a trainer that ends well without a step has failed"
    )
    parser.add_argument("--ray-cpus", type=_at_least(1), required=True, help="CPUs for Ray on each node")
    parser.add_argument(
        "--min-cpus", type=_at_least(0), default=0, help="with fewer CPUs on a node verl waits for ever"
    )
    parser.add_argument("--min-driver", metavar="VERSION", help="warn of an older NVIDIA driver on a node")
    parser.add_argument("--host-toolkit", type=Path, metavar="DIR", help="where a login node has this toolkit")
    parser.add_argument("--object-store", type=int, metavar="BYTES", help="Ray's object store on each node")
    parser.add_argument("--env-file", type=Path, metavar="FILE", help="NAME=VALUE lines for every part, mode 0600")
    parser.add_argument("--interface", help="network interface to use on every node")
    parser.add_argument("--join-timeout", type=float, default=300.0, metavar="S", help="for all nodes to join")
    parser.add_argument("--ready-timeout", type=float, default=900.0, metavar="S", help="for the reward server")
    parser.add_argument("--reward-node", action="store_true", help="the last node serves rewards, outside of Ray")
    parser.add_argument(
        "--reward-unresponsive", type=float, default=60.0, metavar="S", help="a silent reward server has hung"
    )
    parser.add_argument("--stalled-after", type=float, metavar="S", help="a trainer that writes nothing has hung")
    parser.add_argument("--ends-at", type=float, metavar="EPOCH", help="end of the allocation, in Unix seconds")
    parser.add_argument("--end-margin", type=float, default=0.0, metavar="S", help="kept free before that")
    parser.add_argument("--max-restarts", type=_at_least(0), default=0, help="how often the job may be requeued")
    parser.add_argument("--staged", type=Path, metavar="FILE", help="this node's copy of the image, to be removed")
    parser.add_argument("--image", type=Path, metavar="FILE", help="the image, for the manifest")
    parser.add_argument("--data", type=Path, action="append", default=[], metavar="FILE", help="likewise")
    parser.add_argument("--job-file", type=Path, metavar="FILE", help="the whole job as JSON, likewise")
    parser.add_argument("--note", action="append", default=[], metavar="NAME=VALUE", help="likewise")
    return parser


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    if not (value.isascii() and value.isdigit()):
        raise UsageError(f"{name}={value!r} is not a number; start this by srun, from the rendered script")
    return int(value)


def _restarts(environ: Mapping[str, str]) -> int:
    return _number({"SLURM_RESTART_COUNT": "0", **environ}, "SLURM_RESTART_COUNT")


def _earlier(run_dir: Path) -> int:
    """How many attempts ended in a run directory, by the verdicts that the script put aside."""
    numbers = (file.name.split(".")[1] for file in run_dir.glob("verdict.*.json"))
    return max((int(number) + 1 for number in numbers if number.isascii() and number.isdigit()), default=0)


def _only(commands: List[List[str]]) -> List[str]:
    return commands[0] if commands else []


def _note(text: str) -> Tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _at_least(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"{text} is below {low}")
        return int(text)

    return parse


def read_settings(words: List[str], environ: Mapping[str, str]) -> Settings:
    """Combine the command line with Slurm's variables (SLURM_PROCID, SLURM_JOB_ID, SLURMD_NODENAME).

    Outside Slurm the one machine is the head and has the GPUs of all nodes; Ray then listens on loopback only.

    In Slurm the address is still to be found: `with_address`.

    Raises:
        UsageError: with what is wrong and the remedy. A wrong option exits with 2.
    """
    options, commands = split_commands(words)
    args = _parser().parse_args(options)
    in_slurm = bool(environ.get("SLURM_JOB_ID"))
    nodes = args.nodes if in_slurm else 1
    rank = _number(environ, "SLURM_PROCID") if in_slurm else 0
    node = environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    if in_slurm and _number(environ, "SLURM_NTASKS") != nodes:
        raise UsageError(
            f"this step has {environ['SLURM_NTASKS']} tasks but the job was rendered for {nodes} nodes, one "
            f"task each; do not change --nodes or --ntasks on the sbatch line, render again"
        )
    others = args.nodes - 1 - args.reward_node
    if others < 0:
        raise UsageError("--reward-node takes a node of its own; give it 2 nodes or more")
    total = args.ray_gpus_head + args.ray_gpus_other * others
    # Outside Slurm there is one machine for all.
    reward_node = args.reward_node and in_slurm
    serves = rank == (nodes - 1 if reward_node else 0)
    here = args.ray_gpus_head if rank == 0 else 0 if reward_node and serves else args.ray_gpus_other
    return Settings(
        run_dir=args.run_dir.absolute(),
        checkpoint_dir=args.checkpoint_dir.absolute(),
        nodes=nodes,
        rank=rank,
        node=node,
        job_number=_number(environ, "SLURM_JOB_ID") if in_slurm else os.getpid(),
        in_slurm=in_slurm,
        attempt=_restarts(environ) if in_slurm else _earlier(args.run_dir),
        wanted_interface=args.interface,
        interface="" if in_slurm else "lo",
        address="" if in_slurm else "127.0.0.1",
        ray_gpus=here if in_slurm else total,
        reward_gpus=args.reward_gpus if serves else 0,
        logical_gpus=args.logical_gpus,
        expect_steps=args.expect_steps,
        gpus_expected=total,
        ray_cpus=args.ray_cpus,
        min_cpus=args.min_cpus,
        min_driver=args.min_driver,
        host_toolkit=args.host_toolkit,
        object_store_bytes=args.object_store,
        env_file=args.env_file.absolute() if args.env_file else None,
        nodelist=environ.get("SLURM_JOB_NODELIST", "") if in_slurm else "",
        join_s=args.join_timeout,
        ready_s=args.ready_timeout,
        reward_node=reward_node,
        unresponsive_s=args.reward_unresponsive,
        stalled_s=args.stalled_after,
        ends_at=args.ends_at if in_slurm else None,
        end_margin_s=args.end_margin,
        max_restarts=args.max_restarts if in_slurm else 0,
        staged=args.staged,
        image=args.image,
        data=args.data,
        job_file=args.job_file,
        notes=dict(_note(text) for text in args.note),
        prepare=commands["::prepare"],
        check=_only(commands["::check"]),
        resume=_only(commands["::resume"]),
        reward=_only(commands["::reward"]),
        canary=_only(commands["::canary"]),
        trainer=_only(commands["::trainer"]),
        merge=_only(commands["::merge"]),
    )
