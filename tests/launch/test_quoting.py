"""Any text in any free field comes through bash, Slurm, the container and Hydra unchanged, or is refused by name.

C01 (values for Hydra), B03 (environment of the container), and their kind.
"""

import itertools
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from slurm_stubs import Node, commands, named_options, with_batch

from launch.checks.text import check_text
from launch.config import JobError, load_job
from launch.script import RenderRequest, render_script

# hydra 1.3.8: the first line fails or sweeps raw, the second changes type, the third passes (C01).
C01 = [
    "epoch=9-step=1", "a{b", "a}b", "a[b", "a]b", "a(b", "a)b", "a'b", "~a", "a#b", "a&b", "a;b", "a<b", "a,b",
    "null", "true", "1_000", "inf", "nan", "1e-6",
    "a:b", "a@b", "a%b", "a|b", "a b", "a\\", "${oc.env:HOME}",
]  # fmt: skip
B03 = ["a,b", "a b", 'a"b', "a=b", '{"k": [1,2]}', "it's", "x$HOME", "`id`", "", "two\nlines"]

PIECES = [
    " ", "'", '"', "$", "`", ";", ",", "{", "}", "=", "#", "~", "!", "é", "日本", "\n", "\t", "\\", "-", "--", "*",
    "?", "[", "]", "(", ")", "&", "|", "<", ">", "%", "@", ":", "^", "+", "a", "Z9", "${oc.env:HOME}", "$HOME",
    "$(touch gone)", "`touch gone`", "null", "true", "1e-6", "1_000", "inf", "::trainer", "\\n", "$'\\x41'",
    "\u2028",
]  # fmt: skip
HOSTILE = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)

# Where a field's text goes: a path below the project, or the text itself.
PATHS = [
    "model.path",
    "reward.model",
    "data.train",
    "data.val",
    "checkpoint.dir",
    "container.image",
    "container.env_file",
]
TEXTS = ["logging.project", "logging.experiment", "cluster.modules", "overrides"]
LISTS = ["data.train", "data.val", "cluster.modules", "overrides"]
MODULES = 'module() { [[ $1 == load ]] && printf \'%s\\0\' "${@:2}" >> "$STUB_LOG/../modules"; }\n'
FOLDERS = itertools.count()


def assignment(field: str, value: Any) -> str:
    return f"{field}={json.dumps([value] if field in LISTS and isinstance(value, str) else value)}"


def refusals(field: str, text: str) -> list[str]:
    """Why the job does not take the text; each reason names the field."""
    try:
        job = load_job("grpo", None, [assignment(field, text)])
    except JobError as refused:
        return [problem.message for problem in refused.problems]
    return [finding.message for finding in check_text(job) if finding.severity == "error"]


def accepted(texts: dict[str, str]) -> dict[str, str]:
    """The fields that the job takes; a refusal names its field."""
    kept = {}
    for field, text in texts.items():
        reasons = refusals(field, text)
        assert all(reason.startswith(field) for reason in reasons)
        if not reasons:
            kept[field] = text
    return kept


def seen_by_verl(words: list[str]) -> dict[str, object]:
    """Key -> value of the overrides, through Hydra's parser, a configuration, and its resolution."""
    parser = OverridesParser.create()
    values = {}
    for word in words:
        override = parser.parse_override(word)
        values[override.key_or_group] = override.value()
    resolved = OmegaConf.to_container(OmegaConf.create({"all": values}), resolve=True)
    return resolved["all"]


