"""What is kept of epochs that have ended: figures of the reports, bounded, the same from the log and from an image."""

from snapline.coordinator.leader.epochs.epoch_lifecycle import add_report
from snapline.coordinator.service.fleet_answers import epoch_history
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import ENDS_KEPT, REASON_CHARACTERS_MAX, EpochRecord, decode_image
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operation_rules import note_aborted, note_complete
from snapline.messages.host_messages import EpochReport, ReportedPack

PACK = ReportedPack("packs/x", 70, b"")


def report(agent: str, start_delay_ns: int, new_bytes: int = 0) -> EpochReport:
    return EpochReport(
        1, 1, PACK, slowest=agent, start_delay_ns=start_delay_ns, slowest_capture_ns=5, store_ns=3, new_bytes=new_bytes
    )


def test_the_last_host_is_who_reported_last_and_the_late_one_whose_agent_recorded_latest() -> None:
    account = add_report(None, "h1", report("a", 900, 100), after_ns=1_000)
    account = add_report(account, "h2", report("b", 10), after_ns=1_200)
    assert account.last is not None and (account.last.host, account.last.agent, account.last.after_ns) == (
        "h2",
        "b",
        1_200,
    )
    assert account.late is not None and (account.late.host, account.late.agent) == ("h1", "a")
    assert (account.reports, account.new_bytes) == (2, 170), "an older host names the size of its pack alone"


def test_ends_are_bounded_short_and_survive_an_image() -> None:
    state = FleetState()
    for epoch in range(1, ENDS_KEPT + 20):
        note_aborted(state.image, epoch, EpochRecord(1, "period", 5), "x" * 2_000)
    note_complete(state.image, op.CompleteEpoch(900, "ab", (), 10, 20, 30), EpochRecord(1, "hand", 5, ended_ns=9))
    ends = decode_image(state.freeze()).ends
    assert ends == state.image.ends and len(ends) == ENDS_KEPT
    assert all(len(end.reason) <= REASON_CHARACTERS_MAX for end in ends)
    assert len(state.image.outcomes[-2].reason) == 2_000, "a host that asks again hears all of it"


def test_the_history_says_what_became_of_an_epoch_and_leaves_out_what_nobody_knows() -> None:
    state = FleetState()
    old = EpochReport(1, 1, PACK)
    account = add_report(None, "h1", old, after_ns=2_000_000)
    complete = op.CompleteEpoch(1, "ab", (), 10, 20, 30, account)
    state.image.epochs[2] = record = EpochRecord(1, "period", 5, status="condemned", ended_ns=9)
    note_complete(state.image, complete, EpochRecord(1, "period", 5, ended_ns=9))
    note_complete(state.image, op.CompleteEpoch(2, "cd"), record)
    note_aborted(state.image, 3, EpochRecord(1, "hand", 5), "host h2 is lost")
    told = epoch_history(state, [2])
    assert told["stored"] == [2] and epoch_history(state)["stored"] is None
    rows = told["epochs"]
    assert isinstance(rows, list)
    assert [row["status"] for row in rows] == ["forgotten", "condemned", "aborted"]
    assert rows[0]["last"]["after_s"] == 0.002 and rows[0]["last"]["store_s"] is None
    assert rows[1]["last"] is rows[1]["new_bytes"] is None
    assert rows[2]["reason"] == "host h2 is lost" and rows[2]["state_bytes"] is None
