"""The caller's package index for pip inside a build, in a file that stays outside of the image.

Only what says where packages come from is taken: the index, its certificate, its proxy. The rest of a user's pip
configuration (target folders, constraints, a user install) is for the host's Python.
"""

import configparser
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

_MOST = 1 << 20  # bytes of a configuration file that are read
_OPTIONS = (
    "index-url", "extra-index-url", "find-links", "trusted-host", "no-index", "proxy", "timeout", "retries",
    "cert", "client-cert",
)  # fmt: skip
_FILES = ("cert", "client-cert")
_LISTS = ("extra-index-url", "find-links", "trusted-host")
_OF_THE_MACHINE = (Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"))
_SCHEME = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")
_TOKEN = re.compile(r"[A-Za-z0-9]{16,}|(?=.*\d)[\w-]{16,}")  # of an index that has it in its path
_LONG = 6  # letters: no secret that long is a word of a message by chance
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")


class PipSettingsError(ValueError):
    """A setting of pip that cannot be used; the message names it, its place and the remedy."""


class PipSettings(NamedTuple):
    """`text` is a pip.conf; `files` are copied beside it, by name; '' and {}: nothing was set."""

    text: str
    files: dict[str, Path]
    notes: tuple[str, ...]


def pip_settings(environ: Mapping[str, str], folder: str, wheels: str | None = None) -> PipSettings:
    """What the caller has set, by pip's own order: files of the machine, of the user, $PIP_CONFIG_FILE, variables.

    Args:
        folder: where the file will be in the build.
        wheels: a folder in the build that all packages come from; no index is asked then.

    Raises:
        PipSettingsError: a file cannot be read, or a certificate is missing.
    """
    if wheels:
        return PipSettings(_conf({"no-index": ["true"], "find-links": [wheels]}), {}, ())
    found: dict[str, list[str]] = {}
    for file in _config_files(environ):
        for option, value in _read(file):
            found[option] = _values(option, value)
    for option in _OPTIONS:
        variable = environ.get("PIP_" + option.upper().replace("-", "_"))
        if variable:
            found[option] = _values(option, variable)
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("SSL_CERT_FILE")
    if bundle and "cert" not in found:
        found["cert"] = [bundle]
    notes = []
    local = [link for link in found.get("find-links", ()) if not re.match(r"https?://", link)]
    if local:
        found["find-links"] = [link for link in found["find-links"] if link not in local]
        notes.append(f"pip's find-links {local[0]} is a folder of this machine and not used; --wheels takes one")
    files = {}
    for option in _FILES:
        if option in found:
            try:
                path = Path(found[option][0]).expanduser()
            except RuntimeError:
                raise PipSettingsError(
                    f"pip's {option} {found[option][0]}: the home folder that ~ stands for is not known; name the"
                    " path from / on"
                ) from None
            if not path.is_file():
                why = "a folder; pip in the image takes one file" if path.is_dir() else "no such file"
                raise PipSettingsError(f"pip's {option} {path}: {why}; correct or unset it")
            files[f"{option}.pem"] = path
            found[option] = [f"{folder}/{option}.pem"]
    found = {option: values for option, values in found.items() if values}
    return PipSettings(_conf(found) if found else "", files, tuple(notes))


def _conf(options: Mapping[str, list[str]]) -> str:
    lines = ["[global]"]
    for option, values in options.items():
        lines.append(f"{option} =" + ("" if len(values) > 1 else f" {values[0]}"))
        lines += [f"    {value}" for value in values] if len(values) > 1 else []
    return "\n".join(lines) + "\n"


def _values(option: str, value: str) -> list[str]:
    if option in _LISTS:
        return value.split()
    stripped = value.strip()
    if not stripped.isprintable():
        raise PipSettingsError(f"pip's {option}: it holds control characters; correct or unset it")
    return [stripped]


def _config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    named = environ.get("PIP_CONFIG_FILE")
    if named == "/dev/null":
        return
    home = Path(environ.get("HOME") or "/nonexistent")
    xdg = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    candidates = [*_OF_THE_MACHINE, home / ".pip" / "pip.conf", xdg / "pip" / "pip.conf"]
    yield from (path for path in candidates if path.is_file())
    if named:
        yield Path(named)


def _read(file: Path) -> Iterator[tuple[str, str]]:
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_MOST)
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text, str(file))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise PipSettingsError(
            f"pip's settings in {file}: {_reason(error)}; correct the file, or set PIP_CONFIG_FILE"
        ) from None
    for section in ("global", "install"):
        if parser.has_section(section):
            yield from ((name, value) for name, value in parser.items(section) if name in _OPTIONS and value)


def _reason(error: Exception) -> str:
    """Without the text of the file, which may hold a password: configparser quotes the line."""
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno} stands before any section, such as [global]"
    if isinstance(error, configparser.ParsingError):
        return f"line {', '.join(str(number) for number, _ in error.errors)} is no NAME = VALUE"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    return (error.strerror if isinstance(error, OSError) else None) or "it is no configuration file"


def secrets_of(environ: Mapping[str, str], settings: PipSettings) -> set[str]:
    """Passwords and tokens in addresses of indexes and proxies, and of the docker registry: never to be shown."""
    texts = settings.text.split()
    for name, value in environ.items():
        if name.lower() in _PROXIES or name == "PIP_PROXY":
            texts.append(value.strip())
        elif name.startswith("PIP_"):
            texts += value.split()
    found = set[str]()
    for name, value in environ.items():
        if re.fullmatch(r"(?:APPTAINER|SINGULARITY)_DOCKER_PASSWORD", name) and value:
            found |= _hidden(":", value)
    for text in texts:
        found |= _secrets_in(text)
    return found


def _secrets_in(address: str) -> set[str]:
    """An address may have no scheme, and a password with '/', '?', '#' or '@' that should have been quoted."""
    rest = _SCHEME.sub("", address)
    found = set[str]()
    for part in (re.split(r"[/?#]", rest, maxsplit=1)[0], rest):
        user, colon, password = part.rpartition("@")[0].partition(":")
        # A program that takes a part of it for the host tells that part.
        first = next(filter(None, re.split(r"[/?#@]", password)), "")
        for secret in (password or user, first):
            found |= _hidden(f"{user}:" if password else colon, secret)
    if rest != address:
        path, _, query = rest.partition("#")[0].partition("?")
        tokens = [segment for segment in path.split("/")[1:] if _TOKEN.fullmatch(segment)]
        tokens += [query, *(pair.partition("=")[2] for pair in query.split("&"))]
        found |= {form for token in tokens for form in (token, unquote(token)) if len(token) >= _LONG}
    return found


def _hidden(before: str, secret: str) -> set[str]:
    """What to hide of a secret: a short one may be a word of a message, and is hidden in its address alone."""
    forms = {secret, unquote(secret)} - {""}
    return {form if len(form) >= _LONG else f"{before or '//'}{form}@" for form in forms}
