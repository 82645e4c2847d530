"""python -m reward.stats: what it reads, tells and draws."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from reward_servers import ROOT, free_port, scored, stub_server

from reward import stats
from reward.client import RewardOutageError, compute_score
from reward.log_stats.reading import BadLine, LogError, Row, find_logs, read_rows

OLD_SCORE = {
    "timestamp": "2025-12-24 10:00:00",
    "timestamp_epoch": 1766570400.5,
    "pid": 7,
    "score": 30.0,
    "raw_score": 41.5,
    "prompt_len": 12,
    "response_len": 340,
    "prompt": "p",
    "response": "r",
}
OLD_PENALTY = {
    "timestamp": 1766570401.5,
    "pid": 7,
    "status": "penalty",
    "score": -40.0,
    "prompt": "p",
    "response_snippet": "<think>...",
}


def write(file: Path, *lines: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    file.write_text(text, encoding="utf-8")
    return file


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert stats.main([*map(str, words), "--json"]) == 0
    got: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return got


def test_log_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every kind of line that compute_score writes, read back."""
    for name in [name for name in os.environ if name.startswith("REWARD_")]:
        monkeypatch.delenv(name)
    log = tmp_path / "run" / "reward_log"
    keywords = {"log_path": str(log)}
    down = {"server_url": f"http://127.0.0.1:{free_port()}", "deadline": 2, **keywords}
    with stub_server(scored(4.0), scored(99.0)) as stub:
        compute_score("math", "<think>1</think>2", "q", server_url=stub.url, **keywords)
        compute_score("math", "three", "q", server_url=stub.url, **keywords)
        compute_score("code", "<think>", "q", server_url=stub.url, **keywords)
    compute_score("code", "r", "q", on_outage="penalty", **down)
    with pytest.raises(RewardOutageError):
        compute_score("code", "r", "q", **down)
    got = told(capsys, tmp_path / "run")
    math_, code = got["data_sources"]["math"], got["data_sources"]["code"]
    assert (math_["rows"], math_["scored"], math_["clamped"]) == (2, 2, 1)
    assert (math_["score"]["mean"], math_["score"]["max"], math_["response_len"]["max"]) == (17.0, 30.0, 17.0)
    assert (code["penalties"], code["outage_penalties"], code["outages"]) == (1, 1, 1)
    assert code["retries"] >= 2
    assert got["rows"] == got["all"]["rows"] == 5
    (reason,) = code["reasons"]
    assert (reason["status"], reason["count"]) == ("outage", 1)
    assert reason["text"].startswith(f"RewardOutageError: reward server {down['server_url']} gave no score")
    assert code["latency_s"]["count"] == 2  # the two that asked
    assert code["last"] - code["first"] >= 0.2
    assert {warned["kind"] for warned in got["warnings"]} == {
        "clamped",
        "no-score",
        "outage-penalties",
        "penalties",
    }


