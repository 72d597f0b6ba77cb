"""Forward push in whole numbers: no unit is ever lost, and the result is within the bound of the sequential one."""

import random
from collections import deque
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.errors import MisuseError
from snapline.examples.forward_push import (
    UNIT,
    Flow,
    Problem,
    ShardState,
    build_shard,
    check_flow,
    choose_seeds,
    error_bound,
    gather,
    is_settled,
    push,
    receive,
    units_in_flows,
    units_in_states,
)
from snapline.examples.pagerank_reference import ACCURACY, personalised_pagerank

STEPS_MAX = 50_000


class Run:
    """Shards and channels in memory. Each step pushes some unsettled batch or delivers some channel's first message."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.random = random.Random(seed)
        self.states = [build_shard(problem, shard) for shard in range(problem.shards)]
        self.channels: dict[tuple[int, int], deque[tuple[int, Flow]]] = {}

    def step(self, eagerness: float = 0.5) -> bool:
        """False when nothing is left to do. `eagerness` is the probability of a push where both are possible."""
        pushes = [
            (state, batch)
            for state in self.states
            for batch in range(len(state.is_push_due))
            if not is_settled(state, batch)
        ]
        filled = [channel for channel, queue in self.channels.items() if queue]
        if not pushes and not filled:
            return False
        if pushes and (not filled or self.random.random() < eagerness):
            state, batch = self.random.choice(pushes)
            for flow in push(state, batch):
                self.channels.setdefault((state.shard, flow.shard), deque()).append((batch, flow))
        else:
            channel = self.random.choice(filled)
            batch, flow = self.channels[channel].popleft()
            check_flow(self.states[flow.shard], batch, flow.rows, flow.amounts)
            receive(self.states[flow.shard], batch, flow.rows, flow.amounts)
        return True

    def units(self) -> list[int]:
        """All units per seed, as Python integers."""
        flows = [(batch, flow.amounts) for queue in self.channels.values() for batch, flow in queue]
        in_flows = units_in_flows(flows, seeds=len(self.problem.seeds), batch_size=self.problem.batch)
        total: list[int] = (units_in_states(self.states) + in_flows).tolist()
        return total

    def finish(self) -> None:
        """Deliver before pushing, as the agents do: one push per message would make more messages than it settles."""
        steps = 0
        while self.step(eagerness=0.02):
            steps += 1
            assert steps < STEPS_MAX


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
        tolerance_units=draw(st.sampled_from([0, 1, 1000, UNIT // 10**9, UNIT // 1000])),
    )


@given(problem=problems(), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_interleaving_keeps_every_unit_and_ends_within_the_bound(problem: Problem, seed: int) -> None:
    run = Run(problem, seed)
    for _ in range(100):
        assert run.units() == [UNIT] * len(problem.seeds)
        assert all((state.residual >= 0).all() and (state.rank >= 0).all() for state in run.states)
        if not run.step():
            break
    run.finish()
    assert run.units() == [UNIT] * len(problem.seeds)
    difference = np.abs(gather(run.states) / UNIT - personalised_pagerank(problem.imports, problem.seeds)).max()
    assert difference <= error_bound(run.states) + ACCURACY


@given(problem=problems())
@settings(max_examples=60, deadline=None)
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


def small_problem(tolerance_units: int = UNIT // 10**9) -> Problem:
    """A cycle of four with shortcuts and one module without imports, in two shards."""
    return Problem(
        imports=[[1, 4], [2], [0, 3], [0], []], seeds=(0, 2), shards=2, batch=2, tolerance_units=tolerance_units
    )


@pytest.mark.parametrize("damage", ["lost", "doubled", "one unit"])
def test_the_account_notices_a_damaged_message(damage: str) -> None:
    run = Run(small_problem(), seed=7)
    while not any(run.channels.values()):
        run.step()
    queue = next(queue for queue in run.channels.values() if queue)
    if damage == "lost":
        queue.popleft()
    elif damage == "doubled":
        queue.append(queue[0])
    else:
        queue[0][1].amounts[0, 0] += 1
    assert run.units() != [UNIT, UNIT]


def test_the_bound_has_teeth() -> None:
    """A coarse tolerance leaves a difference of the bound's order: the bound is not merely large."""
    run = Run(small_problem(tolerance_units=UNIT // 50), seed=3)
    run.finish()
    difference = np.abs(gather(run.states) / UNIT - personalised_pagerank(run.problem.imports, run.problem.seeds)).max()
    assert difference > error_bound(run.states) / 20
    assert error_bound(run.states) < 0.2


@pytest.mark.parametrize("seed", range(5))
def test_flooring_alone_is_bounded_too(seed: int) -> None:
    """With tolerance 0 no residual is left: the whole difference is what flooring kept back. Compared as fractions."""
    run = Run(small_problem(tolerance_units=0), seed)
    run.finish()
    assert all((state.residual == 0).all() for state in run.states)
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
    run = Run(Problem(imports=[[1], []], seeds=(0, 1), shards=2, batch=1, tolerance_units=0), seed=0)
    run.finish()
    ranks = gather(run.states)
    assert ranks[1, 1] == UNIT
    assert ranks[0, 0] == UNIT - UNIT * 17 // 20


@pytest.mark.parametrize(
    ("batch", "rows", "shape"),
    [(1, [0], (1, 2)), (-1, [0], (1, 2)), (0, [9], (1, 2)), (0, [-1], (1, 2)), (0, [0], (1, 1)), (0, [0, 1], (1, 2))],
)
def test_a_flow_that_does_not_fit_is_refused(batch: int, rows: list[int], shape: tuple[int, int]) -> None:
    state: ShardState = build_shard(small_problem(), 0)
    with pytest.raises(ValueError, match=r"batch|row|shape"):
        check_flow(state, batch, np.array(rows, dtype=np.int32), np.ones(shape, dtype=np.int64))


def test_seeds_are_the_modules_with_most_imports_ties_in_order() -> None:
    assert choose_seeds([[1], [0, 2], [], [0, 1], [2]], 3) == (1, 3, 0)
    assert choose_seeds([[1], []], 64) == (0, 1)


@pytest.mark.parametrize(
    "wrong",
    [{"shards": 0}, {"shards": 6}, {"seeds": ()}, {"batch": 0}, {"tolerance_units": -1}, {"tolerance_units": UNIT}],
)
def test_a_problem_out_of_range_is_refused(wrong: dict[str, int]) -> None:
    fields: dict[str, object] = {"imports": [[1]] * 5, "seeds": (0,), "shards": 2, "batch": 1, "tolerance_units": 0}
    with pytest.raises(MisuseError):
        Problem(**(fields | wrong))  # type: ignore[arg-type]  # wrong values are the point
