"""What Slurm and Ray would make of an allocation: named before the queue, with the numbers."""

from pathlib import Path

import pytest

from launch.checks.slurm import check_slurm, memory_bytes
from launch.config import JobError, load_job
from launch.finding import Finding
from launch.sizing.cpus import cpus_needed
from launch.sizing.slurm_time import time_seconds


def found(*assignments: str, project: Path | None = None, rehearse: bool = False) -> list[Finding]:
    """Findings on a job with CPUs, unless it says otherwise."""
    if not any("--exclusive" in assignment for assignment in assignments):
        assignments = ("cluster.cpus_per_node=64", *assignments)
    return list(check_slurm(load_job("grpo", None, assignments), project, rehearse=rehearse))


def only(*assignments: str, project: Path | None = None) -> Finding:
    (finding,) = found(*assignments, project=project)
    return finding


def test_the_default_job_has_nothing_to_say():
    assert found() == []
    assert found("cluster.cpus_per_node=64", "cluster.mem=900G", "cluster.gpu=h200") == []


# ---- the GPU string


@pytest.mark.parametrize(
    ("gpu", "remedy"),
    [
        ("gpu:h100:4", "cluster.gpu=h100 and cluster.gpus_per_node=4"),
        ("h100:4", "cluster.gpu=h100 and cluster.gpus_per_node=4"),
        ("gres/gpu:a100:8", "cluster.gpu=a100 and cluster.gpus_per_node=8"),
        ("gpu:nvidia_h100_80gb_hbm3:2", "cluster.gpu=nvidia_h100_80gb_hbm3 and cluster.gpus_per_node=2"),
        ("gpu:4", "cluster.gpus_per_node=4"),
        ("4090:8", "cluster.gpu=4090 and cluster.gpus_per_node=8"),
        ("4", "cluster.gpus_per_node=4"),
        ("gpu", "cluster.gpu=null"),
        ("h100:", "cluster.gpu="),
    ],
)
def test_a_gpu_string_of_sbatch_is_no_gpu_type(gpu: str, remedy: str):
    finding = only(f"cluster.gpu='{gpu}'")
    assert (finding.id, finding.severity) == ("gpu-type", "error")
    assert f"--gpus-per-node={gpu}:8" in finding.message
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    "gpu",
    [
        "h100", "a100-sxm4-80gb", "nvidia_h100_80gb_hbm3", "H200", "gh200", "4090", "1080",
        "nvidia_h100_80gb_hbm3_1g.10gb+me",
    ],
)  # fmt: skip
def test_gpu_types(gpu: str):
    assert found(f"cluster.gpu='{gpu}'") == []


def test_gpus_of_amd_are_told():
    finding = only("cluster.gpu=mi300x")
    assert (finding.id, finding.severity) == ("gpu-type", "warning")
    assert "GPU of AMD; the images of this toolkit are for CUDA" in finding.message


# ---- time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12", 720), ("12:30", 750), ("1:02:03", 3723), ("1-0", 86400), ("1-12", 129600), ("1-12:30", 131400),
        ("1-12:30:01", 131401), ("0", 0), ("00:00:00", 0),
    ],
)  # fmt: skip
def test_times_as_slurm_reads_them(text: str, seconds: int):
    assert time_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "severity", "says"),
    [
        ("12", "warning", "is 12 minutes"),
        ("12:00", "warning", "is 12 minutes"),
        ("24", "warning", "write 24:00:00"),
        ("0", "warning", "no time limit"),
        ("400-0", "error", "is 400 days"),
        ("9999:00:00", "error", "is 417 days"),
    ],
)
def test_times_that_are_not_what_they_look_like(text: str, severity: str, says: str):
    finding = only(f"cluster.time='{text}'")
    assert (finding.id, finding.severity) == ("time-limit", severity)
    assert says in f"{finding.message}; {finding.remedy}"


@pytest.mark.parametrize("text", ["12:00:00", "720", "1-0", "7-00:00:00", "00:30:00", "90:00"])
def test_good_times(text: str):
    assert found(f"cluster.time='{text}'") == []


# ---- A29: CPUs and memory


@pytest.mark.parametrize(
    ("assignments", "numbers"),
    [
        # 8 training GPUs with 3 CPUs each on the fuller node, and 10 for the driver if it lands there.
        ((), (24, 34)),
        (("cluster.nodes=1", "rollout.gpus_per_node=3"), (18, 28)),
        (("engine.mode=sync", "reward.gpus=0"), (24, 25)),
        (("engine.mode=sync", "reward.gpus=0", "engine.verl=0.6.1", "actor.fp8=null"), (8, 9)),
    ],
)
def test_a29_the_cpus_that_verl_asks_of_ray(assignments: tuple[str, ...], numbers: tuple[int, int]):
    assert cpus_needed(load_job("grpo", None, assignments)) == numbers


