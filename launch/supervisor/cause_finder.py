"""Find the cause of a failure in a log: the first telling one, not the last line.

The rule. Only what follows the last steps counts: what a run survived is no cause. (Two steps: with one-step-off
the next batch is made while a step is logged.) There, the exception that the driver ended with decides, since a
program says itself what it died of, and with it what it was raised from. Where that is only news of another's
death (ActorDiedError, a broken connection, NCCL), or where there is none, the earliest root cause of any process
wins, then the earliest NCCL error, then a lost node or worker: what dies later dies of it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Tuple

from launch.supervisor.log_tail import TAIL_BYTES, Line, read_tail
from launch.supervisor.symptoms import CATASTROPHES, CONSEQUENCE, LINKS, ROOTS, raised_kind, said_kind

# Other errors than catastrophes may have been survived in a long start, before any step.
_NEAR_LINES = 2000
_CATASTROPHE_LINES = 400
# A process of the job that wrote so much after an error that is no catastrophe has survived it.
_WENT_ON_LINES = 20
# A model's answer that was printed without its end hides nothing after so many lines.
_SAMPLE_LINES = 4000
# Ray: "(WorkerDict pid=1, ip=10.0.0.1) x"; torch: "[rank0]: x"; vLLM: "ERROR 11-29 12:00:00 [core.py:7] x"
_SOURCE = re.compile(r"^\(([\w.:<>/-]+(?: [\w.-]+)?(?: pid=\d+)?(?:, ip=[\w.:]+)?)\) ?")
_RANK = re.compile(r"^\[(?:rank|default)\d+\]:? ?")
_LOGGED = re.compile(r"^(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\]|\S+:\d+\]) ?")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")
_STEP = re.compile(r"^step:\d+ - \w")
_SAMPLE = re.compile(r"^\[(prompt|response)\](?: |$)")
_SAMPLE_END = re.compile(r"^\[(?:ground_truth|score)\](?: |$)")
_EXCEPTION = re.compile(
    r"^((?:\w+\.)*[A-Z_]\w*(?:Error|Exception|Exit|Interrupt|Died|NotFound|Timeout|Expired|Value))(?:\(\w+\))?(?::|$)"
)
# Hydra shows what a constructor of a configuration raised as its repr, without a traceback.
_IN_TARGET = re.compile(r"^(?:hydra\.errors\.InstantiationException: )?Error (?:in call to target|instantiating) ")
_REPR = re.compile(r"^((?:\w+\.)*\w+(?:Error|Exception|Validation))\((.*)\)$")
_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_IGNORED = re.compile(r"^Exception ignored in|^Exception in thread .*(?:[Mm]onitor|Heartbeat)")
_OF_CONFIG = re.compile(
    r"in (?:_?validate\w*|__post_init__)$|verl/utils/config\.py|verl/workers/config/|in _check_\w+$"
)
_CHECKS = re.compile(r"^(?:AssertionError|ValueError|NotImplementedError|TypeError|KeyError)\b")
_FRAMES = 80


@dataclass(frozen=True)
class Found:
    """A cause in a log. `kind` is "" for an exception that ends the program and is in no table."""

    kind: str
    line: Line


@dataclass(frozen=True)
class _Symptom:
    index: int
    source: str
    kind: Optional[str]
    line: Line
    raised: bool


class _Reader:
    """What one pass over the lines sees, kept apart for each process that writes into the log."""

    def __init__(self) -> None:
        self.symptoms: List[_Symptom] = []
        self.steps: List[int] = []
        self.last_lines: Dict[str, List[int]] = {}
        self.blocks: List[int] = []
        self._previous: Dict[str, str] = {}
        self._frames: Dict[str, List[str]] = {}
        self._ignored: Dict[str, bool] = {}

    def read(self, index: int, source: str, text: str, line: Line) -> None:
        """Take one line without its prefix; `text` keeps its indent."""
        bare = text.strip()
        if _STEP.match(bare):
            self.steps.append(index)
        if bare:
            self.last_lines.setdefault(source, []).append(index)
            del self.last_lines[source][:-_WENT_ON_LINES]
        previous = self._previous.get(source, "")
        self._previous[source] = text if bare else previous
        if bare.endswith(_TRACEBACK):
            chained = previous.strip() in _CHAIN
            if not source and not chained:
                self.blocks.append(index)
            if not chained:
                self._frames[source] = []
                self._ignored[source] = bool(_IGNORED.match(previous.strip()))
        elif text[:1] == " ":
            self._frames.setdefault(source, []).append(bare)
            del self._frames[source][:-_FRAMES]
        # "RayTaskError(X): ray::f()" heads the remote part of a traceback, X follows.
        exception = _EXCEPTION.match(bare) if text[:1] != " " and "): ray::" not in bare else None
        if exception and self._led_to(previous):
            if not self._ignored.get(source):
                self._raise(index, source, bare, line)
        elif _IN_TARGET.match(previous) and _REPR.match(bare):
            shown = raised_kind(_REPR.sub(r"\1: \2", bare)) or "verl-config"
            self.symptoms.append(_Symptom(index, source, shown, line, raised=True))
        elif text[:1] != " " or bare.startswith("what():"):
            kind = said_kind(bare)
            if kind:
                self.symptoms.append(_Symptom(index, source, kind, line, raised=False))

    def _led_to(self, previous: str) -> bool:
        """A frame, or the source line or marks of one, or another exception of the same traceback."""
        bare = previous.strip()
        return (
            previous[:1] == " "
            or bare.endswith(_TRACEBACK)
            or bool(re.match(r"^(?:ray\.exceptions\.Ray\w+\(\w+\): )?ray::", bare))
        )

    def _raise(self, index: int, source: str, text: str, line: Line) -> None:
        kind = raised_kind(text)
        frames = self._frames.get(source, [])[-12:]
        if kind is None and _CHECKS.match(text) and any(_OF_CONFIG.search(frame) for frame in frames):
            kind = "verl-config"
        self.symptoms.append(_Symptom(index, source, kind, line, raised=True))


def find_cause(log: Path, *, killed: bool = False, size: int = TAIL_BYTES) -> Optional[Found]:
    """The cause that a log shows, or None.

    Args:
        log: of the part that failed.
        killed: a signal ended the part, so that no exception of its own did.
        size: bytes at the end of the log that are read; a cause before them is not found.
    """
    return cause_in(read_tail(log, size), killed=killed)


def cause_in(lines: List[Line], *, killed: bool = False) -> Optional[Found]:
    """The same for lines that are at hand."""
    reader = _Reader()
    for index, (source, text, line) in enumerate(_unsampled(lines)):
        reader.read(index, source, text, line)
    survived = reader.steps[-2] if len(reader.steps) > 1 else -1
    symptoms = [symptom for symptom in reader.symptoms if symptom.index > survived]
    own = None if killed else _last_of_driver(symptoms, reader.blocks)
    if own:
        root = next((symptom for symptom in reversed(own) if symptom.kind in ROOTS), None)
        if root:
            return Found(str(root.kind), root.line)
        if not (own[-1].kind in LINKS or CONSEQUENCE.search(_unprefixed(own[-1].line.text)[1].strip())):
            first = own[0].index
            near = (s for s in symptoms if s.kind in CATASTROPHES and first - s.index < _CATASTROPHE_LINES)
            other = next(near, None)
            return Found(str(other.kind), other.line) if other else Found("", own[-1].line)
    return _earliest(symptoms, reader.last_lines, len(lines)) or (Found("", own[-1].line) if own else None)


def _last_of_driver(symptoms: List[_Symptom], blocks: List[int]) -> List[_Symptom]:
    """The exceptions of the last traceback of the process that the log belongs to, causes first."""
    start = blocks[-1] if blocks else 0
    return [s for s in symptoms if s.raised and not s.source and s.index > start]


def _earliest(symptoms: List[_Symptom], last_lines: Dict[str, List[int]], end: int) -> Optional[Found]:
    for kinds in (ROOTS, ("wall-time",), *((link,) for link in LINKS)):
        for symptom in symptoms:
            if symptom.kind in kinds and not _went_on(symptom, last_lines, end):
                return Found(str(symptom.kind), symptom.line)
    return None


def _went_on(symptom: _Symptom, last_lines: Dict[str, List[int]], end: int) -> bool:
    """Whether what followed shows that the error was survived: much of it, or much from the same process."""
    if symptom.kind in CATASTROPHES:
        return False
    own = last_lines.get(symptom.source, []) if symptom.source else []
    return end - symptom.index > _NEAR_LINES or (len(own) == _WENT_ON_LINES and own[0] > symptom.index)


def _unprefixed(text: str) -> Tuple[str, str]:
    """(what process printed a line, the line without that): "" is the process whose log it is."""
    match = _SOURCE.match(text)
    source, rest = (match.group(1), text[match.end() :]) if match else ("", text)
    if source.startswith("raylet"):
        source = "raylet"
    for prefix in (_RANK, _LOGGED):
        found = prefix.match(rest)
        if found:
            source, rest = source or found.group()[:8], rest[found.end() :]
    return source, _REPEATED.sub("", rest)


def _unsampled(lines: Iterable[Line]) -> List[Tuple[str, str, Line]]:
    """(process, text, line) with nothing in place of the prompts and answers that verl prints."""
    read = [(*_unprefixed(line.text), line) for line in lines]
    begun: Dict[str, int] = {}
    kept = list(read)
    for index, (source, text, line) in enumerate(read):
        start = begun.get(source)
        if start is not None and (_SAMPLE_END.match(text) or _SAMPLE.match(text)):
            for inside in range(start, index):
                if read[inside][0] == source:
                    kept[inside] = (source, "", read[inside][2])
            del begun[source]
        elif start is not None and index - start > _SAMPLE_LINES:
            del begun[source]
        if _SAMPLE.match(text):
            begun[source] = index
        if _SAMPLE_END.match(text):
            kept[index] = (source, "", line)
    return kept
