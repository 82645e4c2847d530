"""Parsers and writers of launch.init, on every text."""

import ast
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.config.slurm_types import _TIME
from launch.config.yaml_text import parse_yaml
from launch.site.choose import time_limit
from launch.site.commands import ask, without_secrets
from launch.site.gpu_nodes import gpu_nodes
from launch.site.gres import is_mig, parse_gres
from launch.site.modules import parse_modules
from launch.site.network import read_network
from launch.site.slurm import (
    Nodes,
    Partition,
    clusters,
    parse_accounts,
    parse_config,
    parse_partitions,
    parse_sinfo,
    seconds,
)
from launch.site.storage import kind_of, local_folders, parse_mounts, parse_stat
from launch.site.variables import proxies, without_password
from launch.site.yaml_text import comment, entry, flow_list, scalar

ROOT = Path(__file__).resolve().parents[2]
OTHERS = [ROOT / "launch" / name for name in ("__init__.py", "init.py", "sizing/gpus.py")]


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:8(S:0-1)", {"a100": 8}),
        ("gpu:h200:8,shard:16", {"h200": 8}),
        ("gpu:8", {"": 8}),
        ("gpu:8(S:0,2-3),nic:2", {"": 8}),
        ("gpu", {"": 1}),
        ("gpu:tesla", {"tesla": 1}),
        ("gpu:4090:2", {"4090": 2}),
        ("gpu:nvidia_a100_3g.20gb:4(S:0),gpu:a100:2(S:1)", {"nvidia_a100_3g.20gb": 4, "a100": 2}),
        ("gpu:1g.10gb:7", {"1g.10gb": 7}),
        ("gpu:a100:no_consume:4,mps:no_consume:1K", {"a100": 4}),
        ("gpu:a100:2,gpu:a100:2", {"a100": 4}),
        ("gpu:a100:0", {}),
        ("(null)", {}),
        ("", {}),
        ("no_consume", {}),
        ("shard:a100:16,gpumem:80G,craynetwork:4", {}),
    ],
)
def test_gres(text: str, gpus: dict[str, int]) -> None:
    assert parse_gres(text) == gpus


def test_slices_are_known_by_their_names() -> None:
    assert all(
        map(is_mig, ("1g.10gb", "a100_3g.20gb", "nvidia_h100_80gb_hbm3_1g.10gb", "a100_1g_10gb", "a100_1g5gb"))
    )
    assert not any(map(is_mig, ("a100-sxm4-40gb", "a10g_24gb", "h200", "nvidia_h100_80gb_hbm3", "")))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1-00:00:00", 86400),
        ("12:30:00", 45000),
        ("30:00", 1800),
        ("infinite", None),
        ("UNLIMITED", None),
        ("n/a", None),
        ("", None),
    ],
)
def test_limits(text: str, limit: int | None) -> None:
    assert seconds(text) == limit


@given(st.text())
def test_every_text_is_parsed(text: str) -> None:
    clusters(f"CLUSTER: {text}")
    partitions, _ = parse_sinfo(text)
    for one in partitions:
        gpu_nodes(one)
        time_limit(one)
    parse_partitions(text)
    parse_config(text)
    parse_accounts(text)
    parse_modules("launch-init: modules here\n" + text)
    kind_of(text, parse_mounts(text))
    parse_stat(text)
    parse_gres(text)


_FIELD = st.text(st.characters(exclude_characters="|", exclude_categories=("Cc", "Zl", "Zp", "Zs")), min_size=1)


@given(_FIELD, st.integers(0, 999), st.sampled_from(["idle", "idle*", "mixed~", "drained$"]), st.booleans())
def test_a_line_of_sinfo_comes_back(name: str, count: int, state: str, default: bool) -> None:
    line = f"{name}{'*' * default}|up|1:00:00|{count}|{state}|64+|512000+|gpu:a100:4(S:0-1)|a,b"
    partitions, strange = parse_sinfo(f"welcome\n{line}\n")
    if name == "*" or "\x85" in name or (name.endswith("*") and not default):
        return
    expected = [Nodes(count, state.rstrip("*~$"), 64, 512000, {"a100": 4}, ("a", "b"))] if count else []
    assert (partitions, strange) == ([Partition(name, default, True, "1:00:00", expected)], 1)


