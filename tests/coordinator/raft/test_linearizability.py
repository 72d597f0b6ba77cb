"""The checker itself: it accepts what one copy could have answered, and nothing else.

Its oracle tries every order of every subset; histories of a simulated register are right by construction, and each way to
break them is found.
"""

import itertools
import random
from typing import Any

import pytest
from tests.coordinator.raft.linearizability import Operation, check, check_objects, register


def op(called: float, answered: float | None, asked: Any, answer: Any = None) -> Operation:
    return Operation(called, answered, asked, answer)


def by_definition(history: list[Operation]) -> bool:
    """Some order of the answered operations and some of the others respects time and explains every answer."""
    known = [each for each in history if each.answered is not None]
    unknown = [each for each in history if each.answered is None]
    for count in range(len(unknown) + 1):
        for extra in itertools.combinations(unknown, count):
            if any(is_an_explanation(order) for order in itertools.permutations([*known, *extra])):
                return True
    return False


def is_an_explanation(order: tuple[Operation, ...]) -> bool:
    state: Any = 0
    for number, operation in enumerate(order):
        if any(later.answered is not None and later.answered < operation.called for later in order[number + 1 :]):
            return False
        state, answer = register(state, operation.asked)
        if operation.answered is not None and answer != operation.answer:
            return False
    return True


def arbitrary(chance: random.Random) -> list[Operation]:
    """A few overlapping operations with answers that may be right."""
    history = []
    for _ in range(chance.randrange(1, 6)):
        called = chance.randrange(12)
        answered = None if chance.random() < 0.2 else called + chance.randrange(8)
        kinds: list[tuple[tuple[Any, ...], list[Any]]] = [
            (("read",), [0, 1, 2, 3]),
            (("write", chance.randrange(1, 4)), [None]),
            (("add", 1), [1, 2, 3, 4]),
            (("cas", chance.randrange(3), chance.randrange(3)), [True, False]),
        ]
        asked, answers = chance.choice(kinds)
        history.append(op(called, answered, asked, None if answered is None else chance.choice(answers)))
    return history


def simulated(chance: random.Random, operations: int, clients: int = 4, lost: float = 0.1) -> list[Operation]:
    """What concurrent clients of one real register see; each operation happens somewhere between call and answer."""
    history: list[Operation] = []
    free = [0.0] * clients
    planned = []
    for _ in range(operations):
        client = chance.randrange(clients)
        called = free[client] + chance.random()
        at = called + chance.random()
        free[client] = at + chance.random()
        asked = chance.choice(
            [("read",), ("write", chance.randrange(5)), ("add", 1), ("cas", chance.randrange(5), chance.randrange(5))]
        )
        planned.append((at, called, free[client], asked))
    state: Any = 0
    for _, called, answered, asked in sorted(planned):
        is_lost = chance.random() < lost  # … and half of those did happen
        if not is_lost or chance.random() < 0.5:
            state, answer = register(state, asked)
        history.append(op(called, None if is_lost else answered, asked, None if is_lost else answer))
    return history


def test_agrees_with_the_definition() -> None:
    chance = random.Random(1)
    found = {True: 0, False: 0}
    for _ in range(1500):
        history = arbitrary(chance)
        verdict = check(history, register, 0)
        assert verdict.is_linearizable == by_definition(history), history
        found[verdict.is_linearizable] += 1
        if verdict.is_linearizable:
            assert is_an_explanation(tuple(verdict.order))
    assert min(found.values()) > 200, found


def test_accepts_what_one_register_answers() -> None:
    chance = random.Random(2)
    for _ in range(40):
        assert check(simulated(chance, 120), register, 0).is_linearizable


def test_finds_one_wrong_answer_in_a_long_history() -> None:
    chance = random.Random(3)
    for _ in range(40):
        history = simulated(chance, 120, lost=0.02)  # each lost one doubles the search
        sums = [n for n, each in enumerate(history) if each.asked[0] == "add" and each.answered is not None]
        spoiled = chance.choice(sums)
        history[spoiled] = history[spoiled]._replace(answer=1000)
        assert not check(history, register, 0).is_linearizable


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([op(0, 1, ("write", 1)), op(2, 3, ("read",), 0)], id="stale read"),
        pytest.param([op(0, 1, ("add", 1), 1), op(2, 3, ("add", 1), 1)], id="lost write"),
        pytest.param([op(0, 1, ("add", 1), 1), op(2, 3, ("read",), 2)], id="done twice"),
        pytest.param([op(0, 9, ("write", 1)), op(1, 2, ("read",), 1), op(3, 4, ("read",), 0)], id="back in time"),
        pytest.param([op(0, 5, ("cas", 0, 1), True), op(0, 5, ("cas", 0, 2), True)], id="two leaders"),
        pytest.param([op(0, 1, ("read",), 7), op(2, None, ("write", 7))], id="seen before it was asked"),
        pytest.param([op(0, None, ("add", 1)), op(1, 2, ("read",), 2)], id="an unknown one done twice"),
        pytest.param(
            [op(0, None, ("write", 1)), op(1, 2, ("read",), 1), op(3, 4, ("read",), 0), op(5, 6, ("read",), 1)],
            id="an unknown one that comes and goes",
        ),
    ],
)
def test_refuses(history: list[Operation]) -> None:
    assert not check(history, register, 0).is_linearizable
    assert not check(list(reversed(history)), register, 0).is_linearizable, "the order of the list means nothing"


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([], id="nothing"),
        pytest.param([op(0, 9, ("write", 1)), op(1, 2, ("read",), 1), op(1, 2, ("read",), 0)], id="overlap"),
        pytest.param([op(0, None, ("write", 1)), op(5, 6, ("read",), 0)], id="an unknown one that never happened"),
        pytest.param(
            [op(0, None, ("write", 1)), op(5, 6, ("read",), 0), op(7, 8, ("read",), 1)], id="an unknown one, late"
        ),
        pytest.param([op(0, 1, ("write", 1)), op(1, 2, ("read",), 0)], id="equal times overlap"),
    ],
)
def test_accepts(history: list[Operation]) -> None:
    assert check(history, register, 0).is_linearizable


def test_objects_are_checked_apart() -> None:
    history = [
        Operation(0, 1, ("write", 1), None, "a"),
        Operation(2, 3, ("read",), 0, "b"),
        Operation(2, 3, ("read",), 0, "a"),
    ]
    verdicts = check_objects(history, register, 0)
    assert verdicts["b"].is_linearizable and not verdicts["a"].is_linearizable
