"""Personalised PageRank by forward push, in whole numbers, cut into shards that only exchange mass.

The problem. A walker starts at a seed, follows a random import with probability `damping` = 17/20 and stops where it is
otherwise; at a module without imports it stops. The rank of a module is the probability that the walker stops there.
One rank per module and seed; all seeds are computed at once, as the columns of one array.

The method. The push operation of Andersen, Chung and Lang, "Local Graph Partitioning using PageRank Vectors" (FOCS
2006), without their lazy walk. Each module holds a *rank* (mass that has stopped) and a *residual* (mass still to be
worked on). A push takes a residual r away, adds the stopping part to the rank and sends the rest in equal shares along
the imports. Pushes may happen in any order, at any time, on stale knowledge: the linear relation *true rank = rank +
sum over modules of residual times that module's own personalised rank* holds after each of them. So the shards need no
rounds and no locks, and mass in flight is simply residual that is somewhere else.

Whole numbers. Each seed starts with UNIT = 2**52 units of mass. Each import gets floor(17 r / (20 d)) units, d imports
in all, and what these shares leave of r stays as rank. So for every seed, at every consistent cut,

    mass in states (ranks + residuals) + mass in channels = UNIT, to the last unit.

One lost, doubled or invented message breaks the equation.

The error. Flooring keeps back less than one unit per import and push. `rounded` counts what was kept back, in
twentieths of a unit. A unit that stops too early, or is still residual, can change each entry of its seed's column by
at most one unit. So at the end, for each seed,

    |rank / UNIT - true rank| <= (sum of residuals + sum of rounded / 20) / UNIT

plus 2**-52 for reading it as a float.

The largest product is 20 UNIT < 2**57, and all seeds' mass is below 2**63 for up to 2,047 seeds: int64 never overflows.

Modules go to shards in turn (module i is row i // shards of shard i % shards). Neighbours in the alphabet import each
other often; dealing them out makes the work even and the traffic heavy, which is what this example is for. For the same
reason the seeds are worked on in batches of a few columns: a turn pushes one batch in about a tenth of a millisecond,
and every batch has its own messages in flight.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from snapline.errors import MisuseError

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array = npt.NDArray[np.int64]
    Int32Array = npt.NDArray[np.int32]
    FloatArray = npt.NDArray[np.float64]
else:  # the parametrised form prints differently in each NumPy release, and the fields' types are part of a checkpoint
    Int64Array = Int32Array = FloatArray = np.ndarray

UNIT = 2**52
"""Mass of one seed. The largest power of two that a float64 still counts in single units, with room for products."""

DAMPING_TWENTIETHS = 17
"""Damping 0.85 as a fraction of whole numbers."""

SEEDS_MAX = 2047
"""All mass together must stay below 2**63."""


class Problem(msgspec.Struct, frozen=True):
    """What is to be computed: the graph as rows of targets, the seeds, the shards and when to stop pushing."""

    imports: list[list[int]]
    seeds: tuple[int, ...]
    shards: int
    batch: int
    tolerance_units: int

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= len(self.imports):
            raise MisuseError(f"{self.shards} shards for {len(self.imports)} modules: use 1 to {len(self.imports)}")
        if not 1 <= len(self.seeds) <= SEEDS_MAX:
            raise MisuseError(f"{len(self.seeds)} seeds: use 1 to {SEEDS_MAX}")
        if self.batch < 1:
            raise MisuseError(f"batches of {self.batch} seeds: use 1 or more")
        if not 0 <= self.tolerance_units < UNIT:
            raise MisuseError("a tolerance is a fraction of one seed's mass: use 0 <= tolerance < 1")


class ShardState(msgspec.Struct):
    """One shard: m modules, n seeds, t modules that its modules import (anywhere).

    Attributes:
        rank, residual: (m, n) units that have stopped, and that are still to be pushed.
        rounded: (n,) twentieths of units kept back by flooring, so far.
        is_push_due: per batch of seeds: a message to itself that will push it is on its way.
        pushes: turns that pushed, for people to read.
        shard, shards, batch, tolerance_units: copied from the problem.
        outdegree: (m, 1) imports of each module.
        edge_rows: the importing row of each import, ordered by the imported module's shard and row.
        target_starts: (t,) where in `edge_rows` each imported module's imports begin.
        target_rows: (t,) the imported modules' rows in their own shards.
        peers, peer_starts: the shards they belong to, and where in `target_rows` each shard's begin.
    """

    shard: int
    shards: int
    batch: int
    tolerance_units: int
    rank: Int64Array
    residual: Int64Array
    rounded: Int64Array
    outdegree: Int64Array
    edge_rows: Int32Array
    target_starts: Int32Array
    target_rows: Int32Array
    peers: list[int]
    peer_starts: list[int]
    is_push_due: list[bool]
    pushes: int = 0


class Flow(msgspec.Struct, frozen=True):
    """Mass for one shard: distinct rows (k,), and the units for each row and seed of one batch (k, batch)."""

    shard: int
    rows: Int32Array
    amounts: Int64Array


def choose_seeds(imports: Sequence[Sequence[int]], count: int) -> tuple[int, ...]:
    """The modules with most imports, ties in order; all modules if there are fewer than `count`."""
    return tuple(sorted(range(len(imports)), key=lambda module: (-len(imports[module]), module))[:count])


def build_shard(problem: Problem, shard: int) -> ShardState:
    """The shard before the first push: each seed's mass lies on the seed's module."""
    own = range(shard, len(problem.imports), problem.shards)
    edges = sorted(
        (target % problem.shards, target // problem.shards, row)
        for row, module in enumerate(own)
        for target in problem.imports[module]
    )
    targets = sorted({(peer, target_row) for peer, target_row, _ in edges})
    first_edge = {edge[:2]: index for index, edge in reversed(list(enumerate(edges)))}
    first_target = {peer: index for index, (peer, _) in reversed(list(enumerate(targets)))}
    residual = np.zeros((len(own), len(problem.seeds)), dtype=np.int64)
    for column, module in enumerate(problem.seeds):
        if module % problem.shards == shard:
            residual[module // problem.shards, column] += UNIT
    return ShardState(
        shard=shard,
        shards=problem.shards,
        batch=problem.batch,
        tolerance_units=problem.tolerance_units,
        rank=np.zeros_like(residual),
        residual=residual,
        rounded=np.zeros(len(problem.seeds), dtype=np.int64),
        outdegree=np.array([[len(problem.imports[module])] for module in own], dtype=np.int64),
        edge_rows=np.array([row for _, _, row in edges], dtype=np.int32),
        target_starts=np.array([first_edge[target] for target in targets], dtype=np.int32),
        target_rows=np.array([row for _, row in targets], dtype=np.int32),
        peers=sorted(first_target),
        peer_starts=[first_target[peer] for peer in sorted(first_target)],
        is_push_due=[False] * -(-len(problem.seeds) // problem.batch),
    )


def check_flow(state: ShardState, batch: int, rows: Int32Array, amounts: Int64Array) -> None:
    """Refuse a flow that `receive` could not add whole, before anything is changed.

    Raises:
        ValueError: batch, rows or amounts do not fit this shard.
    """
    if not 0 <= batch < len(state.is_push_due):
        raise ValueError(f"batch {batch} of {len(state.is_push_due)}")
    width = state.residual[:1, _columns(state, batch)].shape[1]
    if rows.ndim != 1 or amounts.shape != (len(rows), width):
        raise ValueError(f"amounts of shape {amounts.shape} for {rows.shape} rows and {width} seeds")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(state.residual):
        raise ValueError(f"a row outside 0..{len(state.residual) - 1}")


def receive(state: ShardState, batch: int, rows: Int32Array, amounts: Int64Array) -> None:
    """Add mass from another shard to the residuals. The rows must be distinct."""
    state.residual[rows, _columns(state, batch)] += amounts


def is_settled(state: ShardState, batch: int) -> bool:
    """Nothing of this batch is left that a push would move."""
    return bool(state.residual[:, _columns(state, batch)].max() <= state.tolerance_units)


def push(state: ShardState, batch: int) -> list[Flow]:
    """Push each of the batch's residuals above the tolerance once.

    Returns what leaves for other shards; what stays in this one is already among its residuals.
    """
    columns = _columns(state, batch)
    residual = state.residual[:, columns]
    moved = np.where(residual > state.tolerance_units, residual, 0)
    has_imports = state.outdegree > 0
    share = moved * (DAMPING_TWENTIETHS * has_imports) // np.maximum(20 * state.outdegree, 1)
    kept = moved - share * state.outdegree
    residual -= moved
    state.rank[:, columns] += kept
    # What a module with imports keeps beyond its 3/20. A module without imports keeps everything, rightly.
    state.rounded[columns] += ((20 * kept - (20 - DAMPING_TWENTIETHS) * moved) * has_imports).sum(axis=0)
    state.pushes += 1
    leaving = []
    for flow in _flows(state, share):
        if flow.shard == state.shard:
            receive(state, batch, flow.rows, flow.amounts)
        else:
            leaving.append(flow)
    return leaving


def _columns(state: ShardState, batch: int) -> slice:
    return slice(batch * state.batch, (batch + 1) * state.batch)


def _flows(state: ShardState, share: Int64Array) -> Iterator[Flow]:
    """Add the shares up per imported module, and hand them out per shard without the rows that get nothing."""
    if not len(state.target_rows):
        return
    amounts = np.add.reduceat(share[state.edge_rows], state.target_starts, axis=0)
    is_filled = (amounts > 0).max(axis=1)
    is_full = bool(is_filled.all())
    for index, peer in enumerate(state.peers):
        start = state.peer_starts[index]
        end = state.peer_starts[index + 1] if index + 1 < len(state.peers) else len(state.target_rows)
        if is_full:
            yield Flow(peer, state.target_rows[start:end], amounts[start:end])
        elif (filled := is_filled[start:end]).any():
            yield Flow(peer, state.target_rows[start:end][filled], amounts[start:end][filled])


def units_in_states(states: Iterable[ShardState]) -> Int64Array:
    """Units per seed that lie in these shards."""
    totals = [state.rank.sum(axis=0) + state.residual.sum(axis=0) for state in states]
    total: Int64Array = np.sum(totals, axis=0, dtype=np.int64)
    return total


def units_in_flows(flows: Iterable[tuple[int, Int64Array]], *, seeds: int, batch_size: int) -> Int64Array:
    """Units per seed that lie in these messages, given as pairs of batch and amounts."""
    total = np.zeros(seeds, dtype=np.int64)
    for batch, amounts in flows:
        total[batch * batch_size : (batch + 1) * batch_size] += amounts.sum(axis=0)
    return total


def gather(states: Iterable[ShardState]) -> Int64Array:
    """The shards' ranks as one (modules, seeds) array of units."""
    ordered = sorted(states, key=lambda state: state.shard)
    ranks = np.empty((sum(len(state.rank) for state in ordered), ordered[0].rank.shape[1]), dtype=np.int64)
    for state in ordered:
        ranks[state.shard :: state.shards] = state.rank
    return ranks


def error_bound(states: Iterable[ShardState]) -> float:
    """Most that any entry of `gather(states) / UNIT` can differ from the true rank, with nothing in channels."""
    ordered = list(states)
    left = np.sum([state.residual.sum(axis=0) for state in ordered], axis=0)
    rounded = np.sum([state.rounded for state in ordered], axis=0)
    return float((left + rounded / 20).max()) / UNIT + 2.0**-52
