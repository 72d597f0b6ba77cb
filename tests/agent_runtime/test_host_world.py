"""Host cores in a seeded world: consistent cuts, exact recovery, whatever the order of events (see `coins`)."""

from collections import Counter

import pytest
from tests.agent_runtime.coins import play

from snapline.agent_runtime.host.modes import coordinated


def play_all(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen["completed"] += world.completed
        seen["crashes"] += world.crashes
        seen["failures"] += world.failures
        for name in ("in_transit", "unborn", "dead", "left"):
            seen[name] += getattr(world.on_cut, name)
    return seen


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_cuts_are_consistent_and_recovery_is_exact(block: int) -> None:
    seen = play_all(range(block * 10, block * 10 + 10))
    # Against vacuity: these executions had complete cuts with all that makes cuts difficult, and crashes.
    assert seen["completed"] > 40 and seen["crashes"] > 2 and seen["failures"] > 0, seen
    assert min(seen["in_transit"], seen["dead"], seen["left"]) > 10, seen


def test_cuts_are_consistent_where_agents_record_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With messages, markers and ends of epochs in between."""
    monkeypatch.setattr(coordinated, "RECORDED_AT_ONCE", 1)
    seen = play_all(range(10))
    assert seen["completed"] > 40 and seen["crashes"] > 2 and seen["in_transit"] > 10, seen


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_more_executions(block: int) -> None:
    play_all(range(1000 + block * 50, 1000 + block * 50 + 50))


def test_a_seed_is_a_run() -> None:
    worlds = [play(3, steps=600) for _ in range(3)]
    assert len({(world.now_ns, world.completed, world.random.random()) for world in worlds}) == 1
