"""Forward push in whole numbers: no unit is ever lost, and the result is within the bound of the sequential one."""

import itertools
import random
from collections import deque
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snapline.errors import UsageError
from snapline.examples.forward_push import (
    EARLY_ROUNDS,
    ROUNDS_MAX,
    UNIT,
    Flow,
    Int64Array,
    Problem,
    ShardState,
    batches_of,
    build_shard,
    check_flow,
    choose_seeds,
    error_bound,
    gather,
    is_ready,
    is_settled,
    messages_in_all,
    pause_s,
    push,
    pushes_in_all,
    receive,
    residuals_of,
    rounds_for,
    units_in_flows,
    units_in_states,
)
from snapline.examples.pagerank import ACCURACY, personalised_pagerank

SCHEDULES = ("random", "near first", "pauses first", "messages first", "one shard last")


class Run:
    """Shards and channels in memory. Each step ends some batch's pause or delivers some channel's first message.

    A schedule says what goes first wherever there is a choice; within that, chance decides. "near first" is a fleet on
    two hosts: what goes to another host arrives only when nothing else can happen.
    """

    def __init__(self, problem: Problem, seed: int, schedule: str = "random") -> None:
        self.problem = problem
        self.random = random.Random(seed)
        self.schedule = schedule
        self.states = [build_shard(problem, shard) for shard in range(problem.shards)]
        self.channels: dict[tuple[int, int], deque[Flow]] = {}
        self.pushes = self.messages = 0

    def step(self) -> bool:
        """False when nothing is left to do."""
        pauses = [
            (state, batch)
            for state in self.states
            for batch in batches_of(state)
            if not state.is_due[batch] and not is_settled(state, batch)
        ]
        filled = [channel for channel, queue in self.channels.items() if queue]
        first_pauses, first_filled = self._what_goes_first(pauses, filled)
        if not first_pauses and not first_filled:
            first_pauses, first_filled = pauses, filled
        choice = self.random.randrange(len(first_pauses) + len(first_filled)) if pauses or filled else -1
        if choice < 0:
            return False
        if choice < len(first_pauses):
            state, batch = first_pauses[choice]
            state.is_due[batch] = True
        else:
            state, batch = self._deliver(first_filled[choice - len(first_pauses)])
        if is_ready(state, batch):
            self._push(state, batch)
        return True

    def _what_goes_first(
        self, pauses: list[tuple[ShardState, int]], filled: list[tuple[int, int]]
    ) -> tuple[list[tuple[ShardState, int]], list[tuple[int, int]]]:
        match self.schedule:
            case "near first":
                return pauses, [channel for channel in filled if (channel[0] - channel[1]) % 2 == 0]
            case "pauses first":
                return pauses, []
            case "messages first":
                return [], filled
            case "one shard last":
                return [pause for pause in pauses if pause[0].shard], [channel for channel in filled if channel[1]]
            case _:
                return pauses, filled

    def _deliver(self, channel: tuple[int, int]) -> tuple[ShardState, int]:
        flow = self.channels[channel].popleft()
        state = self.states[flow.shard]
        check_flow(state, flow)
        receive(state, flow)
        self.messages += 1
        return state, flow.column // self.problem.batch

    def _push(self, state: ShardState, batch: int) -> None:
        self.pushes += 1
        for flow in push(state, batch):
            self.channels.setdefault((state.shard, flow.shard), deque()).append(flow)

    def units(self) -> list[int]:
        """All units per seed, as Python integers."""
        flows = [(flow.column, flow.amounts) for queue in self.channels.values() for flow in queue]
        total: list[int] = (
            units_in_states(self.states) + units_in_flows(flows, seeds=len(self.problem.seeds))
        ).tolist()
        return total

    def finish(self) -> None:
        for _ in range(messages_in_all(self.problem) + pushes_in_all(self.problem) + 1):
            if not self.step():
                return
        raise AssertionError("more steps than messages and pauses: the work is not bounded")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Small graphs with everything that is awkward: cycles, modules that import themselves, modules without imports."""
    count = draw(st.integers(1, 9))
    module = st.integers(0, count - 1)
    return Problem(
        imports=[sorted(draw(st.sets(module, max_size=4))) for _ in range(count)],
        seeds=tuple(draw(st.lists(module, min_size=1, max_size=6))),
        shards=draw(st.integers(1, count)),
        batch=draw(st.integers(1, 7)),
        part=draw(st.integers(1, 7)),
        rounds=draw(st.sampled_from([0, 1, 2, EARLY_ROUNDS + 3])),
    )


def ranks_of_one_shard(problem: Problem) -> Int64Array:
    """The same rounds without any message: all modules in one shard, all seeds in one batch."""
    whole = msgspec.structs.replace(problem, shards=1, batch=len(problem.seeds))
    state = build_shard(whole, 0)
    for _ in range(problem.rounds):
        assert push(state, 0) == []
    return state.rank


@given(problem=problems(), seed=st.integers(0, 2**32), schedule=st.sampled_from(SCHEDULES))
@settings(max_examples=60)
@example(problem=Problem(imports=[[1], [0]] * 3, seeds=(0, 3), shards=6, batch=1, part=1, rounds=20), seed=0, schedule="near first")  # fmt: skip
def test_every_schedule_keeps_every_unit_and_does_the_stated_work(problem: Problem, seed: int, schedule: str) -> None:
    run = Run(problem, seed, schedule)
    for _ in range(100):
        assert run.units() == [UNIT] * len(problem.seeds)
        assert all((state.residual >= 0).all() and (state.rank >= 0).all() for state in run.states)
        if not run.step():
            break
    run.finish()
    assert run.units() == [UNIT] * len(problem.seeds)
    assert (run.pushes, run.messages) == (pushes_in_all(problem), messages_in_all(problem))
    assert all(is_settled(state, batch) for state in run.states for batch in batches_of(state))


@given(problem=problems(), seed=st.integers(0, 2**32), schedule=st.sampled_from(SCHEDULES))
@settings(max_examples=40)
def test_every_schedule_ends_with_the_same_ranks_within_the_bound(problem: Problem, seed: int, schedule: str) -> None:
    run = Run(problem, seed, schedule)
    run.finish()
    assert (gather(run.states) == ranks_of_one_shard(problem)).all()
    left = np.sum([residuals_of(state) for state in run.states], axis=0).tolist()
    assert all(20**problem.rounds * units <= 17**problem.rounds * UNIT for units in left)
    difference = np.abs(gather(run.states) / UNIT - personalised_pagerank(problem.imports, problem.seeds)).max()
    assert difference <= error_bound(run.states) + ACCURACY


def test_neighbours_are_never_more_than_one_round_apart_but_others_are() -> None:
    """A chain: the far end runs ahead of a shard that gets nothing, by as many rounds as there are shards between."""
    chain = Problem(imports=[[1], [2], [3], [4], []], seeds=(0,), shards=5, batch=1, part=1, rounds=30)
    run = Run(chain, seed=1, schedule="one shard last")
    apart = 0
    while run.step():
        rounds = [state.pushed[0] for state in run.states]
        assert all(abs(one - other) <= 1 for one, other in itertools.pairwise(rounds))
        apart = max(apart, rounds[-1] - rounds[0])
    assert apart == 4


@given(problem=problems())
@settings(max_examples=20)
def test_the_sequential_result_solves_the_linear_equations(problem: Problem) -> None:
    """By elimination, the third way to compute it: (I - 0.85 P') x = e."""
    count = len(problem.imports)
    matrix = np.eye(count)
    for module, targets in enumerate(problem.imports):
        for target in targets:
            matrix[target, module] -= 0.85 / len(targets)
    unit_vectors = np.eye(count)[:, list(problem.seeds)]
    stopping = np.array([[0.15 if targets else 1.0] for targets in problem.imports])
    solved = np.linalg.solve(matrix, unit_vectors) * stopping
    assert np.abs(personalised_pagerank(problem.imports, problem.seeds) - solved).max() <= ACCURACY
    assert np.abs(solved.sum(axis=0) - 1).max() <= ACCURACY


def small_problem(rounds: int = 40) -> Problem:
    """A cycle of four with shortcuts and one module without imports, in two shards."""
    return Problem(imports=[[1, 4], [2], [0, 3], [0], []], seeds=(0, 2), shards=2, batch=2, part=1, rounds=rounds)


@pytest.mark.parametrize("damage", ["lost", "doubled", "one unit"])
def test_the_account_notices_a_damaged_message(damage: str) -> None:
    run = Run(small_problem(), seed=7)
    while not any(queue and queue[0].amounts.any() for queue in run.channels.values()):
        run.step()
    queue = next(queue for queue in run.channels.values() if queue and queue[0].amounts.any())
    if damage == "lost":
        queue.popleft()
    elif damage == "doubled":
        queue.append(queue[0])
    else:
        queue[0].amounts[0, 0] += 1
    assert run.units() != [UNIT, UNIT]


def test_the_bound_has_teeth() -> None:
    """Few rounds leave a difference of the bound's order: the bound is not merely large."""
    run = Run(small_problem(rounds=12), seed=3)
    run.finish()
    difference = np.abs(gather(run.states) / UNIT - personalised_pagerank(run.problem.imports, run.problem.seeds)).max()
    assert difference > error_bound(run.states) / 20
    assert error_bound(run.states) < 0.2


@pytest.mark.parametrize("seed", range(5))
def test_flooring_alone_is_bounded_too(seed: int) -> None:
    """After all rounds no residual is left: the whole difference is what flooring kept back. Compared as fractions."""
    run = Run(small_problem(rounds=ROUNDS_MAX), seed)
    run.finish()
    assert all((residuals_of(state) == 0).all() for state in run.states)
    ranks = gather(run.states).tolist()
    for column, start in enumerate(run.problem.seeds):
        exact = exact_ranks(run.problem.imports, start)
        difference = max(abs(Fraction(row[column], UNIT) - rank) for row, rank in zip(ranks, exact, strict=True))
        kept_back = sum(int(state.rounded[column]) for state in run.states)
        assert 0 < difference <= Fraction(kept_back, 20 * UNIT)
    assert error_bound(run.states) < 1e-11


def exact_ranks(imports: list[list[int]], start: int) -> list[Fraction]:
    """(I - 17/20 P') x = e by elimination in fractions."""
    count = len(imports)
    rows = [
        [Fraction(int(row == column)) for column in range(count)] + [Fraction(int(row == start))]
        for row in range(count)
    ]
    for module, targets in enumerate(imports):
        for target in targets:
            rows[target][module] -= Fraction(17, 20 * len(targets))
    for pivot in range(count):  # its columns are dominated by the diagonal: no pivot is zero
        rows[pivot] = [value / rows[pivot][pivot] for value in rows[pivot]]
        for other in range(count):
            if other != pivot:
                factor = rows[other][pivot]
                rows[other] = [value - factor * taken for value, taken in zip(rows[other], rows[pivot], strict=True)]
    return [row[-1] * (Fraction(3, 20) if targets else 1) for row, targets in zip(rows, imports, strict=True)]


def test_a_module_without_imports_keeps_what_reaches_it() -> None:
    run = Run(Problem(imports=[[1], []], seeds=(0, 1), shards=2, batch=1, part=1, rounds=2), seed=0)
    run.finish()
    ranks = gather(run.states)
    assert ranks[1, 1] == UNIT
    assert ranks[0, 0] == UNIT - UNIT * 17 // 20


@pytest.mark.parametrize(
    ("this_round", "column", "rows", "shape"),
    [
        (0, 2, [0], (1, 1)),
        (0, -1, [0], (1, 1)),
        (0, 0, [9], (1, 1)),
        (0, 0, [-1], (1, 1)),
        (0, 0, [0], (1, 2)),
        (0, 0, [0, 1], (1, 1)),
        (-1, 0, [0], (1, 1)),
        (1, 0, [0], (1, 1)),
    ],
)
def test_a_flow_that_does_not_fit_is_refused(this_round: int, column: int, rows: list[int], shape: tuple[int, int]) -> None:  # fmt: skip
    state = build_shard(small_problem(), 0)
    amounts = np.ones(shape, dtype=np.int64)
    with pytest.raises(ValueError, match=r"round|column|row|shape"):
        check_flow(state, Flow(0, this_round, column, np.array(rows, dtype=np.int32), amounts))


def test_a_later_round_comes_in_one_message_for_the_whole_batch() -> None:
    state = build_shard(small_problem(), 0)
    sent = []
    for this_round in range(EARLY_ROUNDS + 1):
        sent.append([(flow.round, flow.column, flow.amounts.shape[1]) for flow in push(state, 0)])
        assert sent[this_round][0][0] == this_round
    assert sent[0] == [(0, 0, 1), (0, 1, 1)]
    assert sent[EARLY_ROUNDS] == [(EARLY_ROUNDS, 0, 2)]


@given(problem=problems())
@settings(max_examples=20)
def test_the_pauses_of_a_batch_add_up_to_the_shortest_time(problem: Problem) -> None:
    """The pause after the last push is not waited: there is none before the first of batch 0 either."""
    state = build_shard(msgspec.structs.replace(problem, seconds=20.0), 0)
    total = 0.0
    for _ in range(problem.rounds):
        state.pushed[0] += 1
        total += pause_s(state, 0)
    assert total == pytest.approx(20.0 if problem.rounds else 0.0)


@pytest.mark.parametrize(("tolerance", "rounds"), [(1.0, 0), (0.85, 1), (0.84, 2), (1e-8, 114), (1 / UNIT, ROUNDS_MAX)])
def test_a_tolerance_fixes_the_rounds(tolerance: float, rounds: int) -> None:
    assert rounds_for(tolerance) == rounds


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 1.5, float("nan"), 1e-17])
def test_a_tolerance_out_of_range_is_refused(tolerance: float) -> None:
    with pytest.raises(UsageError, match="tolerance"):
        rounds_for(tolerance)


def test_seeds_are_the_modules_with_most_imports_ties_in_order() -> None:
    assert choose_seeds([[1], [0, 2], [], [0, 1], [2]], 3) == (1, 3, 0)
    assert choose_seeds([[1], []], 64) == (0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shards": 0},
        {"shards": 6},
        {"seeds": ()},
        {"batch": 0},
        {"part": 0},
        {"rounds": -1},
        {"rounds": ROUNDS_MAX + 1},
        {"seconds": -1.0},
        {"seconds": float("nan")},
    ],
)
def test_a_problem_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    fields = {"imports": [[1]] * 5, "seeds": (0,), "shards": 2, "batch": 1, "part": 1, "rounds": 9}
    with pytest.raises(UsageError):
        Problem(**(fields | wrong))  # type: ignore[arg-type]  # wrong values are the point
