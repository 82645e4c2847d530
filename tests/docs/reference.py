"""The pages docs/commands/ and docs/job.md, made of the parsers and of the job model.

    python tests/docs/reference.py            write them
    python tests/docs/reference.py --check    say which ones differ

Nothing is taken from the text of --help, which differs between versions of Python.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

from command_parsers import commands, parser_of  # noqa: E402
from job_reference import job_page  # noqa: E402

MADE = "<!-- Made by `python tests/docs/reference.py`: change the command or the model, and make it again. -->"
_FOLDERS = {
    "launch": "Jobs",
    "singularity": "Images",
    "data_prep": "Data",
    "reward": "Rewards",
    "converters": "Checkpoints",
}
_COMMON = """\
## What all of them have in common

Each is `python -m NAME`, in a Python with the toolkit (`. .venv/bin/activate`), which is Python 3.10 or later; a
package that is missing is named with the `pip install` that brings it. `launch.init` and `launch.status` need no
package and run on Python 3.9, too, in the toolkit's folder. `--help` says what a page here says: what the command
does, its options and [their defaults], examples, the exit codes.

| exit code | |
|---|---|
| 0 | done |
| 1 | the answer is no, or something is wrong: each error is a line on standard error |
| 2 | usage: an option that is not known, or options that do not go together |
| 130, 143 | ended by Ctrl-C, or by SIGTERM |
| 141 | standard output is a pipe that was closed before the end, as by `head`; no error is told |

Others are on the page of the command. An error says what is wrong, where, the rule, and what to do:

```text
error: rows.jsonl:3: field 'answer': expected '#### NUMBER' in the solution, got str 'about nine'
```

With `--json` standard output holds one JSON value, whatever happens but wrong usage: the report, or
`{"error": "..."}` where there is none. Errors stand on standard error, too.

## Completion

One line in `~/.bashrc`, with the path of the environment, lets TAB complete options and values, also fields of a
job behind `--set` (`--set engine.mode=` TAB), in a shell where that environment is active:

```bash
eval "$(.venv/bin/activate-global-python-argcomplete --dest=-)"
```

The same line works in `~/.zshrc`, below `autoload -Uz compinit && compinit`. The name of the module is written in
full.
"""


def pages() -> dict[Path, str]:
    """Every page by its path below docs/."""
    kept = dict(os.environ)
    for name in [name for name in kept if name.startswith("CONFIG_REWARD_")]:
        del os.environ[name]  # they are defaults of reward.server
    try:
        parsers = {command: parser_of(command) for command in commands()}
    finally:
        os.environ.update(kept)
    made = {Path("commands", f"{command}.md"): _command_page(parser) for command, parser in parsers.items()}
    made[Path("commands", "README.md")] = _table_page(parsers)
    made[Path("job.md")] = f"{MADE}\n\n{job_page()}"
    return made


def _table_page(parsers: dict[str, argparse.ArgumentParser]) -> str:
    lines = [MADE, "", "# Commands", ""]
    for folder, title in _FOLDERS.items():
        lines += [f"| {title} | |", "|---|---|"]
        for command, parser in parsers.items():
            if command.startswith(f"{folder}."):
                lines.append(f"| [`{command}`]({command}.md) | {_cell(str(parser.description))} |")
        lines.append("")
    return "\n".join([*lines, _COMMON])


def _command_page(parser: Any) -> str:
    positional = [action for action in parser._actions if not action.option_strings]
    shown = " ".join(["python -m", parser.module, "[OPTION]...", *map(_argument, positional)])
    lines = [MADE, "", f"# {parser.module}", "", parser.description, "", "```text", shown, "```", ""]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if actions:
            title = {"positional arguments": "argument", "options": "option"}.get(group.title, group.title)
            lines += [f"| {title} | |", "|---|---|"]
            lines += [f"| {_name(action)} | {_cell(_meaning(action))} |" for action in actions]
            lines.append("")
    lines += [*_notes(parser.notes), "## Examples" if len(parser.examples) > 1 else "## Example", ""]
    lines += ["```bash", *parser.examples, "```", "", "| exit code | |", "|---|---|"]
    lines += [f"| {code} | {_cell(text)} |" for code, text in parser.exit_codes.items()]
    return "\n".join(lines) + "\n"


def _name(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {_argument(action)}" if action.option_strings else _argument(action)
    return _cell(f"`{', '.join(action.option_strings)}{value}`")


def _argument(action: argparse.Action) -> str:
    """`FILE`, `{a,b}`, with dots where there may be several."""
    text = str(action.metavar) if action.metavar else "{" + ",".join(map(str, action.choices or ())) + "}"
    if action.nargs == argparse.OPTIONAL:
        return f"[{text}]"
    return f"{text}..." if action.nargs in ("+", "*") else text


def _meaning(action: argparse.Action) -> str:
    given: dict[str, Any] = vars(action)
    text = str(action.help) % given
    if action.metavar and action.choices:
        text += f": {', '.join(map(str, action.choices))}"
    if action.required and action.option_strings:
        text += " (required)"
    return text


def _notes(text: str) -> Iterator[str]:
    """Paragraphs, and indented lines as blocks."""
    for indented, lines in groupby(text.splitlines(), key=lambda line: not line or line.startswith("  ")):
        block = "\n".join(lines).strip("\n")
        if indented and block:
            yield from ("```text", textwrap.dedent(block), "```", "")
        elif not indented:
            yield textwrap.fill(_plain(block.replace("\n", "\n\n")), 115, break_on_hyphens=False)
            yield ""


def _plain(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "&lt;")


def _cell(text: str) -> str:
    """A table's cell: a bar would end it."""
    return " ".join(text.replace("|", "\\|").split()).replace("* ", "\\* ")


def main() -> int:
    """Write the pages, or with --check only compare them."""
    check = sys.argv[1:] == ["--check"]
    docs, made = ROOT / "docs", pages()
    there = {path.relative_to(docs) for path in (docs / "commands").glob("*.md")}
    differing = sorted(path for path, text in made.items() if not _same(docs / path, text))
    left = sorted(there - made.keys())
    for path in (*differing, *left):
        print(f"docs/{path}")
        if not check and path in made:
            (docs / path).parent.mkdir(exist_ok=True)
            (docs / path).write_text(made[path], encoding="utf-8")
        elif not check:
            (docs / path).unlink()
    return 1 if check and (differing or left) else 0


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
