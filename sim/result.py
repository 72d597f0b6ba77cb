"""Result of a simulated run."""

from typing import Literal

import msgspec

Verdict = Literal["pass", "violation", "undecided", "broken"]
""""undecided": nothing wrong was seen, and something that had to happen did not. "broken": the harness or the user's code."""

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "violation": 6, "undecided": 3, "broken": 1}
"""Exit codes of the command line."""


class Violation(msgspec.Struct, frozen=True):
    """A guarantee that did not hold.

    Attributes:
        oracle: who found it, such as "orphans"; two violations of one oracle count as the same bug when shrinking.
        guarantee: "G1" … "G12", or "core" for an invariant of a core.
        t_ns: virtual time.
        text: one sentence with the evidence.
    """

    oracle: str
    guarantee: str
    t_ns: int
    text: str


class ExecutedFault(msgspec.Struct, frozen=True):
    """A fault as it was carried out; `until_ns` is 0 for one that has no end."""

    kind: str
    text: str
    at_ns: int
    until_ns: int = 0


class Result(msgspec.Struct, kw_only=True):
    """The outcome of one run.

    Attributes:
        violations: the first ones; the run ends at the first event with any.
        pending: of an undecided run, what was still missing.
        error: of a broken run, why.
        trace_hash: of everything that happened, in order.
        waypoints: the hash after each thousand entries of the journal, to find where two runs part.
        journal: one such piece in words, if it was asked for.
        events: kernel events. messages: consumed by turns.
        probes: name → how often hit.
        metrics: name → value; names end with their unit.
        faults: as executed.
        steps_as_they_are: of a user's fleet that gives no stubs, whose own functions have run.
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
    steps_as_they_are: list[str] = []
