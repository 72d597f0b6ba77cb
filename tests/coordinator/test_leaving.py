"""Agents of logged fleets that have stopped: what an epoch holds of one that leaves while it is open."""

import msgspec

from snapline.coordinator.leader.events import StoredCheckpoint
from snapline.coordinator.leader.modes.checkpoint_ledger import ADDED, VOID, Ledger
from snapline.coordinator.state.fleet_records import AgentRecord
from snapline.coordinator.state.fleet_state import FleetState
from snapline.messages.host_messages import ReportedPack

BASE = ReportedPack("packs/base", 1, b"i")


def checkpoint(agent: str, number: int, path: str = "", **numbers: dict[str, int]) -> StoredCheckpoint:
    pack = ReportedPack(path, 1, b"i") if path else BASE
    return StoredCheckpoint(agent, number, "basic", 0, pack, numbers.get("sent", {}), numbers.get("received", {}), 1, 0)


def record(**fields: int) -> AgentRecord:
    return msgspec.structs.replace(AgentRecord("k", "h1", 1, False), **fields)


def ledger() -> Ledger:
    """Base epoch 4: a has received all that c sent, and c has stopped."""
    base = [checkpoint("a", 7, received={"c": 2}), checkpoint("c", 3, sent={"a": 2})]
    made = Ledger(1, 4, base, [], {})
    taken = [checkpoint("c", 4, "packs/c", received={"a": 1}), checkpoint("a", 8, "packs/a", sent={"c": 1})]
    made.hold(taken)
    assert [made.add(x) for x in taken] == [ADDED, ADDED]
    return made


def test_an_epoch_that_began_before_holds_who_has_left_since() -> None:
    """Else a plan from it would place an agent that is not in it: no host could apply the plan."""
    state = FleetState()
    state.image.protocol, state.image.begun = "hmnr", 5
    state.image.agents = {
        "a": record(ordinal=0),
        "c": record(born_epoch=1, ordinal=1, left_epoch=5, left_plan=1),
        "d": record(born_epoch=1, ordinal=2, left_epoch=4, left_plan=1),
    }
    assert [agent for agent, _ in state.member_records(5)] == ["a", "c"] == state.members_of(5)
    assert [agent for agent, _ in state.member_records(6)] == ["a"] == state.members_of(6)


def test_it_is_held_as_the_base_holds_it() -> None:
    made = ledger()
    assert made.line == {"a": 8, "c": 4}
    made.leave("c")
    agents, packs = made.line_agents([("a", record()), ("c", record())], made.line)
    assert [(x.agent, x.number, x.base_number, x.paths) for x in agents] == [
        ("a", 8, 7, ("packs/a",)),
        ("c", 3, 3, ()),
    ]
    assert list(packs) == ["packs/a"]


def test_what_it_still_reports_neither_moves_the_line_nor_holds_a_pack() -> None:
    """Dead letters are all that it consumes: an epoch each period for their sake would never end."""
    made = ledger()
    made.leave("c")
    made.rebase(5, {"a": 8, "c": 3})
    late = checkpoint("c", 5, "packs/late", received={"a": 2})
    made.hold([late])
    assert made.add(late) == VOID and not made.has_advanced
    assert set(made.take_obsolete()) == {"packs/a", "packs/c", "packs/late"}
