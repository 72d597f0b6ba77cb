"""Personalised PageRank by forward push, with integer arithmetic. The work is divided into shards that exchange only mass.

The problem. A walker starts at a seed. At each module, the walker follows a random import with probability `damping` = 17/20, and stops
otherwise. The walker always stops at a module without imports. The rank of a module is the probability that the walker stops there. Each
module has one rank for each seed. All seeds are computed simultaneously, as the columns of an array.

The method. This module uses the push operation of Andersen, Chung and Lang, "Local Graph Partitioning using PageRank Vectors" (FOCS 2006),
without their lazy walk. Each module has a *rank* (mass that has stopped) and a *residual* (mass that is still to be pushed). A push removes
a module's residual and adds the stopping part to the module's rank. The rest is sent in equal shares along the module's imports. After each
push, *true rank = rank + sum over all modules of residual times the module's own personalised rank*. Mass in transit is residual mass that
has not arrived yet.

Order. The order of the pushes affects the amount of work, but not the resulting ranks. If most of the mass were delayed, nearby shards
would exchange tiny amounts of mass, each in a message that costs as much as a large one. So shards proceed in rounds, and each shard
synchronizes only with its neighbours. The rounds implement the local synchronizer of Awerbuch, "Complexity of Network Synchronization"
(Journal of the ACM 32, 1985). Two shards are neighbours if a module in one of them imports a module in the other. In round k (0, 1, …), a
shard pushes each of its residuals once, and sends the same number of messages to every neighbour. Some messages contain no mass. After a
shard has received all of its neighbours' messages of round k, it pushes in round k + 1. No shard waits for the whole fleet, and two
neighbours are never more than one round apart. An arriving message belongs to the last pushed round or to the next round. Messages of the
next round are stored separately. Channels must be reliable and FIFO. If a shard stops permanently, its neighbours stop too.

The work. The mass that has been pushed k times is at most 17/20 of the mass that has been pushed k - 1 times. After

    rounds = the least k with (17/20)**k <= tolerance

the residuals of each seed add up to at most `tolerance`, and the shards stop. For every order of events, the exact totals are

    pushes = shards * batches * rounds,
    messages = ordered pairs of neighbours * batches * (parts in each round, added up),

(`pushes_in_all`, `messages_in_all`). Each round depends only on the complete residuals of the previous round. So the ranks are exactly the
same for every order of events and every number of shards.

Integers. Each seed starts with UNIT = 2**52 units of mass. Each of a module's d imports receives floor(17 r / (20 d)) units of the module's
residual r. The remainder is added to the module's rank. So for every seed, and at every consistent cut, the following equation holds
exactly:

    mass in states (ranks + residuals) + mass in channels = UNIT.

A single lost, duplicated or invented message violates the equation.

The error. Because of rounding down, each push retains less than one additional unit per import. `rounded` counts the retained mass in
twentieths of a unit. A unit that has stopped too early, or is still residual, changes any entry in its seed's column by at most one unit.
So at the end, the error for each seed satisfies

    |rank / UNIT - true rank| <= (sum of residuals + sum of rounded / 20) / UNIT

plus 2**-52 for the conversion to a float.

The largest product is 20 UNIT < 2**57, and the mass of all seeds is below 2**63 for up to 2,047 seeds. So int64 arithmetic never overflows.

Modules are assigned to shards in turn: module i is in row i // shards of shard i % shards. Modules with similar names often import each
other. So distributing them over the shards balances the work but causes much traffic, which is the purpose of this example. The seeds are
divided into batches, and each batch proceeds through its rounds independently. The early rounds move nearly all of the mass. In these
rounds, each message of a batch is split into parts of a few seeds.
"""

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from snapline.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array = npt.NDArray[np.int64]
    Int32Array = npt.NDArray[np.int32]
    FloatArray = npt.NDArray[np.float64]
else:  # checkpoints contain the names of field types, and NumPy releases print parametrised types differently
    Int64Array = Int32Array = FloatArray = np.ndarray

