"""Time account of an epoch, from its reports: the last host to report, and the host whose agents were the last to record.

Durations of different hosts are compared, never their clocks.
"""

from snapline.coordinator.state.fleet_records import EpochAccount, PartTimes
from snapline.messages.host_messages import EpochReport


def add_report(account: EpochAccount | None, host: str, report: EpochReport, *, after_ns: int) -> EpochAccount:
    """Return the account after one more report, the newest."""
    known = account or EpochAccount()
    times = PartTimes(
        host=host,
        agent=report.slowest,
        after_ns=after_ns,
        start_delay_ns=report.start_delay_ns,
        capture_ns=report.slowest_capture_ns,
        alignment_ns=report.alignment_ns,
        store_ns=report.store_ns,
    )
    is_latest = known.late is None or times.recorded_ns > known.late.recorded_ns
    return EpochAccount(
        reports=known.reports + 1,
        new_bytes=known.new_bytes + (report.new_bytes or report.pack.size_bytes),
        last=times,
        late=times if is_latest else known.late,
    )
