"""The leader core on a store that fails or is slow: triggers are put off, requests are not, and tools are told why."""

from typing import Any

import pytest
from tests.coordinator.bench import MS, SECOND, Bench, BenchStore

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.epochs.store_watch import DEGRADED, FAILURES_TO_OPEN, OK, PROBE_NS_MAX, StoreCondition
from snapline.messages import host_messages as msg

HOSTS = ("h1", "h2")


class FullStore(BenchStore):
    """A store where manifests or refs cannot be written, if the bench says so."""

    bench: "Failing"

    def write_manifest(self, command: ev.WriteManifest) -> ev.ManifestWritten:
        if self.bench.broken == "manifest":
            return ev.ManifestWritten(command.epoch, "", "disk full")
        return super().write_manifest(command)

    def publish(self, command: ev.PublishEpoch) -> ev.EpochPublished:
        if self.bench.broken == "ref":
            return ev.EpochPublished(command.epoch, "disk full")
        return super().publish(command)


class Failing(Bench):
    """A fleet whose hosts store and report at once, until `break_store` says how the store fails.

    Attributes:
        begun_ns: when each epoch began.
    """

    def __init__(self, period_ns: int = 200 * MS, **options: Any) -> None:
        self.begun_ns: list[int] = []
        self.broken = ""
        self.beat_ns = 0
        super().__init__(period_ns=period_ns, store=FullStore(self), **options)
        self.start_fleet(*HOSTS)

    def live(self, seconds: float) -> None:
        """Let time pass; hosts answer each new epoch."""
        end = self.now + round(seconds * SECOND)
        while self.now < end:
            self.pass_time(0.1)
            if self.now >= self.beat_ns:
                self.beat_ns = self.now + 400 * MS
                for host in list(self.current):
                    self.say(host, msg.Heartbeat(1))
            while len(self.begun_ns) < self.state.image.begun:
                self.begun_ns.append(self.now)
                self.answer_epoch(len(self.begun_ns))

    def answer_epoch(self, epoch: int) -> None:
        if self.broken == "host":
            self.say("h1", msg.EpochRefused(epoch, "No space left on device"))
        elif self.broken != "silence":
            for host in HOSTS:
                self.report(host, epoch)

    @property
    def store(self) -> StoreCondition:
        return self.core.standing().store

    def texts(self, level: str) -> list[str]:
        return [x.text for x in self.notes if x.level == level and "the store" in x.text]


@pytest.mark.parametrize("how", ["host", "manifest", "ref"])
def test_three_failures_make_triggers_wait_and_one_success_ends_that(how: str) -> None:
    bench = Failing()
    bench.live(1.0)
    healthy = bench.state.image.begun
    assert healthy >= 4 and bench.store == StoreCondition()
    bench.broken = how
    bench.live(40.0)
    failed = bench.state.image.begun - healthy
    assert FAILURES_TO_OPEN <= failed <= FAILURES_TO_OPEN + 6, "a trigger each 200 ms would be 200 epochs"
    found = bench.store
    assert found.state == DEGRADED and found.since_ns > 38 * SECOND
    why = "No space left" if how == "host" else "disk full"
    assert why in found.reason
    assert found.skipped > 150 and found.skipped <= bench.core.standing().triggers_skipped
    assert 0 < found.next_try_ns <= PROBE_NS_MAX + bench.state.image.period_ns
    assert [why in text for text in bench.texts("warning")] == [True], "the log is told once"
    assert sum("the ref of epoch" in x.text for x in bench.notes if x.level == "error") <= FAILURES_TO_OPEN
    bench.broken = ""
    next_try_s = found.next_try_ns / SECOND
    completed = bench.state.image.completed
    bench.live(next_try_s + 0.5)
    assert bench.state.image.completed > completed and bench.store.state == OK
    before = bench.state.image.begun
    bench.live(2.0)
    assert bench.state.image.begun - before >= 9, "the period is what it was"
    assert len(bench.texts("warning")) == 1 and len(bench.texts("info")) == 1


def test_requests_by_hand_begin_at_once_and_say_why_they_failed() -> None:
    bench = Failing()
    bench.broken = "host"
    bench.live(10.0)
    due = bench.now + bench.store.next_try_ns
    for number in range(5):
        before = bench.state.image.begun
        bench.feed(ev.SnapshotRequested(number))
        assert bench.state.image.begun == before + 1
        bench.live(0.02)
        assert "No space left" in bench.answers[-1].reason and not bench.answers[-1].is_complete
    assert bench.now + bench.store.next_try_ns == due, "they do not put the next try off"
    bench.broken = ""
    bench.feed(ev.SnapshotRequested(9))
    bench.live(0.02)
    assert bench.answers[-1].is_complete and bench.store.state == OK