def test_log_of_scripts_with_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines that safe_hack_reward_request.py writes: no data source, a status for penalties only."""
    nan = {**OLD_SCORE, "score": math.nan, "raw_score": math.nan}
    file = write(tmp_path / "reward_logs.jsonl", OLD_SCORE, OLD_PENALTY, nan)
    got = told(capsys, file)
    (figures,) = got["data_sources"].values()
    assert list(got["data_sources"]) == ["(none)"]
    assert (figures["scored"], figures["penalties"], figures["clamped"], figures["non_finite"]) == (1, 1, 1, 1)
    assert (figures["score"]["count"], figures["score"]["mean"]) == (2, -5.0)
    assert (figures["first"], figures["last"]) == (1766570400.5, 1766570401.5)
    assert "non-finite" in [warned["kind"] for warned in got["warnings"]]


def test_a_folder_that_one_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(LogError, match=r"^\S+: Permission denied$"):
        find_logs([str(tmp_path)])


def test_folders_rotated_files_and_each_file_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = write(run / "reward_log" / "reward-n1-7.1.jsonl", OLD_SCORE)
    second = write(run / "reward_log" / "reward-n1-7.jsonl", OLD_SCORE)
    third = write(run / "reward_log.1" / "reward-n1-9.jsonl", OLD_SCORE)
    write(run / "metrics.jsonl", {"loss": 1})
    write(run / "reward_log" / "failure-n1-7.json", {"error": "x"})
    assert find_logs([str(run)]) == [str(first), str(second), str(third)]
    assert find_logs([str(run / "reward_log")]) == [str(first), str(second)]
    assert find_logs([str(second), str(run), "-"]) == [str(second), str(first), str(third), "-"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "a JSON list; expected an object"),
        ("3", "a JSON int"),
        ('{"status": "fine", "score": 1}', "status 'fine'; expected one of ok, penalty"),
        ('{"status": ["ok"], "score": 1}', "status \"['ok']\""),
        ("{}", "status 'ok' without a number as score"),
        ('{"score": "7"}', "without a number"),
        ('{"score": true}', "without a number"),
        ('{"score": null}', "without a number"),
    ],
    ids=lambda text: text[:30],
)
def test_bad_line_is_told_with_its_place(
    line: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.jsonl", OLD_SCORE, "", line, OLD_SCORE)
    rows = list(read_rows(str(file)))
    assert [type(row) for row in rows] == [Row, BadLine, Row]
    assert str(rows[1]).startswith(f"{file}:3: ")
    assert why in str(rows[1])
    assert stats.main([str(file)]) == 0
    assert f"warning: {file}:3: " in capsys.readouterr().out
    assert stats.main([str(file), "--strict"]) == 3


def test_half_a_line_at_the_end(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", OLD_SCORE)
    file.write_bytes(file.read_bytes() * 2 + b'{"score": 1.0, "prompt": "cut he')
    assert [type(row) for row in read_rows(str(file))] == [Row, Row, BadLine]
    # Whole but for the line end, as an editor may leave it.
    file.write_text('{"score": 1.0}')
    assert [type(row) for row in read_rows(str(file))] == [Row]


def test_odd_values_are_not_taken_for_numbers(tmp_path: Path) -> None:
    odd = {
        "score": 10**400,
        "response_len": "long",
        "timestamp": [],
        "attempts": -3,
        "clamped": "x",
        "data_source": "d" * 1000,
    }
    (row,) = read_rows(str(write(tmp_path / "a.jsonl", odd)))
    assert isinstance(row, Row)
    assert (row.score, row.non_finite, row.response_len, row.time) == (None, True, None, None)
    assert (row.attempts, row.clamped, len(row.data_source)) == (0, False, 120)


def test_nothing_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = write(tmp_path / "empty.jsonl")
    bad = write(tmp_path / "bad.jsonl", "x")
    (tmp_path / "folder").mkdir()
    for place, why in (
        (tmp_path / "nowhere", "no such file"),
        (tmp_path / "folder", "no *.jsonl in this folder"),
        (tmp_path / ("a" * 5000), "File name too long"),
        (empty, "no row of a reward log among 0 lines"),
        (bad, f"among 1 lines; the first: {bad}:1: not JSON"),
        (Path("/proc/self/mem"), "/proc/self/mem: "),
    ):
        assert stats.main([str(place)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: {place}: ")
        assert why in error
        assert error.count("\n") == 1
    with pytest.raises(LogError):
        find_logs([str(tmp_path / "nowhere")])


def test_names_of_data_sources_do_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["\x1b[2J$x_$", "a\nb\ud800", "安全"]
    file = write(tmp_path / "a.jsonl", *({**OLD_SCORE, "data_source": name} for name in names))
    assert stats.main([str(file), "--png", str(tmp_path / "a.png")]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "?[2J" in shown
    assert "a?b" in shown
    assert "安全" in shown
    assert list(json.loads(json.dumps(told(capsys, file)))["data_sources"]) == names


def picture_size(file: Path) -> tuple[int, int]:
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.rstrip().endswith(b"IEND\xaeB`\x82")
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


@pytest.mark.parametrize(
    "scores",
    [[0.0] * 50, [math.nan] * 3, [-1.7e308, 1.7e308], [None], list(range(500))],
    ids=len,
)
def test_png_of_any_scores(scores: list[float | None], tmp_path: Path) -> None:
    rows = [
        {
            "status": "ok" if score is not None else "error",
            "score": score,
            "timestamp_epoch": 1e9 + n,
            "response_len": 1e308 * (n % 2),
            "clamped": n % 3,
        }
        for n, score in enumerate(scores)
    ]
    file = write(tmp_path / "a.jsonl", *rows, {**rows[0], "data_source": "other", "timestamp_epoch": None})
    assert stats.main([str(file), "--png", str(tmp_path / "a.png")]) == 0
    width, height = picture_size(tmp_path / "a.png")
    assert width > 1000
    assert height > 500
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "a.png"}


def test_png_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.jsonl", OLD_SCORE)
    assert stats.main([str(file), "--png", str(tmp_path / "no" / "a.png")]) == 1
    assert f"no such folder {tmp_path / 'no'}; make it first" in capsys.readouterr().err
    (tmp_path / "d.png").mkdir()
    assert stats.main([str(file), "--png", str(tmp_path / "d.png")]) == 1
    assert "Is a directory" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        stats.main([str(file), "--png", str(tmp_path / "a.txt")])
    assert ended.value.code == 2
    assert "expected a name that ends in .png" in capsys.readouterr().err
    assert not (tmp_path / "a.txt").exists()


def test_what_was_written_is_told_beside_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, png = write(tmp_path / "a.jsonl", OLD_SCORE), tmp_path / "a.PNG"
    assert stats.main([str(file), "--json", "--png", str(png)]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["rows"] == 1
    assert shown.err == f"wrote {png}\n"


def test_text_tells_reasons_times_and_what_is_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nan = {**OLD_SCORE, "score": math.nan, "latency_s": 60.0}
    lost = {**OLD_SCORE, "status": "error", "score": None, "error": "why\x1b " * 100}
    assert stats.main([str(write(tmp_path / "a.jsonl", nan, nan, lost, lost))]) == 0
    shown = capsys.readouterr().out
    first, last = shown.splitlines()[0].split(", ")[2].split(" to ")
    assert (first[-2:], last[-2:]) == ("00", "00")
    assert first < last  # the calls ended a minute after they began
    (calls,) = [line.split() for line in shown.splitlines() if line.startswith("(none)") and "%" in line]
    assert calls[1:5] == ["0", "0", "0.0%", "2"]
    (reason,) = [line for line in shown.splitlines() if "2 x error: " in line]
    assert reason.startswith("(none): 2 x error: why? why? ")
    assert reason.endswith("...")
    assert len(reason) < 300


def test_memory_grows_with_the_numbers_not_with_the_texts(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with file.open("w") as stream:
        for n in range(2000):
            stream.write(json.dumps({**OLD_SCORE, "score": n, "response": "r" * 10_000}) + "\n")
    tracemalloc.start()
    report, _ = stats.summarise([str(file)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.whole.rows == 2000
    assert file.stat().st_size > 20_000_000
    assert peak < 2_000_000


def test_command_without_matplotlib_and_through_a_pipe(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", OLD_SCORE, OLD_PENALTY)
    script = "import sys; sys.modules['matplotlib'] = None; from reward.stats import main; sys.exit(main())"
    command = [sys.executable, "-W", "error", "-c", script, "-", "--png", "x.png"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        input=file.read_bytes(),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
    )
    assert done.returncode == 1
    assert b"(none)" in done.stdout
    assert b"error: --png needs matplotlib" in done.stderr
