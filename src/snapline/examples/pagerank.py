"""Find the most important modules of a library. A fleet of agents computes PageRank over the library's import graph.

    snapline run snapline.examples.pagerank:fleet --hosts 4 --arg graph=graph.json

By default, this is the import graph of the running interpreter's standard library. The arguments `graph` and `source` select another graph
(`import_graph`). `forward_push` explains the method, the exact accounting of mass, and the error bound. This module contains the agents, as
well as functions that count the mass in a cut and compare a cut's result with a sequential computation.

Each agent has one shard. An agent pushes a batch of seeds after the batch's timer has fired and all mass of the previous round has arrived
from its neighbours. Agents communicate only with their neighbours. There is no global barrier. So thousands of messages are in transit at a
time, from all batches and from different rounds. The total number of messages is known in advance.

Timers ensure a minimum run time (`seconds`). So even on a fast machine there is time to observe the fleet and to kill hosts. On a machine
that needs longer for the work, the timers cause no additional delay.

`personalised_pagerank` computes the same ranks in a single process, as a reference for the fleet's result. Its algorithm differs entirely
from `forward_push`. For example, it uses float64 instead of integers, and computes one seed at a time. `personalised_pagerank` iterates x =
e + damping P' x (Jacobi), where e is the seed vector, and P' moves a module's mass to its imports in equal shares. The limit x contains the
expected number of visits to each module. A walker stops with probability 1 - damping at a module with imports, and always stops at a module
without imports.

After k steps, the errors add up to at most damping**k / (1 - damping), which is below 3e-15 for the 220 steps taken. Including the rounding
errors of float64, the result is accurate to 1e-13.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

import snapline
from snapline.errors import UsageError
from snapline.examples.forward_push import (
    UNIT,
    FloatArray,
    Flow,
    Int32Array,
    Int64Array,
    Problem,
    ShardState,
    batch_of,
    batches_of,
    build_shard,
    check_flow,
    choose_seeds,
    error_bound,
    gather,
    is_ready,
    is_settled,
    pause_s,
    push,
    receive,
    rounds_for,
    units_in_flows,
    units_in_states,
)
from snapline.examples.import_graph import ImportGraph, read_graph, read_tree

DAMPING = 0.85
STEPS = 220
ACCURACY = 1e-13


def personalised_pagerank(imports: Sequence[Sequence[int]], seeds: Sequence[int]) -> FloatArray:
    """Return the ranks as an array of shape (modules, seeds). `imports[i]` contains the indices of the modules that module i imports."""
    count = len(imports)
    sources = np.array([module for module, targets in enumerate(imports) for _ in targets], dtype=np.intp)
    targets = np.array([target for row in imports for target in row], dtype=np.intp)
    degree = np.array([len(row) for row in imports], dtype=np.float64)
    passed_on = DAMPING / np.maximum(degree, 1.0)
    stopping = np.where(degree > 0, 1.0 - DAMPING, 1.0)
    ranks = np.empty((count, len(seeds)))
    for column, seed in enumerate(seeds):
        visits = np.zeros(count)
        for _ in range(STEPS):
            # If there are no imports, bincount returns integers.
            visits = np.bincount(targets, weights=(visits * passed_on)[sources], minlength=count).astype(np.float64)
            visits[seed] += 1.0
        ranks[:, column] = visits * stopping
    return ranks


_Number = TypeVar("_Number", int, float)


class Mass(snapline.Message):
    """Mass that one round sends to a shard. For each of `rows`, it contains the units of each seed, starting at seed `column`."""

    round: int
    column: int
    rows: Int32Array
    amounts: Int64Array


class PushDue(snapline.Message):
    """A timer message that tells the agent to push this batch after all mass of the previous round has arrived."""

    batch: int


class Shard(snapline.Agent):
    """An agent that pushes the mass of one shard's modules."""

    # A handler validates its message before it changes the state, and then cannot fail. So a turn that raises has not changed the state.
    # Encoding the state before each turn would take longer than the turn.
    on_error = "keep"
    state: ShardState

    async def on_start(self, ctx: snapline.Context) -> None:
        for batch in batches_of(self.state):
            # Batches are staggered, so that some batch's mass is in transit at any time.
            self._pause(batch, batch / len(batches_of(self.state)), ctx)

    @snapline.handler
    async def on_mass(self, message: Mass, ctx: snapline.Context) -> None:
        flow = Flow(self.state.shard, message.round, message.column, message.rows, message.amounts)
        check_flow(self.state, flow)
        receive(self.state, flow)
        self._push_if_ready(batch_of(self.state, message.column), ctx)

    @snapline.handler
    async def on_push_due(self, message: PushDue, ctx: snapline.Context) -> None:
        self.state.is_due[message.batch] = True
        self._push_if_ready(message.batch, ctx)

    def _push_if_ready(self, batch: int, ctx: snapline.Context) -> None:
        if not is_ready(self.state, batch):
            return
        for flow in push(self.state, batch):
            mass = Mass(round=flow.round, column=flow.column, rows=flow.rows, amounts=flow.amounts)
            ctx.send(agent_of(flow.shard), mass)
        self._pause(batch, 1.0, ctx)

    def _pause(self, batch: int, fraction: float, ctx: snapline.Context) -> None:
        if not is_settled(self.state, batch):
            ctx.set_timer(f"batch-{batch}", fraction * pause_s(self.state, batch), PushDue(batch=batch))


