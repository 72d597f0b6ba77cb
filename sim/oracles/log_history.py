"""The coordinator's log as its callers see it (G8): acknowledged proposals are in it once, in an order consistent with real time.

Theory of operation
-------------------
A log is linearizable if every proposal seems to take effect at one instant between its call and its answer (Herlihy and Wing 1990).
Checking that is expensive when only calls and answers are known (Wing and Gong 1993). Here the order is known as well: the log's
entries are a *witness*. So it is enough to check, in linear time:

1. Every entry in the log was proposed before, and at least as often as it is committed.
2. Every acknowledged proposal is in the log with its acknowledged result; each answer has its own entry.
3. A rejected proposal is not in the log, and never will be.
4. Real time: a proposal made after another one's answer comes after it in the log.
5. A committed index is never committed with another entry.

An unknown outcome allows everything: the entry may be committed at any time, or never. `is_linearizable` is Wing and Gong's checker
for a few operations; tests compare the two.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import Literal

import msgspec

from snapline.coordinator.state.fleet_records import Committed, OperationResult, ProposalOutcome, Rejected
from snapline.sim.oracles.ground_truth_records import Finding

OPERATIONS_MAX = 6
"""Largest number of calls to check: 720 orders for each choice of the calls with unknown outcome."""


class _Entry(msgspec.Struct):
    index: int
    result: OperationResult
    is_claimed: bool = False


class _Proposal(msgspec.Struct):
    entry: bytes
    floor: int  # greatest index acknowledged when the proposal was made
    is_rejected: bool = False


class LogHistory:
    """Proposals, answers, and committed entries."""

    def __init__(self) -> None:
        self._proposals: dict[int, _Proposal] = {}
        self._proposed: dict[bytes, list[int]] = {}
        self._committed: dict[bytes, list[_Entry]] = {}
        self._order: dict[int, bytes] = {}
        self._last = -1
        self._acknowledged = -1

    def on_proposed(self, proposal: int, entry: bytes) -> None:
        """Record a proposal."""
        self._proposals[proposal] = _Proposal(entry, self._acknowledged)
        self._proposed.setdefault(entry, []).append(proposal)

    def on_committed(self, index: int, entry: bytes, result: OperationResult) -> Iterator[Finding]:
        """Check an entry that is permanently in the log."""
        if index <= self._last:
            if self._order.get(index) != entry:
                yield "log", "G8", f"entry {index} of the log was committed a second time, with something else"
            return
        self._last = index
        self._order[index] = entry
        copies = self._committed.setdefault(entry, [])
        copies.append(_Entry(index, result))
        if not self._proposals:
            return  # proposals are not reported
        proposed = [self._proposals[x] for x in self._proposed.get(entry, ())]
        if len(copies) > len(proposed):
            yield "log", "G8", f"entry {index} was committed {len(copies)} times and proposed {len(proposed)} times"
        elif len(copies) > sum(not x.is_rejected for x in proposed):
            yield "log", "G8", f"entry {index} is in the log, and its proposal was rejected"

    def on_outcome(self, proposal: int, outcome: ProposalOutcome, index: int | None) -> Iterator[Finding]:
        """Check an answer to a caller; `index` of the entry if known."""
        record = self._proposals[proposal]
        if isinstance(outcome, Rejected):
            record.is_rejected = True
            proposed = [self._proposals[x] for x in self._proposed[record.entry]]
            if len(self._committed.get(record.entry, ())) > sum(not x.is_rejected for x in proposed):
                yield "log", "G8", f"proposal {proposal} was rejected, and it is in the log"
        elif isinstance(outcome, Committed):
            yield from self._acknowledge(proposal, record, outcome.result, index)

    def _acknowledge(
        self, proposal: int, made: _Proposal, result: OperationResult, index: int | None
    ) -> Iterator[Finding]:
        entries = [x for x in self._committed.get(made.entry, ()) if index is None or x.index == index]
        if not entries:
            yield "log", "G8", f"proposal {proposal} was acknowledged, and it is not in the log"
            return
        free = [x for x in entries if not x.is_claimed]
        if not free:
            yield "log", "G8", f"proposal {proposal} was acknowledged by an entry that had answered another one"
            return
        matching = [x for x in free if x.result == result]
        if not matching:
            yield "log", "G8", f"proposal {proposal} was answered {result}, the log says {free[0].result}"
            return
        later = [x for x in matching if x.index > made.floor]
        if not later:
            yield (
                "log",
                "G8",
                (
                    f"proposal {proposal} is entry {matching[0].index}; it was made after entry {made.floor} had been acknowledged"
                ),
            )
            return
        later[0].is_claimed = True
        self._acknowledged = max(self._acknowledged, later[0].index)


# ---- the exhaustive checker -----------------------------------------------------------------------------------------


class LogCall(msgspec.Struct, frozen=True):
    """One call of a log: the times of call and answer, and the outcome. `place`: index of its entry if it was acknowledged."""

    value: bytes
    called: int
    answered: int
    outcome: Literal["committed", "rejected", "unknown"]
    place: int = -1


def is_linearizable(calls: Sequence[LogCall], log: Sequence[bytes]) -> bool:
    """Return whether some order of the calls explains the answers and the final `log`.

    Tries every order that real time allows, with every subset of the calls with unknown outcome.

    Raises:
        ValueError: there are more calls than can be checked.
    """
    if len(calls) > OPERATIONS_MAX:
        raise ValueError(f"{len(calls)} calls: at most {OPERATIONS_MAX}")
    sure = [call for call in calls if call.outcome == "committed"]
    unknown = [call for call in calls if call.outcome == "unknown"]
    return any(
        _explains(order, log)
        for count in range(len(unknown) + 1)
        for chosen in combinations(unknown, count)
        for order in permutations([*sure, *chosen])
    )


def _explains(order: Sequence[LogCall], log: Sequence[bytes]) -> bool:
    if [call.value for call in order] != list(log):
        return False
    for place, call in enumerate(order):
        if call.outcome == "committed" and call.place != place:
            return False
        if any(later.outcome != "unknown" and later.answered < call.called for later in order[place + 1 :]):
            return False
    return True
