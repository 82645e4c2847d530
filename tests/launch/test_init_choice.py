"""launch.init: which partition, account and QOS are chosen, and the reasons that are told."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.site.choose import choose
from launch.site.cluster_yaml import cluster_yaml
from launch.site.commands import Answer
from launch.site.facts import Site, read_site
from launch.site.gpu_nodes import gpu_nodes
from launch.site.slurm import parse_accounts, parse_config, parse_partitions, parse_sinfo


def test_accounts_of_this_cluster_are_asked_for(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(words: Sequence[str]) -> Answer:
        asked.append(" ".join(words))
        if words[0] == "sinfo":
            return Answer("gpu*|up|1:00:00|1|idle|64|512000|gpu:a100:8|(null)\n")
        return Answer("ClusterName = west\n" if tuple(words[:3]) == ("scontrol", "show", "config") else "")

    read_site(ask, {}, tmp_path)
    assert any(line.startswith("sacctmgr -nP show assoc cluster=west user=") for line in asked)


def _site(
    sinfo: str, partitions: str = "", accounts: str | None = None, config: str = "", default_account: str = ""
) -> Site:
    listed, strange = parse_sinfo(sinfo)
    assert not strange
    settings = parse_partitions(partitions)
    for one in listed:
        one.settings = settings.get(one.name, {})
    mine = None if accounts is None else parse_accounts(accounts)
    return Site("me", ("us",), listed, parse_config(config), mine, default_account)


def _text(site: Site, named: str | None = None) -> str:
    """The file with its comments in one line each."""
    text = cluster_yaml(site, choose(site, named))
    return " ".join(text.replace("\n  #", " ").replace("\n#", " ").split())


_CPUS_UP = "std*|up|1-00:00:00|6|mixed|64|512000|(null)|(null)\n"
_MAINT = "std*|up|1-00:00:00|4|maint|64|512000|gpu:a100:8|(null)\n"
_T4 = "small|up|1:00:00|1|idle|16|64000|gpu:t4:1|(null)\n"


def test_gpu_nodes_that_are_all_down_are_told_beside_others_that_are_up() -> None:
    site = _site(_CPUS_UP + _MAINT + _T4)
    chosen = choose(site)
    assert (chosen.partition.name, chosen.nodes.kind, chosen.nodes.gpus, chosen.nodes.nodes) == (
        "std",
        "a100",
        8,
        4,
    )
    text = _text(site)
    assert "the default partition, and it has GPUs; none of them is up now (4 maint)" in text
    assert "Slurm knows of no GPUs" not in text
    assert "std (4 x 8 a100, none of them is up now (4 maint), 1-00:00:00)" in _text(site, "small")


def test_gpu_nodes_that_are_up_count_alone() -> None:
    (partition,) = _site(
        "a*|up|1:00:00|1|idle|8|9000|gpu:t4:1|\na|up|1:00:00|4|down|8|9000|gpu:a100:8|\n"
    ).partitions
    found = gpu_nodes(partition)
    assert (found.kind, found.nodes, found.down) == ("t4", 1, "")


def test_a_partition_whose_nodes_are_all_down_is_chosen_with_a_word() -> None:
    site = _site(
        "gpu*|up|1:00:00|4|down*|64|512000|gpu:a100:8|\ngpu*|up|1:00:00|2|drained|64|512000|gpu:a100:8|\n"
    )
    assert choose(site).partition_why.endswith("none of them is up now (4 down, 2 drained)")


@pytest.mark.parametrize(
    ("settings", "accounts", "account", "qos", "why"),
    [
        # Only account a has a QOS that the partition takes, and it is the default of its association.
        (
            "AllowQos=short",
            "a|p|short|short\nb||normal,long|normal",
            "a",
            None,
            "Slurm takes your default by itself",
        ),
        (
            "AllowQos=long,vip",
            "b||normal,vip,long|normal\nb|p|long|long",
            "b",
            None,
            "by itself, long; yours: long",
        ),
        (
            "AllowQos=long,vip",
            "b||normal,vip|normal\nb|p|normal,long|normal",
            "b",
            "long",
            "only the QOS long, vip",
        ),
        ("AllowQos=vip", "b||normal|normal", None, None, "of yours (normal) none fits; ask the site"),
        ("DenyQos=normal", "b||normal,gpulong|normal", "b", "gpulong", "does not take the QOS normal"),
        # Slurm does not look at DenyQos beside AllowQos.
        ("AllowQos=normal DenyQos=normal", "b||normal|normal", "b", None, "by itself, normal"),
        ("AllowQos=short", "b|||", "b", None, "which ones are yours is not known"),
    ],
)
def test_account_and_qos_fit_the_partition_and_each_other(
    settings: str, accounts: str, account: str | None, qos: str | None, why: str
) -> None:
    site = _site(
        "p*|up|1:00:00|1|idle|8|9000|gpu:a100:8|\n", f"PartitionName=p {settings}\n", accounts, default_account="b"
    )
    chosen = choose(site, "p")
    assert (chosen.account, chosen.qos) == (account, qos)
    assert why in chosen.qos_why


def test_a_partition_for_other_qos_is_closed() -> None:
    partitions = "PartitionName=p DenyQos=normal\nPartitionName=q AllowQos=vip\nPartitionName=r AllowQos=ALL\n"
    lines = "".join(f"{name}|up|1:00:00|1|idle|8|9000|gpu:a100:8|\n" for name in "pqr")
    chosen = choose(_site(lines, partitions, "b||normal|normal"))
    assert chosen.partition.name == "r"
    assert chosen.closed == {"p": "it does not take the QOS normal", "q": "it takes only the QOS vip"}


_ACCOUNTS = "PartitionName=gpu AllowAccounts=physics\nPartitionName=open AllowAccounts=ALL\n"
_OPEN = "open|up|1:00:00|1|idle|8|9000|gpu:a100:4|\n"


def test_an_account_may_lie_below_one_that_a_partition_names() -> None:
    big = "gpu|up|1-00:00:00|9|idle|8|9000|gpu:a100:8|\n"
    chosen = choose(_site(big, _ACCOUNTS, "physics_lab||normal|normal"))
    assert chosen.closed == {}
    assert (chosen.partition.name, chosen.account) == ("gpu", "physics_lab")
    assert (
        "may be closed to you: it is for the accounts physics, and perhaps those below them"
        in chosen.partition_why
    )
    assert "physics, and perhaps those below them" in chosen.account_why
    site = _site(big + _OPEN, _ACCOUNTS, "physics_lab||normal|normal")
    assert choose(site).partition.name == "open"
    text = _text(site)
    assert "apart from gpu (it may be closed to you)" in text
    assert "may be closed to you: gpu: it is for the accounts physics, and perhaps those below them" in text
    assert "not for you" not in text
    assert choose(_site(big + _OPEN, _ACCOUNTS, "physics||normal|normal")).partition.name == "gpu"


def test_accounts_that_a_partition_denies() -> None:
    lines = "gpu|up|1-00:00:00|9|idle|8|9000|gpu:a100:8|\n"
    denies = "PartitionName=gpu DenyAccounts=guests\n"
    chosen = choose(_site(lines + _OPEN, denies, "guests||normal|normal"))
    assert (chosen.partition.name, chosen.closed) == ("open", {"gpu": "it is not for the accounts guests"})
    chosen = choose(_site(lines + _OPEN, denies, "lab||normal|normal"))
    assert chosen.account_why.endswith("the partition is not for guests, nor perhaps for accounts below")


@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL", "GANG,SUSPEND"])
def test_partitions_whose_jobs_are_preempted_come_last(mode: str) -> None:
    lines = "scavenge|up|1-00:00:00|60|idle|8|9000|gpu:a100:8|\ngpu|up|1-00:00:00|4|idle|8|9000|gpu:a100:8|\n"
    partitions = f"PartitionName=scavenge PreemptMode={mode}\nPartitionName=gpu PreemptMode=GANG\n"
    chosen = choose(_site(lines, partitions))
    assert chosen.partition.name == "gpu"
    assert chosen.partition_why.endswith("apart from scavenge (its jobs may be preempted)")
    none = _site(lines, partitions, config="PreemptType = preempt/none\n")
    assert choose(none).partition.name == "scavenge"
    assert "may be preempted" not in _text(none)


@pytest.mark.parametrize("enforce", ["associations", "safe,limits,qos"])
def test_a_user_without_an_account_is_told_that_jobs_are_refused(enforce: str) -> None:
    gpu = "gpu*|up|1:00:00|1|idle|8|9000|gpu:a100:8|\n"
    config = f"AccountingStorageEnforce = {enforce}\n"
    told = "sbatch will refuse your jobs: Slurm's accounting knows no account of yours"
    head, _, _ = _text(_site(gpu, accounts="", config=config)).partition("cluster:")
    assert told in head
    assert f"(AccountingStorageEnforce={enforce})" in head
    for site in (
        _site(gpu, accounts=None, config=config),
        _site(gpu, accounts="", config="AccountingStorageEnforce = none\n"),
        _site(gpu, accounts="a||normal|", config=config),
    ):
        assert told not in _text(site)


def test_accounts_for_other_partitions_only() -> None:
    lines = "cpu*|up|1:00:00|1|idle|8|9000||\ngpu|up|1:00:00|1|idle|8|9000|gpu:a100:8|\n"
    site = _site(lines, accounts="a|cpu|normal|", config="AccountingStorageEnforce = associations\n")
    assert choose(site).closed == {"gpu": "Slurm's accounting has no account of yours for it"}


_SIX = "p*|up|1:00:00|6|idle|64|512000|gpu:a100:8|\n"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("MinNodes=8", "a job must have 8 nodes or more (MinNodes), and there are 6 of this kind"),
        ("MinNodes=2", "a job must have 2 nodes or more (MinNodes)"),
        ("OverSubscribe=EXCLUSIVE", "a job gets whole nodes"),
        ("AllocNodes=login[1-2],x", "jobs can be submitted from login[1-2],x only (AllocNodes)"),
        ("MaxCPUsPerSocket=16", "MaxCPUsPerSocket: 16 for each socket of a node"),
    ],
)
def test_demands_of_a_partition_are_told(settings: str, told: str) -> None:
    site = _site(_SIX, f"PartitionName=p {settings}\n")
    assert told in _text(site)
    written = any(line.startswith("  cpus_per_node:") for line in cluster_yaml(site, choose(site)).splitlines())
    assert written == ("Socket" not in settings)


def test_what_does_not_limit_is_not_told() -> None:
    settings = "MinNodes=0 OverSubscribe=NO AllocNodes=ALL MaxCPUsPerSocket=64"
    assert _text(_site(_SIX, f"PartitionName=p {settings}\n")) == _text(_site(_SIX, "PartitionName=p A=b\n"))
