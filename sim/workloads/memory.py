"""Agents that remember: tokens walk as in `random`, and each that is taken is entered in a history and in a table.

The history grows, loses old records and has some edited; the table is an array of several chunks, of which a turn changes a few
bytes. So checkpoints have parts, epochs refer to chunks of earlier ones, and packs are shared: what `storage/` does with
them is under all faults here. Three accounts of the same thing must agree in every cut: the ledger's count of what was taken,
the table's sum, and what the history says of the latest ones.
"""

import functools
from typing import TYPE_CHECKING, Any

import snapline
from snapline.errors import UsageError
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import Books, Parcel, Plan, WrongBooksError, shares
from snapline.sim.workloads.walks import RandomWalker, WalkerState, random_peers
from snapline.sim.workloads.workload import LedgerWorkload, check_agents, make_fleet, pause_ns, plan_of

try:
    import numpy as np
except ImportError:  # an extra: whoever names the pattern is told
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
else:
    Array = object if np is None else np.ndarray

TABLE_LENGTH = 25_000
"""Number of 64-bit values in the table: 200 KB, four chunks."""

KEPT = 30
"""Records that an agent remembers; older ones are dropped."""


class Seen(snapline.Message):
    """One message that was taken: its number among them, and its content, 0 once it was looked at again."""

    take: int
    content: int


class MemoryState(WalkerState, kw_only=True):
    """`seen`: the latest messages. `table`: one more, at a place of its own, for each message taken."""

    seen: snapline.History[Seen]
    table: Array


class Rememberer(RandomWalker):
    """Notes what it takes."""

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
    """Workload that checks each agent's table and history against its ledger."""

    def check_books(self, books: Books) -> None:
        super().check_books(books)
        for agent, state in books.states.items():
            if isinstance(state, MemoryState):
                _check(agent, state)


def _check(agent: str, state: MemoryState) -> None:
    total = int(state.table.sum())
    if total != state.takes:
        raise WrongBooksError(f"the table of {agent} knows of {total} messages, its ledger of {state.takes}")
    latest = [seen.take for seen in state.seen]
    expected = list(range(max(0, state.takes - KEPT) + 1, state.takes + 1))
    if latest != expected:
        raise WrongBooksError(f"the history of {agent} holds messages {latest}, after {state.takes} were taken")


def make_memory(part: FleetPart) -> LedgerWorkload:
    """Tokens on a random graph, among agents that remember."""
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
