"""The leader core: what the fleet's definition promises, and who is told when that is missed. Wall clock and monotonic clock are apart."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinator.bench import MS, SECOND, Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.leader_concerns import RPO, RTO, objectives_missed
from snapline.messages import host_messages as msg
from snapline.messages.status import Concern

HOSTS = ("h1", "h2")


class Promised(Bench):
    """A fleet that promises something. Its wall clock is decades ahead of its monotonic clock."""

    AHEAD_NS = 1_700_000_000 * SECOND

    def __init__(self, *, rpo_s: float = 0.0, rto_s: float = 0.0) -> None:
        super().__init__()
        self.definition = msgspec.structs.replace(
            self.definition, rpo_ns=round(rpo_s * SECOND), rto_ns=round(rto_s * SECOND)
        )
        self.beats = dict.fromkeys(HOSTS, self.busy)
        self.loaded = 0
        self.start_fleet(*HOSTS)

    def busy(self) -> msg.Heartbeat:
        """A host that gets on with whatever plan there is: nobody loses patience."""
        self.loaded += 1
        return msg.Heartbeat(1, plan=self.state.plan_number, steps_loaded=self.loaded)

    @property
    def concerns(self) -> dict[str, Concern]:
        return {each.kind: each for each in self.core.standing().concerns if each.kind in (RPO, RTO)}

    def told(self, level: str) -> list[str]:
        return [
            note.text for note in self.notes if note.level == level and ("rpo_s" in note.text or "rto_s" in note.text)
        ]

    def fail(self, seconds: float) -> None:
        """A host is lost, and all run again so many seconds after the plan that says so."""
        self.drop("h2")
        before = self.state.plan_number
        while self.state.plan_number == before:
            self.pass_time(1, silent=("h2",))
        self.pass_time(seconds, silent=("h2",))
        self.apply_plan("h1")
        assert self.state.phase == "running"


def test_work_at_risk_is_told_once_and_taken_back_by_an_epoch_in_time() -> None:
    bench = Promised(rpo_s=10)
    bench.pass_time(9)
    assert bench.concerns == {} and bench.told("warning") == []
    bench.pass_time(2)
    assert bench.concerns[RPO].text == "a failure now would undo 11.0 s of work; rpo_s is 10.0 s"
    bench.pass_time(3)
    (warning,) = bench.told("warning")
    assert warning.startswith("a failure now would undo 10.") and bench.concerns[RPO].since_ns > 3 * SECOND
    bench.snapshot(*HOSTS)
    text = bench.concerns[RPO].text
    assert text == "a failure would have undone 14.0 s of work before the last epoch was complete; rpo_s is 10.0 s"
    bench.pass_time(9)
    bench.snapshot(*HOSTS)
    assert bench.concerns == {} and bench.told("info") == [
        "epoch 2 came in time: 9.0 s of work were at risk; rpo_s is 10.0 s"
    ]
    assert len(bench.told("warning")) == 1


def test_epochs_that_always_come_a_little_late_are_warned_of_once() -> None:
    bench = Promised(rpo_s=2)
    for _ in range(5):
        bench.pass_time(2.5)
        bench.snapshot(*HOSTS)
    assert len(bench.told("warning")) == 1 and bench.told("info") == [] and list(bench.concerns) == [RPO]


def test_a_recovery_that_takes_too_long_is_told_while_it_lasts_and_until_one_is_in_time() -> None:
    bench = Promised(rto_s=30)
    bench.snapshot(*HOSTS)
    bench.drop("h2")
    while bench.state.plan_number == 1:
        bench.pass_time(1, silent=("h2",))
    bench.pass_time(20, silent=("h2",))
    assert bench.concerns == {}
    bench.pass_time(15, silent=("h2",))
    assert "a failure has kept the fleet from running for 3" in bench.concerns[RTO].text
    bench.apply_plan("h1")
    assert "the last recovery from a failure took 3" in bench.concerns[RTO].text and len(bench.told("warning")) == 1
    bench.attach("h2", "h2-again")
    bench.pass_time(5)
    bench.apply_plan(*HOSTS)
    assert RTO in bench.concerns, "nobody had failed: agents only moved"


def test_a_recovery_in_time_takes_it_back() -> None:
    bench = Promised(rto_s=20)
    bench.fail(40)
    assert list(bench.concerns) == [RTO]
    bench.say("h1", msg.AgentFailed("a0", bench.state.image.agents["a0"].incarnation, "it raised"))
    bench.pass_time(1)
    bench.apply_plan("h1")
    assert bench.state.phase == "running" and bench.concerns == {}
    (info,) = bench.told("info")
    assert info.startswith("the recovery with plan 3 took") and len(bench.told("warning")) == 1


def test_failures_during_a_recovery_belong_to_it() -> None:
    """The fleet stands all the time, and no plan alone takes that long."""
    bench = Promised(rto_s=25)
    began_ns = bench.now
    bench.drop("h2")
    bench.pass_time(18, silent=("h2",))
    assert bench.state.plan_number == 2 and bench.state.phase == "recovering" and bench.concerns == {}
    bench.say("h1", msg.AgentFailed("a0", bench.state.image.agents["a0"].incarnation, "it raised"))
    bench.pass_time(18, silent=("h2",))
    plan = bench.state.plan
    assert plan is not None and plan.number == 3 and bench.state.recovery_began_ns(plan) < bench.wall_ns() - 30 * SECOND
    assert list(bench.concerns) == [RTO] and bench.now - began_ns < 37 * SECOND
    bench.apply_plan("h1")
    assert bench.state.phase == "running" and list(bench.concerns) == [RTO]


def test_a_new_leader_knows_from_the_log_what_is_missed() -> None:
    bench = Promised(rpo_s=10, rto_s=10)
    bench.fail(20)
    bench.pass_time(15, silent=("h2",))
    assert set(bench.concerns) == {RPO, RTO}
    bench.start_leader("another")
    bench.attach("h1", plan=bench.state.plan_number)
    bench.pass_time(1)
    assert RTO in bench.concerns
    bench.pass_time(15)
    assert set(bench.concerns) == {RPO, RTO}


def test_who_promises_nothing_is_told_nothing() -> None:
    bench = Promised()
    bench.fail(40)
    bench.pass_time(100, silent=("h2",))
    assert bench.concerns == {} and bench.told("warning") == bench.told("info") == []


def test_names() -> None:
    concerns = [Concern(kind, (), 0, "") for kind in ("cut", RTO, RPO)]
    assert objectives_missed(concerns) == (RPO, RTO) and objectives_missed(concerns[:1]) == ()


STEPS = st.lists(st.one_of(st.floats(0.1, 4.0), st.just("epoch"), st.just("leader")), max_size=20)


@settings(max_examples=20, deadline=None)
@given(steps=STEPS, rpo_s=st.floats(0.5, 6.0))
def test_the_work_at_risk_is_that_of_the_state_by_the_wall_clock(steps: list[float | str], rpo_s: float) -> None:
    """The core has no wall clock: what it says agrees with what `status` says, but for the moment between two looks."""
    bench = Promised(rpo_s=rpo_s)
    rpo_ns = round(rpo_s * SECOND)
    for step in steps:
        before = rpo_missed = RPO in bench.concerns
        if isinstance(step, float):
            bench.pass_time(step)
            rpo_missed = before or (bench.state.at_risk_ns(bench.wall_ns()) or 0) > rpo_ns
        elif step == "epoch":
            peak_ns = bench.state.at_risk_ns(bench.wall_ns()) or 0
            bench.snapshot(*HOSTS)
            rpo_missed = peak_ns > rpo_ns
        at_risk_ns = bench.state.at_risk_ns(bench.wall_ns()) or 0
        bench.feed(ev.TimerFired())
        if abs(at_risk_ns - rpo_ns) > 100 * MS and step != "leader":
            assert (RPO in bench.concerns) == rpo_missed
        changes = bench.told("warning") + bench.told("info")
        assert len(bench.told("warning")) - len(bench.told("info")) in (0, 1), changes
