"""Compute personalised PageRank by forward push, in integers. The work is divided into shards that exchange only mass.

The problem. A walker starts at a seed. At each module it follows a random import with probability `damping` = 17/20, and stops otherwise.
At a module without imports it always stops. The rank of a module is the probability that the walker stops at this module. There is one rank
per module and seed. All seeds are computed at the same time, as the columns of one array.

The method. The push operation of Andersen, Chung and Lang, "Local Graph Partitioning using PageRank Vectors" (FOCS
2006), without their lazy walk. Each module has a *rank* (mass that has stopped) and a *residual* (mass that must still be pushed). A push
takes away a residual r, adds the stopping part to the rank, and sends the rest in equal shares along the imports. The linear relation *true
rank = rank + sum over modules of residual times that module's own personalised rank* holds after each push. Mass in transit is a residual
that has not arrived yet.

The order of the pushes. Every order leads to the same ranks, but the amount of work differs. While most of the mass is delayed, shards that
are close to each other exchange tiny amounts, each of which costs as much as a large amount. So shards proceed in rounds, in which each
shard is synchronized only with its neighbours. This is the local synchroniser of Awerbuch, "Complexity of Network Synchronization" (J. ACM
32, 1985). Neighbours are shards with an import between them, in either direction. In round k (0, 1, …) a shard pushes all its residuals
once, and sends every neighbour the same number of messages. Messages without mass are empty. The shard pushes in round k + 1 when it has
received all of its neighbours' messages of round k. No shard waits for the whole fleet, and two neighbours are never more than one round
apart. So a message that arrives belongs to the last round pushed, or is one round early and is stored separately. Channels must be FIFO and
reliable. A shard that stops permanently also stops its neighbours.

The work. The mass that has been pushed k times is at most 17/20 of the mass that had been pushed k - 1 times. After

    rounds = the least k with (17/20)**k <= tolerance

the sum of each seed's residuals is at most `tolerance`, and the shards stop. Whatever the order of events,

    pushes = shards * batches * rounds,
    messages = ordered pairs of neighbours * batches * (parts in each round, added up),

exactly (`pushes_in_all`, `messages_in_all`). The ranks are also the same to the last unit for every order of events and every number of
shards, because a round's shares depend only on the complete residuals of the previous round.

Integers. Each seed starts with UNIT = 2**52 units of mass. Each of a module's d imports gets floor(17 r / (20 d)) units, and the remainder
of r is added to the module's rank. So for every seed, at every consistent cut,

    mass in states (ranks + residuals) + mass in channels = UNIT, to the last unit.

One lost, duplicated or invented message violates this equation.

The error. Rounding down retains less than one unit per import and push. `rounded` counts the retained mass in twentieths of a unit. A unit
that stops too early, or is still residual, can change each entry of its seed's column by at most one unit. So at the end, for each seed,

    |rank / UNIT - true rank| <= (sum of residuals + sum of rounded / 20) / UNIT

plus 2**-52 for the conversion to a float.

The largest product is 20 UNIT < 2**57, and the mass of all seeds is below 2**63 for up to 2,047 seeds. So int64 never overflows.

Modules are assigned to shards in turn (module i is row i // shards of shard i % shards). Modules that are close in the alphabet often
import each other. Distributing them over shards makes the work even and the traffic heavy, which is the purpose of this example. The seeds
are divided into batches whose rounds are independent of each other. In the early rounds, which move nearly all of the mass, each message of
a batch is divided into parts of a few seeds.
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
    """Definition of the problem: the graph as rows of targets, the seeds, and the division of the work.

    Attributes:
        imports: for each module, the modules that it imports.
        seeds: modules at which walkers start. The seeds may contain duplicates.
        shards: number of shards.
        batch: number of seeds whose mass is sent together. The last batch may be smaller.
        rounds: number of rounds.
        part: number of seeds per message in the early rounds.
        seconds: shortest total time of all rounds, which `pause_s` spreads over the rounds. If 0, there are no pauses.
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
    """State of one shard. The shard has m modules and n seeds, and its modules import t modules in any shard.

    Attributes:
        shard, shards, batch, rounds, part, seconds: copied from the problem.
        rank, residual: (m, n) units that have stopped, and units that the next push takes.
        early: (m, n) units that arrived one round early, which only the push after the next takes.
        rounded: (n,) twentieths of units that rounding down has retained so far.
        pushed: per batch, the number of rounds pushed so far. The next push belongs to round `pushed`.
        arrived, arrived_early: per batch, the numbers of messages that have arrived from round `pushed - 1`, and from round `pushed`.
        is_due: per batch, whether the pause after the last push has ended.
        outdegree: (m, 1) number of imports of each module.
        edge_rows: row of the importing module for each import, ordered by the imported module's shard and row.
        target_starts: (t,) index in `edge_rows` at which the imports of each imported module begin.
        target_rows: (t,) row of each imported module in its own shard.
        peers, peer_starts: this shard and its neighbours, and the index in `target_rows` at which each one's rows begin, followed by the
            end.
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
    """Mass for one shard. The flow has distinct rows (k,), and the units for each row and each seed from `column` on (k, part)."""

    shard: int
    round: int
    column: int
    rows: Int32Array
    amounts: Int64Array


def rounds_for(tolerance: float) -> int:
    """Return the smallest number of rounds after which at most the fraction `tolerance` of a seed's mass is residual.

    Raises:
        UsageError: If `tolerance` is not between one unit and the whole mass of a seed.
    """
    if not 1 / UNIT <= tolerance <= 1:
        raise UsageError(f"a tolerance of {tolerance}: use a fraction of one seed's mass, {1 / UNIT:.1e} to 1")
    return next(k for k in range(ROUNDS_MAX + 1) if (DAMPING_TWENTIETHS / 20) ** k <= tolerance)


def choose_seeds(imports: Sequence[Sequence[int]], count: int) -> tuple[int, ...]:
    """Return the `count` modules that have the most imports, or all modules if there are fewer.

    Modules with equally many imports stay in order.
    """
    return tuple(sorted(range(len(imports)), key=lambda module: (-len(imports[module]), module))[:count])


def build_shard(problem: Problem, shard: int) -> ShardState:
    """Return the state of a shard before the first push, when each seed's mass is the residual of the seed's module."""
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
    """Return the other shards that import from this shard or from which this shard imports."""
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
    """Reject a flow that `receive` could not add completely. Call this before the state is changed.

    Raises:
        ValueError: If the column, round, rows or amounts of the flow do not fit this shard.
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
    """Add mass from a neighbour to the state. The rows of the flow must be distinct."""
    batch = batch_of(state, flow.column)
    is_early = flow.round == state.pushed[batch]
    (state.arrived_early if is_early else state.arrived)[batch] += 1
    if len(flow.rows):
        columns = slice(flow.column, flow.column + flow.amounts.shape[1])
        (state.early if is_early else state.residual)[flow.rows, columns] += flow.amounts