@given(st.integers(0, 10**9))
def test_a_time_limit_is_one_of_slurm(limit: int) -> None:
    days, rest = divmod(limit, 86400)
    shown = f"{days}-{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    asked, _ = time_limit(Partition("p", True, True, shown))
    if limit < 60:
        assert asked is None
        return
    assert asked is not None
    assert _TIME.fullmatch(asked)
    assert seconds(asked) == min(limit, 86400)


@given(
    st.text()
    | st.sampled_from(["yes", "No", "null", "~", "1e3", "0x1", "1_0", "1:20", ".inf", "=", "<<", "- a", ""])
)
def test_a_scalar_is_read_as_it_was(text: str) -> None:
    assert parse_yaml(f"a: {scalar(text)}  # why") == {"a": text}
    assert parse_yaml(f"a: {flow_list([text, text])}") == {"a": [text, text]}


def test_a_name_that_is_not_utf8() -> None:
    assert parse_yaml(f"a: {scalar(os.fsdecode(b'x' + bytes([255])))}") == {"a": "x?"}


@given(st.text())
def test_a_comment_stays_a_comment(text: str) -> None:
    lines = [*comment(text, 2), *entry("key", "1", text), *entry("other", "2", text, written=False)]
    assert parse_yaml("a:\n" + "\n".join(lines) + "\n") == {"a": {"key": 1}}


def test_a_password_is_hidden() -> None:
    assert without_password("http://proxy:3128") == "http://proxy:3128"
    assert without_password("http://u:p@proxy:3128/") == "http://***@proxy:3128/"
    assert without_password("u:p@proxy") == "***@proxy"
    assert without_password("bob:pw@host:3128?token=t#f") == "***@host:3128"
    assert without_password("http://host:3128/?token=t") == "http://host:3128/"
    assert without_password("http://host:3128#t") == "http://host:3128"
    assert without_password("http://bob:p?w@host:3128") == "http://***"
    assert without_password("http://host:3128/?a=b@token") == "http://***"
    assert proxies({"HTTP_PROXY": "http://a", "no_proxy": "b,c", "ftp_proxy": "d"}) == {
        "http_proxy": "http://a",
        "no_proxy": "b,c",
    }


@given(st.text(), st.text(), st.sampled_from(["http://", "socks5h://", ""]))
def test_no_part_of_a_password_is_left(user: str, password: str, scheme: str) -> None:
    shown = without_password(f"{scheme}{user}:{password}@proxy:1")
    named = re.match(r"\s*[A-Za-z][A-Za-z0-9+.-]*://", f"{scheme}{user}:{password}")
    assert shown.removeprefix(named[0] if named else "") in ("***@proxy:1", "***")


@given(st.text(), st.sampled_from(["http://", "socks5h://", ""]), st.sampled_from("?#"))
def test_no_part_of_a_query_is_left(secret: str, scheme: str, mark: str) -> None:
    shown = without_password(f"{scheme}bob:pw@proxy:1/{mark}token={secret}")
    assert shown in (f"{scheme}***@proxy:1/", f"{scheme}***")


def test_modules_in_the_order_of_use() -> None:
    here = "launch-init: modules here\n"
    names = (
        "tools/Apptainer/1.3.10 (L,D)\nApptainer/1.4.0-rc1\nApptainer/1.4.0\nsingularity-ce/4.2\n/a/apptainer/9:\n"
    )
    found = parse_modules(
        f"motd\n\n{here}{names}singularity\napptainer-utils/1.0\nsingularity_exec/2\n"
        "tools/containers/.hidden/apptainer/2\napptainer/.2\n.apptainer/2\n"
    )
    assert found is not None
    assert [one.name for one in found] == [
        "tools/Apptainer/1.3.10",
        "Apptainer/1.4.0",
        "Apptainer/1.4.0-rc1",
        "singularity-ce/4.2",
        "singularity",
    ]
    assert [one.runtime for one in found][-2:] == ["singularity"] * 2
    spider = parse_modules(f"{here}singularitypro/4.1\nlaunch-init: modules spider\napptainer/1.4\n")
    assert spider is not None
    assert [(one.name, one.direct) for one in spider] == [("singularitypro/4.1", True), ("apptainer/1.4", False)]
    assert parse_modules("launch-init: modules none\n") is None
    assert parse_modules(here) == []


