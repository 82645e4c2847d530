"""--site: what all jobs of a cluster have in common lies below the values of a job."""

import json
import os
from pathlib import Path

import pytest

from launch import render
from launch.config import JobError, load_job

SITE = """
cluster: {partition: gpu, account: me, modules: [apptainer], network_interface: ib0}
container: {runtime: apptainer, env: {https_proxy: 'http://proxy:3128'}}
rehearsal: {time: "00:10:00"}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(SITE)
    return tmp_path


def rendered(*words: str) -> int:
    return render.main(["--template", "grpo", "--no-engine-check", *words])


def given(script: Path) -> dict:
    """The job at the end of a script, as it becomes RUN_DIR/job.json."""
    lines = [line[3:] for line in script.read_text().splitlines() if line.startswith("#: ")]
    return json.loads("\n".join(lines))


def test_defaults_site_job_and_set_in_this_order(folder: Path):
    file = folder / "job.yaml"
    file.write_text("cluster: {partition: debug, nodes: 3}\ncontainer: {env: {A: '1'}}\n")
    job = load_job("grpo", file, ["cluster.account=you"], folder / "cluster.yaml")
    assert (job.cluster.partition, job.cluster.account, job.cluster.nodes) == ("debug", "you", 3)
    assert (job.cluster.modules, job.cluster.gpus_per_node) == (["apptainer"], 8)
    assert job.container.env == {"https_proxy": "http://proxy:3128", "A": "1"}


@pytest.mark.parametrize("rehearse", [[], ["--rehearse"]], ids=["job", "rehearsal"])
def test_cluster_yaml_is_taken_by_itself_and_told(
    folder: Path, rehearse: list[str], capsys: pytest.CaptureFixture[str]
):
    assert rendered(*rehearse) == 0
    assert capsys.readouterr().err.splitlines()[0] == "with cluster.yaml"
    text = (folder / "run_grpo.sh").read_text()
    assert "#SBATCH --partition=gpu\n" in text
    assert "load_modules apptainer\n" in text
    assert ("#SBATCH --time=00:10:00\n" in text) == bool(rehearse)


def test_the_report_for_programs_names_it(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert rendered("--json") == 0
    assert json.loads(capsys.readouterr().out)["site"] == "cluster.yaml"
    assert rendered("--json", "--site", "none") == 0
    assert json.loads(capsys.readouterr().out)["site"] is None


JOB = """
cluster: {partition: debug, nodes: 3, modules: [apptainer], account:}
container: {env: {https_proxy: secret, A: b}}
rehearsal:
"""


def test_what_the_job_file_says_otherwise_is_told(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "job.yaml").write_text(JOB)
    assert rendered("--job", "job.yaml", "--set", "cluster.network_interface=eth0") == 0
    assert capsys.readouterr().err.splitlines()[0] == (
        "with cluster.yaml; the job file says otherwise: cluster.partition=debug (site: gpu), "
        "cluster.account=null (site: me), container.env.https_proxy=... (site: another)"
    )
    assert rendered("--job", "job.yaml", "--json") == 0
    first, *_ = json.loads(capsys.readouterr().out)["otherwise_than_site"]
    assert first == {"field": "cluster.partition", "job": "debug", "site": "gpu"}
    assert rendered("--job", "job.yaml", "--json", "--site", "none") == 0
    assert json.loads(capsys.readouterr().out)["otherwise_than_site"] == []


@pytest.mark.parametrize("option", ["--site", "--job"])
@pytest.mark.parametrize("kind", ["pipe", "large"])
def test_a_file_that_has_no_end_is_not_read(
    folder: Path, option: str, kind: str, capsys: pytest.CaptureFixture[str]
):
    odd = folder / "odd.yaml"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.write_text("#" * (1 << 20) + "\n")
    assert rendered(option, "odd.yaml") == 1
    told = {"pipe": "it is no regular file", "large": "it has more than 1048576 bytes"}[kind]
    assert f"error: job-file: {option} odd.yaml: cannot be read: {told}" in capsys.readouterr().err


@pytest.mark.parametrize(("encoding", "line"), [("utf-16", 1), ("latin-1", 2)])
def test_a_file_in_another_encoding(folder: Path, encoding: str, line: int, capsys: pytest.CaptureFixture[str]):
    (folder / "cluster.yaml").write_text("cluster:\n  nodes: 2  # für alle\n", encoding=encoding)
    assert rendered() == 1
    told = f"cannot be read: line {line} is not UTF-8 text; save it as UTF-8, or name another file"
    assert f"error: job-file: --site cluster.yaml: {told}" in capsys.readouterr().err


def test_a_link_to_nothing_is_not_passed_over(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "cluster.yaml").unlink()
    (folder / "cluster.yaml").symlink_to("moved.yaml")
    assert rendered() == 1
    assert "--site cluster.yaml: cannot be read: No such file" in capsys.readouterr().err


def test_another_file_or_none(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "other.yaml").write_text("cluster: {partition: other}\n")
    assert rendered("--site", "other.yaml") == 0
    assert "with other.yaml\n" in capsys.readouterr().err
    assert "--partition=other" in (folder / "run_grpo.sh").read_text()
    assert rendered("--site", "none") == 0
    assert "with " not in capsys.readouterr().err.splitlines()[0]
    assert "--partition" not in (folder / "run_grpo.sh").read_text()


def test_the_job_of_a_run_is_complete(folder: Path, capsys: pytest.CaptureFixture[str]):
    """Rendered again, in the same folder with another cluster.yaml or without one, it is the same script."""
    assert rendered("--set", "cluster.nodes=3") == 0
    script = folder / "run_grpo.sh"
    first = script.read_text()
    run = folder / "outputs" / "a" / "run-1"
    run.mkdir(parents=True)
    (run / "job.json").write_text(json.dumps(given(script)))
    (run / "resolved.json").write_text("{}")
    assert given(script)["cluster"] == {
        "partition": "gpu", "account": "me", "modules": ["apptainer"], "network_interface": "ib0", "nodes": 3,
    }  # fmt: skip
    (folder / "cluster.yaml").write_text("cluster: {partition: elsewhere, qos: low}\n")
    capsys.readouterr()
    assert rendered("--job", "outputs/a/run-1/job.json") == 0
    assert capsys.readouterr().err.startswith("without cluster.yaml: job.json of a run has the site's values\n")
    assert script.read_text() == first
    (folder / "cluster.yaml").unlink()
    assert rendered("--job", "outputs/a/run-1/job.json") == 0
    assert "without" not in capsys.readouterr().err
    assert script.read_text() == first


def test_a_job_json_of_a_user_is_a_job_file_like_another(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "job.json").write_text('{"template": "grpo", "cluster": {"nodes": 2}}')
    assert rendered("--job", "job.json") == 0
    assert capsys.readouterr().err.splitlines()[0] == "with cluster.yaml"
    assert "#SBATCH --partition=gpu\n" in (folder / "run_grpo.sh").read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cluster: {nodez: 3}", "cluster.yaml: cluster.nodez"),
        ("cluster: {nodes: many}", "cluster.yaml: cluster.nodes"),
        ("template: ppo", "cluster.yaml: template is the job's own"),
        ("[1, 2]", "--site cluster.yaml: a job is a mapping of sections, not a list"),
        ("a: [", "--site cluster.yaml: not valid YAML"),
    ],
)
def test_a_mistake_is_told_once_with_its_file(
    folder: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
):
    (folder / "cluster.yaml").write_text(text)
    assert rendered() == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert told in errors[0]
    assert not (folder / "run_grpo.sh").exists()


def test_a_mistake_of_each_file_is_told_where_it_is(folder: Path):
    (folder / "cluster.yaml").write_text("cluster: {nodes: many}\n")
    (folder / "job.yaml").write_text("cluster: {time: never}\n")
    with pytest.raises(JobError) as wrong:
        load_job("grpo", folder / "job.yaml", [], folder / "cluster.yaml")
    first, second = (problem.message for problem in wrong.value.problems)
    assert first.startswith(f"{folder}/cluster.yaml: cluster.nodes")
    assert second.startswith("cluster.time")


def test_a_file_that_is_named_must_be_there(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert rendered("--site", "nowhere.yaml") == 1
    assert "--site nowhere.yaml: cannot be read" in capsys.readouterr().err


def test_an_empty_file_and_empty_sections(folder: Path):
    (folder / "cluster.yaml").write_text("cluster:\n\ncontainer:\n")
    assert rendered() == 0
