"""What a rule has to say: a broken rule has an id, a message with the numbers, and a remedy."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """A broken rule. An error keeps the script from being written, a warning does not."""

    id: str
    severity: Literal["error", "warning"]
    message: str
    remedy: str

    def line(self) -> str:
        """One line for a person."""
        return f"{self.severity}: {self.id}: {self.message}; {self.remedy}"


def error(id_: str, message: str, remedy: str) -> Finding:
    """A finding that keeps the script from being written."""
    return Finding(id_, "error", message, remedy)


def warning(id_: str, message: str, remedy: str) -> Finding:
    """A finding that is printed and lets the script be written."""
    return Finding(id_, "warning", message, remedy)
