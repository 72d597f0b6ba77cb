"""What a leader says that its fleet waits for or goes without: of which kinds, since when, and what helps."""

import msgspec
import pytest
from tests.coordinator.bench import SECOND, Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader import events as words
from snapline.messages import host_messages as msg
from snapline.messages.host_messages import TurnDeath
from snapline.messages.status import KINDS, Concern, remedy_of

STANDS = msg.StandingAgent("a0", "turn", "DivergenceError: entry 1 is another", 7 * SECOND)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.start_fleet("h1", "h2")
    return made


def of_kind(bench: Bench, kind: str) -> list[Concern]:
    return [x for x in bench.core.standing().concerns if x.kind == kind]


def beat(bench: Bench, *standing: msg.StandingAgent, count: int = 0) -> None:
    made = msg.Heartbeat(1, standing=standing, agents_standing=count or len(standing))
    bench.beats["h1"] = lambda: made
    bench.say("h1", made)


def test_a_standing_turn_is_a_concern_until_its_host_takes_it_back(bench: Bench) -> None:
    beat(bench, STANDS)
    bench.pass_time(0.2)
    (concern,) = of_kind(bench, "turn")
    assert (concern.hosts, concern.agents) == (("h1",), ("a0",)) and "entry 1 is another" in concern.text
    assert concern.since_ns >= 7 * SECOND and "snapline agent describe a0" in concern.remedy
    beat(bench)
    assert of_kind(bench, "turn") == []


def test_when_all_agents_of_a_host_stand_some_are_named_and_the_others_counted(bench: Bench) -> None:
    beat(bench, STANDS, msgspec.structs.replace(STANDS, agent="a2"), count=1000)
    named, other, more = of_kind(bench, "turn")
    assert named.agents + other.agents == ("a0", "a2") and more.text.startswith("998 more agents are blocked")


def test_what_a_host_of_another_release_says_is_passed_over(bench: Bench) -> None:
    beat(bench, msgspec.structs.replace(STANDS, kind="of-tomorrow"), STANDS)
    assert next(x.agents for x in of_kind(bench, "turn")) == ("a0",) and not of_kind(bench, "of-tomorrow")
    beat(bench, count=3)
    assert of_kind(bench, "turn") == []


def test_an_effect_in_doubt_is_a_concern(bench: Bench) -> None:
    beat(bench, msg.StandingAgent("a0", "in_doubt", "effect 'pay', key 'k': it may have been done", SECOND))
    (concern,) = of_kind(bench, "in_doubt")
    assert "effect 'pay'" in concern.text and "snapline effect resolve a0 KEY" in concern.remedy


def test_a_lost_host_says_nothing_more(bench: Bench) -> None:
    beat(bench, STANDS)
    bench.drop("h1")
    bench.pass_time(5)
    assert of_kind(bench, "turn") == []


def test_a_fleet_whose_hosts_have_all_left(bench: Bench) -> None:
    bench.say("h1", msg.Leave("drained"))
    bench.say("h2", msg.Leave("drained"))
    bench.drop("h1") if "h1" in bench.current else None
    bench.drop("h2") if "h2" in bench.current else None
    bench.pass_time(4)
    (concern,) = of_kind(bench, "hosts")
    assert "h1 left, h2 left" in concern.text and "its agents (4) are paused" in concern.text
    assert concern.since_ns >= 3 * SECOND and "snapline host run" in concern.remedy
    bench.attach("h3")
    bench.pass_time(1)
    assert of_kind(bench, "hosts") == []


def test_a_fleet_whose_hosts_are_all_lost(bench: Bench) -> None:
    bench.drop("h1")
    bench.drop("h2")
    bench.pass_time(6)
    (concern,) = of_kind(bench, "hosts")
    assert "h1 lost, h2 lost" in concern.text


def test_a_fleet_that_waits_for_its_first_hosts() -> None:
    bench = Bench()
    bench.attach("h1")
    assert of_kind(bench, "hosts") == []
    bench.pass_time(4)
    (concern,) = of_kind(bench, "hosts")
    assert concern.text == "the fleet waits for its hosts: 1 of 2 are there"
    bench.attach("h2")
    assert of_kind(bench, "hosts") == []


def test_who_keeps_no_time_is_timed_here(bench: Bench) -> None:
    death = TurnDeath("a0", "message", "a1", "Go", b"d", 3)
    bench.feed(ev.HostExitReported("h1", "h1-1", "signal 11", (death,)))
    bench.pass_time(5)
    (concern,) = of_kind(bench, "killer")
    assert concern.agents == ("a0",) and concern.since_ns >= 4 * SECOND
    bench.feed(words.MovesRequested(1, drained=("h2",), resumed=(), is_even=False))
    bench.pass_time(3)
    (drained,) = of_kind(bench, "drained")
    assert drained.since_ns >= 2 * SECOND and drained.remedy == "`snapline host resume h2` lets agents come back"


def test_each_kind_has_a_remedy() -> None:
    for kind in KINDS:
        concern = Concern(kind, ("h1",), 0, "", ("a1",))
        assert remedy_of(concern) and "{" not in remedy_of(concern)
    assert remedy_of(Concern("turn", (), 0, "", (), "ask")) == "ask"


def look(bench: Bench, *missing: str, left_ns: int | None = None) -> None:
    bench.feed(ev.ReplicaStatusChecked("c1", missing, 3, left_ns))


def test_a_replica_that_is_not_connected(bench: Bench) -> None:
    look(bench, "c3")
    assert of_kind(bench, "replica") == [], "it may be starting"
    bench.pass_time(4)
    look(bench, "c3")
    (concern,) = of_kind(bench, "replica")
    assert "not connected to replica c3 of 3: if one more fails nobody leads" in concern.text
    assert concern.since_ns == 4 * SECOND and "snapline coordinator status" in concern.remedy
    look(bench)
    assert of_kind(bench, "replica") == []


def test_certificates_that_have_expired_or_will(bench: Bench) -> None:
    look(bench, left_ns=-7200 * SECOND)
    made = msg.Heartbeat(1, certificate_left_ns=2 * 86_400 * SECOND)
    bench.say("h2", made)
    own, other = of_kind(bench, "certificate")
    assert own.text.startswith("the certificate of replica c1 of the coordinator expired 2.0 h ago")
    assert own.since_ns >= 7200 * SECOND and "snapline auth renew" in own.remedy
    assert (other.hosts, other.text) == (("h2",), "the certificate of host h2 expires in 2.0 days")
    look(bench)
    bench.say("h2", msg.Heartbeat(2))
    assert of_kind(bench, "certificate") == []


def test_a_log_that_cannot_be_written(bench: Bench) -> None:
    bench.say("h2", msg.Heartbeat(1, log_problem="No space left on device"))
    (concern,) = of_kind(bench, "log")
    assert concern.hosts == ("h2",) and "No space left on device" in concern.text


def test_epochs_that_are_aborted_one_after_the_other() -> None:
    bench = Bench(timeout_ns=SECOND)
    bench.start_fleet("h1", "h2")
    for count in range(4):
        assert len(of_kind(bench, "epochs")) == (count >= 3)
        bench.feed(ev.SnapshotRequested(1))
        bench.report("h1", bench.state.image.begun)
        bench.pass_time(2)
    (concern,) = of_kind(bench, "epochs")
    assert "the last 4 epochs were aborted" in concern.text and concern.text.endswith("no report of h2")
    bench.snapshot("h1", "h2")
    assert of_kind(bench, "epochs") == []
