"""Turns in which processes have died, in the replicated state and at the leader: counted once for each run of a host, told to all with the next plan, forgiven."""

import msgspec
from tests.coordinator.bench import Bench
from tests.coordinator.conftest import Agreed

from snapline.coordinator.leader import events as ev
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operation_rules import DEATHS_KEPT
from snapline.messages.host_messages import Plan, TurnDeath, TurnSurvived


def death(agent: str = "a0", digest: bytes = b"go", *, is_beside: bool = False, limit: int = 2) -> TurnDeath:
    return TurnDeath(agent, "message", "boss", "Go", digest, limit, is_beside)


def counted(agreed: Agreed) -> list[tuple[str, bytes, int]]:
    return [(x.agent, x.digest, x.times) for x in agreed.state.image.deaths]


def come_back(agreed: Agreed, host: str, *died_in: TurnDeath) -> None:
    """The host's process has died in these turns, and the next one joins."""
    record = agreed.state.image.hosts[host]
    died = record.instance if died_in else ""
    agreed.do(op.AdmitHost(host, f"{host}-{record.start + 1}", "x:1", record.start, died, died_in))


def test_each_process_that_dies_counts_once_whoever_tells_of_it(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    for times in (1, 2):
        lost = op.LostHost("h1", agreed.state.image.hosts["h1"].start, (death(),))
        agreed.do(op.LoseHosts((lost,), "SIGKILL"))
        agreed.try_(op.LoseHosts((lost,), "SIGKILL, told again"))
        come_back(agreed, "h1", death())
        assert counted(agreed) == [("a0", b"go", times)]


def test_a_launcher_s_word_counts_also_when_the_loss_is_known(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.lose("h1")
    agreed.do(op.LoseHosts((op.LostHost("h1", 1, (death(),)),), "SIGKILL"))
    assert counted(agreed) == [("a0", b"go", 1)]


def test_marks_of_an_older_run_count_no_more(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    agreed.do(op.AdmitHost("h1", "second", "x:1", 1, "another", (death(),)))
    assert counted(agreed) == []


def test_what_has_ended_well_is_forgiven(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    come_back(agreed, "h1", death(), death(digest=b"other"))
    agreed.do(op.ForgiveTurn("a0", b"go"))
    assert counted(agreed) == [("a0", b"other", 1)]


def test_a_process_that_ends_between_turns_may_run_other_code_next(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    host = agreed.state.image.agents["a0"].host
    come_back(agreed, host, death())
    other = next(name for name in ("h1", "h2") if name != host)
    come_back(agreed, other)
    assert counted(agreed) == [("a0", b"go", 1)]
    come_back(agreed, host)
    assert counted(agreed) == []


def test_a_turn_in_a_thread_is_not_blamed_beside_one_that_was_counted(agreed: Agreed) -> None:
    """That it was there is chance: it lasts long."""
    agreed.start("h1", "h2")
    long = death("a1", b"long", is_beside=True)
    come_back(agreed, "h1", death(), long)
    come_back(agreed, "h1", death(), long)
    assert counted(agreed) == [("a1", b"long", 1), ("a0", b"go", 2)]
    come_back(agreed, "h1", long)
    assert ("a1", b"long", 2) in counted(agreed)


def test_what_was_counted_longest_ago_is_forgotten_first(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    for number in range(DEATHS_KEPT + 1):
        come_back(agreed, "h1", death(digest=b"%d" % number))
    assert len(counted(agreed)) == DEATHS_KEPT
    assert counted(agreed)[0] == ("a0", b"1", 1)


def test_the_counts_survive_an_image(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    come_back(agreed, "h1", death())
    assert FleetState.restore(agreed.state.freeze()).image == agreed.state.image


# ---- the leader -------------------------------------------------------------------------------------------------------


def test_all_hosts_hear_of_deaths_with_the_plan_that_follows() -> None:
    bench = Bench(2)
    bench.start_fleet("h1", "h2")
    bench.feed(ev.HostExitReported("h1", "h1-1", "SIGKILL", (death(),)))
    bench.pass_time(30)
    plan = [x for x in bench.heard[bench.current["h2"]] if isinstance(x, Plan)][-1]
    assert [(x.digest, x.times) for x in plan.deaths] == [(b"go", 1)]
    bench.apply_plan("h2")
    bench.say("h2", TurnSurvived("a0", b"go"))
    assert bench.state.image.deaths == []


def test_a_report_that_comes_after_the_loss_counts() -> None:
    bench = Bench(2)
    bench.start_fleet("h1", "h2")
    bench.drop("h1")
    bench.pass_time(2)
    assert bench.state.image.hosts["h1"].state == "lost"
    bench.feed(ev.HostExitReported("h1", "h1-1", "SIGKILL", (death(),)))
    assert [x.times for x in bench.state.image.deaths] == [1]


def test_a_report_counts_that_comes_while_the_loss_is_being_written_down() -> None:
    bench = Bench(2)
    bench.start_fleet("h1", "h2")
    bench.drop("h1")
    bench.held = (ev.Propose,)
    bench.pass_time(2)
    bench.feed(ev.HostExitReported("h1", "h1-1", "SIGKILL", (death(),)))
    bench.release()
    bench.pass_time(1)
    assert [x.times for x in bench.state.image.deaths] == [1]


def test_a_predicate_that_kills_ends_the_fleet_and_says_so() -> None:
    bench = Bench(1)
    asked = TurnDeath("", "stop_when", "", "", b"stop", limit=2)
    bench.start_fleet("h1")
    bench.core.parts.shared.state.image.deaths = [msgspec.structs.replace(asked, times=3)]
    bench.feed(ev.SnapshotRequested(1))
    bench.report("h1", 1)
    assert bench.state.image.outcome == "failed"
    assert bench.state.image.ending == "3 processes died while stop_when was asked, and it is not asked again"


def test_status_names_what_kills() -> None:
    bench = Bench(2)
    bench.start_fleet("h1", "h2")
    bench.state.image.deaths = [msgspec.structs.replace(death(), times=times) for times in (1, 3)]
    texts = [concern.text for concern in bench.core.standing().concerns if concern.kind == "killer"]
    assert texts == [
        "1 process died while agent a0 handled Go from boss: this is tried again",
        "3 processes died while agent a0 handled Go from boss: this has no turn any more, and is a dead letter",
    ]
