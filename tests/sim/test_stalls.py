"""Fleets in which every host can be heard, and which would stand still for ever: they go on within three host time-outs."""

from collections.abc import Callable

import pytest

from snapline.coordinator.leader import fleet_end, recovery_plans
from snapline.coordinator.leader.hosts import failure_detector
from snapline.coordinator.leader.hosts.failure_detector import CUT_NS, FailureDetector, Partitions
from snapline.coordinator.state.fleet_records import HostRecord
from snapline.sim.faults.fault_kinds import ClogFault, CoordinatorFault, CrashFault, HangFault, PauseFault, ResetFault
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import (
    FaultPart,
    FleetPart,
    LivenessPart,
    PatternPart,
    RunPart,
    Scenario,
    TriggerPart,
)
from snapline.sim.world.recording import Recording

SECOND = 1_000_000_000
THREE_TIMEOUTS_NS = 3 * CUT_NS
LASTS_S = 30
PROTOCOLS = ("chandy-lamport", "bcs", "koo-toueg")
NEVER_NS = 10**18


def cut(*pairs: str, both_ways: bool = False) -> list[FaultPart]:
    """Nothing passes from the first host of "h1 h2" to the second, as good as for ever."""
    named = [pair.split() for pair in pairs]
    named += [pair[::-1] for pair in named if both_ways]
    return [FaultPart(clog=ClogFault(between=pair, at="2s", lasts=f"{LASTS_S}s")) for pair in named]


def play(
    faults: list[FaultPart], protocol: str = "chandy-lamport", *, hosts: int = 3, coordinators: int = 1, seed: int = 1
) -> tuple[Result, Recording]:
    """Some seconds of work, and faults in their midst."""
    pattern = PatternPart(name="random", messages=700, rate_per_s=100.0)
    scenario = Scenario(
        fleet=FleetPart(
            agents=2 * hosts,
            hosts=hosts,
            coordinators=coordinators,  # type: ignore[arg-type]  # 1 or 3
            protocol=protocol,
            pattern=pattern,
            trigger=TriggerPart(every="500ms"),
        ),
        fault=faults,
        run=RunPart(until=f"{LASTS_S + 10}s"),
        liveness=LivenessPart(within="60s"),
    )
    recording = Recording()
    result = run(scenario, seed, recording=recording)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    return result, recording


def check_goes_on(result: Result, recording: Recording) -> None:
    """An epoch that began after the cut is complete in time, and all work is done while the cut lasts."""
    at_ns = result.faults[0].at_ns
    completed = [
        x.ended_ns for x in recording.epochs.values() if x.outcome == "complete" and x.begun_ns >= at_ns + SECOND
    ]
    assert completed and min(completed) <= at_ns + THREE_TIMEOUTS_NS, (at_ns, completed[:1])
    assert 0 < result.metrics["finish_s"] * SECOND < at_ns + (LASTS_S - 10) * SECOND
    assert result.metrics["recoveries"] >= 1 and result.probes["host put out"] >= 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_hosts_that_do_not_reach_each_other_do_not_stop_the_fleet(protocol: str) -> None:
    result, recording = play(cut("h1 h2"), protocol)
    check_goes_on(result, recording)
    assert result.metrics["recoveries"] == 1, "and not again"


@pytest.mark.parametrize(
    ("faults", "hosts"),
    [
        (cut("h2 h1"), 2),
        (cut("h1 h2", "h1 h3", both_ways=True), 3),
        pytest.param(
            cut("h1 h3", "h1 h4", "h1 h5", "h2 h3", "h2 h4", "h2 h5", both_ways=True), 5, marks=pytest.mark.slow
        ),
        pytest.param(cut("h1 h2", "h2 h3", "h3 h4", "h4 h5", "h5 h1"), 5, marks=pytest.mark.slow),
    ],
    ids=["two-other-way", "first-alone", "two-and-three", "ring"],
)
def test_whatever_is_cut_between_hosts(faults: list[FaultPart], hosts: int) -> None:
    result, recording = play(faults, hosts=hosts)
    check_goes_on(result, recording)
    assert result.metrics["recoveries"] <= 2


def test_a_new_leader_in_the_middle_decides_too() -> None:
    """The new one hears of the cut from the hosts; it may take as long once more."""
    killed = FaultPart(coordinator=CoordinatorFault(kind="kill-leader", at="5s", lasts="1s"))
    result, recording = play([*cut("h1 h2"), killed], coordinators=3)
    assert 0 < result.metrics["finish_s"] < LASTS_S - 10 and result.metrics["recoveries"] >= 1
    leaderless_ns = result.faults[1].at_ns
    completed = [
        x.ended_ns for x in recording.epochs.values() if x.outcome == "complete" and x.begun_ns > leaderless_ns
    ]
    assert completed and min(completed) <= leaderless_ns + 2 * THREE_TIMEOUTS_NS


