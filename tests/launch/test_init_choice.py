"""launch.init: which partition, account and QOS are chosen, and the reasons that are told."""

from collections.abc import Sequence
from pathlib import Path

from launch.site.commands import Answer
from launch.site.facts import read_site


def test_accounts_of_this_cluster_are_asked_for(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(words: Sequence[str]) -> Answer:
        asked.append(" ".join(words))
        if words[0] == "sinfo":
            return Answer("gpu*|up|1:00:00|1|idle|64|512000|gpu:a100:8|(null)\n")
        return Answer("ClusterName = west\n" if tuple(words[:3]) == ("scontrol", "show", "config") else "")

    read_site(ask, {}, tmp_path)
    assert any(line.startswith("sacctmgr -nP show assoc cluster=west user=") for line in asked)
