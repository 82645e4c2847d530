"""The text of a job's script. Pure: a job and a few paths in, bash out."""

import hashlib
import json
import re
import shlex
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from launch.binds import bind_mounts
from launch.config import Job
from launch.engines.command import TrainerCommand, trainer_command
from launch.engines.raw_values import raw_value
from launch.image_stack import JobImage, JobStack, job_image, job_stack
from launch.rehearsal.overrides import cpu_environment, ray_cpus
from launch.sizing.cpus import cpus_on_fullest
from launch.sizing.layout import plan_layout
from launch.toolkit import toolkit_folder
from singularity.toolkit import IN_IMAGE, VERSION, content_hash

_SCRIPT_HASH = re.compile(r"(?<=; script )[0-9a-f]{12}(?=\. )")
_PLACEHOLDER = "@SCRIPT_HASH@"
# verl imports it in every process; see there.
_HOOK = "launch.hooks.save_before_end"
# Ray's own sizing takes a third of the node; a tiny model needs next to nothing, and nodes may share a machine.
_REHEARSAL_OBJECT_STORE = 200_000_000


@dataclass(frozen=True)
class RenderRequest:
    """What to render.

    Attributes:
        job: as the user gave it, or already shrunk when `rehearse` is set.
        project: absolute folder that relative paths of the job start from.
        script_name: file name of the script, for its own messages.
        sample_data: a rehearsal without data of its own takes the shipped GSM8K sample.
        given: the job as the user gave it, for RUN_DIR/job.json; None: `job`.
        seen: the image as it was checked; None: it is looked at.
    """

    job: Job
    project: Path
    script_name: str
    rehearse: bool = False
    sample_data: bool = False
    given: Job | None = None
    seen: JobImage | None = None

    @cached_property
    def trainer(self) -> TrainerCommand:
        """The command that trains the job."""
        return trainer_command(self.job, self.project, rehearse=self.rehearse, sample_data=self.sample_data)

    @cached_property
    def image(self) -> JobImage:
        """The image as it lies here."""
        return self.seen or job_image(self.job, self.project, rehearse=self.rehearse)

    @cached_property
    def stack(self) -> JobStack:
        """What the image can do."""
        return job_stack(self.job, self.image, rehearse=self.rehearse)


def sbatch_options(job: Job, *, rehearse: bool) -> list[str]:
    """The #SBATCH options of a job. A rehearsal asks for no GPU."""
    cluster = job.cluster
    options = [f"--job-name={job.name}", f"--nodes={cluster.nodes}", "--ntasks-per-node=1"]
    if cluster.cpus_per_node is not None:
        options.append(f"--cpus-per-task={cluster.cpus_per_node}")
    if not rehearse:
        kind = f"{cluster.gpu}:" if cluster.gpu else ""
        options.append(f"--gpus-per-node={kind}{cluster.gpus_per_node}")
    options += [
        f"--{name}={value}"
        for name, value in (
            ("mem", cluster.mem),
            ("partition", cluster.partition),
            ("account", cluster.account),
            ("qos", cluster.qos),
            ("time", cluster.time),
        )
        if value is not None
    ]
    if job.recovery.requeue:
        # Without append the next attempt would empty the output of the one before.
        options += ["--requeue", "--open-mode=append"]
    elif not any(option.startswith("--requeue") for option in cluster.extra_sbatch):
        # After a node failure Slurm would start the job again by itself, and use node hours unasked.
        options.append("--no-requeue")
    return [*options, "--output=%x-%j.out", *cluster.extra_sbatch]


def _is_v1(request: RenderRequest) -> bool:
    """Whether verl 0.9.1's V1 trainer runs the job: it does not look at the end of the allocation by itself."""
    job = request.job
    if (job.engine.verl, job.engine.mode) != ("0.9.1", "sync"):
        return False
    return (raw_value(request.trainer.overrides, "trainer.use_v1") or "true").lower() == "true"