def test_a_host_that_never_applies_the_plan_is_done_without() -> None:
    hung = FaultPart(hang=HangFault(host="h2", at="2s", lasts=f"{LASTS_S}s"))
    crash = FaultPart(crash=CrashFault(host="h1", at="2100ms", restart_after="300ms"))
    result, recording = play([hung, crash])
    assert result.metrics["recovery_s"] * SECOND <= THREE_TIMEOUTS_NS
    assert result.metrics["recoveries"] == 1
    at_ns = result.faults[1].at_ns
    completed = [x.ended_ns for x in recording.epochs.values() if x.outcome == "complete" and x.begun_ns > at_ns]
    assert completed and min(completed) <= at_ns + THREE_TIMEOUTS_NS + SECOND


def test_a_plan_that_nobody_applies_is_made_anew_until_somebody_does() -> None:
    hung = FaultPart(hang=HangFault(host="*", at="2s", lasts="12s"))
    crash = FaultPart(crash=CrashFault(host="h1", at="2100ms", restart_after="300ms"))
    result, _ = play([hung, crash])
    assert 11.8 <= result.metrics["recovery_s"] <= 13


def test_a_handler_that_blocks_its_host_costs_no_recovery() -> None:
    """Longer than anything is waited for; the leader is lost meanwhile."""
    blocked = FaultPart(hang=HangFault(host="h2", what="loop", at="2s", lasts="12s"))
    killed = FaultPart(coordinator=CoordinatorFault(kind="kill-leader", at="5s", lasts="1s"))
    result, recording = play([blocked, killed], coordinators=3)
    assert result.metrics["recoveries"] == 0
    until_ns = result.faults[0].at_ns + 12 * SECOND
    assert any(x.outcome == "complete" and x.begun_ns >= until_ns for x in recording.epochs.values())


def test_a_link_that_breaks_while_a_handler_blocks_one_of_its_hosts_is_no_cut() -> None:
    blocked = FaultPart(hang=HangFault(host="h2", what="loop", at="2s", lasts="12s"))
    broken = [FaultPart(reset=ResetFault(between=[host, "h2"], at="3s")) for host in ("h1", "h3")]
    result, _ = play([blocked, *broken])
    assert result.metrics["recoveries"] == 0


def test_a_host_that_stands_still_is_lost_all_the_same() -> None:
    result, _ = play([FaultPart(pause=PauseFault(host="h2", at="2s", lasts="12s"))])
    assert result.metrics["recoveries"] >= 1


def orders(*faults: FaultPart) -> tuple[Result, Recording]:
    """A fleet that stops when all its orders are done."""
    pattern = PatternPart(name="orders", messages=60)
    scenario = Scenario(
        fleet=FleetPart(agents=6, hosts=2, pattern=pattern, trigger=TriggerPart(every="500ms")),
        fault=list(faults),
        run=RunPart(until=f"{LASTS_S + 10}s", faults_from="start"),
        liveness=LivenessPart(within="60s"),
    )
    recording = Recording()
    return run(scenario, 1, recording=recording), recording


def last_epoch_s(recording: Recording) -> float:
    return max(x.ended_ns for x in recording.epochs.values() if x.outcome == "complete") / SECOND


def test_a_predicate_that_hangs_on_one_host_is_asked_of_the_next() -> None:
    usual, sooner = orders()
    result, recording = orders(FaultPart(hang=HangFault(host="h1", what="stop", at="1us", lasts=f"{LASTS_S}s")))
    assert usual.verdict == result.verdict == "pass", (result.pending, result.error, result.violations)
    assert last_epoch_s(recording) <= last_epoch_s(sooner) + THREE_TIMEOUTS_NS / SECOND


# ---- mutants --------------------------------------------------------------------------------------------------------


def silence_is_a_loss(patch: pytest.MonkeyPatch) -> None:
    """As it was: a host of which nothing is heard for two seconds."""
    judge = FailureDetector._why_suspected

    def mutant(self: FailureDetector, host: str, record: HostRecord) -> str:
        session = self._host_sessions.session_of(host)
        is_silent = session is not None and self._host_sessions.quiet_ns(session) >= CUT_NS
        return "nothing heard of it for 2 s" if is_silent else judge(self, host, record)

    patch.setattr(FailureDetector, "_why_suspected", mutant)


def reports_do_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FailureDetector, "on_busy_reported", lambda self, event: None)


def busy_hosts_are_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partitions, "_is_busy", lambda self, session: False)
    patch.setattr(failure_detector, "_woken_ns", lambda session: 0)


def nobody_decides_about_cuts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partitions, "evaluate", lambda self: None)


def plans_are_waited_for_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery_plans, "ANSWER_NS", NEVER_NS)


def one_host_is_asked_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet_end, "ANSWER_NS", NEVER_NS)


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (nobody_decides_about_cuts, lambda: check_goes_on(*play(cut("h1 h2")))),
        (silence_is_a_loss, test_a_handler_that_blocks_its_host_costs_no_recovery),
        (reports_do_not_count, test_a_handler_that_blocks_its_host_costs_no_recovery),
        (busy_hosts_are_cut, test_a_link_that_breaks_while_a_handler_blocks_one_of_its_hosts_is_no_cut),
        (plans_are_waited_for_for_ever, test_a_host_that_never_applies_the_plan_is_done_without),
        (one_host_is_asked_for_ever, test_a_predicate_that_hangs_on_one_host_is_asked_of_the_next),
    ],
    ids=lambda each: each.__name__.strip("<>"),
)
def test_a_fleet_that_stands_still_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check()
