"""The times that a host takes of its part of an epoch."""

from typing import cast

from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.host_metrics import EPOCHS_KEPT, HostMetrics
from snapline.messages.host_messages import BeginEpoch, CheckpointsStored, EndEpoch, EpochReport, ReportedPack
from snapline.telemetry.metrics import Distribution

PACK = ReportedPack("packs/1/x", 4096, b"")


class Clock:
    """In milliseconds."""

    def __init__(self) -> None:
        self.ms = 0

    def ns(self) -> int:
        return self.ms * 1_000_000


def metrics(clock: Clock) -> HostMetrics:
    return HostMetrics(cast(HostCore, None), now_ns=clock.ns)  # only read() looks at the core


def times(found: Distribution) -> tuple[int, float]:
    """How many, and their sum in milliseconds."""
    return found.count, round(found.sum * 1000)


def test_the_parts_of_an_epoch_add_up() -> None:
    clock = Clock()
    host = metrics(clock)
    host.directive_received(BeginEpoch(1, 1))
    for start, end in ((10, 12), (20, 25)):  # two agents record
        clock.ms = start
        host.capturing()
        clock.ms = end
        host.captured((1,))
    clock.ms = 100
    host.closed(1)
    clock.ms = 130
    host.said(EpochReport(1, 1, PACK))
    host.said(EpochReport(1, 1, PACK))  # again, on a new stream
    assert times(host._start_delays) == (2, 30)
    assert times(host._captures) == (2, 7)
    assert times(host._recordings) == (2, 90 + 80)
    assert times(host._marker_latencies) == (1, 80)
    assert times(host._stores) == (1, 30)


def test_a_marker_may_come_before_the_coordinators_word() -> None:
    clock = Clock()
    host = metrics(clock)
    clock.ms = 5
    host.capturing()
    host.captured((1,))
    clock.ms = 9
    host.directive_received(BeginEpoch(1, 1))
    host.closed(1)
    assert times(host._start_delays) == (1, 0) and times(host._recordings) == (1, 4)


def test_what_belongs_to_no_epoch_or_to_one_that_ended() -> None:
    clock = Clock()
    host = metrics(clock)
    host.capturing()
    clock.ms = 3
    host.captured(())  # a checkpoint of an agent's own
    host.said(CheckpointsStored(1, 1, 1, PACK))
    assert times(host._captures) == (1, 3) and host._start_delays.count == 0
    host.directive_received(BeginEpoch(1, 1))
    host.directive_received(EndEpoch(1, is_complete=False))
    host.said(EpochReport(1, 1, PACK))
    assert host._stores.count == 0
    for epoch in range(10 * EPOCHS_KEPT):
        host.directive_received(BeginEpoch(epoch, 1))
    assert len(host._epochs) == EPOCHS_KEPT
