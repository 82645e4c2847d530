"""Rules on a job, checked before the queue. Each finding has an id, a message with the numbers, a remedy."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from launch.binds import bind_mounts
from launch.config import Job
from launch.layout import plan_layout
from launch.supervisor.settings import COMMANDS


@dataclass(frozen=True)
class Finding:
    """A broken rule. An error keeps the script from being written, a warning does not."""

    id: str
    severity: Literal["error", "warning"]
    message: str
    remedy: str

    def line(self) -> str:
        """One line for a person."""
        return f"{self.severity}: {self.id}: {self.message}; {self.remedy}"


# Hydra's grammar of a key (hydra 1.3, "Override grammar"); bare keys can only be deleted.
_KEY = r"[A-Za-z_][A-Za-z0-9_./@-]*"
_OVERRIDE = re.compile(rf"(\+{{0,2}}{_KEY}=[^\x00-\x1f\x7f]*)|(~{_KEY}(=[^\x00-\x1f\x7f]*)?)")
_SECRET = re.compile(
    r"TOKEN(?!IZE)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY", re.IGNORECASE
)


_REWARD_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


def _error(id_: str, message: str, remedy: str) -> Finding:
    return Finding(id_, "error", message, remedy)


def check_capability(job: Job, *, rehearse: bool) -> Iterator[Finding]:
    """What a version of verl cannot do."""
    if job.engine.verl == "0.6.1" and job.engine.mode == "one_step_off":
        yield _error(
            "engine-mode",
            "verl 0.6.1 has no one_step_off trainer in its package, and its recipe has no Megatron with SGLang",
            "set engine.mode=sync, or engine.verl=0.9.1",
        )
    if rehearse and job.engine.verl == "0.6.1" and job.rehearsal.rollout == "vllm":
        yield _error("rehearsal-rollout", "verl 0.6.1 has no vllm rehearsal on CPU", "set rehearsal.rollout=hf")
    if job.rollout.fp8 and job.engine.verl == "0.6.1":
        yield _error("rollout-fp8", "verl 0.6.1 has no FP8 rollout", "set rollout.fp8=false")


def check_gpus(job: Job) -> Iterator[Finding]:
    """The pools fit on the allocation and divide by the parallel sizes."""
    layout = plan_layout(job)
    gpus, nodes = job.cluster.gpus_per_node, job.cluster.nodes
    if layout.train_gpus < 1 or layout.train_nodes < 1:
        yield _error(
            "gpu-plan",
            f"nothing is left to train on: {nodes} nodes of {gpus} GPUs, reward {layout.reward_gpus}, rollout "
            f"{layout.rollout_nodes} nodes of {layout.rollout_gpus}",
            "lower rollout.gpus_per_node or rollout.nodes, or raise cluster.nodes",
        )
        return
    on_rollout_node = layout.ray_gpus_head
    if layout.rollout_gpus > on_rollout_node:
        yield _error(
            "gpu-plan",
            f"rollout.gpus_per_node={layout.rollout_gpus} but the head node has {on_rollout_node} of its {gpus} "
            f"GPUs left beside the reward server's {layout.reward_gpus}",
            f"set rollout.gpus_per_node={max(on_rollout_node, 1)} or reward.gpus=0",
        )
    if layout.rollout_gpus % job.rollout.tensor_parallel:
        yield _error(
            "rollout-tp",
            f"rollout.gpus_per_node={layout.rollout_gpus} is not divisible by "
            f"rollout.tensor_parallel={job.rollout.tensor_parallel}",
            "choose a divisor",
        )
    size = _model_parallel(job)
    if layout.train_world % size:
        yield _error(
            "train-parallel",
            f"{layout.train_world} training GPUs ({layout.train_nodes} nodes of {layout.train_gpus}) are not "
            f"divisible by tensor*pipeline*context = {size}",
            "change actor.tensor_parallel, pipeline_parallel or context_parallel, or the nodes",
        )


def _model_parallel(job: Job) -> int:
    if job.actor.strategy != "megatron":
        return 1
    return job.actor.tensor_parallel * job.actor.pipeline_parallel * job.actor.context_parallel


def check_batch(job: Job) -> Iterator[Finding]:
    """Batch arithmetic that verl checks only once Ray is up (verl/utils/config.py, validate_config)."""
    batch, mini, n = job.data.train_batch_size, job.actor.mini_batch_size, job.rollout.n
    if mini > batch or batch % mini:
        yield _error(
            "mini-batch",
            f"data.train_batch_size={batch} is not a multiple of actor.mini_batch_size={mini}",
            "choose a mini batch that divides the train batch",
        )
    world, size = plan_layout(job).train_world, _model_parallel(job)
    if world < 1 or world % size:
        return  # reported by check_gpus
    step = world // size * job.actor.micro_batch_size_per_gpu
    if batch * n % step:
        below, above = batch * n // step * step, (batch * n // step + 1) * step
        yield _error(
            "train-batch",
            f"train_batch_size*n = {batch}*{n} = {batch * n} is not divisible by data-parallel size * micro "
            f"batch = {world // size}*{job.actor.micro_batch_size_per_gpu} = {step}",
            f"nearest products: {below}, {above}",
        )


def check_text(job: Job) -> Iterator[Finding]:
    """Overrides that are none, and secrets that would be written down."""
    for text in job.overrides:
        if text in COMMANDS or not _OVERRIDE.fullmatch(text):
            remedy = (
                "write key=value, +key=value or ~key; flags of Hydra, sweeps and control characters do not pass"
            )
            yield _error("override", f"{text!r} is not a Hydra override", remedy)
    for name in job.container.env:
        if _SECRET.search(name):
            yield _error(
                "secret",
                f"container.env.{name} would stand in the script for all to read",
                f"export {name} in the shell that submits: the job inherits it",
            )


def check_binds(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> Iterator[Finding]:
    """Paths that the container program cannot bind: it splits at ':' and ','."""
    chosen = set(job.container.binds)
    for folder in bind_mounts(job, project, rehearse=rehearse, sample_data=sample_data):
        if folder not in chosen and (":" in folder or "," in folder):
            yield _error("bind-path", f"{folder!r}: a container bind cannot hold ':' or ','", "rename the folder")


def _named(section: BaseModel, field: str) -> bool:
    return field in section.model_fields_set


def check_files(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> Iterator[Finding]:
    """Files that must be there. A path that the user named and that is missing is an error; a default path that
    is missing is a warning, so that a first render shows the script."""
    wanted: list[tuple[str, str, bool]] = []
    if not sample_data:
        wanted += [("data.train", file, _named(job.data, "train")) for file in job.data.train]
        wanted += [("data.val", file, _named(job.data, "val")) for file in job.data.val]
    if job.reward.kind == "function":
        wanted.append(("reward.function", str(job.reward.function), True))
    if not rehearse:
        wanted.append(("model.path", job.model.path, _named(job.model, "path")))
        wanted.append(("container.image", job.container.image, _named(job.container, "image")))
        if job.reward.kind == "server":
            wanted.append(("reward.model", job.reward.model, _named(job.reward, "model")))
    for field, name, named in wanted:
        path = project / name
        if not path.exists():
            remedy = f"correct {field}; relative paths start from {project}"
            yield Finding("missing-file", "error" if named else "warning", f"{field}: no {path}", remedy)
    if rehearse and not (project / job.rehearsal.image).exists():
        yield Finding(
            "missing-image",
            "error" if _named(job.rehearsal, "image") else "warning",
            f"rehearsal.image: no {project / job.rehearsal.image}",
            "sbatch needs it; bash runs the rehearsal on this machine without it",
        )


def check_reward_function(job: Job, project: Path) -> Iterator[Finding]:
    """The function that verl will call is there and takes what verl gives it, by keyword.

    Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py, 0.6.1 workers/reward_manager/naive.py.
    """
    if job.reward.kind != "function" or not (project / str(job.reward.function)).is_file():
        return  # a missing file is reported by check_files
    path, name = project / str(job.reward.function), job.reward.function_name
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        yield _error("reward-function", f"reward.function: {path} is not Python: {error}", "correct the file")
        return
    found = [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    names = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names |= {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    if not found and name not in names:
        yield _error("reward-function", f"{path} has no function {name!r}", "correct reward.function_name")
    for node in found[-1:]:
        taken = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        missing = [word for word in _REWARD_ARGUMENTS if word not in taken]
        if missing and node.args.kwarg is None:
            yield _error(
                "reward-function",
                f"{path}: {name}() takes no {', '.join(missing)}, which verl gives by keyword",
                f"write def {name}(data_source, solution_str, ground_truth, extra_info=None, **kwargs)",
            )


def check_job(job: Job, project: Path, *, rehearse: bool, sample_data: bool) -> list[Finding]:
    """Every broken rule of a job (of the shrunk job, for a rehearsal), errors first."""
    findings = [
        *check_capability(job, rehearse=rehearse),
        *check_gpus(job),
        *check_batch(job),
        *check_text(job),
        *check_binds(job, project, rehearse=rehearse, sample_data=sample_data),
        *check_reward_function(job, project),
        *check_files(job, project, rehearse=rehearse, sample_data=sample_data),
    ]
    return sorted(findings, key=lambda finding: finding.severity)
