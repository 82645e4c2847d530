"""What singularity.build knows of programs, indexes, folders and failures."""

import pwd
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from other_processes import LIMIT_S, wait_for_end, written_pid

from singularity import pip_settings as pip_module
from singularity import runtime as runtime_module
from singularity.pip_settings import PipSettings, PipSettingsError, pip_settings, secrets_of
from singularity.room import mount_options, needs, shortages
from singularity.running import run_program
from singularity.runtime import (
    Runtime,
    RuntimeMissing,
    build_environment,
    default_cache,
    fakeroot_options,
    has_subordinate_ids,
    parse_version,
    user_name,
)

_ROOT = Path(__file__).parents[2]
_APPTAINER = Runtime("apptainer", "/usr/bin/apptainer", "Apptainer", (1, 4, 5))
_PRO = Runtime("singularity", "/usr/bin/singularity", "SingularityPRO", (3, 11))


@pytest.mark.parametrize(
    ("said", "flavour", "version"),
    [
        ("apptainer version 1.4.5\n", "Apptainer", (1, 4, 5)),
        ("apptainer version 1.1.9-1.el8\n", "Apptainer", (1, 1, 9)),
        ("singularity-ce version 4.1.2-jammy\n", "SingularityCE", (4, 1, 2)),
        ("SingularityPRO version 3.11-8.el8\n", "SingularityPRO", (3, 11)),
        ("singularity-pro version 4.1.6-1.el9\n", "SingularityPRO", (4, 1, 6)),
        ("singularity version 3.8.7-1.el7\n", "Singularity", (3, 8, 7)),
    ],
)
def test_what_a_program_calls_itself(said: str, flavour: str, version: tuple[int, ...]) -> None:
    found = parse_version("singularity", "/x", said)
    assert found is not None
    assert (found.flavour, found.version) == (flavour, version)


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (_APPTAINER._replace(version=(1, 3, 0)), "apptainer registry login"),
        (_APPTAINER._replace(version=(1, 2, 5)), "apptainer remote login"),
        (_PRO, "singularity remote login"),
        (_PRO._replace(version=(4, 1, 6)), "singularity registry login"),
    ],
)
def test_the_command_for_a_registry(program: Runtime, command: str) -> None:
    assert program.login == command


@pytest.mark.parametrize(
    ("program", "takes"),
    [
        (_APPTAINER._replace(version=(1, 4, 0)), True),
        (_APPTAINER._replace(version=(1, 3, 6)), False),
        (_PRO._replace(flavour="SingularityCE", version=(4, 5, 1)), False),
        (_PRO, False),
    ],
)
def test_which_program_takes_arguments_of_mksquashfs(program: Runtime, takes: bool) -> None:
    assert program.takes_mksquashfs_args == takes


def test_a_program_that_is_something_else() -> None:
    assert parse_version("singularity", "/x", "Singularity, a game\n") is None


@pytest.mark.parametrize(
    ("program", "uid", "wanted", "options"),
    [
        (_APPTAINER, 1000, "auto", []),
        (_APPTAINER._replace(version=(1, 0, 3)), 1000, "auto", ["--fakeroot"]),
        (_APPTAINER, 1000, "yes", ["--fakeroot"]),
        (_PRO, 0, "auto", []),
        (_PRO, 1000, "auto", ["--fakeroot"]),
        (_PRO, 1000, "no", []),
    ],
)
def test_fakeroot_where_it_is_needed(
    program: Runtime, uid: int, wanted: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "has_subordinate_ids", lambda *_: True)
    assert fakeroot_options(program, wanted, uid=uid) == options  # type: ignore[arg-type]


def test_a_user_without_subordinate_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "has_subordinate_ids", lambda *_: False)
    monkeypatch.setenv("PATH", "/nonexistent")  # no proot
    assert fakeroot_options(_APPTAINER, "auto", uid=1000) == []
    with pytest.raises(RuntimeMissing, match=r"/etc/subuid .*SingularityPRO 3\.11 .*config fakeroot --add"):
        fakeroot_options(_PRO, "auto", uid=54321)