class Script:
    """A job rendered into a fresh project, and what became of it on a stub node."""

    def __init__(self, root: Path, texts: dict[str, str], project: str = "p", name: str = "run.sh", **env: str):
        self.root = root / str(next(FOLDERS))
        self.project = self.root / project
        (self.project / "cwd").mkdir(parents=True)
        self.texts = {"container.image": "image.sif", **texts}
        image = self.project / self.texts["container.image"]
        image.parent.mkdir(exist_ok=True)
        image.touch()
        bind = f"{self.project}/cwd:/inside"
        self.binds = [bind] if not set(":,\t\n") & set(str(self.project)) else []
        assignments = [assignment(field, text) for field, text in self.texts.items()]
        assignments += [f"container.env={json.dumps(env)}", f"container.binds={json.dumps(self.binds)}"]
        if "container.env_file" in texts:
            (self.project / texts["container.env_file"]).parent.mkdir(exist_ok=True)
            (self.project / texts["container.env_file"]).touch()
        text = render_script(RenderRequest(load_job("grpo", None, assignments), self.project, name))
        init = self.root / "modules.sh"
        init.write_text(MODULES)
        file = self.root / "job.sh"
        file.write_text(with_batch(text, "/etc/profile.d/modules.sh ", f"{init} "))
        self.done = Node(self.root / "node").sbatch(file, cwd=self.project / "cwd")
        assert self.done.code == 0, self.done.err
        (self.container,) = self.done.containers
        self.options, self.commands = commands(self.container["command"][2:])
        trainer = self.commands["::trainer"]
        assert trainer[:2] == ["python3", "-m"]
        self.overrides = trainer[4:]

    def check(self) -> None:
        """Every text is where it belongs, unchanged, and nothing was run."""
        texts, project = self.texts, self.project
        output = f"{project}/{texts.get('checkpoint.dir', 'outputs/qwen3-4b-grpo')}"
        options = named_options(self.options)
        assert options["--run-dir"] == f"{output}/run-77"
        assert options["--checkpoint-dir"] == f"{output}/checkpoints"
        assert Path(output, "checkpoints").is_dir()
        assert self.container["image"] == f"{project}/{texts['container.image']}"
        pwd, *_ = self.container["options"][1:]
        assert pwd == ["--pwd", str(project)]
        bound = [words[1] for words in self.container["options"] if words[0] == "--bind"]
        image = self.container["image"]
        bound = [bind for bind in bound if bind != f"{image}:{image}:ro"]
        assert bound[0] == str(project)
        assert bound[len(bound) - len(self.binds) :] == self.binds
        if "container.env_file" in texts:
            assert options["--env-file"] == f"{project}/{texts['container.env_file']}"
        if "reward.model" in texts:
            assert named_options(self.commands["::reward"])["--model"] == f"{project}/{texts['reward.model']}"
        if "model.path" in texts:
            assert named_options(self.commands["::merge"])["--base_model"] == f"{project}/{texts['model.path']}"
        if "cluster.modules" in texts:
            assert (self.root / "node" / "modules").read_bytes() == texts["cluster.modules"].encode() + b"\0"
        if "overrides" in texts:
            assert self.overrides[-1] == texts["overrides"]
        self.check_hydra()
        assert [path.name for path in (project / "cwd").iterdir()] == []

    def check_hydra(self) -> None:
        texts, project = self.texts, self.project
        raw = 1 if "overrides" in texts else 0
        with patch.dict(os.environ, RUN_DIR="/run", CHECKPOINT_DIR="/checkpoints"):
            seen = seen_by_verl(self.overrides[: len(self.overrides) - raw])
        for field, key in (
            ("model.path", "actor_rollout_ref.model.path"),
            ("logging.project", "trainer.project_name"),
            ("logging.experiment", "trainer.experiment_name"),
        ):
            if field in texts:
                wanted = f"{project}/{texts[field]}" if field in PATHS else texts[field]
                assert seen[key] == wanted
                assert type(seen[key]) is str
        for field, key in (("data.train", "data.train_files"), ("data.val", "data.val_files")):
            if field in texts:
                assert seen[key] == [f"{project}/{texts[field]}"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("q")


@settings(max_examples=60, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # a run is a second
@given(st.data())
def test_any_text_anywhere_comes_back_or_is_refused_by_name(root: Path, data: st.DataObject):
    # Each path in a folder of its own: one is a file, another a directory.
    fields = {field: f"{field}/{data.draw(HOSTILE, field)}" for field in PATHS}
    fields |= {field: data.draw(HOSTILE, field) for field in TEXTS}
    fields["overrides"] = f"+x.y={fields['overrides']}"
    env = {f"V{index}": data.draw(HOSTILE, "env") for index in range(3)}
    name = data.draw(HOSTILE.filter(str.isprintable), "script name")
    script = Script(root, accepted(fields), data.draw(HOSTILE, "project"), name, **env)
    script.check()
    assert {name: script.container["env"][name] for name in env} == env


@pytest.mark.parametrize("value", C01)
def test_c01_each_value_as_path_project_and_experiment(root: Path, value: str):
    """C01: the value in every place; `${oc.env:HOME}` is text unless a resolver was asked for."""
    fields = {field: f"{field}/{value}" for field in PATHS} | {
        "logging.project": value,
        "logging.experiment": value,
    }
    assert accepted(fields) == fields
    Script(root, fields).check()
    Script(root, {"model.path": value}, project=value).check()


@pytest.mark.parametrize("value", B03)
def test_b03_each_value_in_the_containers_environment(root: Path, value: str):
    """B03: through variables with the program's prefix, never through --env, which is split at commas."""
    script = Script(root, {}, MINE=value)
    assert script.container["env"]["MINE"] == value
    assert not [words for words in script.container["options"] if words[0].startswith("--env")]


@pytest.mark.parametrize("value", [*B03, "a\n\nb\n", "\n", " ", "\\", "é\u2028"])
def test_b03_a_real_env_returns_the_value(tmp_path: Path, value: str):
    """Without a container, in a rehearsal by `bash`: what `env -0` prints in the place of the supervisor."""
    job = load_job("grpo", None, [f"container.env={json.dumps({'MINE': value})}"])
    script, python = tmp_path / "run.sh", tmp_path / "python"
    script.write_text(render_script(RenderRequest(job, tmp_path, "run.sh", rehearse=True, sample_data=True)))
    python.write_text("#!/bin/bash\n[[ $1 != -sc ]] || exit 0\nexec env -0\n")
    python.chmod(0o755)
    environ = {"PATH": os.environ["PATH"], "LAUNCH_PYTHON": str(python)}
    done = subprocess.run(["bash", script], env=environ, capture_output=True, check=True)
    assert f"MINE={value}".encode() in done.stdout.partition(b"\n")[2].split(b"\0")


@pytest.mark.parametrize("field", PATHS)
@pytest.mark.parametrize("value", ["a\nb", "a\0b", "a\x1bb", "\x7f"])
def test_control_characters_in_paths_are_refused_by_name(field: str, value: str):
    with pytest.raises(JobError) as refused:
        load_job("grpo", None, [assignment(field, value)])
    assert all(problem.message.startswith(field) for problem in refused.value.problems)


def test_a_resolver_stays_one_only_where_it_is_asked_for(root: Path):
    script = Script(root, {"overrides": "+x.y=${oc.env:HOME}"})
    assert script.overrides[-1] == "+x.y=${oc.env:HOME}"
    assert "trainer.default_local_dir=${oc.env:CHECKPOINT_DIR}" in script.overrides


def test_the_words_of_a_script_do_not_depend_on_the_locale(tmp_path: Path):
    with tempfile.TemporaryDirectory(dir=tmp_path, prefix="日本 é") as folder:
        Script(Path(folder), {"model.path": "モデル"}).check()


# ---- raw overrides that say something else than they look like


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("trainer.total_epochs = 15", "no spaces around =: write trainer.total_epochs=15"),
        ("+a.b =1e-6", "no spaces around =: write +a.b=1e-6"),
        ("a.b=1 c.d=2", "write them as two list entries"),
        ("a.b=1 +c=2", "write them as two list entries"),
        ("a.b=1 ~c.d", "write them as two list entries"),
        ("--multirun", "write key=value, +key=value or ~key; flags of Hydra"),
    ],
)
def test_what_is_no_override_is_told_how_to_be_one(text: str, remedy: str):
    (finding,) = check_text(load_job("grpo", None, [assignment("overrides", [text])]))
    assert (finding.id, finding.severity) == ("override", "error")
    assert finding.remedy.startswith(remedy)
    assert repr(text) in finding.message


