"""Analysis of a trace: cost of a failure, and everything else that `snapline analyze` reports, in one object.

Other modules of this package compute the parts: the line and the domino (`lines`), useless checkpoints (`zigzag`),
obsolete ones (`garbage`), a protocol's decisions (`decide`). This one replaces ordinals by names. Linear in the events.
"""

from collections.abc import Collection, Sequence
from typing import TypeVar

import msgspec

from snapline.recovery.decide import redecide
from snapline.recovery.execution import Execution, Line, recovery_line, rounds
from snapline.recovery.garbage import failures_undoing, obsolete
from snapline.recovery.trace import Trace
from snapline.recovery.zigzag import components_of, edges_of, useless

_Item = TypeVar("_Item")


class Rollback(msgspec.Struct, frozen=True, gc=False):
    """Loss of one agent: the checkpoints it passes over, and the sends and receives undone."""

    checkpoints: int
    events: int


class Domino(msgspec.Struct, frozen=True):
    """Spread of the failure.

    Attributes:
        rolled_back: number of agents that go back to a checkpoint, including the failed ones.
        depth: number of synchronous rounds in which some agent moved, after the failed ones went back.
        reached_initial: the agents that go back to checkpoint 0.
    """

    rolled_back: int
    depth: int
    reached_initial: list[str]


class Checkpoints(msgspec.Struct, frozen=True, gc=False):
    """Numbers of checkpoints, without the initial ones."""

    basic: int
    forced: int


class Analysis(msgspec.Struct, frozen=True):
    """Result of an analysis, with the fields of `snapline analyze -o json` in their order.

    Attributes:
        agents: all agents, in the order of the trace.
        failed: the failed agents, in the same order.
        recovery_line: agent → the checkpoint it goes back to, or None if it keeps its live state.
        rollback: losses of the agents whose entry of the line is not None.
        in_transit: messages sent inside the line and not received inside it, in send order.
        domino: spread of the failure.
        useless: agent → checkpoints on a Z-cycle; agents without any have no entry. Does not depend on `failed`.
        obsolete: agent → checkpoints that no later recovery line contains; does not depend on `failed` either.
        checkpoints: numbers of basic and forced checkpoints.
        forced: only with a protocol: agent → ordinals of the events that forced (`decide.redecide`).
    """

    agents: list[str]
    failed: list[str]
    recovery_line: dict[str, int | None]
    rollback: dict[str, Rollback]
    in_transit: list[str]
    domino: Domino
    useless: dict[str, list[int]]
    obsolete: dict[str, list[int]]
    checkpoints: Checkpoints
    forced: dict[str, list[int]] | msgspec.UnsetType = msgspec.UNSET


def analyze(trace: Trace, failed: Collection[str] | None = None, protocol: str | None = None) -> Analysis:
    """Analyse `trace`, or the execution that `protocol` would have made of it.

    Args:
        trace: the execution.
        failed: the agents that fail; None: all.
        protocol: drop forced checkpoints and let this protocol decide; "none" just drops them.

    Raises:
        UsageError: an agent is not in the trace, or the protocol does not exist.
    """
    return decide_and_analyze(trace, failed, protocol)[1]


def decide_and_analyze(
    trace: Trace, failed: Collection[str] | None = None, protocol: str | None = None
) -> tuple[Trace, Analysis]:
    """Analyze like `analyze`; return also the execution that it describes: `trace` itself without a protocol."""
    if protocol is None:
        return trace, _analyze(Execution.of(trace), failed, msgspec.UNSET)
    decided, forced = redecide(trace, protocol)
    return decided, _analyze(Execution.of(decided), failed, forced)


def _analyze(
    execution: Execution, failed: Collection[str] | None, forced: dict[str, list[int]] | msgspec.UnsetType
) -> Analysis:
    failing = execution.ordinals(failed)
    names = execution.agents
    line = recovery_line(execution, failing)
    restart = {
        name: number if number < len(nodes) else None
        for name, number, nodes in zip(names, line, execution.intervals, strict=True)
    }
    rollback = _rollback(execution, line)
    edges = edges_of(execution)
    component = components_of(edges)
    count = len(execution.agent_of) - len(names)
    return Analysis(
        agents=list(names),
        failed=[names[agent] for agent in failing],
        recovery_line=restart,
        rollback=rollback,
        in_transit=[execution.messages[message] for message in execution.in_transit(line)],
        domino=Domino(
            rolled_back=len(rollback),
            depth=len(rounds(execution, failing)) - 1,
            reached_initial=[name for name, number in restart.items() if number == 0],
        ),
        useless=_named(names, useless(execution, component)),
        obsolete=_named(names, obsolete(execution, failures_undoing(execution, edges, component))),
        checkpoints=Checkpoints(basic=count - execution.forced, forced=execution.forced),
        forced=forced,
    )


def _rollback(execution: Execution, line: Line) -> dict[str, Rollback]:
    losses = {}
    for name, number, nodes in zip(execution.agents, line, execution.intervals, strict=True):
        if number < len(nodes):
            events = sum(execution.events[node] for node in nodes[number:])
            losses[name] = Rollback(checkpoints=len(nodes) - 1 - number, events=events)
    return losses


def _named(agents: Sequence[str], lists: Sequence[list[_Item]]) -> dict[str, list[_Item]]:
    """Return the lists by name, those that are not empty."""
    return {agent: items for agent, items in zip(agents, lists, strict=True) if items}
