"""Records of an epoch's end: its outcome, for hosts that repeat a report, and its figures, for operators."""

from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import (
    ENDS_KEPT,
    OUTCOMES_KEPT,
    REASON_CHARACTERS_MAX,
    EpochAccount,
    EpochEnd,
    EpochRecord,
    FleetImage,
    OutcomeRecord,
)


def note_complete(image: FleetImage, kind: op.CompleteEpoch, record: EpochRecord) -> None:
    """Note that the epoch is complete."""
    sizes = (kind.state_bytes, kind.channel_state_bytes, kind.channel_state_messages)
    begun = (kind.epoch, record.plan, record.trigger, record.begun_ns)
    _note(image, EpochEnd(*begun, record.ended_ns, True, "", *sizes, account=kind.account))


def note_aborted(
    image: FleetImage, epoch: int, record: EpochRecord, reason: str, account: EpochAccount | None = None
) -> None:
    """Note that the epoch was aborted by the operation that is being applied."""
    begun = (epoch, record.plan, record.trigger, record.begun_ns)
    _note(image, EpochEnd(*begun, image.now_ns, False, reason, account=account))


def _note(image: FleetImage, end: EpochEnd) -> None:
    image.outcomes.append(OutcomeRecord(end.epoch, end.is_complete, end.reason))
    del image.outcomes[:-OUTCOMES_KEPT]
    image.ends.append(_short(end))
    del image.ends[:-ENDS_KEPT]


def _short(end: EpochEnd) -> EpochEnd:
    if len(end.reason) <= REASON_CHARACTERS_MAX:
        return end
    sizes = (end.state_bytes, end.channel_state_bytes, end.channel_state_messages)
    reason = end.reason[: REASON_CHARACTERS_MAX - 1] + "…"
    begun = (end.epoch, end.plan, end.trigger, end.begun_ns)
    return EpochEnd(*begun, end.ended_ns, end.is_complete, reason, *sizes, account=end.account)
