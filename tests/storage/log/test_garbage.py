"""What no epoch could ask for goes, and nothing else: by hand, and against a small fleet that knows what it has consumed."""

from collections.abc import Callable, Mapping

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import Phase, given, settings
from tests.storage.log.logging_hosts import LOG, make_batch

from snapline.storage.log import log_files
from snapline.storage.log.log_files import BatchNumbers, SettledEpoch, batch_numbers, find_garbage
from snapline.storage.log.log_record import LogBatch, LoggedEntry, LoggedInput, LogName
from snapline.storage.packs.checkpoint import JournalEntry

AGENTS = ("a", "b", "c")

Search = Callable[..., list[tuple[LogName, int]]]


def batch(number: int, **highest: int) -> BatchNumbers:
    return BatchNumbers(LOG, number, highest)


def freed(
    batches: list[BatchNumbers], epochs: Mapping[int, Mapping[str, int]], left: Mapping[str, int] | None = None
) -> list[int]:
    return [number for _, number in find_garbage(batches, epochs, left or {})]


BATCHES = [batch(1, a=1), batch(2, a=2, b=1), batch(3, b=2), batch(4)]


@pytest.mark.parametrize(
    ("epochs", "left", "wanted"),
    [
        ({}, {}, []),
        ({}, {"a": 0, "b": 0}, []),
        ({5: {}}, {}, [4]),
        ({5: {"a": 1}}, {}, [1, 4]),
        ({5: {"a": 2}}, {}, [1, 4]),
        ({5: {"a": 2, "b": 1}}, {}, [1, 2, 4]),
        ({5: {"a": 9, "b": 9}}, {}, [1, 2, 3, 4]),
        ({5: {"a": 1}, 6: {"a": 2, "b": 2}}, {}, [1, 4]),
        ({6: {"a": 2, "b": 2}, 5: {"a": 1}}, {}, [1, 4]),
        ({5: {}, 6: {"a": 2, "b": 2}}, {}, [4]),
        ({5: {"a": 1}, 6: {"b": 2}}, {}, [4]),
        ({5: {"a": 1}, 6: {"b": 2}}, {"a": 6}, [1, 4]),
        ({5: {"a": 1}, 6: {"b": 2}}, {"a": 7}, [4]),
        ({6: {"b": 2}}, {"a": 6}, [1, 2, 3, 4]),
        ({6: {"b": 2}}, {"a": 5}, [1, 2, 3, 4]),
        ({6: {"b": 2}, 8: {"a": 1}}, {"a": 6}, [4]),
        ({6: {"b": 2}, 8: {"a": 1, "b": 2}}, {"a": 6}, [3, 4]),
    ],
)
def test_every_kept_epoch_has_to_cover(
    epochs: dict[int, dict[str, int]], left: dict[str, int], wanted: list[int]
) -> None:
    assert freed(BATCHES, epochs, left) == wanted


def test_numbers_of_a_batch() -> None:
    inputs = [LoggedInput(agent, number, "c", "k", b"", 0) for agent, number in (("a", 3), ("b", 1), ("a", 4))]
    assert batch_numbers(LOG, 7, LogBatch(inputs)) == BatchNumbers(LOG, 7, {"a": 4, "b": 1})
    assert batch_numbers(LOG, 1, make_batch(1)).highest == {"a1": 1, "b1": 1}


def entry(agent: str, turn: int) -> LoggedEntry:
    return LoggedEntry(agent, turn, bytes(16), 0, b"", JournalEntry("step", "s", b"", "done", b""))


@pytest.mark.parametrize(
    ("turns", "left", "settled", "wanted"),
    [
        ({5: {}}, {}, SettledEpoch(1, 0), []),
        ({5: {"a": 1}}, {}, SettledEpoch(1, 0), [1]),
        ({5: {"a": 2}, 6: {"a": 1}}, {}, SettledEpoch(1, 0), [1]),
        ({5: {"a": 2}}, {}, SettledEpoch(1, 0), [1, 2]),
        ({6: {}}, {"a": 5}, SettledEpoch(1, 0), [1, 2]),
        ({5: {}}, {"a": 6}, SettledEpoch(1, 0), []),
        ({5: {}, 9: {}}, {}, SettledEpoch(2, 6), []),
        ({6: {}, 9: {}}, {}, SettledEpoch(2, 6), [1, 2]),
    ],
)
def test_entries_of_turns_keep_their_batch_until_these_have_ended_or_are_long_undone(
    turns: dict[int, dict[str, int]], left: dict[str, int], settled: SettledEpoch, wanted: list[int]
) -> None:
    """The batches are of plan 1. An input in the same batch knows nothing of that."""
    batches = [
        batch_numbers(LOG, 1, LogBatch([], [entry("a", 1)])),
        batch_numbers(LOG, 2, LogBatch([], [entry("a", 2), entry("a", 1)])),
        batch_numbers(LOG, 3, LogBatch([LoggedInput("b", 1, "c", "k", b"", 0)], [entry("a", 1)])),
    ]
    inputs: dict[int, dict[str, int]] = {epoch: {} for epoch in turns}
    assert LOG.plan == 1 and batches[1].turns == {"a": 2}
    assert [number for _, number in find_garbage(batches, inputs, left, turns, settled)] == wanted


class Life(msgspec.Struct):
    """One life of an agent: `first` is its first input's number; epochs are those before which it was born or had left."""

    born: int
    first: int
    left: int | None = None

    def lives_in(self, epoch: int) -> bool:
        return self.born <= epoch and (self.left is None or epoch < self.left)