def test_subordinate_ids_by_name_and_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")  # no getsubids
    file = tmp_path / "subuid"
    file.write_text("alice:100000:65536\n2002:165536:65536\nbroken\n")
    assert has_subordinate_ids(2001, "alice", file)
    assert has_subordinate_ids(2002, "bob", file)
    assert not has_subordinate_ids(2003, "ali", file)
    assert not has_subordinate_ids(2001, "alice", tmp_path / "none")


def test_the_environment_of_a_build() -> None:
    environ = {
        "PATH": "/bin", "https_proxy": "http://p", "PYTHONPATH": "/x", "PYTHONHOME": "/x", "PIP_TARGET": "/x",
        "CONDA_PREFIX": "/x", "VIRTUAL_ENV": "/x", "APPTAINERENV_A": "1", "SINGULARITYENV_PYTHONPATH": "1",
        "SINGULARITY_BINDPATH": "/data", "APPTAINER_DOCKER_PASSWORD": "x", "SINGULARITY_TMPDIR": "/small",
        "APPTAINER_CACHEDIR": "/cache",
    }  # fmt: skip
    made = build_environment(_APPTAINER, environ, Path("/tmp/work"), None)
    assert made == {
        "PATH": "/bin", "https_proxy": "http://p", "APPTAINER_DOCKER_PASSWORD": "x",
        "APPTAINER_CACHEDIR": "/cache", "APPTAINER_TMPDIR": "/tmp/work",
    }  # fmt: skip
    made = build_environment(_PRO, environ, Path("/tmp/work"), Path("/big"))
    assert (made["SINGULARITY_TMPDIR"], made["SINGULARITY_CACHEDIR"]) == ("/tmp/work", "/big")
    assert "APPTAINER_CACHEDIR" not in made


def _nobody(uid: int) -> NoReturn:
    raise KeyError(uid)


def test_a_user_that_this_machine_has_no_name_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", _nobody)
    assert user_name(54321) == "54321"
    assert default_cache(_APPTAINER, {}) is None
    assert default_cache(_APPTAINER, {"HOME": "/h"}) == Path("/h/.apptainer/cache")
    assert default_cache(_PRO, {"SINGULARITY_CACHEDIR": "/c"}) == Path("/c")


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_module, "_OF_THE_MACHINE", ())


def test_pips_settings_are_those_of_the_index_alone(tmp_path: Path) -> None:
    conf = tmp_path / ".config" / "pip" / "pip.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(
        "[global]\nindex-url = https://u:p%40ss@one.example/simple\nuser = true\ntarget = /home/x\n"
        "[install]\nextra-index-url =\n  https://two.example\n  https://three.example\nno-deps = true\n"
    )
    ca = tmp_path / "site ca.pem"
    ca.write_text("x")
    environ = {
        "HOME": str(tmp_path), "PIP_TRUSTED_HOST": "a b", "PIP_USER": "1", "SSL_CERT_FILE": str(ca),
        "HTTPS_PROXY": "http://robot:t0ken@proxy:1", "http_proxy": "bare:s3cret@proxy:2",
        "PIP_FIND_LINKS": "/data/wheels https://links.example",
    }  # fmt: skip
    made = pip_settings(environ, "/mnt")
    assert made.text == (
        "[global]\nindex-url = https://u:p%40ss@one.example/simple\n"
        "extra-index-url =\n    https://two.example\n    https://three.example\n"
        "find-links = https://links.example\ntrusted-host =\n    a\n    b\ncert = /mnt/cert.pem\n"
    )
    assert made.files == {"cert.pem": ca}
    assert "--wheels" in made.notes[0]
    assert secrets_of(environ, made) == {"p%40ss", "u:p@ss@", "robot:t0ken@", "s3cret"}


