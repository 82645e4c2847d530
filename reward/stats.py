# PYTHON_ARGCOMPLETE_OK
"""What the rewards of a training were like, from its reward logs.

    python -m reward.stats RUN_DIR/reward_log
    python -m reward.stats RUN_DIR --json --png rewards.png

For each data source and for all: count, mean, standard deviation and quantiles of the reward, penalties, clamped
and truncated scores, outages, errors (with their commonest reasons) and retries, the seconds of a call, the
correlation with the response's length, and warnings. The timestamp of a log line is that at which the call began;
it ended ``latency_s`` later.
Needs matplotlib for ``--png``, nothing beside Python for the rest. Memory grows with the number of rows (some 40
bytes each), not with their texts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from reward.command_line import CommandParser, fail, filled, named, quiet_imports, run

if __name__ == "__main__":
    quiet_imports(extra="reward")

from reward.log_stats.figures import Figures
from reward.log_stats.findings import Warned, warnings_of
from reward.log_stats.plot import PlotError, draw
from reward.log_stats.reading import BadLine, LogError, find_logs, read_rows
from reward.log_stats.report import SHOWN_BAD_LINES, Report
from reward.log_stats.series import SourceTable

EXIT_OK, EXIT_NOTHING, EXIT_USAGE, EXIT_WARNINGS = 0, 1, 2, 3


def summarise(places: Sequence[str]) -> tuple[Report, SourceTable]:
    """Read the logs.

    Raises:
        LogError: a place cannot be read, or there is no row in any of them.
    """
    files = find_logs(places)
    table = SourceTable()
    bad: list[BadLine] = []
    bad_count = 0
    for file in files:
        for row in read_rows(file):
            if isinstance(row, BadLine):
                bad_count += 1
                if len(bad) < SHOWN_BAD_LINES:
                    bad.append(row)
            else:
                table.add(row)
    if not table.series:
        first = f"; the first: {bad[0]}" if bad else ""
        raise LogError(f"{', '.join(places)}: no row of a reward log among {bad_count} lines{first}")
    sources = {name: Figures.of(series) for name, series in table.series.items()}
    whole = next(iter(sources.values())) if len(sources) == 1 else Figures.of(table.together())
    warned: list[Warned] = []
    for name, series in table.series.items():
        warned += warnings_of(name, series, sources[name])
    return Report(files, sources, whole, warned, bad, bad_count), table


def _parser() -> CommandParser:
    parser = CommandParser(
        "reward.stats",
        "Tell distribution, course and oddities of the rewards in reward logs, for each data source.",
        notes="The timestamp of a log line is that at which the call began; it ended latency_s later. "
        "Lengths are characters of a response with its thinking part.",
        examples=["python -m reward.stats outputs/my-grpo/run-42 --png rewards.png"],
        exit_codes={
            EXIT_OK: "told",
            EXIT_NOTHING: "nothing to read, or no picture",
            EXIT_USAGE: "usage",
            EXIT_WARNINGS: "warnings or bad lines, under --strict",
        },
    )
    parser.add_argument(
        "logs",
        nargs="+",
        type=filled,
        metavar="LOG",
        help="a log file, a folder of them, a run folder, or - for stdin",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--png",
        type=named,
        metavar="FILE",
        help="draw distribution and course over time; a name that ends in .png",
    )
    parser.add_argument("--strict", action="store_true", help="exit 3 where there is a warning or a bad line")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Exit codes: see --help."""
    parser = _parser()
    arguments = parser.parse_args(words)
    png: Path | None = arguments.png
    if png is not None and png.suffix.lower() != ".png":
        parser.error(f"--png {png}: a PNG is written; expected a name that ends in .png")
    try:
        report, table = summarise(arguments.logs)
        if arguments.json:
            print(json.dumps(report.as_json(), allow_nan=False))
        else:
            print("\n".join(report.lines()))
        sys.stdout.flush()
        if png is not None:
            draw(table.series, png)
            print(f"wrote {png}", file=sys.stderr if arguments.json else sys.stdout, flush=True)
    except LogError as wrong:
        return fail(str(wrong), as_json=arguments.json, code=EXIT_NOTHING)
    except PlotError as wrong:  # the report is out
        return fail(str(wrong), code=EXIT_NOTHING)
    if arguments.strict and (report.warnings or report.bad_count):
        return EXIT_WARNINGS
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(run(main))