UNIT = 2**52
"""Number of units of mass per seed. A float64 represents every integer up to this power of two exactly, and products of it do not
overflow."""

DAMPING_TWENTIETHS = 17
"""The damping, 0.85, in twentieths."""

SEEDS_MAX = 2047
"""Largest number of seeds, because the mass of all seeds together must stay below 2**63."""

ROUNDS_MAX = 222
"""Largest number of rounds. After these rounds, less than one unit of a seed's mass could be residual, so more rounds would have no
effect."""

EARLY_ROUNDS = 16
"""Number of rounds whose messages are divided into parts. At most 0.85**16 = 7 % of the mass is left for the later rounds."""

EARLY_PAUSES = 4
"""Ratio of the minimum duration of an early round to that of a later round. Early rounds are longer so that mass in transit is also visible
on a fast machine."""


class Problem(msgspec.Struct, frozen=True):
    """Definition of the problem: the import graph, the seeds, and the division of the work.

    Attributes:
        imports: for each module, the modules that it imports.
        seeds: modules at which walkers start. A module may occur more than once.
        batch: number of seeds that are sent together. The last batch may be smaller.
        part: number of seeds per message in the early rounds.
        seconds: minimum total time of all rounds, over which `pause_s` distributes the pauses. If `seconds` is 0, there are no pauses.
    """

    imports: list[list[int]]
    seeds: tuple[int, ...]
    shards: int
    batch: int
    rounds: int
    part: int
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= len(self.imports):
            raise UsageError(f"{self.shards} shards for {len(self.imports)} modules: use 1 to {len(self.imports)}")
        if not 1 <= len(self.seeds) <= SEEDS_MAX:
            raise UsageError(f"{len(self.seeds)} seeds: use 1 to {SEEDS_MAX}")
        if self.batch < 1 or self.part < 1:
            raise UsageError(f"batches of {self.batch} seeds in parts of {self.part}: use 1 or more")
        if not 0 <= self.rounds <= ROUNDS_MAX:
            raise UsageError(f"{self.rounds} rounds: use 0 to {ROUNDS_MAX}")
        if not 0 <= self.seconds < math.inf:
            raise UsageError(f"a shortest time of {self.seconds} seconds: use 0 or more")


class ShardState(msgspec.Struct):
    """State of one shard. The shard has m modules, which import t distinct modules, and n seeds.

    Attributes:
        shard, shards, batch, rounds, part, seconds: same as in the problem.
        rank, residual: arrays of shape (m, n) with the units that have stopped, and the units for the next push.
        early: array of shape (m, n) with the units that arrived one round early, and wait for the push after the next one.
        rounded: array of shape (n,) with the mass, in twentieths of a unit, that rounding down has retained so far.
        pushed: for each batch, the number of rounds that have been pushed. The next push belongs to round `pushed`.
        arrived, arrived_early: for each batch, the numbers of messages that have arrived from round `pushed - 1` and from round `pushed`.
        is_due: for each batch, whether the pause after the last push has ended.
        outdegree: array of shape (m, 1) with the number of imports of each module.
        edge_rows: for each import, the row of the importing module. Imports are ordered by the imported module's shard and row.
        target_starts: array of shape (t,) with the index in `edge_rows` of the first import of each imported module.
        target_rows: array of shape (t,) with the row of each imported module in its own shard.
        peers, peer_starts: this shard and its neighbours. For each of them, `peer_starts` contains the index in `target_rows` at which its
            rows start. The end index follows.
    """

    shard: int
    shards: int
    batch: int
    rounds: int
    part: int
    seconds: float
    rank: Int64Array
    residual: Int64Array
    early: Int64Array
    rounded: Int64Array
    pushed: list[int]
    arrived: list[int]
    arrived_early: list[int]
    is_due: list[bool]
    outdegree: Int64Array
    edge_rows: Int32Array
    target_starts: Int32Array
    target_rows: Int32Array
    peers: list[int]
    peer_starts: list[int]