@pytest.mark.parametrize(
    ("cpus", "severity"), [(1, "error"), (3, "error"), (9, "error"), (23, "error"), (24, "warning"), (34, None)]
)
def test_a29_too_few_cpus_wait_for_ever(cpus: int, severity: str | None):
    """A29: `ray start` with too few CPUs works, and verl then waits for a placement group without a word."""
    findings = found(f"cluster.cpus_per_node={cpus}")
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    for finding in findings:
        assert finding.id == "cpus"
        assert f"cluster.cpus_per_node={cpus}, but" in finding.message
        assert "cluster.cpus_per_node=34" in finding.remedy


def test_a29_on_one_node_the_driver_has_nowhere_else_to_go():
    one = ("cluster.nodes=1", "rollout.gpus_per_node=3")
    assert only(*one, "cluster.cpus_per_node=27").severity == "error"
    assert found(*one, "cluster.cpus_per_node=28") == []


@pytest.mark.parametrize("option", ["", "--nice", "--exclusive=user"])
def test_a29_without_a_number_a_site_may_give_one_cpu(option: str):
    finding = only(f"cluster.extra_sbatch=[{option}]", "cluster.cpus_per_node=null")
    assert (finding.id, finding.severity) == ("cpus", "warning")
    assert finding.message.startswith("cluster.cpus_per_node is not set: the job needs 34 CPUs on each node")
    assert finding.remedy.startswith("set cluster.cpus_per_node=34, or --exclusive in cluster.extra_sbatch")
    assert found("cluster.cpus_per_node=null", rehearse=True) == []


@pytest.mark.parametrize("option", ["--exclusive", "--exclus"])
def test_a29_whole_nodes_have_their_cpus(option: str):
    assert found(f"cluster.extra_sbatch=[{option}]", "cluster.cpus_per_node=null") == []


def test_a_rehearsal_gives_ray_its_own_cpus():
    assert found("cluster.cpus_per_node=2", "cluster.mem=4G", rehearse=True) == []


@pytest.mark.parametrize(
    ("text", "size"), [("1", 2**20), ("2K", 2**11), ("3M", 3 * 2**20), ("900G", 900 * 2**30), ("1T", 2**40)]
)
def test_memory_as_slurm_reads_it(text: str, size: int):
    assert memory_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("900", "cluster.mem=900 is 900 MB"),
        ("900M", "is 1 GiB for 8 GPUs"),
        ("32G", "is 32 GiB for 8 GPUs; Ray, the trainers and the engines of a node take 64 GiB"),
    ],
)
def test_a29_little_memory_is_a_warning(text: str, says: str):
    finding = only(f"cluster.mem='{text}'")
    assert (finding.id, finding.severity) == ("memory", "warning")
    assert says in finding.message


def test_memory_is_held_against_the_models_size(tmp_path: Path):
    model = tmp_path / "models" / "big"
    model.mkdir(parents=True)
    with (model / "model-00001.safetensors").open("wb") as file:
        file.truncate(60 * 2**30)  # sparse
    finding = only("model.path=models/big", "cluster.mem=200G", project=tmp_path)
    assert "weights (60 GiB) takes about 8.0 times that: 480 GiB" in finding.message
    assert found("model.path=models/big", "cluster.mem=500G", project=tmp_path) == []


def test_all_memory_beside_a_part_of_the_gpus():
    half = ("cluster.gpus_per_node=4", "rollout.gpus_per_node=3", "cluster.mem=0")
    assert "all memory of the node beside 4 GPUs" in only(*half).message
    assert found(*half, "cluster.extra_sbatch=[--exclusive]") == []
    assert found("cluster.mem=0") == []


# ---- extra_sbatch


