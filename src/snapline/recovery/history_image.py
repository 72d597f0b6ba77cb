"""Images of a `History`: for tests, for debugging, and for rebuilding one from the content of a store."""

from collections.abc import Iterable

import msgspec

from snapline.errors import ProtocolError
from snapline.recovery.history_records import Channel, Records

Numbers = tuple[tuple[str, int], ...]


class CheckpointImage(msgspec.Struct, frozen=True, gc=False):
    """One kept checkpoint: cumulative counts by peer. Counts equal to those of the checkpoint before may be omitted."""

    number: int
    sent: Numbers = ()
    received: Numbers = ()
    turns: int = 0


class AgentImage(msgspec.Struct, frozen=True, gc=False):
    """One agent: its kept checkpoints, ascending, at least one; then its live report, with its newest checkpoint."""

    agent: str
    checkpoints: tuple[CheckpointImage, ...] = (CheckpointImage(0),)
    live: CheckpointImage | None = None


class HistoryImage(msgspec.Struct, frozen=True, gc=False):
    """Complete history by agent, in the order in which agents became known."""

    agents: tuple[AgentImage, ...] = ()


class LiveReport:
    """Counts of a live state beyond the agent's last checkpoint, by channel; its turns; its newest checkpoint."""

    __slots__ = ("received", "sent", "taken", "turns")

    def __init__(self, sent: dict[Channel, int], received: dict[Channel, int], turns: int, taken: int) -> None:
        self.sent = sent
        self.received = received
        self.turns = turns
        self.taken = taken


def later_report(one: LiveReport, other: LiveReport) -> LiveReport:
    """Return the later of two reports of one incarnation: all its counts are greater or equal."""
    sent = {channel: max(count, other.sent.get(channel, 0)) for channel, count in one.sent.items()}
    received = {channel: max(count, other.received.get(channel, 0)) for channel, count in one.received.items()}
    return LiveReport(
        other.sent | sent, other.received | received, max(one.turns, other.turns), max(one.taken, other.taken)
    )


def beyond_last(records: Records, agent: int, live: LiveReport) -> LiveReport:
    """Return the report without what the agent's last checkpoint has reached."""
    last = records.last[agent]
    return LiveReport(
        {channel: count for channel, count in live.sent.items() if count > channel.sent.newest()},
        {channel: count for channel, count in live.received.items() if count > channel.received.newest()},
        max(live.turns, records.checkpoints[agent][last].turns),
        max(live.taken, last),
    )


def image_of(records: Records, agent: int, live: LiveReport | None) -> AgentImage:
    """Return the image of one agent, with the changes at each checkpoint."""
    checkpoints = []
    for number in records.numbers[agent]:
        known = records.checkpoints[agent][number]
        sent, received = sent_numbers(records, known.sent), received_numbers(records, known.received)
        checkpoints.append(CheckpointImage(number, sent, received, known.turns))
    if live is None:
        return AgentImage(records.names[agent], tuple(checkpoints))
    sent, received = sent_numbers(records, live.sent.items()), received_numbers(records, live.received.items())
    return AgentImage(records.names[agent], tuple(checkpoints), CheckpointImage(live.taken, sent, received, live.turns))


def sent_numbers(records: Records, counts: Iterable[tuple[Channel, int]]) -> Numbers:
    """Counts by receiver, sorted."""
    return tuple(sorted((records.names[channel.receiver], count) for channel, count in counts))


def received_numbers(records: Records, counts: Iterable[tuple[Channel, int]]) -> Numbers:
    """Counts by sender, sorted."""
    return tuple(sorted((records.names[channel.sender], count) for channel, count in counts))


def load_checkpoints(records: Records, image: AgentImage) -> None:
    """Add the checkpoints of an image to an agent that has only checkpoint 0.

    Raises:
        ProtocolError: numbers do not rise, or counts fall.
    """
    agent = records.ordinals[image.agent]
    records.start_at(agent, image.checkpoints[0].number)
    for place, known in enumerate(image.checkpoints):
        if place and known.number <= records.last[agent]:
            raise ProtocolError(
                f"{image.agent}: checkpoint {known.number} comes behind {records.last[agent]}; load them in their order"
            )
        records.add(agent, known.number, dict(known.sent), dict(known.received), known.turns)
