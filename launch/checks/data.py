"""The data files: parquet of verl's schema, enough rows for a step, prompts that fit, each split in its place."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launch.checks.data_sample import SampleError, sample_files
from launch.config import Job
from launch.finding import Finding, error, warning
from launch.model.folder import file_problem

_MAGIC = b"PAR1"
_TEST_WORDS, _TRAIN_WORDS = {"test", "val", "valid", "validation", "eval", "dev"}, {"train", "training"}
_CONVERT = "write it with python -m data_prep.convert"

Report = dict[str, Any]


def check_data(job: Job, project: Path) -> Iterator[Finding]:
    """Every data file of the job that is there; missing files and folders are reported by check_files.

    verl joins the files of a list (utils/dataset/rl_dataset.py), keeps no batch that is not full (trainer/ppo/
    ray_trainer.py, drop_last), and drops prompts that are too long or do not fit the chat template.
    """
    train = [project / name for name in job.data.train]
    val = [project / name for name in job.data.val]
    yield from _same_files(train, val)
    yield from _names(job)
    whole: dict[Path, str] = {}
    for field, paths in (("data.train", train), ("data.val", val)):
        for path in dict.fromkeys(path for path in paths if path.is_file()):
            problem = _not_parquet(job, field, path)
            if problem is not None:
                yield problem
            else:
                whole.setdefault(path, field)
    if not whole:
        return
    try:
        found = sample_files(
            list(whole),
            max_prompt_length=job.data.max_prompt_length,
            tokenizer=project / job.model.path / "tokenizer.json",
        )
    except SampleError as why:
        yield warning(
            "data-unchecked",
            f"schema, rows and prompt lengths of {', '.join(map(str, whole))} are not checked: {why}",
            "pip install pyarrow where the job is rendered",
        )
        return
    reports = dict(zip(whole, found, strict=True))
    yield from _reports(job, reports, whole)
    readable = {path: report for path, report in reports.items() if not report["problem"] and not report["schema"]}
    yield from _types(readable, train, val)
    if all(path in readable for path in train):
        yield from _steps(job, sum(readable[path]["rows"] for path in train))
    yield from _splits(readable, train, val)


def _not_parquet(job: Job, field: str, path: Path) -> Finding | None:
    """What the name and the first and last bytes tell."""
    version, suffix = job.engine.verl, path.suffix
    if suffix in (".json", ".jsonl"):
        message = (
            f"{field}: {path} is JSON: verl guesses the types of its rows file by file, and its schema, number of "
            f"rows, prompt lengths and splits are not checked here"
        )
        if version == "0.6.1":
            return error("data-format", f"{field}: {path} is JSON; verl 0.6.1 reads parquet only", _CONVERT)
        return warning("data-format", message, _CONVERT)
    problem = file_problem(path)
    if problem is not None:
        return error("data-format", f"{field}: {problem}", "fetch the data again")
    if suffix != ".parquet" and version != "0.6.1":
        return error(
            "data-format",
            f"{field}: {path}: verl {version} takes files by their names, which end in .parquet",
            f"rename the file, or {_CONVERT}",
        )
    with path.open("rb") as file:
        first = file.read(4)
        size = file.seek(0, 2)
        file.seek(max(size - 4, 0))
        last = file.read(4)
    if first != _MAGIC:
        return error("data-format", f"{field}: {path} is no parquet file", _CONVERT)
    if last != _MAGIC or size < 12:
        return error("data-format", f"{field}: {path} is a parquet file that is cut off", "fetch the data again")
    return None


def _same_files(train: Sequence[Path], val: Sequence[Path]) -> Iterator[Finding]:
    for path in dict.fromkeys(path for path in val if path.resolve() in {other.resolve() for other in train}):
        yield warning(
            "data-same",
            f"data.val: {path} is also in data.train, so validation tells nothing about new prompts",
            "split the data: python -m data_prep.convert SOURCE --test-size 0.05 --out DIR",
        )
    for field, paths in (("data.train", train), ("data.val", val)):
        twice = {path for path in paths if paths.count(path) > 1}
        for path in sorted(twice):
            yield warning("data-same", f"{field}: {path} stands there {paths.count(path)} times", "name it once")


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", Path(name).stem.lower()))


def _names(job: Job) -> Iterator[Finding]:
    """Names that say that the two were exchanged."""
    tests = [name for name in job.data.train if _words(name) & _TEST_WORDS and not _words(name) & _TRAIN_WORDS]
    trains = [name for name in job.data.val if _words(name) & _TRAIN_WORDS and not _words(name) & _TEST_WORDS]
    if tests and trains:
        yield warning(
            "data-exchanged",
            f"data.train has {', '.join(tests)} and data.val has {', '.join(trains)}",
            "exchange the two",
        )


def _reports(job: Job, reports: dict[Path, Report], fields: dict[Path, str]) -> Iterator[Finding]:
    for path, report in reports.items():
        field = fields[path]
        if report["problem"]:
            yield error("data-format", f"{field}: {path}: {report['problem']}", "fetch the data again")
        elif report["schema"]:
            yield error("data-schema", f"{field}: {path}: {'; '.join(report['schema'])}", _CONVERT)
        elif not report["rows"]:
            yield error("data-rows", f"{field}: {path} has no rows", "name a file with rows")
        else:
            yield from _rows(field, path, report)
            yield from _lengths(job, field, path, report)
            yield from _styles(job, field, path, report)


def _rows(field: str, path: Path, report: Report) -> Iterator[Finding]:
    """verl counts a row that it cannot write by the chat template as too long, and drops it."""
    if not report["bad"]:
        return
    bad, sampled = report["bad"], report["sampled"]
    make = error if bad == sampled else warning
    yield make(
        "data-bad-rows",
        f"{field}: {bad} of {sampled} sampled rows of {path} cannot be used: {'; '.join(report['bad_rows'])}",
        f"list all of them: python -m data_prep.validate {path}",
    )


def _lengths(job: Job, field: str, path: Path, report: Report) -> Iterator[Finding]:
    long, sampled, limit = report["too_long"], report["sampled"], job.data.max_prompt_length
    if not long:
        return
    how = "without the chat template's own tokens"
    if report["counted"] == "characters":
        how = "assuming 4 characters for a token, without a tokenizer"
    every = long + report["bad"] == sampled
    make = error if every and report["counted"] != "characters" else warning
    yield make(
        "data-prompt-length",
        f"{field}: {long} of {sampled} sampled prompts of {path} are longer than data.max_prompt_length={limit} "
        f"tokens ({how}); verl leaves such prompts out" + (", which would be all" if every else ""),
        "raise data.max_prompt_length, or shorten the prompts",
    )


def _styles(job: Job, field: str, path: Path, report: Report) -> Iterator[Finding]:
    """The ground truth is what the reward is found with: an answer for a function, the question for a model."""
    sampled, kind = report["sampled"], job.reward.kind
    if kind == "server" and 2 * report["answers"] > sampled:
        yield warning(
            "data-style",
            f"{field}: {report['answers']} of {sampled} sampled rows of {path} have reward_model.style=rule and "
            f"a ground truth that is not in the prompt, but with reward.kind=server the reward model scores the "
            f"pair of ground truth and response",
            "python -m data_prep.convert SOURCE --ground-truth question --out DIR, or reward.kind=function",
        )
    models = report["styles"].get("model", 0)
    if kind == "function" and 2 * models > sampled:
        yield warning(
            "data-style",
            f"{field}: {models} of {sampled} sampled rows of {path} have reward_model.style=model, whose ground "
            f"truth is for a reward model, but reward.kind=function",
            "python -m data_prep.convert SOURCE --ground-truth answer --out DIR, or reward.kind=server",
        )


def _types(readable: dict[Path, Report], train: Sequence[Path], val: Sequence[Path]) -> Iterator[Finding]:
    """Files of one list are joined (datasets.concatenate_datasets), which fails where a value has two types.

    The two lists are not joined, but one reward function gets both.
    """
    for field, paths, make in (
        ("data.train", list(train), error),
        ("data.val", list(val), error),
        ("data.train and data.val", [*train[:1], *val[:1]], warning),
    ):
        known = [path for path in dict.fromkeys(paths) if path in readable]
        for path in known[1:]:
            first, other = readable[known[0]]["types"], readable[path]["types"]
            unlike = [
                f"{name} is {first[name]} and {other[name]}"
                for name in first
                if name in other and first[name] != other[name] and "null" not in (first[name], other[name])
            ]
            if unlike:
                yield make(
                    "data-types",
                    f"{field}: the types of {known[0]} and {path} differ: {'; '.join(unlike[:5])}",
                    "write both with python -m data_prep.convert",
                )


def _steps(job: Job, rows: int) -> Iterator[Finding]:
    """verl drops the last batch of an epoch where it is not full."""
    batch, epochs, wanted = job.data.train_batch_size, job.algorithm.epochs, job.algorithm.total_steps
    steps = rows // batch * epochs
    sum_ = f"{rows} rows // data.train_batch_size={batch} * algorithm.epochs={epochs} = {steps} steps"
    if rows and not steps:
        yield error(
            "data-rows",
            f"data.train has {rows} rows, less than data.train_batch_size={batch}: no batch is full and "
            "nothing trains",
            f"set data.train_batch_size to {rows} or less",
        )
    elif rows and wanted is not None and wanted > steps:
        yield warning(
            "data-steps",
            f"{sum_}, less than algorithm.total_steps={wanted}: training ends after {steps}, and the last "
            "step, which is saved and validated, is never reached",
            f"set algorithm.epochs={-(-wanted // (rows // batch))}, or algorithm.total_steps={steps}",
        )


def _splits(readable: dict[Path, Report], train: Sequence[Path], val: Sequence[Path]) -> Iterator[Finding]:
    """extra_info.split tells which split a row is from."""
    for field, paths, wrong in (("data.train", train, _TEST_WORDS), ("data.val", val, _TRAIN_WORDS)):
        for path in dict.fromkeys(path for path in paths if path in readable):
            splits, sampled = readable[path]["splits"], readable[path]["sampled"]
            count = sum(number for name, number in splits.items() if name.lower() in wrong)
            if count:
                names = ", ".join(sorted(splits))
                yield warning(
                    "data-split",
                    f"{field}: extra_info.split of {count} of {sampled} sampled rows of {path} is {names}",
                    "exchange data.train and data.val, or correct the file",
                )