@pytest.mark.parametrize(
    "text", ["+a.b='1 c.d=2'", '+a.b="x = y"', "+a.b=[x, y.z]", "+a.b={c: 1, d.e: 2}", "+a.b=some words"]
)
def test_spaces_and_equals_signs_in_a_value_pass(text: str):
    assert list(check_text(load_job("grpo", None, [assignment("overrides", [text])]))) == []


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["overrides=['+trainer.note=$PROJ']"], "overrides[0]: $PROJ"),
        (["overrides=['+a.b=/data/$USER/x']"], "overrides[0]: $USER"),
        (["logging.project='$PROJ'"], "logging.project: $PROJ"),
        (["logging.experiment='a-$TAG'"], "logging.experiment: $TAG"),
    ],
)
def test_nobody_expands_a_variable(words: list[str], place: str):
    (finding,) = check_text(load_job("grpo", None, words))
    assert (finding.id, finding.severity) == ("unexpanded", "warning")
    assert finding.message.startswith(f"{place} is taken as it stands")


@pytest.mark.parametrize(
    "text", ["+a.b=${oc.env:HOME}", "+a.b=${data.train_batch_size}", "+a.b=US$5", "+a.b='^x$'"]
)
def test_a_dollar_that_names_no_variable(text: str):
    assert list(check_text(load_job("grpo", None, [assignment("overrides", [text])]))) == []
