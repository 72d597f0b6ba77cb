"""A host speaks for itself, and for the agents that the committed placement gives it: what it says of others is not used."""

from collections.abc import Callable

import msgspec
import pytest
from tests.coordinator.bench import Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages import host_messages as msg


def logged(protocol: str) -> Bench:
    """Agents a0 and a2 on h1, a1 and a3 on h2; what they have stored is read."""
    bench = Bench(hosts_expected=2)
    bench.definition = msgspec.structs.replace(bench.definition, protocol=protocol)
    bench.start_fleet("h1", "h2")
    pack = msg.ReportedPack("p", 1, b"")
    found = tuple(ev.StoredCheckpoint(f"a{n}", 0, "initial", 0, pack, {}, {}) for n in range(4))
    for _ in range(bench.given(ev.ScanCheckpoints)):
        bench.feed(ev.CheckpointsScanned(1, 0, (), found))
    bench.pass_time(0.2)
    return bench


def stored(agent: str) -> msg.CheckpointsStored:
    pack = msg.ReportedPack("packs/x", 1, b"")
    return msg.CheckpointsStored(1, 1, 1, pack, (agent,), (0,), (1,), ("basic",))


def newest(bench: Bench, agent: str) -> int:
    ledger = bench.core.parts.lines.ledger
    assert ledger is not None
    return ledger.newest[agent]


def test_checkpoints_of_another_hosts_agent_are_not_used() -> None:
    bench = logged("bcs")
    before = newest(bench, "a0"), newest(bench, "a1")
    bench.say("h1", stored("a1"))
    assert (newest(bench, "a0"), newest(bench, "a1")) == before
    assert "agent a1 is placed elsewhere" in bench.notes[-1].text
    bench.say("h1", stored("a0"))
    assert newest(bench, "a0") != before[0]


def test_a_failure_of_another_hosts_agent_is_no_failure() -> None:
    bench = logged("chandy-lamport")
    bench.say("h1", msg.AgentFailed("a1", 1, "it says so"))
    bench.pass_time(1)
    assert bench.state.plan_number == 1


def test_an_answer_for_another_hosts_agent_is_not_used() -> None:
    bench = logged("koo-toueg")
    bench.feed(ev.SnapshotRequested(1))
    epoch = bench.state.image.begun
    assert bench.state.open_epochs() == (epoch,)
    answer = msg.CheckpointsAnswered(epoch, 1, 1, ("a1",), (False,), (False,), (0,), askers=("",))
    bench.say("h1", answer)
    bench.pass_time(0.5)
    assert bench.state.open_epochs() == (epoch,)
    bench.say("h2", answer)
    bench.pass_time(0.5)
    assert bench.state.open_epochs() == ()


TESTS = (
    test_checkpoints_of_another_hosts_agent_are_not_used,
    test_an_answer_for_another_hosts_agent_is_not_used,
)


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.__name__)
def test_the_mutant_that_does_not_look_at_the_placement_is_found(
    test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FleetView, "stranger_of", lambda self, host, agents: "")
    with pytest.raises(AssertionError):
        test()