class Cut(msgspec.Struct):
    number: int
    consumed: dict[str, int]


class World:
    """A fleet without rollbacks, which writes its inputs into one log."""

    def __init__(self) -> None:
        self.lives: dict[str, list[Life]] = {"a": [Life(0, 1)]}
        self.admitted: dict[str, int] = {}
        self.consumed: dict[str, int] = {}
        self.batches: list[dict[str, set[int]]] = [{}]
        self.cuts: list[Cut] = []

    def step(self, action: str, agent: str) -> None:
        lives = self.lives.setdefault(agent, [])
        is_alive = bool(lives) and lives[-1].left is None
        admitted, consumed = self.admitted.get(agent, 0), self.consumed.get(agent, 0)
        if action == "create" and not is_alive:
            lives.append(Life(len(self.cuts), admitted + 1))
            self.consumed[agent] = admitted  # What the life before left behind is dead.
        elif action == "admit" and is_alive:
            self.admitted[agent] = admitted + 1
            self.batches[-1].setdefault(agent, set()).add(admitted + 1)
        elif action == "consume" and is_alive and consumed < admitted:
            self.consumed[agent] = consumed + 1
        elif action == "stop" and is_alive:
            lives[-1].left = len(self.cuts)
        elif action == "append":
            self.batches.append({})
        elif action == "cut":
            alive = [name for name, lives in self.lives.items() if lives and lives[-1].left is None]
            self.cuts.append(Cut(len(self.cuts), {name: self.consumed.get(name, 0) for name in alive}))

    def wants(self, cut: Cut, agent: str) -> set[int]:
        """The inputs of this agent that a fleet that goes back to this cut can still come to consume."""
        wanted: set[int] = set()
        for life in self.lives.get(agent, []):
            if life.left is not None and life.left <= cut.number:
                continue
            start = cut.consumed[agent] + 1 if life.lives_in(cut.number) else life.first
            wanted |= set(range(start, self.admitted.get(agent, 0) + 1))
        return wanted

    def left(self) -> dict[str, int]:
        return {name: lives[-1].left for name, lives in self.lives.items() if lives and lives[-1].left is not None}


ACTIONS = st.sampled_from(["create", "admit", "admit", "consume", "consume", "stop", "append", "cut", "cut"])
STEPS = st.lists(st.tuples(ACTIONS, st.sampled_from(AGENTS)), max_size=60)


def search_in(world: World, kept: list[Cut], search: Search) -> None:
    """Assert that nothing goes that a kept cut wants, and that what nobody can want goes."""
    batches = [
        BatchNumbers(LOG, number, {agent: max(numbers) for agent, numbers in each.items()})
        for number, each in enumerate(world.batches, 1)
    ]
    epochs = {cut.number: {agent: number for agent, number in cut.consumed.items() if number} for cut in kept}
    gone = {number for _, number in search(batches, epochs, world.left())}
    for number, each in enumerate(world.batches, 1):
        wanted = any(numbers & world.wants(cut, agent) for agent, numbers in each.items() for cut in kept)
        if number in gone:
            assert kept and not wanted
        elif kept and not wanted:
            twice = [agent for agent in each if len(world.lives[agent]) > 1]
            assert twice, "only second lives are kept longer than they must be"


@given(STEPS, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_nothing_goes_that_a_kept_cut_could_want(steps: list[tuple[str, str]], random: object) -> None:
    run_world(steps, random, find_garbage)


def run_world(steps: list[tuple[str, str]], random: object, search: Search) -> None:
    world = World()
    for action, agent in steps:
        world.step(action, agent)
    kept = [cut for cut in world.cuts if random.random() < 0.5]  # type: ignore[attr-defined]  # random.Random
    search_in(world, kept, search)


def newest_only(
    batches: list[BatchNumbers], epochs: dict[int, dict[str, int]], left: dict[str, int]
) -> list[tuple[LogName, int]]:
    newest = {max(epochs): epochs[max(epochs)]} if epochs else {}
    return find_garbage(batches, newest, left)


def highest_floor(agent: str, epochs: Mapping[int, Mapping[str, int]], left: int | None) -> float:
    return max((inputs.get(agent, 0) for inputs in epochs.values()), default=0)


def floor_where_known(agent: str, epochs: Mapping[int, Mapping[str, int]], left: int | None) -> float:
    return min((inputs[agent] for inputs in epochs.values() if agent in inputs), default=float("inf"))


def floor_without_left(agent: str, epochs: Mapping[int, Mapping[str, int]], left: int | None) -> float:
    return min(inputs.get(agent, 0) for inputs in epochs.values())


def floor_left_is_left(agent: str, epochs: Mapping[int, Mapping[str, int]], left: int | None) -> float:
    return float("inf") if left is not None else floor_without_left(agent, epochs, left)


MUTANTS: dict[str, tuple[Search, object]] = {
    "only the newest epoch counts": (newest_only, log_files._lowest_covered),
    "the highest number counts": (find_garbage, highest_floor),
    "an epoch that does not know the agent covers all": (find_garbage, floor_where_known),
    "departures are forgotten": (find_garbage, floor_without_left),
    "who has left has left all epochs": (find_garbage, floor_left_is_left),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    search, floor = MUTANTS[name]
    monkeypatch.setattr(log_files, "_lowest_covered", floor)

    @given(STEPS, st.randoms(use_true_random=False))
    @settings(
        max_examples=2000,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    def run(steps: list[tuple[str, str]], random: object) -> None:
        run_world(steps, random, search)

    with pytest.raises(AssertionError):
        run()
