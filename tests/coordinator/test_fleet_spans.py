"""Epochs and recoveries as spans: told once each, by the leader under which they ended. Numbers by hand, by OpenTelemetry's own SDK."""

import pytest
from tests.coordinator.test_loss_answers import Timed, timed

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'snapline[otel]'")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from snapline.coordinator.service.fleet_spans import FleetSpans
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import Committed, EpochAccount, PartTimes, Rejected
from snapline.telemetry.span_export import SpanExport, checkpoint_ids, recovery_ids


class Leading:
    """A fleet's state, and a leader that tells spans of it."""

    def __init__(self) -> None:
        self.fleet: Timed = timed()
        self.told = InMemorySpanExporter()
        self.export = SpanExport(0.0, role="coordinator", name="c1", exporter=self.told)
        self.spans = FleetSpans(self.export, self.fleet.state)
        self.spans.begin()

    def do(self, kind: op.Kind, at_ns: int) -> None:
        """It is committed, and its leader hears of that."""
        self.fleet.at = at_ns - 1
        self.spans.proposal_ended(kind, Committed(self.fleet.do(kind)))

    def begin(self, at_ns: int) -> int:
        self.fleet.at = at_ns - 1
        return self.fleet.begin()

    def all_told(self) -> dict[str, ReadableSpan]:
        """By name: each is told once."""
        self.export.close()
        spans = self.told.get_finished_spans()
        assert len({span.name for span in spans}) == len(spans), [span.name for span in spans]
        return {span.name: span for span in spans}

    @property
    def store(self) -> str:
        return self.fleet.state.image.cluster


def times(span: ReadableSpan) -> tuple[int | None, int | None]:
    return span.start_time, span.end_time


def test_a_complete_epoch_is_a_span_and_its_commit_one_below() -> None:
    leading = Leading()
    epoch = leading.begin(1_000)
    last = PartTimes("h2", after_ns=300)
    leading.do(op.CompleteEpoch(epoch, "root", (), 77, 20, 2, account=EpochAccount(2, 55, last, last)), 1_400)
    told = leading.all_told()
    assert set(told) == {"checkpoint", "checkpoint.commit"}
    whole, commit = told["checkpoint"], told["checkpoint.commit"]
    assert times(whole) == (1_000, 1_400) and times(commit) == (1_300, 1_400)
    ids = checkpoint_ids(leading.store, epoch)
    assert whole.context is not None and (whole.context.trace_id, whole.context.span_id) == (ids.trace, ids.span)
    assert whole.parent is None and commit.parent is not None and commit.parent.span_id == ids.span
    said = whole.attributes or {}
    assert (said["snapline.epoch"], said["snapline.state_bytes"], said["snapline.new_bytes"]) == (epoch, 77, 55)
    assert whole.status.status_code is trace.StatusCode.UNSET


def test_an_aborted_epoch_says_why() -> None:
    leading = Leading()
    epoch = leading.begin(1_000)
    leading.do(op.AbortEpoch(epoch, "too late"), 1_500)
    (whole,) = leading.all_told().values()
    assert (whole.status.status_code, whole.status.description) == (trace.StatusCode.ERROR, "too late")
    assert times(whole) == (1_000, 1_500)


def test_a_recovery_is_linked_to_the_checkpoint_that_it_restores() -> None:
    leading = Leading()
    epoch = leading.begin(100)
    leading.do(op.CompleteEpoch(epoch, "root"), 200)
    leading.fleet.at = 999
    leading.fleet.lose("h2")
    leading.do(op.CommitPlan(1, epoch, ("h1",), "lost: host h2", rolled_back=4), 1_500)
    leading.do(op.ConfirmPlan(2, "h1", 1), 1_700)
    leading.spans.proposal_ended(op.ConfirmPlan(2, "h1", 1), Rejected("said twice"))
    told = leading.all_told()
    recovery = told["recovery"]
    assert times(recovery) == (1_000, 1_700)
    assert times(told["recovery.plan"]) == (1_000, 1_500) and times(told["recovery.load"]) == (1_500, 1_700)
    (link,), ids = recovery.links, checkpoint_ids(leading.store, epoch)
    assert (link.context.trace_id, link.context.span_id) == (ids.trace, ids.span)
    own = recovery_ids(leading.store, 2)
    assert recovery.context is not None and recovery.context.trace_id == own.trace
    parents = [told[x].parent for x in ("recovery.plan", "recovery.load")]
    assert [parent.span_id for parent in parents if parent is not None] == [own.span] * 2
    said = recovery.attributes or {}
    assert (said["snapline.lost_hosts"], said["snapline.rolled_back"], said["snapline.line_epoch"]) == ("h2", 4, epoch)


def test_a_new_leader_tells_nothing_of_what_has_ended_before() -> None:
    leading = Leading()
    leading.fleet.complete(leading.begin(100))
    leading.spans.begin()
    leading.do(op.AbortEpoch(leading.begin(300), "no"), 400)
    (whole,) = leading.all_told().values()
    assert times(whole) == (300, 400)


def test_an_epoch_that_a_plan_ends_is_told_too() -> None:
    leading = Leading()
    complete = leading.begin(100)
    leading.fleet.complete(complete)
    leading.spans.begin()
    leading.begin(300)
    leading.fleet.lose("h2")
    leading.do(op.CommitPlan(1, complete, ("h1",), "lost"), 400)
    (whole,) = leading.all_told().values()
    assert whole.name == "checkpoint" and whole.status.status_code is trace.StatusCode.ERROR
