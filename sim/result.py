"""Result of a simulated run."""

from typing import Literal

import msgspec

Verdict = Literal["pass", "violation", "undecided", "broken"]
""""undecided": no violation, but a required event did not happen. "broken": the harness or the user's code failed."""

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "violation": 6, "undecided": 3, "broken": 1}
"""Exit codes of the command line."""


class Violation(msgspec.Struct, frozen=True):
    """A guarantee that did not hold.

    Attributes:
        oracle: oracle that found it, such as "orphans"; when shrinking, two violations of one oracle count as the same bug.
        guarantee: "G1" … "G12", or "core" for an invariant of a core.
        t_ns: virtual time.
        text: description with the evidence.
    """

    oracle: str
    guarantee: str
    t_ns: int
    text: str


class ExecutedFault(msgspec.Struct, frozen=True):
    """An executed fault; `until_ns` is 0 if it has no end."""

    kind: str
    text: str
    at_ns: int
    until_ns: int = 0


class Result(msgspec.Struct, kw_only=True):
    """The outcome of one run.

    Attributes:
        violations: first violations; the run ends at the first event with any.
        pending: events missing in an undecided run.
        error: reason of a broken run.
        trace_hash: hash of all events, in order.
        waypoints: hash after each thousand entries of the journal, to find the first difference of two runs.
        journal: text of one such piece of the journal, if requested.
        events: number of kernel events. messages: number of messages consumed by turns.
        probes: name → number of hits.
        metrics: name → value; names end with their unit.
        faults: executed faults.
        steps_as_they_are: steps and effects of a user's fleet that have no stubs, so that their own functions ran.
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