def test_epochs_that_end_for_other_reasons_say_nothing_of_the_store() -> None:
    """Here each is not complete in time because of a long turn."""
    bench = Failing(timeout_ns=1 * SECOND, period_ns=1500 * MS)
    bench.broken = "silence"
    bench.live(20.0)
    assert bench.state.image.aborted >= 10 and bench.store.state == OK and bench.store.skipped == 0


def test_time_out_counts_if_a_host_is_still_storing() -> None:
    bench = Failing(timeout_ns=300 * MS, period_ns=1000 * MS)
    bench.broken = "silence"
    for _ in range(50):
        bench.say("h2", msg.Heartbeat(1, storing=1))
        bench.now += 100 * MS
        bench.say("h1", msg.Heartbeat(1))
    found = bench.store
    assert found.state == DEGRADED and "no report of h1, h2 (still storing)" in found.reason


def test_time_out_counts_if_the_manifest_is_still_being_written() -> None:
    bench = Failing(timeout_ns=300 * MS, period_ns=1000 * MS)
    bench.held = (ev.WriteManifest,)
    bench.live(6.0)
    assert bench.store.state == DEGRADED and "still storing" in bench.store.reason
    failures = len(bench.waiting)
    for command in bench.waiting:
        assert isinstance(command, ev.WriteManifest)
        bench.feed(ev.ManifestWritten(command.epoch, "", "late news"))
    assert failures >= FAILURES_TO_OPEN and "late news" not in bench.store.reason


def test_slow_store_stretches_the_period_instead_of_piling_epochs_up() -> None:
    """The manifest of each epoch takes two and a half periods."""
    bench = Failing(period_ns=200 * MS)
    bench.held = (ev.WriteManifest,)
    for _ in range(10):
        bench.live(0.5)
        assert len(bench.state.open_epochs()) <= 1
        for command in bench.waiting:
            assert isinstance(command, ev.WriteManifest)
            bench.feed(ev.ManifestWritten(command.epoch, f"root-{command.epoch}"))
        bench.waiting = []
    assert 7 <= bench.state.image.completed <= 10 and bench.state.image.aborted == 0
    assert bench.core.standing().triggers_skipped >= 10 and bench.store == StoreCondition(), "slow is not degraded"


def test_probe_lost_with_its_host_is_tried_again_after_the_recovery() -> None:
    bench = Failing()
    bench.broken = "host"
    bench.live(3.0)
    bench.broken = "silence"
    bench.live(bench.store.next_try_ns / SECOND + 0.3)
    assert len(bench.state.open_epochs()) == 1, "the probe is on its way"
    bench.feed(ev.HostExitReported("h2", "h2-1", "killed"))
    bench.attach("h2", "h2-2", plan=0)
    bench.pass_time(0.5)
    bench.apply_plan(*HOSTS)
    bench.broken = ""
    bench.live(1.0)
    assert bench.store.state == OK and bench.state.image.completed >= 1


def test_hosts_that_cannot_store_their_own_checkpoints_make_it_degraded() -> None:
    bench = Failing(period_ns=0)
    bench.say("h2", msg.Heartbeat(1, store_problem="No space left on device", put_off=7))
    bench.now += 200 * MS
    bench.feed(ev.TimerFired())
    assert bench.store == StoreCondition(DEGRADED, 0, "host h2: No space left on device", 0, 7)
    bench.pass_time(0.2)
    assert bench.store.since_ns == 200 * MS
    bench.say("h2", msg.Heartbeat(2, put_off=7))
    bench.pass_time(0.2)
    assert bench.store == StoreCondition(skipped=7)
    assert len(bench.texts("warning")) == len(bench.texts("info")) == 1


def test_agents_that_stand_still_are_a_concern() -> None:
    bench = Failing(period_ns=0)
    bench.say("h2", msg.Heartbeat(1, store_problem="No space left on device", is_standing=True))
    bench.pass_time(0.3)
    (concern,) = bench.core.standing().concerns
    assert (concern.kind, concern.hosts) == ("memory", ("h2",)) and "its agents are paused for 0." in concern.text
    bench.say("h2", msg.Heartbeat(2))
    bench.pass_time(0.2)
    assert bench.core.standing().concerns == ()


def test_new_leader_has_a_good_opinion() -> None:
    bench = Failing()
    bench.broken = "host"
    bench.live(5.0)
    bench.start_leader("second")
    assert bench.store == StoreCondition()


@pytest.mark.parametrize("mutant", ["counts nothing", "never closes", "asks nobody"])
def test_mutants_are_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, replaced = {
        "counts nothing": ("failed", lambda self, epoch, reason, **_: None),
        "never closes": ("stored", lambda self, epoch: None),
        "asks nobody": ("allows", lambda self: True),
    }[mutant]
    monkeypatch.setattr(f"snapline.coordinator.leader.epochs.store_watch.StoreWatch.{name}", replaced)
    with pytest.raises(AssertionError):
        test_three_failures_make_triggers_wait_and_one_success_ends_that("host")