def agent_of(shard: int) -> str:
    """Return the id of the agent for this shard."""
    return f"shard-{shard}"


def fleet(
    *,
    source: str = "",
    graph: str = "",
    shards: str = "32",
    seeds: str = "64",
    batch: str = "32",
    part: str = "2",
    tolerance: str = "1e-8",
    seconds: str = "20",
    period: str = "0.3",
    protocol: str = "chandy-lamport",
    recovery: str = "global",
) -> snapline.Fleet:
    """Return the fleet. All arguments are strings, because `--arg` passes strings.

    Args:
        source: directory of the modules to rank. By default, this is the standard library, unless `graph` is given.
        graph: file written by `import_graph.write_graph`. With this file, hosts need not read the tree.
        seeds: number of seeds, for which the modules with the most imports are used.
        batch: number of seeds that are sent together. Smaller batches result in more and smaller messages.
        part: number of seeds per message in the early rounds.
        tolerance: largest fraction of a seed's mass that may be residual at the end. It determines the number of rounds.
        seconds: minimum run time in seconds, or 0 for none.
        period: seconds between checkpoints, or 0 to take no checkpoints.
        recovery: "global" or "local", as in `Fleet`.

    Raises:
        UsageError: If an argument is not a number or is out of range, or the graph is invalid.
    """
    imports = load_graph(source=source, graph=graph).imports
    problem = Problem(
        imports=imports,
        seeds=choose_seeds(imports, _number("seeds", seeds, int)),
        shards=_number("shards", shards, int),
        batch=_number("batch", batch, int),
        part=_number("part", part, int),
        rounds=rounds_for(_number("tolerance", tolerance, float)),
        seconds=_number("seconds", seconds, float),
    )
    period_s = _number("period", period, float)
    return snapline.Fleet(
        "pagerank",
        agents={agent_of(shard): functools.partial(make_shard, problem, shard) for shard in range(problem.shards)},
        protocol=protocol,
        triggers=[snapline.Every(seconds=period_s)] if period_s else [],
        stop_when=is_finished,
        recovery=recovery,
    )


def make_shard(problem: Problem, shard: int) -> Shard:
    """Return the agent of one shard in its initial state."""
    return Shard(build_shard(problem, shard))


def load_graph(*, source: str = "", graph: str = "") -> ImportGraph:
    """Return the graph that `fleet` ranks if it is called with these two arguments.

    Raises:
        UsageError: If both arguments are given, or the given one does not lead to a valid graph.
    """
    if source and graph:
        raise UsageError("source and graph are both given: give the directory or the file")
    return read_graph(graph) if graph else read_tree(source or None)


