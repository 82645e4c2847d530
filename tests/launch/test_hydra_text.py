"""Values survive bash, Hydra's parser and OmegaConf unchanged."""

import shlex
import subprocess

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launch.engines.hydra_text import Resolved, override

AWKWARD = [
    "epoch=9-step=1", "a{b}", "[x]", "(y)", "it's", 'say "hi"', "~t", "#c", "a&b", "a;b", "a<b", "a,b", "null",
    "true", "1_000", "inf", "nan", "1e-6", "a:b", "a@b", "50%", "a|b", "a b", " lead", "trail ", "\\", "a\\",
    "a\\'b", "\\\\'", "$HOME", "`id`", "${oc.env:HOME}", "\\${x}", "日本語", "é", "*", "?", "!x", "a\nb", "a\tb",
]  # fmt: skip


def parsed(text: str) -> object:
    """The value that the trainer sees: through Hydra's parser, a config, and its resolution."""
    value = OverridesParser.create().parse_override(text).value()
    return OmegaConf.to_container(OmegaConf.create({"key": value}), resolve=True)["key"]


def through_bash(text: str) -> str:
    """What a program gets that the script calls with the quoted text."""
    script = f"printf %s {shlex.quote(text)}"
    return subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize("value", AWKWARD)
def test_awkward_values_come_back(value: str):
    back = parsed(through_bash(override("key", value)))
    assert back == value
    assert type(back) is str


@settings(max_examples=400)
@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")))
def test_any_text_comes_back(value: str):
    assert parsed(override("key", value)) == value


@settings(max_examples=200)
@given(st.text(alphabet="\\'\"${}a", max_size=12))
def test_quotes_and_backslashes_come_back(value: str):
    assert parsed(override("key", value)) == value


@pytest.mark.parametrize("value", [None, True, False, 0, -3, 1e-6, 2.5, [1, "a,b", None], ["x", ["y"]]])
def test_other_types_come_back(value):
    back = parsed(override("key", value))
    assert back == value
    assert type(back) is type(value)


def test_only_what_asks_for_it_is_resolved(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUN_DIR", "/a b/it's,{x}=$1")
    assert parsed(override("key", Resolved("${oc.env:RUN_DIR}/c"))) == "/a b/it's,{x}=$1/c"


def test_nul_is_refused():
    with pytest.raises(ValueError, match="NUL"):
        override("key", "a\0b")
