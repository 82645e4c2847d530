"""Whether a partition is open to the user, and with which account and QOS. Pure."""

from __future__ import annotations

from launch.site import slurm
from launch.site.facts import Site

_ENFORCING = {"associations", "limits", "qos", "safe", "wckeys", "all"}


def closed_why(partition: slurm.Partition, site: Site) -> str | None:
    """Why the user cannot submit to a partition; None where nothing speaks against it for certain."""
    if not partition.up:
        return "it is down"
    if partition.settings.get("RootOnly") == "YES":
        return "it is for root only"
    if partition.settings.get("ReqResv") == "YES":
        return "it needs a reservation"
    groups = partition.listed("AllowGroups")
    if groups is not None and not set(groups) & set(site.groups):
        return f"it is for the groups {', '.join(groups)}"
    mine = _rows(site, partition)
    if site.accounts and not mine and enforced(site):
        return "Slurm's accounting has no account of yours for it"
    left = [one for one in mine if one.name not in _denied(partition, "Accounts")]
    if mine and not left:
        return f"it is not for the accounts {', '.join(_denied(partition, 'Accounts'))}"
    if left and not any(_has_qos(one, partition) for one in left):
        return f"it {_taken(partition)}"
    return None


def doubtful_why(partition: slurm.Partition, site: Site) -> str | None:
    """Why a partition may be closed to the user.

    Newer versions of Slurm take the accounts below those of AllowAccounts too, and which lie below is not known.
    """
    allowed = partition.listed("AllowAccounts")
    mine = _rows(site, partition)
    if allowed is None or not mine or any(one.name in allowed for one in mine):
        return None
    return f"it is for the accounts {', '.join(allowed)}, and perhaps those below them"


def enforced(site: Site) -> bool:
    """Whether Slurm refuses the jobs of those whom its accounting does not know."""
    return bool(_ENFORCING & set(site.config.get("AccountingStorageEnforce", "").lower().split(",")))


def refused_why(site: Site) -> str:
    """Why sbatch refuses every job of the user; "" where that is not known."""
    if site.accounts != [] or not enforced(site):
        return ""
    told = site.config["AccountingStorageEnforce"]
    return (
        "sbatch will refuse your jobs: Slurm's accounting knows no account of yours on this cluster, and it must "
        f"(AccountingStorageEnforce={told}); ask the site for one"
    )


def _rows(site: Site, partition: slurm.Partition) -> list[slurm.Account]:
    """The user's associations that count for a partition: one for it goes before that for all."""
    accounts = site.accounts or []
    own = {one.name for one in accounts if one.partition == partition.name}
    return [
        one for one in accounts if one.partition == partition.name or (not one.partition and one.name not in own)
    ]


def _denied(partition: slurm.Partition, what: str) -> list[str]:
    """Accounts or Qos by Deny...; Slurm ignores it beside Allow... ."""
    return (partition.listed(f"Deny{what}") or []) if partition.listed(f"Allow{what}") is None else []


def _taken(partition: slurm.Partition) -> str:
    """Which QOS a partition takes: "takes only the QOS short"; "" where it takes all."""
    wanted, denied = partition.listed("AllowQos"), _denied(partition, "Qos")
    if wanted is not None:
        return f"takes only the QOS {', '.join(wanted)}"
    return f"does not take the QOS {', '.join(denied)}" if denied else ""


def _fitting(account: slurm.Account, partition: slurm.Partition) -> list[str]:
    wanted, denied = partition.listed("AllowQos"), _denied(partition, "Qos")
    return [name for name in account.qos if (wanted is None or name in wanted) and name not in denied]


def _has_qos(account: slurm.Account, partition: slurm.Partition) -> bool:
    """Whether an account has a QOS that the partition takes, or accounting names none of it."""
    return not account.qos or bool(_fitting(account, partition))


def _usable(site: Site, partition: slurm.Partition) -> list[slurm.Account]:
    denied, allowed = _denied(partition, "Accounts"), partition.listed("AllowAccounts")
    open_ones = [one for one in _rows(site, partition) if one.name not in denied and _has_qos(one, partition)]
    named = [one for one in open_ones if allowed is None or one.name in allowed]
    return named or open_ones


def accounts_for(site: Site, partition: slurm.Partition) -> list[str]:
    """Accounts that can be named for a partition."""
    return list(dict.fromkeys(one.name for one in _usable(site, partition)))


def account_for(site: Site, partition: slurm.Partition) -> tuple[str | None, str]:
    """The account to name, and why; None: none is named."""
    if site.accounts is None:
        return None, "Slurm's accounting did not say which accounts you have"
    usable = accounts_for(site, partition)
    if not usable:
        taken = _taken(partition) if _rows(site, partition) else ""
        told = f"; it {taken}" if taken else ""
        return None, f"Slurm's accounting knows no account of yours for this partition{told}"
    name, rest = usable[0], usable[1:]
    why = "your only account for this partition"
    if site.default_account in usable:
        name, rest = site.default_account, [one for one in usable if one != site.default_account]
        why = "your default account"
    elif rest:
        why = "the first of your accounts for this partition"
    if rest:
        why += f"; others: {', '.join(rest)}"
    if (doubt := doubtful_why(partition, site)) is not None:
        why += f"; of the partition: {doubt}"
    if denied := _denied(partition, "Accounts"):
        why += f"; the partition is not for {', '.join(denied)}, nor perhaps for accounts below"
    return name, why


def qos_for(site: Site, partition: slurm.Partition, account: str | None) -> tuple[str | None, str]:
    """The QOS to name, and why; None: none is named."""
    rows = [one for one in _rows(site, partition) if account is None or one.name == account]
    taken = _taken(partition)
    fitting = list(dict.fromkeys(name for one in rows for name in _fitting(one, partition)))
    default = next((one.default_qos for one in rows if one.default_qos), "")
    if taken and fitting and default not in fitting:
        rest = f"; others: {', '.join(fitting[1:])}" if fitting[1:] else ""
        return (fitting[0] if account is not None else None), f"the partition {taken}{rest}"
    if fitting:
        named = f", {default}" if default else ""
        return None, f"Slurm takes your default by itself{named}; yours: {', '.join(fitting)}"
    if taken:
        yours = list(dict.fromkeys(name for one in rows for name in one.qos))
        told = f"of yours ({', '.join(yours)}) none fits" if yours else "which ones are yours is not known"
        return None, f"the partition {taken}; {told}; ask the site"
    return None, "Slurm takes your default by itself"
