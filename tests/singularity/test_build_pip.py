"""What a build takes of pip's settings, and which of their words are never shown."""

from pathlib import Path

import pytest

from singularity import pip_settings as pip_module
from singularity.pip_settings import PipSettings, PipSettingsError, pip_settings, secrets_of
from singularity.running import run_program


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
