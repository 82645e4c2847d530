"""Everything that can be found out about a job before the queue, and the command that it becomes."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launch.checks import check_job
from launch.checks.image import check_checksum
from launch.checks.memory import estimate_job
from launch.checks.secrets import secrets_in
from launch.checks.text import check_text
from launch.config import Job
from launch.engines.command import TrainerCommand
from launch.engines.raw_overrides import RawFinding, check_raw_overrides, fold
from launch.finding import Finding, error, warning
from launch.image_stack import job_image
from launch.rehearsal.shrink import rehearse as shrink
from launch.script import RenderRequest, render_script
from launch.sizing.layout import plan_layout
from launch.sizing.memory import MemoryEstimate


@dataclass(frozen=True)
class EngineCheck:
    """How a command is composed with verl's own configuration.

    Attributes:
        wanted: false: not at all, which is told.
        source: a git checkout or an unpacked wheel of verl; None: an installed one, the cache, or a download.
    """

    wanted: bool = True
    source: Path | None = None


@dataclass(frozen=True)
class Review:
    """A job looked at from all sides.

    Attributes:
        job: what is rendered; for a rehearsal the shrunk job.
        rehearse: its GPUs are slots that Ray counts.
        findings: of all rules, errors first.
        script: the text; None where the job cannot be rendered at all.
        memory: of the job; None for a rehearsal or where the model is not here.
    """

    job: Job
    rehearse: bool
    findings: list[Finding]
    script: str | None
    memory: MemoryEstimate | None

    @property
    def good(self) -> bool:
        """Whether the script may be written."""
        return self.script is not None and not any(finding.severity == "error" for finding in self.findings)


def _of_the_real_job(job: Job, project: Path, told: list[Finding]) -> Iterator[Finding]:
    """What would keep the job itself from being rendered: worth knowing while it is only rehearsed.

    `told` is what the rehearsal has to say of itself already.
    """
    for finding in check_job(job, project, rehearse=False, sample_data=False):
        if finding.severity == "error" and finding not in told:
            yield replace(finding, severity="warning", message=f"without --rehearse: {finding.message}")


def engine_findings(
    command: TrainerCommand, verl: str, variables: Mapping[str, str], check: EngineCheck
) -> list[Finding]:
    """The command composed with the configuration of verl `verl`; `variables` are the job's for ${oc.env:...}."""
    again = "the job checks it with the image's verl before Ray starts"
    if not check.wanted:
        return [warning("engine-unchecked", f"the overrides are not composed with verl {verl}", again)]
    # Hydra and the source are only loaded for this: the rest of a render takes a third of the time.
    from launch.engines.compose import IN_THE_JOB
    from launch.engines.config_rules import check_command
    from launch.engines.source import SourceMissing, find_source

    try:
        source = find_source(verl, check.source)
    except SourceMissing as missing:
        if check.source is not None:
            return [error("verl-source", missing.reason, missing.remedy)]
        told = f"the overrides are not composed with verl {verl}: {missing.reason}"
        return [warning("engine-unchecked", told, f"{missing.remedy}; {again}")]
    return check_command(command, source, {**IN_THE_JOB, **variables})


def _refused(job: Job, said: list[RawFinding]) -> set[str]:
    """Raw overrides of `job` that a rule refuses already: composed, they would be told a second time.

    One that is no override at all also ends the composition before it finds anything else.
    """
    refused = {one.override for one in said if one.finding.severity == "error"}
    return refused | {
        text
        for text in job.overrides
        if any(finding.severity == "error" for finding in check_text(_with_overrides(job, [text])))
    }


def _with_overrides(job: Job, overrides: list[str]) -> Job:
    return job.model_copy(update={"overrides": overrides})


def _once(findings: list[Finding]) -> list[Finding]:
    """Errors first, nothing twice."""
    ids = {finding.id for finding in findings}
    # That the version has no such trainer says the same as that it has no such module.
    kept = [finding for finding in findings if finding.id != "engine-module" or "engine-mode" not in ids]
    return [*dict.fromkeys(sorted(kept, key=lambda finding: finding.severity))]


def review(
    job: Job, project: Path, script_name: str, *, rehearse: bool = False, engine: EngineCheck = EngineCheck()
) -> Review:
    """Check a job with every rule, compose it with verl, and render it.

    Args:
        job: as the user gave it.
        project: absolute folder that relative paths of the job start from.
        script_name: file name of the script.
        rehearse: render the job in small, on CPU; what is wrong with the job itself becomes warnings.
        engine: how to compose.
    """
    folded = fold(job)
    said = [*folded.problems, *check_raw_overrides(_with_overrides(folded.job, job.overrides))]
    refused = _refused(job, said)
    findings = [finding for _, finding in said]
    job = folded.job
    sample_data = rehearse and not {"train", "val"} & job.data.model_fields_set
    memory = None if rehearse else estimate_job(job, project)
    real, job = job, shrink(job) if rehearse else job
    image = job_image(job, project, rehearse=rehearse)
    findings += check_job(job, project, rehearse=rehearse, sample_data=sample_data, image=image)
    findings += check_checksum(job, image)
    findings += _of_the_real_job(real, project, findings) if rehearse else []
    script = None
    if plan_layout(job).train_world >= 1:
        request = RenderRequest(job, project, script_name, rehearse, sample_data, given=real, seen=image)
        accepted = tuple(text for text in request.trainer.overrides if text not in refused)
        command = replace(request.trainer, overrides=accepted)
        findings += engine_findings(command, job.engine.verl, job.container.env, engine)
        script = render_script(request)
        findings += secrets_in(script, os.environ)
    return Review(job, rehearse, _once(findings), script, memory)