@pytest.mark.parametrize(
    ("option", "severity", "says"),
    [
        ("--gres=gpu:8", "error", "beside --gpus-per-node=8"),
        ("--gres=gpu", "error", "beside --gpus-per-node=8"),
        ("--gres=gres/gpu:h100:8", "error", "beside --gpus-per-node=8"),
        ("--gres=shard:1,gpu:2", "error", "beside --gpus-per-node=8"),
        ("--tres-per-task=gres/gpu:1", "error", "beside"),
        ("--export=NONE", "error", "takes PATH"),
        ("--export=NIL", "error", "takes PATH"),
        ("--export=FOO=1", "error", "begin the list with ALL"),
        ("--export=FOO,BAR", "error", "takes PATH"),
        ("--export-file=/my/env", "error", "takes PATH"),
        ("--requeue", "warning", "uses node hours unasked"),
        ("--nodelist=n[1-3]", "error", "names 3 nodes, but cluster.nodes=2"),
        ("--nodel=n1,n2,n3", "error", "names 3 nodes"),
        ("-wn[1-4]", "error", "names 4 nodes"),
        ("--overcommit", "warning", "leave it out"),
        ("--hint=nomultithread", "warning", "fewer CPUs"),
        ("--signal=USR1@300", "warning", "ends the job when the signal comes"),
        ("--sig=B:TERM", "warning", "checkpoint.before_end_s"),
    ],
)
def test_options_that_contradict_the_job(option: str, severity: str, says: str):
    finding = only(f"cluster.extra_sbatch=['{option}']")
    assert (finding.id, finding.severity) == ("sbatch-options", severity)
    assert option in finding.message
    assert says in f"{finding.message}; {finding.remedy}"


@pytest.mark.parametrize(
    "option",
    [
        "--reservation=x", "--exclusive", "--nice", "-xn7", "--exclude=n[7-9]",
        "--gres=nvme:1", "--mail-type=END", "--export=ALL", "--export=ALL,A=b", "--export=A=b,all",
        "--mem-per-cpu=4G", "--mem-per-gpu=9G",
        "--nodelist=n1",
        "--nodelist=n[1-2]", "--licenses=a", "--constraint=ib", "-C", "--comment=gpu",
        "--gres-flags=enforce-binding", "--nodelist=./hosts",
    ],
)  # fmt: skip
def test_options_that_pass(option: str):
    assert found(f"cluster.extra_sbatch=['{option}']") == []


@pytest.mark.parametrize(
    ("fields", "options", "says"),
    [
        ("cluster.cpus_per_node=64", "--exclusive", "all CPUs of a node"),
        ("cluster.mem=900G", "--mem-per-gpu=100G", "contradicts cluster.mem=900G"),
        ("cluster.mem=900G", "--mem-per-cpu=4G", "contradicts cluster.mem=900G"),
        ("cluster.partition=a", "--partition=b", "contradicts cluster.partition=a"),
        ("cluster.partition=a", "-pb", "contradicts cluster.partition=a"),
        ("cluster.account=a", "-Ab", "contradicts cluster.account=a"),
        ("cluster.qos=a", "--qos=b", "contradicts cluster.qos=a"),
        ("cluster.nodes=2", "--constraint=a', '--constraint=b", "holds --constraint twice"),
    ],
)
def test_options_that_contradict_a_field(fields: str, options: str, says: str):
    assert says in only(fields, f"cluster.extra_sbatch=['{options}']").message


@pytest.mark.parametrize(
    "option", ["--ntasks=8", "-n8", "--ntasks-per-node=2", "--array=0-3", "--gpus=16", "--wrap=x"]
)
def test_a32_options_that_start_more_tasks_are_no_part_of_a_job(option: str):
    """A32: two tasks on a node would be two Rays."""
    with pytest.raises(JobError, match="sets itself"):
        load_job("grpo", None, [f"cluster.extra_sbatch=['{option}']"])


# ---- A34: the interface


@pytest.mark.parametrize(
    "name", ["^lo,docker", "ib0,ib1", "=ib0", "ib*", "eth0 ", "-x", "a" * 16, "::trainer", "ib/0"]
)
def test_a34_one_literal_interface(name: str):
    """A34: NCCL takes lists and exclusions, Gloo one name, and both get the same here."""
    finding = only(f"cluster.network_interface='{name}'")
    assert (finding.id, finding.severity) == ("network-interface", "error")
    assert repr(name) in finding.message


@pytest.mark.parametrize("name", ["ib0", "bond0.1505", "enp1s0f0np0", "hsn0", "eth0:1", "br-lan"])
def test_a34_names_of_interfaces(name: str):
    assert found(f"cluster.network_interface='{name}'") == []


@pytest.mark.parametrize("name", ["lo", "lo:1", "docker0", "virbr0"])
def test_a10_an_interface_that_no_other_node_reaches(name: str):
    """A10: 127.0.0.1 or the bridge's 172.17.0.1 is another machine on another node."""
    finding = only(f"cluster.network_interface='{name}'")
    assert (finding.id, finding.severity) == ("network-interface", "error")
    assert f"cluster.network_interface={name}: no other of the 2 nodes" in finding.message
    one = ("cluster.nodes=1", "rollout.gpus_per_node=3")
    assert found(*one, f"cluster.network_interface='{name}'") == []
