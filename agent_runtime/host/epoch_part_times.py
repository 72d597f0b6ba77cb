"""Times of this host's part of an epoch: the path of the agent that was the last one here to record its state."""

import msgspec

from snapline.agent_runtime.host.epoch_files import Capture, Captures
from snapline.messages.host_messages import EpochReport


def timed(report: EpochReport, captures: Captures, *, heard_ns: int, closed_ns: int, durable_ns: int) -> EpochReport:
    """Return the report with its times, all by this host's monotonic clock.

    Args:
        heard_ns: arrival of the host's first message about the epoch.
        closed_ns: time from which no message of the epoch could arrive.
        durable_ns: time when the part became durable.
    """
    last = max(captures.items(), key=_recorded_ns, default=None)
    recorded_ns = heard_ns if last is None else _recorded_ns(last)
    return msgspec.structs.replace(
        report,
        slowest="" if last is None else last[0],
        start_delay_ns=0 if last is None else max(0, last[1].started_ns - heard_ns),
        slowest_capture_ns=0 if last is None else last[1].capture_ns,
        alignment_ns=max(0, closed_ns - recorded_ns),
        store_ns=max(0, durable_ns - closed_ns),
    )


def _recorded_ns(of: tuple[str, Capture]) -> int:
    return of[1].started_ns + of[1].capture_ns