def is_finished(cut: snapline.Cut) -> bool:
    """Return whether the computation has finished: no message is in transit, no timer is set, and all rounds have been pushed. This is a
    stable property, because no agent can then send another message."""
    return cut.is_quiet and all(is_settled(state, batch) for state in shard_states(cut) for batch in batches_of(state))


class Account(msgspec.Struct, frozen=True):
    """The mass in a cut, in units of 2**-52 of a seed's mass.

    Attributes:
        in_states: mass in the ranks and residuals of the agents.
        in_transit: mass in messages in transit. The mass in transit would be lost if the fleet restarted from the agents' states without
            the channel states.
        expected: total mass that every consistent cut has.
        messages: number of messages in transit that carry mass.
        seeds_wrong: number of seeds whose mass differs from UNIT; 0 for a consistent cut.
    """

    in_states: int
    in_transit: int
    expected: int
    messages: int
    seeds_wrong: int

    @property
    def is_exact(self) -> bool:
        """Return whether the mass of each seed is exact to the last unit."""
        return self.seeds_wrong == 0 and self.in_states + self.in_transit == self.expected

    @property
    def in_transit_fraction(self) -> float:
        """Fraction of the total mass that is in transit, from 0 to 1."""
        return self.in_transit / self.expected


def account(cut: snapline.Cut) -> Account:
    """Count the mass in a cut. The result is exact only if no message is missing, duplicated, or received without having been sent (G1,
    G2)."""
    states = shard_states(cut)
    seeds = len(states[0].rounded)
    masses = [
        transit.message
        for transit in cut.in_transit
        if isinstance(transit.message, Mass) and transit.message.amounts.any()
    ]
    in_states = units_in_states(states)
    in_transit = units_in_flows(((mass.column, mass.amounts) for mass in masses), seeds=seeds)
    return Account(
        in_states=int(in_states.sum()),
        in_transit=int(in_transit.sum()),
        expected=seeds * UNIT,
        messages=len(masses),
        seeds_wrong=int((in_states + in_transit != UNIT).sum()),
    )


class Comparison(msgspec.Struct, frozen=True):
    """The largest difference between an entry of a finished cut and of the sequential result, and the upper bound of this difference."""

    difference_max: float
    bound: float

    @property
    def is_within(self) -> bool:
        return self.difference_max <= self.bound


def compare(cut: snapline.Cut, graph: ImportGraph) -> Comparison:
    """Compare a finished cut with the sequential result. The comparison takes at most a second.

    The bound is computed from the residual and rounded mass of the shards and the accuracy of the sequential result.
    """
    states = shard_states(cut)
    ranks = gather(states)
    reference = personalised_pagerank(graph.imports, choose_seeds(graph.imports, ranks.shape[1]))
    difference = float(abs(ranks / UNIT - reference).max())
    return Comparison(difference_max=difference, bound=error_bound(states) + ACCURACY)


def top_modules(cut: snapline.Cut, graph: ImportGraph, count: int = 10) -> list[tuple[str, float]]:
    """Return the modules with the highest rank, averaged over all seeds, sorted by descending rank. Modules with the same rank are sorted
    by name."""
    ranks = gather(shard_states(cut))
    means = (ranks.sum(axis=1) / (UNIT * ranks.shape[1])).tolist()
    return sorted(zip(graph.modules, means, strict=True), key=lambda item: (-item[1], item[0]))[:count]


def shard_states(cut: snapline.Cut) -> list[ShardState]:
    """Return the states of all shards in a cut, sorted by shard number."""
    return sorted(
        (state for state in cut.states.values() if isinstance(state, ShardState)), key=lambda state: state.shard
    )


def _number(name: str, text: str, kind: Callable[[str], _Number]) -> _Number:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name}={text}: give a number") from None