def test_interfaces_of_this_machine(tmp_path: Path) -> None:
    for name, state in {
        "lo": "unknown",
        "eno1": "up",
        "ib0": "up",
        "ib1": "down",
        "hsn0": "up",
        "docker0": "up",
        "p1p1": "up",
        "bond0.100": "up",
        "team0": "up",
    }.items():
        folder = tmp_path / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(f"{state}\n")
    (tmp_path / "class/infiniband/mlx5_0").mkdir(parents=True)
    network = read_network(tmp_path)
    assert (network.interfaces, network.infiniband) == (
        ("ib0", "hsn0", "bond0.100", "team0", "eno1", "p1p1"),
        ("mlx5_0",),
    )
    assert read_network(tmp_path / "nothing").interfaces == ()


def test_mounts() -> None:
    text = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
    mounts = parse_mounts(f"{text}fs:/home /home\\040two nfs4 rw 0 0\nx /auto autofs rw 0 0\n")
    assert kind_of("/tmp/x/y", mounts) == "tmpfs"
    assert kind_of("/home two/me", mounts) == "nfs4"
    assert kind_of("/auto/x", mounts) == ""
    assert kind_of("/x", {}) == ""
    assert parse_stat("4096 1000 500 ext2/ext3\n") == (4096000, 2048000)
    assert parse_stat("stat: no\n") == (None, None)
    assert local_folders(["/tmp", "/local", "/ssd/x"], "/ssd/x/") == ["/local", "/tmp", "/ssd/x"]


def test_a_program_that_does_not_end_is_ended() -> None:
    began = time.monotonic()
    answer = ask(("sh", "-c", "echo before; sleep 600 & sleep 600"), timeout_s=2)
    assert (answer.out, answer.problem) == (
        "before\n",
        "sh -c 'echo before; sleep 600 & sleep 600' gave no answer in 2 s",
    )
    assert time.monotonic() - began < 60


def test_a_program_that_does_not_stop_printing_is_ended() -> None:
    answer = ask(("yes", "x" * 10_000))
    assert answer.problem is not None
    assert "did not stop printing" in answer.problem
    assert len(answer.out) < 16 << 20


def test_a_child_that_holds_the_pipe_is_not_waited_for() -> None:
    began = time.monotonic()
    assert ask(("sh", "-c", "sleep 600 & echo done"), timeout_s=120).out == "done\n"
    assert time.monotonic() - began < 60


def test_what_is_waited_for_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(("sh", "-c", "echo a; echo b >&2; read c; echo d"), quiet_s=-1).out == "a\nd\n"
    assert capsys.readouterr().err == "waiting for sh, 20 s at most\n"
    ask(("bash", "-lc", "echo a"), quiet_s=-1)
    assert capsys.readouterr().err == "waiting for the login shell, 20 s at most\n"
    ask(("sh", "-c", "echo a"), quiet_s=1000)
    assert capsys.readouterr().err == ""


def test_programs_that_are_not_there_or_fail() -> None:
    assert ask(("no-such-program",)).problem == "no-such-program is not in PATH"
    assert ask(("/",)).problem is not None
    assert ask(("sh", "-c", "echo why >&2; exit 3")).problem == "sh -c 'echo why >&2; exit 3' ended with 3: why"


@pytest.mark.parametrize(
    "said",
    [
        "proxy set to http://bob:s3cret@proxy:3128",
        "http_proxy=http://bob:s3cret@proxy",
        "'http://bob:s3c/r@s3cret@proxy:1'",
        "proxy bob:s3cret@proxy:3128",
        "https://s3cret@proxy",
        "logged in with hf_s3cret0123456789abcdef",
    ],
)
def test_no_secret_that_a_program_prints_is_told(said: str) -> None:
    told = ask(("sh", "-c", 'echo "$SAID" >&2; exit 3'), environment={**os.environ, "SAID": said}).problem
    assert told is not None
    assert "exit 3' ended with 3: " in told
    assert "s3c" not in told + without_secrets(f"it printed {said!r}")


def test_nothing_that_a_login_shell_prints_is_told(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("echo proxy with bob and s3cret\nexit 1\n")
    answer = ask(("bash", "-lc", "module avail"), environment={**os.environ, "HOME": str(tmp_path)})
    assert answer.problem == "the login shell ended with 1"
    assert "s3cret" in answer.out


def test_it_is_written_for_python_39() -> None:
    for path in (*(ROOT / "launch/site").glob("*.py"), *OTHERS):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
        assert path.name == "__init__.py" or "from __future__ import annotations" in path.read_text(
            encoding="utf-8"
        )