def _environment(request: RenderRequest) -> dict[str, str]:
    job = request.job
    variables = {"PYTHONNOUSERSITE": "1"}
    if job.reward.kind == "server":
        variables |= {
            "REWARD_MIN_SCORE": repr(job.reward.min_score),
            "REWARD_MAX_SCORE": repr(job.reward.max_score),
            "REWARD_TIMEOUT": repr(job.reward.timeout_s),
            "REWARD_DEADLINE": repr(job.reward.deadline_s),
        }
        if job.reward.on_outage != "raise":
            variables["REWARD_ON_OUTAGE"] = job.reward.on_outage
    if request.rehearse:
        variables |= cpu_environment(job.engine.verl, job.actor.strategy, job.rehearsal.rollout)
    elif job.actor.fp8 == "blockwise" and job.actor.strategy == "megatron":
        # verl docs/low_precision/fp8.md (0.9): Hopper wants float32 scales; Ray's workers inherit it.
        variables["NVTE_FP8_BLOCK_SCALING_FP32_SCALES"] = "1"
    variables |= job.container.env
    if _is_v1(request):
        modules = [*filter(None, [variables.get("VERL_USE_EXTERNAL_MODULES")]), _HOOK]
        variables["VERL_USE_EXTERNAL_MODULES"] = ",".join(modules)
    return variables


def _node_options(request: RenderRequest) -> str:
    job = request.job
    options = ""
    if job.reward.kind == "server":
        options += f" --reward-gpus {job.reward.gpus}" if job.reward.gpus else ""
        options += " --reward-node" if job.reward.placement == "separate" else ""
        options += f" --reward-unresponsive {job.reward.unresponsive_s:g}"
    if job.cluster.network_interface is not None:
        options += f" --interface={shlex.quote(job.cluster.network_interface)}"
    if not request.rehearse:
        options += f" --min-cpus {cpus_on_fullest(job)}"
        options += f" --min-driver {request.stack.driver}" if request.stack.driver else ""
    options += f" --join-timeout {job.cluster.join_timeout_s:g} --ready-timeout {job.reward.ready_timeout_s:g}"
    options += f" --end-margin {job.checkpoint.before_end_s:g}"
    if job.recovery.stalled_s is not None:
        options += f" --stalled-after {job.recovery.stalled_s:g}"
    if job.recovery.requeue:
        options += f" --max-restarts {job.recovery.max_restarts}"
    if "console" in job.logging.loggers:
        options += " --expect-steps"
    if request.rehearse:
        options += f" --logical-gpus --object-store {_REHEARSAL_OBJECT_STORE}"
    return options


def _reward_options(request: RenderRequest) -> list[str]:
    """Options of the reward server, where the job differs from the server's own defaults."""
    reward = request.job.reward
    options = ["--device", "cuda" if reward.gpus else "cpu", "--max-length", str(request.job.reward_length)]
    if reward.gpus > 1:
        options += ["--replicas", str(reward.gpus)]
    if reward.backend != "transformers":
        options += ["--backend", reward.backend, "--upstream", str(reward.upstream)]
    if reward.upstream_key_file is not None:
        options += ["--upstream-key-file", str(request.project / reward.upstream_key_file)]
    for name, value, default in (
        ("--input", reward.input, "pair"),
        ("--truncate", reward.truncate, "right"),
        ("--dtype", reward.dtype, "auto"),
        ("--batch-tokens", reward.batch_tokens, None),
    ):
        if value != default:
            options += [name, str(value)]
    return [*options, "--trust-remote-code"] if reward.trust_remote_code else options


def _resumes(job: Job) -> bool:
    """Whether verl looks for the newest checkpoint by itself: no raw override says otherwise."""
    return (raw_value(job.overrides, "trainer.resume_mode") or "auto") == "auto"


def _image_values(request: RenderRequest) -> dict[str, Any]:
    """The image as it is now, for the job to compare; "" where that is not known."""
    job, found = request.job, request.image.found
    inside = job.container.toolkit == "image"
    return {
        "image": str(request.project / job.container.image),
        "image_key": request.image.field,
        "image_size": "" if found is None or found.size is None else found.size,
        "image_sha256": (found.checksum if found is not None and job.container.verify else None) or "",
        "toolkit_inside": IN_IMAGE if inside else None,
        "toolkit_hash": content_hash() if inside else None,
        "stack": request.stack.stack.name if request.stack.known else None,
    }


def _data_files(request: RenderRequest) -> list[str]:
    data = request.job.data
    return [str(request.project / file) for file in dict.fromkeys((*data.train, *data.val))]


