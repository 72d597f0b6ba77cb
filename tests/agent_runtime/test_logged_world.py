"""Logged protocols on host cores in a seeded world: consistent lines, exact recovery, no useless checkpoints."""

from collections import Counter

import msgspec
import pytest
from tests.agent_runtime.coins import play_logged
from tests.kit.logged_fleet import LoggedFleet

from snapline.agent_runtime.fleet import restored
from snapline.examples import domino
from snapline.protocols.names import CIC_PROTOCOLS, KOO_TOUEG, UNCOORDINATED
from snapline.recovery.trace import read_trace
from snapline.recovery.trace_analysis import analyze

LOGGED = (KOO_TOUEG, UNCOORDINATED, *CIC_PROTOCOLS)


def play_all(protocol: str, seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = play_logged(seed, protocol)
            if world.is_autonomous:
                seen["useless"] += useless(world)
        except Exception as error:
            raise AssertionError(f"{protocol}, seed {seed}: {error}") from error
        for name in ("completed", "crashes", "failures", "forced", "rolled_back", "kept"):
            seen[name] += getattr(world, name)
        seen["left"] += len(world.left)
        for name in ("in_transit", "dead"):
            seen[name] += getattr(world.on_cut, name)
        seen["depth"] = max(seen["depth"], world.depth)
    return seen


def useless(world: LoggedFleet) -> int:
    """Checkpoints on a Z-cycle in the execution that survived all recoveries, as `snapline analyze` finds them."""
    trace = read_trace([msgspec.json.encode(line) for line in world.trace])
    return sum(len(numbers) for numbers in analyze(trace).useless.values())


@pytest.mark.parametrize("protocol", LOGGED)
def test_lines_are_consistent_and_recovery_is_exact(protocol: str) -> None:
    """Of those that force, whose hosts do the same but for the rule, one has all seeds."""
    share = 1 if protocol in (KOO_TOUEG, UNCOORDINATED, "hmnr") else 0.5
    seen = play_all(protocol, range(3, 3 + int(6 * share)))
    assert seen["completed"] > 15 * share and seen["in_transit"] > 75 * share, seen
    assert seen["crashes"] > share and seen["failures"] > 0 and seen["left"] > 0, seen
    if protocol in CIC_PROTOCOLS:
        assert seen["forced"] > 10 * share and seen["useless"] == 0, seen


def test_survivors_keep_their_live_state_where_they_may() -> None:
    seen = play_all(UNCOORDINATED, range(12))
    assert seen["rolled_back"] > 5 and seen["kept"] > 5 * seen["rolled_back"], seen


@pytest.mark.parametrize("protocol", [UNCOORDINATED, *CIC_PROTOCOLS])
def test_dominoes_fall_where_nothing_is_forced(protocol: str) -> None:
    """The adversary of `examples/domino.py`: one failure undoes everything, or next to nothing."""
    world = LoggedFleet(domino.fleet(protocol=protocol, passes="100"), 2, 1)
    while sum(line["event"] == "checkpoint" for line in world.trace) < 80:
        world.step()
    lost = world.hosts["h2"]
    world.cut("h1", "h2")
    world.boot(lost.name)
    world.fail()
    while world.plan == 1:
        world.step()
    if protocol == UNCOORDINATED:
        assert useless_before_recovery(world) > 70 and world.depth > 35, world.depth
    else:
        assert useless_before_recovery(world) == 0 and world.depth <= 2, world.depth
    assert world.settle()
    world.fail()
    assert world.settle()
    players = {agent: restored(world.fleet, found).state for agent, found in world.base.items()}
    assert sum(player.turns for player in players.values()) == 100
    assert sum(player.seen for player in players.values()) == 100 * 101 // 2


def useless_before_recovery(world: LoggedFleet) -> int:
    lines = [line["event"] == "recovery" for line in world.trace]
    trace = read_trace([msgspec.json.encode(line) for line in world.trace[: lines.index(True)]])
    return sum(len(numbers) for numbers in analyze(trace).useless.values())


@pytest.mark.slow
@pytest.mark.parametrize("protocol", LOGGED)
def test_many_more_executions(protocol: str) -> None:
    play_all(protocol, range(1000, 1200))
