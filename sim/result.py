"""The result of a simulated run, and the texts for guarantees, verdicts, numbers and times that reports use."""

from typing import Literal

import msgspec

Verdict = Literal["pass", "violation", "undecided", "broken"]
"""Verdict of a run. "undecided" means that no guarantee is violated but a required event did not happen. "broken" means that the harness or
the user's code failed."""

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "violation": 6, "undecided": 3, "broken": 1}
"""Exit code of the command-line tool for each verdict."""


class Violation(msgspec.Struct, frozen=True):
    """A violation of a guarantee.

    Attributes:
        oracle: name of the oracle that found the violation, such as "orphans". When a run is shrunk, all violations found by the same
            oracle count as the same bug.
        guarantee: name of the guarantee, such as "G1", or "core" if an invariant of a core is violated.
        t_ns: virtual time of the violation.
    """

    oracle: str
    guarantee: str
    t_ns: int
    text: str


ARMED = "of the node that passes"
"""Part of the text that describes a fault waiting at a failpoint. Such a fault may never be executed."""


class ExecutedFault(msgspec.Struct, frozen=True):
    """A fault that was executed. If the fault has no end, `until_ns` is 0."""

    kind: str
    text: str
    at_ns: int
    until_ns: int = 0


class Result(msgspec.Struct, kw_only=True):
    """Result of one run.

    Attributes:
        violations: the violations caused by the first event that violated a guarantee. The run ends after that event.
        pending: the required events that did not happen, if the verdict is "undecided".
        error: the reason why the verdict is "broken", if it is.
        trace_hash: hash of all events in order.
        waypoints: hash of the journal after every thousand entries. Comparing these hashes locates the first difference between two runs.
        journal: text of one section of a thousand journal entries, if the caller requested it.
        events: number of events that the simulation kernel executed.
        metrics: for each metric's name, its value. The name of a metric ends with its unit.
        unstubbed_steps: names of the steps and effects of a user's fleet that have no stub, so that the run executed the real functions.
    """

    name: str
    seed: int
    verdict: Verdict
    violations: list[Violation] = []
    pending: list[str] = []
    error: str = ""
    trace_hash: str = ""
    waypoints: list[str] = []
    journal: list[str] = []
    events: int = 0
    messages: int = 0
    virtual_ns: int = 0
    cpu_s: float = 0.0
    probes: dict[str, int] = {}
    metrics: dict[str, float] = {}
    faults: list[ExecutedFault] = []
    unstubbed_steps: list[str] = msgspec.field(default_factory=list, name="steps_as_they_are")


GUARANTEES: dict[str, str] = {
    "G1": "No committed cut contains an orphan.",
    "G2": "A committed cut's channel states hold exactly the in-transit messages, in order.",
    "G3": "After recovery the fleet's state is one that a failure-free run could have reached; "
    "every message takes effect exactly once.",
    "G4": "Each epoch has exactly one outcome; complete means durable, whole and verified.",
    "G5": "The recovery line is the unique maximal consistent one for the failures given.",
    "G6": "A communication-induced protocol leaves no useless checkpoint; an RDT protocol no untracked dependency.",
    "G7": "Garbage collection never deletes what a later recovery line could need.",
    "G8": "What the coordinator acknowledged survives the loss of any minority of its replicas.",
    "G9": "Nothing of an older incarnation is accepted anywhere.",
    "G10": "Under faults within the stated budget, every epoch ends and every recovery finishes.",
    "G11": "Damaged data is detected before it is used.",
    "G12": "An effect's intent is durable before the effect; none is repeated without its key, "
    "none discarded without its compensation.",
    "core": "A core's own invariant holds after every event.",
}
"""Text of each guarantee, by the name that `Violation.guarantee` uses."""

VERDICTS: dict[str, str] = {
    "pass": "Every guarantee held, and everything that had to happen did.",
    "violation": "A guarantee did not hold.",
    "undecided": "Nothing wrong was seen, but something that had to happen did not.",
    "broken": "The harness or the user's code failed: this run says nothing about the guarantees.",
}


def seconds(time_ns: int) -> str:
    """Format a time to the microsecond, such as `1.234567 s`."""
    return f"{time_ns // 1_000_000_000}.{time_ns // 1000 % 1_000_000:06d} s"


def time_span(start_ns: int, end_ns: int) -> str:
    """Format a time span such as `1.000000 s to 2.000000 s`. If `end_ns` is 0, the text is `from 1.000000 s on`."""
    return f"{seconds(start_ns)} to {seconds(end_ns)}" if end_ns else f"from {seconds(start_ns)} on"


def count(number: int, thing: str) -> str:
    """Format a count such as `1 agent` or `1,200 agents`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def value_words(value: float) -> str:
    """Format a metric's value. Format integers without decimals, and other values with six significant digits."""
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    return f"{value:.6g}"