def is_settled(state: ShardState, batch: int) -> bool:
    """Return whether the shard has pushed all rounds of this batch. Mass of the batch may still be in transit."""
    return state.pushed[batch] == state.rounds


def is_ready(state: ShardState, batch: int) -> bool:
    """Return whether the next push may be done.

    The pause before the push must have ended, and all mass of the last round must have arrived.
    """
    pushed = state.pushed[batch]
    if not state.is_due[batch] or pushed == state.rounds:
        return False
    return pushed == 0 or state.arrived[batch] == (len(state.peers) - 1) * len(_parts(state, batch, pushed - 1))


def push(state: ShardState, batch: int) -> list[Flow]:
    """Push each residual of the batch once. Call this only if `is_ready` returns True.

    Return the mass for the neighbours. Mass that stays in this shard is added to its residuals.
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
    """Add up the shares of each imported module. Add the shares of this shard's modules immediately, and divide the rest into messages."""
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
    """Return the shortest time in seconds between the last push and the next push. The sum of all pauses of a batch is `seconds`."""
    early_rounds = min(state.rounds, EARLY_ROUNDS)
    pauses = EARLY_PAUSES * early_rounds + state.rounds - early_rounds
    return state.seconds / pauses * (EARLY_PAUSES if state.pushed[batch] <= EARLY_ROUNDS else 1)


def batches_of(state: ShardState) -> range:
    """Return the numbers of the batches."""
    return range(len(state.pushed))


def batch_of(state: ShardState, column: int) -> int:
    """Return the number of the batch to which a seed belongs."""
    return column // state.batch


def pushes_in_all(problem: Problem) -> int:
    """Return the total number of pushes, over all shards, batches and rounds."""
    return problem.shards * -(-len(problem.seeds) // problem.batch) * problem.rounds


def messages_in_all(problem: Problem) -> int:
    """Return the total number of messages between shards."""
    state = build_shard(problem, 0)
    parts = sum(_parts_in_all(state, batch) for batch in batches_of(state))
    return parts * sum(len(neighbours_of(problem, shard)) for shard in range(problem.shards))


def _columns(state: ShardState, batch: int) -> slice:
    return slice(batch * state.batch, min((batch + 1) * state.batch, len(state.rounded)))


def _parts(state: ShardState, batch: int, this_round: int) -> list[slice]:
    """Return the columns of the seeds in each message to one neighbour in a round."""
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
    """Return the number of units per seed in these shards."""
    totals = [state.rank.sum(axis=0) + residuals_of(state) for state in states]
    total: Int64Array = np.sum(totals, axis=0, dtype=np.int64)
    return total


def residuals_of(state: ShardState) -> Int64Array:
    """Return the number of units per seed that this shard must still push."""
    total: Int64Array = state.residual.sum(axis=0) + state.early.sum(axis=0)
    return total


def units_in_flows(flows: Iterable[tuple[int, Int64Array]], *, seeds: int) -> Int64Array:
    """Return the number of units per seed in these messages. Each message is given as its first column and its amounts."""
    total = np.zeros(seeds, dtype=np.int64)
    for column, amounts in flows:
        total[column : column + amounts.shape[1]] += amounts.sum(axis=0)
    return total


def gather(states: Iterable[ShardState]) -> Int64Array:
    """Return the ranks of all shards as one (modules, seeds) array of units."""
    ordered = sorted(states, key=lambda state: state.shard)
    ranks = np.empty((sum(len(state.rank) for state in ordered), ordered[0].rank.shape[1]), dtype=np.int64)
    for state in ordered:
        ranks[state.shard :: state.shards] = state.rank
    return ranks


def error_bound(states: Iterable[ShardState]) -> float:
    """Return the largest possible difference between an entry of `gather(states) / UNIT` and the true rank. The channels must be empty."""
    ordered = list(states)
    left = np.sum([residuals_of(state) for state in ordered], axis=0)
    rounded = np.sum([state.rounded for state in ordered], axis=0)
    return float((left + rounded / 20).max()) / UNIT + 2.0**-52
