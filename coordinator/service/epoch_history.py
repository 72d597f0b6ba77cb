"""Ends of epochs, for `snapline snapshot history`; from the replicated state, so they survive a change of leader."""

from collections.abc import Sequence

from snapline.coordinator.state.fleet_records import EpochEnd, PartTimes
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages.answers import Rows, document

NS, DIGITS = 1e9, 6


def epoch_history(state: FleetView, stored: Sequence[int] | None = None) -> Rows:
    """Return the newest ended epochs, oldest first. Figures without a report are null. `stored`: all epochs in the store now."""
    image = state.image
    rows = [_row(end, state) for end in image.ends]
    return document("EpochHistory", fleet=image.name, protocol=image.protocol, epochs=rows, stored=stored)


def _row(end: EpochEnd, state: FleetView) -> Rows:
    account = end.account
    return {
        "epoch": end.epoch,
        "status": _status(end, state),
        "plan": end.plan,
        "trigger": end.trigger,
        "begun_s": end.begun_ns / NS,
        "took_s": _s(max(0, end.ended_ns - end.begun_ns)),
        "reason": end.reason,
        "state_bytes": end.state_bytes if end.is_complete else None,
        "channel_state_bytes": end.channel_state_bytes if end.is_complete else None,
        "channel_state_messages": end.channel_state_messages if end.is_complete else None,
        "new_bytes": None if account is None else account.new_bytes,
        "reports": None if account is None else account.reports,
        "last": None if account is None else _times(account.last),
        "late": None if account is None else _times(account.late),
    }


def _status(end: EpochEnd, state: FleetView) -> str:
    """Return "aborted"; or "complete", "condemned" or "void" while the epoch is kept, then "forgotten"."""
    if not end.is_complete:
        return "aborted"
    record = state.image.epochs.get(end.epoch)
    return "forgotten" if record is None else record.status


def _times(times: PartTimes | None) -> Rows | None:
    if times is None:
        return None
    is_known = any((times.agent, times.start_delay_ns, times.capture_ns, times.alignment_ns, times.store_ns))
    return {
        "host": times.host,
        "agent": times.agent,
        "after_s": _s(times.after_ns),
        "start_delay_s": _s(times.start_delay_ns) if is_known else None,
        "capture_s": _s(times.capture_ns) if is_known else None,
        "alignment_s": _s(times.alignment_ns) if is_known else None,
        "store_s": _s(times.store_ns) if is_known else None,
    }


def _s(time_ns: int) -> float:
    return round(time_ns / NS, DIGITS)