class Flow(msgspec.Struct, frozen=True):
    """Mass that is sent to one shard. `rows` has the shape (k,) and contains no duplicates. `units` has the shape (k, part) and contains
    one column for each seed, starting at seed `column`."""

    shard: int
    round: int
    column: int
    rows: Int32Array
    amounts: Int64Array


def rounds_for(tolerance: float) -> int:
    """Return the smallest number of rounds after which at most a fraction `tolerance` of a seed's mass is residual.

    Raises:
        UsageError: If `tolerance` is less than one unit or more than the whole mass of a seed.
    """
    if not 1 / UNIT <= tolerance <= 1:
        raise UsageError(f"a tolerance of {tolerance}: use a fraction of one seed's mass, {1 / UNIT:.1e} to 1")
    return next(k for k in range(ROUNDS_MAX + 1) if (DAMPING_TWENTIETHS / 20) ** k <= tolerance)


def choose_seeds(imports: Sequence[Sequence[int]], count: int) -> tuple[int, ...]:
    """Return the `count` modules with the most imports, or all modules if there are fewer.

    Modules with the same number of imports keep their order.
    """
    return tuple(sorted(range(len(imports)), key=lambda module: (-len(imports[module]), module))[:count])


def build_shard(problem: Problem, shard: int) -> ShardState:
    """Return the state of a shard before the first push. All mass is residual and belongs to the modules of the seeds."""
    modules = range(shard, len(problem.imports), problem.shards)
    edges = sorted(
        (target % problem.shards, target // problem.shards, row)
        for row, module in enumerate(modules)
        for target in problem.imports[module]
    )
    targets = sorted({(peer, target_row) for peer, target_row, _ in edges})
    first_edge = {edge[:2]: index for index, edge in reversed(list(enumerate(edges)))}
    peers = sorted({shard, *neighbours_of(problem, shard)})
    residual = np.zeros((len(modules), len(problem.seeds)), dtype=np.int64)
    for column, module in enumerate(problem.seeds):
        if module % problem.shards == shard:
            residual[module // problem.shards, column] += UNIT
    batches = -(-len(problem.seeds) // problem.batch)
    return ShardState(
        shard=shard,
        shards=problem.shards,
        batch=problem.batch,
        rounds=problem.rounds,
        part=problem.part,
        seconds=problem.seconds,
        rank=np.zeros_like(residual),
        residual=residual,
        early=np.zeros_like(residual),
        rounded=np.zeros(len(problem.seeds), dtype=np.int64),
        pushed=[0] * batches,
        arrived=[0] * batches,
        arrived_early=[0] * batches,
        is_due=[False] * batches,
        outdegree=np.array([[len(problem.imports[module])] for module in modules], dtype=np.int64),
        edge_rows=np.array([row for _, _, row in edges], dtype=np.int32),
        target_starts=np.array([first_edge[target] for target in targets], dtype=np.int32),
        target_rows=np.array([row for _, row in targets], dtype=np.int32),
        peers=peers,
        peer_starts=[bisect.bisect_left(targets, (peer,)) for peer in [*peers, problem.shards]],
    )


def neighbours_of(problem: Problem, shard: int) -> set[int]:
    """Return the other shards that are connected to this shard by an import in either direction."""
    found = set()
    for module, targets in enumerate(problem.imports):
        source = module % problem.shards
        for target in targets:
            if source == shard:
                found.add(target % problem.shards)
            elif target % problem.shards == shard:
                found.add(source)
    return found - {shard}


def check_flow(state: ShardState, flow: Flow) -> None:
    """Check that `receive` can add this flow completely. Call this before changing the state.

    Raises:
        ValueError: If the column, round, rows or amounts of the flow are invalid for this shard.
    """
    if not 0 <= flow.column < len(state.rounded):
        raise ValueError(f"column {flow.column} of {len(state.rounded)}")
    batch = batch_of(state, flow.column)
    next_round = state.pushed[batch]
    if not max(0, next_round - 1) <= flow.round <= min(next_round, state.rounds - 1):
        raise ValueError(f"mass of round {flow.round} before the push of round {next_round}")
    part = next((part for part in _parts(state, batch, flow.round) if part.start == flow.column), None)
    if part is None:
        raise ValueError(f"column {flow.column} begins no part of round {flow.round}")
    if flow.rows.ndim != 1 or flow.amounts.shape != (len(flow.rows), part.stop - part.start):
        raise ValueError(f"amounts of shape {flow.amounts.shape} for {flow.rows.shape} rows and seeds {part}")
    if len(flow.rows) and not 0 <= int(flow.rows.min()) <= int(flow.rows.max()) < len(state.residual):
        raise ValueError(f"a row outside 0..{len(state.residual) - 1}")


def receive(state: ShardState, flow: Flow) -> None:
    """Add mass from a neighbour to the state. The rows of the flow must not contain duplicates."""
    batch = batch_of(state, flow.column)
    is_early = flow.round == state.pushed[batch]
    (state.arrived_early if is_early else state.arrived)[batch] += 1
    if len(flow.rows):
        columns = slice(flow.column, flow.column + flow.amounts.shape[1])
        (state.early if is_early else state.residual)[flow.rows, columns] += flow.amounts


def is_settled(state: ShardState, batch: int) -> bool:
    """Return whether the shard has pushed this batch in all rounds. Mass of this batch may still be in transit."""
    return state.pushed[batch] == state.rounds


def is_ready(state: ShardState, batch: int) -> bool:
    """Return whether the next push is allowed.

    The pause before the push must have ended, and all mass of the previous round must have arrived.
    """
    pushed = state.pushed[batch]
    if not state.is_due[batch] or pushed == state.rounds:
        return False
    return pushed == 0 or state.arrived[batch] == (len(state.peers) - 1) * len(_parts(state, batch, pushed - 1))


def push(state: ShardState, batch: int) -> list[Flow]:
    """Push each residual of the batch once, and return the mass for the neighbours. Call this only if `is_ready` returns True.

    Mass for modules of this shard is added to their residuals.
    """
    columns = _columns(state, batch)
    moved = state.residual[:, columns].copy()
    has_imports = state.outdegree > 0
    share: Int64Array = moved * (DAMPING_TWENTIETHS * has_imports) // np.maximum(20 * state.outdegree, 1)
    kept = moved - share * state.outdegree
    state.rank[:, columns] += kept
    # The mass beyond 3/20 that a module with imports retains is due to rounding. A module without imports correctly retains everything.
    state.rounded[columns] += ((20 * kept - (20 - DAMPING_TWENTIETHS) * moved) * has_imports).sum(axis=0)
    state.residual[:, columns] = state.early[:, columns]
    state.early[:, columns] = 0
    state.arrived[batch], state.arrived_early[batch] = state.arrived_early[batch], 0
    state.is_due[batch] = False
    leaving = _spread(state, batch, share)
    state.pushed[batch] += 1
    return leaving


def _spread(state: ShardState, batch: int, share: Int64Array) -> list[Flow]:
    """Add up the shares that each imported module receives. Shares for modules of this shard are added immediately. The remaining shares
    are divided into messages."""
    first_column, this_round = batch * state.batch, state.pushed[batch]
    amounts: Int64Array = share[:0]
    if len(state.target_rows):
        amounts = np.add.reduceat(share[state.edge_rows], state.target_starts, axis=0)
    spans = list(zip(state.peers, state.peer_starts[:-1], state.peer_starts[1:], strict=True))
    for peer, start, end in spans:
        if peer == state.shard:
            state.residual[state.target_rows[start:end], _columns(state, batch)] += amounts[start:end]
    flows = []
    for part in _parts(state, batch, this_round):
        of_part = amounts[:, part.start - first_column : part.stop - first_column]
        is_filled = (of_part > 0).max(axis=1, initial=False)
        for peer, start, end in spans:
            if peer != state.shard:
                filled = is_filled[start:end]
                rows, sent = state.target_rows[start:end][filled], of_part[start:end][filled]
                flows.append(Flow(peer, this_round, part.start, rows, sent))
    return flows


def pause_s(state: ShardState, batch: int) -> float:
    """Return the minimum time in seconds between the last push and the next push. The sum of all pauses of a batch is `seconds`."""
    early_rounds = min(state.rounds, EARLY_ROUNDS)
    pauses = EARLY_PAUSES * early_rounds + state.rounds - early_rounds
    return state.seconds / pauses * (EARLY_PAUSES if state.pushed[batch] <= EARLY_ROUNDS else 1)


def batches_of(state: ShardState) -> range:
    return range(len(state.pushed))


def batch_of(state: ShardState, column: int) -> int:
    """Return the number of the batch that contains a seed."""
    return column // state.batch


def pushes_in_all(problem: Problem) -> int:
    """Return the total number of pushes, summed over all shards, batches and rounds."""
    return problem.shards * -(-len(problem.seeds) // problem.batch) * problem.rounds


def messages_in_all(problem: Problem) -> int:
    """Return the total number of messages between shards."""
    state = build_shard(problem, 0)
    parts = sum(_parts_in_all(state, batch) for batch in batches_of(state))
    return parts * sum(len(neighbours_of(problem, shard)) for shard in range(problem.shards))


def _columns(state: ShardState, batch: int) -> slice:
    return slice(batch * state.batch, min((batch + 1) * state.batch, len(state.rounded)))


def _parts(state: ShardState, batch: int, this_round: int) -> list[slice]:
    """Return, for each message to one neighbour in a round, the columns of the seeds in the message."""
    columns = _columns(state, batch)
    if this_round >= EARLY_ROUNDS:
        return [columns]
    return [
        slice(start, min(start + state.part, columns.stop)) for start in range(columns.start, columns.stop, state.part)
    ]


def _parts_in_all(state: ShardState, batch: int) -> int:
    early = min(state.rounds, EARLY_ROUNDS)
    return early * len(_parts(state, batch, 0)) + state.rounds - early


def units_in_states(states: Iterable[ShardState]) -> Int64Array:
    """Return the number of units of each seed in these states."""
    totals = [state.rank.sum(axis=0) + residuals_of(state) for state in states]
    total: Int64Array = np.sum(totals, axis=0, dtype=np.int64)
    return total


def residuals_of(state: ShardState) -> Int64Array:
    """Return the number of units of each seed that this shard must still push."""
    total: Int64Array = state.residual.sum(axis=0) + state.early.sum(axis=0)
    return total


def units_in_flows(flows: Iterable[tuple[int, Int64Array]], *, seeds: int) -> Int64Array:
    """Return the number of units of each seed in these messages. Each message is represented by its first column and its amounts."""
    total = np.zeros(seeds, dtype=np.int64)
    for column, amounts in flows:
        total[column : column + amounts.shape[1]] += amounts.sum(axis=0)
    return total


def gather(states: Iterable[ShardState]) -> Int64Array:
    """Return the ranks of all shards as one array of units with the shape (modules, seeds)."""
    ordered = sorted(states, key=lambda state: state.shard)
    ranks = np.empty((sum(len(state.rank) for state in ordered), ordered[0].rank.shape[1]), dtype=np.int64)
    for state in ordered:
        ranks[state.shard :: state.shards] = state.rank
    return ranks


def error_bound(states: Iterable[ShardState]) -> float:
    """Return the largest possible difference between an entry of `gather(states) / UNIT` and the true rank. All channels must be empty."""
    ordered = list(states)
    left = np.sum([residuals_of(state) for state in ordered], axis=0)
    rounded = np.sum([state.rounded for state in ordered], axis=0)
    return float((left + rounded / 20).max()) / UNIT + 2.0**-52
