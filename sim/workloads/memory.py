"""Agents with large states: tokens walk as in the pattern `random`, and each consumed token is recorded in a history and a table.

The history grows, drops old records, and some of its records are edited. The table is an array of several chunks, and a turn
changes a few bytes of it. So checkpoints have parts, epochs refer to chunks of earlier epochs, and packs are shared. The
pattern thus tests `storage/` under all faults. In every cut, the ledger's count of consumed messages, the table's sum and
the history's latest records must agree.
"""

import functools
from typing import TYPE_CHECKING, Any

import snapline
from snapline.errors import UsageError
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import CutContents, InvariantViolatedError, Parcel, Plan, shares
from snapline.sim.workloads.walks import RandomWalker, WalkerState, random_peers
from snapline.sim.workloads.workload import LedgerWorkload, check_agents, make_fleet, pause_ns, plan_of

try:
    import numpy as np
except ImportError:  # NumPy is an extra; `make_memory` reports that it is missing
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
else:
    Array = object if np is None else np.ndarray

TABLE_LENGTH = 25_000
"""Number of 64-bit values in the table: 200 KB, four chunks."""

KEPT = 30
"""Number of records that the history keeps; older records are dropped."""


class Seen(snapline.Message):
    """Record of a consumed message. `take` is its number among the consumed messages. `content` is its content, or 0 after an edit."""

    take: int
    content: int


class MemoryState(WalkerState, kw_only=True):
    """State of a `Rememberer`. `seen`: records of the latest messages. `table`: array in which each consumed message increments one
    element."""

    seen: snapline.History[Seen]
    table: Array


class Rememberer(RandomWalker):
    """Agent that records each consumed message in its history and table."""

    state: MemoryState

    def take(self, ctx: snapline.Context, parcel: Parcel) -> None:
        super().take(ctx, parcel)
        state = self.state
        state.table[state.takes * 7919 % TABLE_LENGTH] += 1
        state.seen.append(Seen(state.takes, parcel.content))
        if len(state.seen) > KEPT:
            del state.seen[0]
        if state.takes % 5 == 0:
            state.seen[0] = Seen(state.seen[0].take, 0)


class MemoryWorkload(LedgerWorkload):
    """Workload that checks each agent's table and history against the agent's ledger."""

    def check_contents(self, books: CutContents) -> None:
        super().check_contents(books)
        for agent, state in books.states.items():
            if isinstance(state, MemoryState):
                _check(agent, state)


def _check(agent: str, state: MemoryState) -> None:
    total = int(state.table.sum())
    if total != state.takes:
        raise InvariantViolatedError(f"the table of {agent} knows of {total} messages, its ledger of {state.takes}")
    latest = [seen.take for seen in state.seen]
    expected = list(range(max(0, state.takes - KEPT) + 1, state.takes + 1))
    if latest != expected:
        raise InvariantViolatedError(f"the history of {agent} holds messages {latest}, after {state.takes} were taken")


def make_memory(part: FleetPart) -> LedgerWorkload:
    """Return a fleet that passes tokens on a random graph and records each consumed token."""
    if np is None:
        raise UsageError("pattern memory needs NumPy: pip install 'snapline[numpy]'")
    check_agents(part)
    work = shares(part.pattern.messages, part.agents)
    make = functools.partial(_rememberer, plan_of(part, pause_ns(part, part.agents)), work)
    return MemoryWorkload(make_fleet(part, make), total=sum(work), ends=part.pattern.messages > 0)


def _rememberer(plan: Plan, work: list[int], index: int) -> Rememberer:
    table = np.zeros(TABLE_LENGTH, dtype=np.int64)
    state = MemoryState(
        plan=plan,
        index=index,
        work=work[index],
        peers=random_peers(index, plan.agents),
        seen=snapline.History[Seen](),
        table=table,
    )
    return Rememberer(state)