def test_wheels_take_the_place_of_every_index(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PIP_INDEX_URL": "https://one.example"}
    assert pip_settings(environ, "/mnt", "/mnt/wheels").text == (
        "[global]\nno-index = true\nfind-links = /mnt/wheels\n"
    )


def test_no_settings_are_no_file(tmp_path: Path) -> None:
    assert pip_settings({"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}, "/mnt").text == ""


def test_settings_of_pip_that_cannot_be_used(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "none.conf")}
    with pytest.raises(PipSettingsError, match=r"none\.conf"):
        pip_settings(environ, "/mnt")
    with pytest.raises(PipSettingsError, match=r"cert /none\.pem: no such file"):
        pip_settings({"HOME": str(tmp_path), "PIP_CERT": "/none.pem"}, "/mnt")
    with pytest.raises(PipSettingsError, match="cert ~nobody-of-this-name/x: the home folder"):
        pip_settings({"HOME": str(tmp_path), "PIP_CERT": "~nobody-of-this-name/x"}, "/mnt")
    with pytest.raises(PipSettingsError, match="index-url: it holds control characters"):
        pip_settings({"HOME": str(tmp_path), "PIP_INDEX_URL": "https://x\nno-index = 0"}, "/mnt")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("index-url = https://bob:S3cretPW@one.example/simple\n", "line 1 stands before any section"),
        ("[global]\nS3cretPW\n", "line 2 is no NAME = VALUE"),
        ("[global]\n= https://bob:S3cretPW@one.example/simple\n", ""),
    ],
    ids=["no-section", "no-sign", "no-name"],
)
def test_a_broken_file_keeps_its_password(content: str, place: str, tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(content)
    with pytest.raises(PipSettingsError) as raised:
        pip_settings({"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(file)}, "/mnt")
    assert str(file) in str(raised.value)
    assert place in str(raised.value)
    assert "S3cret" not in str(raised.value)


def test_secrets_of_addresses_without_a_scheme(tmp_path: Path) -> None:
    conf = tmp_path / "pip.conf"
    conf.write_text("[global]\nproxy = bob:filepw@proxy:3128\n")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(conf), "HTTPS_PROXY": "eve:evepw@proxy:1"}
    assert secrets_of(environ, pip_settings(environ, "/mnt")) == {"filepw", "eve:evepw@"}
    environ["PIP_PROXY"] = "bob:pw@proxy:3128"
    environ["PIP_EXTRA_INDEX_URL"] = "https://t0k@a.example/simple https://u:p@b.example/x#at@sign"
    assert secrets_of(environ, pip_settings(environ, "/mnt", "/mnt/wheels")) == {
        "eve:evepw@", "bob:pw@", "//t0k@", "u:p@", "p@b.example/x#at"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("http_proxy", "http://u:S3CRET#x@p:3128", "proxy http://u:S3CRET#x@p:3128 fails: Invalid port: S3CRET"),
        ("http_proxy", "http://u:S3CRET/x@p:3128", "proxy http://u:S3CRET/x@p:3128 fails: Invalid port: S3CRET"),
        ("PIP_PROXY", "u:S3CRET//x@p:3128", "proxy http://u:S3CRET//x@p:3128"),
        ("http_proxy", "http://u:S3CRET@[::1", "bad address http://u:S3CRET@[::1"),
        ("HTTPS_PROXY", "http://u:S3 CRET@p", "http://u:S3 CRET@p"),
        ("http_proxy", "http://u:S3@p:1", "http://u:S3@p:1"),
        ("PIP_INDEX_URL", "https://h/S3CRETS3CRETS3CRET/simple", "Looking in https://h/S3CRETS3CRETS3CRET/simple"),
        ("PIP_INDEX_URL", "https://h/simple?key=S3CRET", "https://h/simple/torch/?key=S3CRET"),
    ],
    ids=["hash", "slash", "no-scheme", "malformed", "blank", "short", "path", "query"],
)
def test_secrets_that_an_address_should_have_quoted(
    name: str, value: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    secrets = secrets_of({name: value}, PipSettings("", {}, ()))
    told = run_program(["echo", said], environ={"PATH": "/usr/bin:/bin"}, folder=Path("/"), secrets=secrets).said
    assert "****" in told
    assert "S3" not in told + capfd.readouterr().err


def test_a_short_password_hides_no_cause() -> None:
    secrets = secrets_of({"http_proxy": "http://u:disk@p:1"}, PipSettings("", {}, ()))
    words = ["echo", "http://u:disk@p:1 disk quota exceeded"]
    done = run_program(words, environ={"PATH": "/usr/bin:/bin"}, folder=Path("/"), secrets=secrets)
    assert done.said == "http://****p:1 disk quota exceeded\n"


def test_certificates_that_are_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PipSettingsError, match=r"cert \S+: a folder; pip in the image takes one file"):
        pip_settings({"HOME": str(tmp_path), "REQUESTS_CA_BUNDLE": str(tmp_path)}, "/mnt")


def test_room_is_added_up_for_each_file_system(tmp_path: Path) -> None:
    assert shortages(needs(size_gb=1e-6, output=tmp_path, temporary=tmp_path / "not/yet", cache=tmp_path)) == []
    (told,) = shortages(needs(size_gb=1e6, output=tmp_path, temporary=tmp_path / "t", cache=tmp_path / "c"))
    assert "about 4800000 GB needed" in told
    assert told.endswith("choose with --cache-dir or --tmp-dir or -o")


def test_the_mount_that_a_folder_lies_on(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    folder = tmp_path / "a b" / "c"
    folder.mkdir(parents=True)
    escaped = str(tmp_path / "a b").replace(" ", "\\040")
    table.write_text(
        "1 0 8:1 / / rw,relatime - ext4 /dev/a rw\n"
        f"2 1 0:2 / {escaped} rw,nosuid - tmpfs tmpfs rw\n"
        f"3 1 0:3 / {escaped} rw,noexec,nodev - tmpfs tmpfs rw\n"
        f"4 1 0:4 / {tmp_path}/a ro - tmpfs tmpfs rw\n"
    )
    assert mount_options(folder / "none yet", table) == (str(tmp_path / "a b"), {"rw", "noexec", "nodev"})


_RUN = """
import sys
from pathlib import Path
from singularity import running
from singularity.running import run_program
running._GRACE_S = 1.0
done = run_program(sys.argv[2:], environ={"PATH": "/usr/bin:/bin"}, folder=Path("/"), secrets=[sys.argv[1]])
print(done)
"""


def test_output_passes_through_without_its_secrets() -> None:
    script = "printf 'a s3c'; sleep 0.1; printf 'ret b\\n' >&2; printf 'tail s3c'; exit 3"
    command = [sys.executable, "-c", _RUN, "s3cret", "sh", "-c", script]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "a **** b\ntail s3c"
    assert done.stdout == "Finished(code=3, said='a **** b\\ntail s3c')\n"


def test_a_child_that_outlives_a_program_holds_nothing_up() -> None:
    command = [sys.executable, "-c", _RUN, "none", "sh", "-c", "sleep 300 & echo said; exit 3"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == "Finished(code=3, said='said\\n')\n"


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    script = f"trap '' TERM; sleep 1000 & echo $! >{tmp_path}/pid; trap 'exit 0' TERM; echo ready >&2; wait"
    command = [sys.executable, "-c", _RUN, "none", "sh", "-c", script]
    with subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True) as runner:
        assert runner.stderr is not None
        assert runner.stderr.readline() == "ready\n"
        runner.send_signal(signal.SIGINT)
        runner.communicate(timeout=LIMIT_S)
    wait_for_end(written_pid(tmp_path / "pid"))


@pytest.mark.parametrize("said", [r"printf 'apptainer version \377\n'", "printf '%05000d' 1", "exit 3"])
def test_a_program_that_says_no_version_gives_way_to_the_other(said: str, tmp_path: Path):
    for name, text in (("apptainer", said), ("singularity", "echo singularity-ce version 4.1.2")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert str(runtime_module.find_runtime("auto", environ)) == "SingularityCE 4.1.2"
    with pytest.raises(runtime_module.RuntimeMissing, match="--version"):
        runtime_module.find_runtime("apptainer", environ)