def _lines(values: dict[str, Any]) -> list[str]:
    """A JSON object, one section a line."""
    fields = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return ["{", *(f"{field}," for field in fields[:-1]), fields[-1], "}"]


def _given_lines(request: RenderRequest) -> list[str]:
    """What the user set: rendered again, all values would count as set, and rules look at that."""
    job = request.given or request.job
    return _lines({"template": job.template, **job.model_dump(mode="json", exclude_unset=True)})


def _ray_cpus(request: RenderRequest) -> str:
    layout = plan_layout(request.job)
    if request.rehearse:
        # The one machine of a run without Slurm holds the slots of all nodes.
        return str(ray_cpus(layout.ray_gpus))
    # Ray counts the node's CPUs, not the job's.
    return '"${SLURM_CPUS_ON_NODE:-$(nproc)}"'


def _in_output(request: RenderRequest) -> dict[str, str]:
    """Bash text of the paths that a rehearsal keeps in its run directory and a job has elsewhere."""
    job, project = request.job, request.project
    if request.rehearse:
        return {
            "checkpoint_dir": "$RUN_DIR/checkpoints",
            "policy": "$RUN_DIR/rehearsal/policy",
            "reward_model": '"$RUN_DIR/rehearsal/reward_model"',
        }
    return {
        "checkpoint_dir": "$OUTPUT/checkpoints",
        "policy": shlex.quote(str(project / job.model.path)),
        "reward_model": shlex.quote(str(project / job.reward.model)),
    }


_RUNTIMES = {
    "auto": "command -v apptainer || command -v singularity",
    "apptainer": "command -v apptainer",
    "singularity": "command -v singularity",
}


def _quote(text: str) -> str:
    """`text` as one bash word; with quotes also where only shellcheck takes a comma for a mistake."""
    quoted = shlex.quote(text)
    return f"'{text}'" if quoted == text and "," in text else quoted


def _jinja() -> Environment:
    environment = Environment(
        loader=PackageLoader("launch"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # bash, not HTML: values go through the filter `q`
    )
    environment.filters["q"] = _quote
    return environment


def render_script(request: RenderRequest) -> str:
    """The script of a job, with the hash of its own text in its header."""
    job = request.job
    binds = bind_mounts(job, request.project, rehearse=request.rehearse, sample_data=request.sample_data)
    text = (
        _jinja()
        .get_template("job.sh.j2")
        .render(
            job=job,
            version=VERSION,
            job_hash=job.hash(),
            script_name=request.script_name,
            rehearse=request.rehearse,
            sample_data=request.sample_data,
            sbatch=sbatch_options(job, rehearse=request.rehearse),
            project=str(request.project),
            toolkit=str(toolkit_folder(request.project)),
            output=str(request.project / job.output_dir),
            env_file=str(request.project / job.container.env_file) if job.container.env_file else None,
            modules=job.cluster.modules,
            runtime=_RUNTIMES[job.container.runtime],
            binds=binds,
            sources=[bind.partition(":")[0] if bind in job.container.binds else bind for bind in binds],
            python=sys.executable,
            environment=_environment(request),
            trainer=request.trainer,
            layout=plan_layout(job),
            ray_cpus=_ray_cpus(request),
            node_options=_node_options(request),
            reward_options=_reward_options(request),
            stage=job.container.stage,
            # The container program splits a bind at these.
            bind_image=not set(str(request.project / job.container.image)) & set(":,"),
            resume=_resumes(job),
            data_files=[] if request.sample_data else _data_files(request),
            given_lines=_given_lines(request),
            resolved_lines=_lines(job.model_dump(mode="json")),
            **_image_values(request),
            **_in_output(request),
        )
    )
    return text.replace(_PLACEHOLDER, _digest(text), 1)


def _digest(text: str) -> str:
    # A name that is not UTF-8 is told by a rule, and this script is not written.
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


def edited_by_hand(text: str) -> bool:
    """Whether a script differs from what was rendered: its text no longer has the hash that it states."""
    match = _SCRIPT_HASH.search(text)
    if match is None:
        return True
    original = text[: match.start()] + _PLACEHOLDER + text[match.end() :]
    return _digest(original) != match.group()
