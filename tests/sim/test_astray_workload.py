"""The workload of messages for nobody and of agents that several ask for: run in the simulated world, and its counting by itself."""

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

import snapline
from snapline.agent_runtime.snapshots.snapshot_cut import PendingSpawn, TransitMessage
from snapline.sim.run import run
from snapline.sim.scenario import FleetPart, PatternPart, Scenario, SwarmPart, parse_scenario
from snapline.sim.search.swarm import draw
from snapline.sim.workloads import make_workload
from snapline.sim.workloads.dead_letter_patterns import LATECOMERS, Heard, Seeking, Word, spawns_latecomer

CRASH = """
schema = 1
[fleet]
agents = 4
hosts = 2
protocol = "%s"
pattern = { name = "astray", messages = 400 }
trigger = { kind = "period", every = "30ms" }
[[fault]]
crash = { host = "h1", at = "120ms", restart_after = "100ms" }
"""


@pytest.mark.parametrize("protocol", ["chandy-lamport", "koo-toueg", "uncoordinated", "hmnr"])
def test_dead_letters_of_senders_survive_recoveries(protocol: str) -> None:
    result = run(parse_scenario(CRASH % protocol, source="here"), 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["dead letter of its sender"] and result.probes["agent spawned"] and result.probes["recovery"]


@pytest.mark.parametrize("seed", [4, 13, 19, 48, 62, 828, 893])
def test_what_races_for_an_id_passes_under_faults(seed: int) -> None:
    """In each of these something was wrong once, here or there: see the changelog."""
    result = run(draw(Scenario(swarm=SwarmPart(patterns=["astray"])), seed), seed)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)


def test_every_latecomer_is_asked_for_and_not_by_all() -> None:
    for agents in range(2, 9):
        for place in range(len(LATECOMERS)):
            assert any(spawns_latecomer(index, place) for index in range(agents))
    assert not all(spawns_latecomer(index, place) for index in range(3) for place in range(3))


# ---- one cut by itself ----------------------------------------------------------------------------------------------


def seeking(index: int, **changes: object) -> Seeking:
    return msgspec.structs.replace(Seeking(index, [], 0, 1.0, 0), **changes)


STATES = {
    "a0": seeking(0, sent={"a1": 3, "nobody": 2, "late0": 4}),
    "a1": seeking(1, heard={"a0": Heard(1, 2, 2)}, asked=["late0"]),
    "a2": seeking(2, asked=["late0"]),
    "late0": seeking(-1, heard={"a0": Heard(3, 4, 2)}),
}
"""In transit: the third for a1, the second for nobody. Given up: the first for nobody, two for late0, and one creation."""

TRANSIT = (
    TransitMessage("a0", "a1", 3, Word(receiver="a1", number=3), "Word"),
    TransitMessage("a0", "nobody", None, {"receiver": "nobody", "number": 2, "filler": b""}, "Word"),
)


def judged(
    *, letters: int = 4, in_transit: tuple[TransitMessage, ...] = TRANSIT, spawns: int = 0, **changes: Seeking
) -> str | None:
    pending = (PendingSpawn("a1", "late0", "k"),) * spawns
    cut = SimpleNamespace(
        states=STATES | changes, in_transit=in_transit, pending_spawns=pending, dead_letter_count=letters
    )
    workload = make_workload(FleetPart(agents=3, pattern=PatternPart(name="astray")))
    return workload.check_cut(cast(snapline.Cut, cut))


def test_what_adds_up_is_right() -> None:
    assert judged() is None
    assert judged(letters=3, spawns=1) is None
    creation = TransitMessage("a2", "late0", 1, None)
    assert judged(letters=3, in_transit=(*TRANSIT, creation)) is None, "after a recovery two may be granted"


@pytest.mark.parametrize("letters", [3, 5])
def test_a_dead_letter_too_few_or_too_many_is_found(letters: int) -> None:
    assert f"but {letters} dead letters" in (judged(letters=letters) or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"in_transit": TRANSIT[1:]},
        {"in_transit": (*TRANSIT, TRANSIT[0])},
        {"a1": seeking(1, heard={"a0": Heard(1, 2, 1)}, asked=["late0"])},
        {"a1": seeking(1, heard={"a0": Heard(2, 2, 1)}, asked=["late0"])},
        {"late0": seeking(-1, heard={"a0": Heard(3, 3, 1)})},
        {"late0": seeking(-1, heard={"a0": Heard(3, 4, 2), "a1": Heard(1, 1, 1)})},
    ],
)
def test_a_message_that_is_lost_doubled_or_invented_is_found(changes: dict[str, object]) -> None:
    assert judged(**changes) is not None  # type: ignore[arg-type]  # states and messages


def test_it_is_done_when_all_were_sent_and_all_latecomers_are_there() -> None:
    workload = make_workload(FleetPart(agents=3, pattern=PatternPart(name="astray", messages=10)))
    done = STATES | {"a1": seeking(1, heard={"a0": Heard(1, 3, 3)}, asked=["late0"])}
    assert workload.ends and workload.is_done(done) and workload.check_end(done) is None
    assert not workload.is_done(STATES), "a message has not come"
    assert not workload.is_done(done | {"a2": seeking(2, asked=["late1"])}), "a latecomer is not there"
    assert not workload.is_done(done | {"a2": seeking(2, left=1)})
