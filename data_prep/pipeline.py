"""The conversion: files -> blocks -> converted rows in the spool -> plan -> parquet files and their record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_prep.bad_rows import BadRows
from data_prep.digest import file_sha256
from data_prep.errors import DataError
from data_prep.hashes import Hashes
from data_prep.inputs import Input, Inputs, find_inputs, row_settings
from data_prep.options import Options, SourceOptions
from data_prep.planning.duplicates import DuplicateIndex
from data_prep.planning.keys import keys_from
from data_prep.planning.plan import Plan, make_plan
from data_prep.printing import shortened
from data_prep.progress import Progress
from data_prep.record import (
    RECORD_NAME,
    DatasetRecord,
    FileRecord,
    OutputRecord,
    PartRecord,
    folder_sha256,
    options_json,
    read_record,
    versions,
    why_again,
    write_atomic,
)
from data_prep.rows import Converted, RowSettings
from data_prep.schema import leaves, output_schema, spool_schema
from data_prep.scratch import scratch_folder
from data_prep.spool import Spool
from data_prep.workers import Workers, default_workers
from data_prep.writer import ParquetSink

SPLITS = ("train", "test")
OUTPUTS = ("train.parquet", "test.parquet", RECORD_NAME)
# Rows by (data_source, ability, split), in order of appearance.
Composition = Counter[tuple[str, str, str]]


@dataclass(frozen=True)
class Outcome:
    """What :func:`convert` did.

    Attributes:
        record: of what was written; None: nothing had changed, and nothing was written.
        bad: rows set aside, by reason.
        set_aside: how many; where nothing was written, in the earlier run.
    """

    record: DatasetRecord | None
    bad: Counter[str]
    set_aside: int


@dataclass
class FileCounts:
    """What became of the rows of one file before the plan."""

    read: int = 0
    bad: int = 0
    too_long: int = 0
    systems_replaced: int = 0


@dataclass
class _Read:
    """All rows, converted and on disk."""

    spool: Spool
    index: DuplicateIndex
    counts: list[FileCounts] = field(default_factory=list)


def convert(
    sources: list[SourceOptions],
    options: Options,
    out: Path,
    *,
    force: bool = False,
    workers: int | None = None,
    show_progress: bool = False,
) -> Outcome:
    """Write ``out``/train.parquet, ``out``/test.parquet where there is a test split, and ``out``/dataset.json.

    The files appear one after the other when all of them are whole, the record last: with a record, all is there.
    Memory does not grow with the input.

    Args:
        force: convert although ``out`` holds what would be written.
        workers: processes; 0 converts in this one; None: by the size of the input.
        show_progress: on standard error.

    Raises:
        RowError: a row that cannot be used, with file, line and field, where ``options.skip_bad`` is None.
        DataError: a file that cannot be read; a split without rows; a test.parquet of an earlier run that this run
            does not replace.
    """
    with ExitStack() as stack:
        work = stack.enter_context(scratch_folder(out))
        inputs = find_inputs(sources, options, work)
        files = [entry.file for entry in inputs.files]
        hashes = stack.enter_context(Hashes(files))
        asked = options_json(options, sources=[asdict(source) for source in sources])
        if options.tokenizer is not None:
            asked["tokenizer_sha256"] = folder_sha256(options.tokenizer)
        _check_old_test_file(inputs, out)
        _check_not_an_output(inputs, out)
        before = read_record(out / RECORD_NAME)
        if not force and why_again(before, hashes.sources, asked, out) is None:
            set_aside = sum(entry.get("bad", 0) for entry in before["sources"]) if before else 0
            if not set_aside or (options.skip_bad is not None and options.skip_bad.is_file()):
                return Outcome(None, Counter(), set_aside)
        settings = row_settings(inputs.files, options)
        hashes.start()
        size = sum(file.size for file in files)
        taken = [*(file.origin for file in files), *(out / name for name in OUTPUTS)]
        replace = before is not None and before["options"].get("skip_bad") == asked["skip_bad"]
        bad = stack.enter_context(BadRows(options.skip_bad, taken, work, replace=replace))
        progress = stack.enter_context(Progress(size, shown=show_progress))
        processes = default_workers(size) if workers is None else workers
        read = _read_all(inputs.files, settings, work, bad, processes, progress)
        _check_rows(read, bad)
        weights = [source.weight for source in sources]
        plan = make_plan(read.spool.part_rows, inputs.train_parts, weights, options, None, read.index)
        progress.say(
            f"{progress.rows:,} rows read, {progress.rate:,.0f} rows/s; writing {shortened(str(out), 60)}"
        )
        sinks, composition = _write(read, plan, settings[0], out, work)
        record = _record(inputs, settings, read, plan, hashes, asked)
        record.outputs = [
            OutputRecord(sink.path.name, sink.rows, sink.part.stat().st_size, file_sha256(sink.part))
            for sink in sinks
        ]
        record.composition = [
            {"data_source": source, "ability": ability, "split": split, "rows": rows}
            for (source, ability, split), rows in composition.items()
        ]
        _publish(sinks, bad, record, out, work)
        return Outcome(record, bad.reasons, bad.count)


def _check_old_test_file(inputs: Inputs, out: Path) -> None:
    old = out / "test.parquet"
    if not inputs.makes_test and old.exists():
        raise DataError(
            f"{old} is there from an earlier run and this run makes no test split: "
            "give --test-size or --test-file, or remove it."
        )


def _check_not_an_output(inputs: Inputs, out: Path) -> None:
    """Converted into itself, a file would be another source the next time."""
    written = {(out / name).resolve() for name in OUTPUTS}
    for entry in inputs.files:
        if entry.file.origin.resolve() in written:
            raise DataError(f"{entry.file.shown}: is in {out} and would be overwritten; give another --out.")


def _check_rows(read: _Read, bad: BadRows) -> None:
    if read.spool.rows:
        return
    long = sum(counts.too_long for counts in read.counts)
    why = [f"{long:,} longer than --max-prompt-tokens"] if long else []
    if bad.count:
        ((reason, _),) = bad.reasons.most_common(1)
        why.append(f"{bad.count:,} bad, most often {shortened(reason, 300)}")
    total = sum(counts.read for counts in read.counts)
    raise DataError(f"none of {total:,} rows can be used: {'; '.join(why)}. Nothing is written.")


def _read_all(
    inputs: list[Input], settings: list[RowSettings], work: Path, bad: BadRows, workers: int, progress: Progress
) -> _Read:
    (work / "spool").mkdir()
    read = _Read(Spool(work / "spool", spool_schema(settings[0].fields)), DuplicateIndex(work / "keys"))
    with Workers(settings, workers) as pool:
        for number, entry in enumerate(inputs):
            if entry.part == len(read.spool.part_rows):
                read.spool.next_part()
            counts = FileCounts()
            read.counts.append(counts)
            before = 0
            for converted in pool.convert(number, entry.file.blocks()):
                _take(converted, read, counts, bad)
                progress.update(entry.file.bytes_read - before, converted.read)
                before = entry.file.bytes_read
            entry.file.unchanged()
    return read


def _take(converted: Converted, read: _Read, counts: FileCounts, bad: BadRows) -> None:
    for row in converted.bad:
        bad.add(row.error, row.raw, row.row)
    counts.read += converted.read
    counts.bad += len(converted.bad)
    counts.too_long += len(converted.too_long)
    counts.systems_replaced += converted.systems_replaced
    if converted.data is not None:
        first = read.spool.append_encoded(converted.data, converted.rows, converted.nbytes)
        read.index.add(first, keys_from([converted.keys]))


def _write(
    read: _Read, plan: Plan, settings: RowSettings, out: Path, work: Path
) -> tuple[list[ParquetSink], Composition]:
    """The files, whole, in ``work``."""
    schema = output_schema(settings.fields)
    composition: Composition = Counter()
    masks = {"train": plan.train, "test": plan.test}
    sinks = {}
    with ExitStack() as stack:
        for split in SPLITS:
            if masks[split].any():
                sink = ParquetSink(out / f"{split}.parquet", work, schema, split)
                sinks[split] = stack.enter_context(sink)
        for batches in plan.emit(read.spool):
            for split, batch in zip(SPLITS, batches, strict=True):
                if batch is not None:
                    sinks[split].add(batch)
                    for (source, ability), rows in _tags(batch):
                        composition[source, ability, split] += rows
        for sink in sinks.values():
            sink.finish()
    return list(sinks.values()), composition


def _tags(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], int]]:
    """How many rows have which data_source and ability, in order of appearance."""
    table = pa.table({name: batch.column(name) for name in ("data_source", "ability")})
    counted = table.group_by(["data_source", "ability"], use_threads=False).aggregate([([], "count_all")])
    for row in counted.to_pylist():
        yield (row["data_source"], row["ability"]), row["count_all"]


def _record(
    inputs: Inputs, settings: list[RowSettings], read: _Read, plan: Plan, hashes: Hashes, asked: dict[str, Any]
) -> DatasetRecord:
    """The record, without the files that were written."""
    sources = [
        FileRecord(
            path=path,
            sha256=hashed(),
            bytes=size,
            format=setting.format,
            split="test" if entry.test else "train",
            weight=None if entry.source.weight is None else str(entry.source.weight),
            **asdict(counts),
        )
        for (path, size, hashed), entry, setting, counts in zip(
            hashes.sources, inputs.files, settings, read.counts, strict=True
        )
    ]
    names = {entry.part: entry.source.source for entry in inputs.files}
    parts = [
        PartRecord(names[number], part.rows, part.duplicates, part.leaked, part.unused, part.train, part.test)
        for number, part in enumerate(plan.parts)
    ]
    repeats = asdict(plan.repeats)
    del repeats["examples"]  # numbers of rows in the spool, which goes
    columns = {path: str(kind) for path, kind in leaves(output_schema(settings[0].fields)).items()}
    return DatasetRecord(sources, parts, [], [], repeats, columns, asked, versions(), not_used=inputs.not_used)


def _publish(sinks: list[ParquetSink], bad: BadRows, record: DatasetRecord, out: Path, work: Path) -> None:
    """First what is old goes: stopped in between, no split stands beside one of another conversion."""
    bad.publish()
    for name in reversed(OUTPUTS):
        (out / name).unlink(missing_ok=True)
    for sink in sinks:
        sink.publish()
    write_atomic(out / RECORD_NAME, record.to_json(), work)
