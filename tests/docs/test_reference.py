"""The generated pages of docs/ are those that the commands and the job model make now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from reference import ROOT, pages

PAGES = pages()
REMEDY = "write them anew: python tests/docs/reference.py"


@pytest.mark.parametrize("page", sorted(map(str, PAGES)))
def test_a_page_is_as_its_source_says(page: str) -> None:
    file = ROOT / "docs" / page
    assert file.is_file(), REMEDY
    assert file.read_text(encoding="utf-8") == PAGES[Path(page)], REMEDY


def test_no_page_is_left_of_a_command_that_went() -> None:
    there = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs" / "commands").iterdir()}
    assert there - PAGES.keys() == set(), REMEDY


def test_the_command_that_compares_them() -> None:
    line = [sys.executable, "tests/docs/reference.py", "--check"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
