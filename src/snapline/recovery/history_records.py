"""Dependency records of running agents, kept as changes from checkpoint to checkpoint.

Theory of operation
-------------------
A record names, per channel, the last number sent and the last number received (see `cuts`). Most channels do not change
between two checkpoints, so only changes are kept, and each twice: with the checkpoint (to walk from one to the next) and
in a column of its channel (to search). A column rises strictly, in checkpoints and in counts, so

- one bisection by checkpoint number finds the count sent or received at a checkpoint;
- one bisection by count finds the first checkpoint that had sent number c, or had received more than c.

Agents are small ordinals here. An agent known only as the other end of a channel has an ordinal too, and an empty
checkpoint 0; `members` lists the agents that have joined.

When a checkpoint is forgotten, its changes move to the next kept one, whose counts stay the same.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from snapline.errors import ProtocolError


class Column:
    """One end of a channel: its count at each checkpoint of that end at which it had changed.

    Attributes:
        at, counts: checkpoint numbers, and the last message number at each; both rise strictly.
        on_line: the count at the end's checkpoint on the total-failure line; `history_total` keeps it.
    """

    __slots__ = ("at", "counts", "on_line")

    def __init__(self) -> None:
        self.at: list[int] = []
        self.counts: list[int] = []
        self.on_line = 0

    def by(self, number: int) -> int:
        """The count at checkpoint `number`."""
        index = bisect_right(self.at, number)
        return self.counts[index - 1] if index else 0

    def newest(self) -> int:
        """The count at the newest checkpoint."""
        return self.counts[-1] if self.counts else 0

    def first_with(self, count: int) -> int:
        """Return the first checkpoint with at least `count`; one must exist."""
        return self.at[bisect_left(self.counts, count)]

    def first_beyond(self, count: int) -> int | None:
        """Return the first checkpoint with more than `count`; None if there is none."""
        if not self.counts or self.counts[-1] <= count:
            return None
        return self.at[bisect_right(self.counts, count)]


class Channel:
    """One channel: the ordinals of its ends, and a column for each."""

    __slots__ = ("received", "receiver", "sender", "sent")

    def __init__(self, sender: int, receiver: int) -> None:
        self.sender = sender
        self.receiver = receiver
        self.sent = Column()
        self.received = Column()


class CountChanges:
    """Channels whose count has changed and, in the same order, their new counts."""

    __slots__ = ("channels", "counts")

    def __init__(self, channels: Sequence[Channel] = (), counts: Sequence[int] = ()) -> None:
        self.channels = tuple(channels)
        self.counts = tuple(counts)

    def __iter__(self) -> Iterator[tuple[Channel, int]]:
        return zip(self.channels, self.counts, strict=True)


class KeptCheckpoint:
    """Changes of an agent since its previous kept checkpoint: sent, received; `turns` is counted from its start."""

    __slots__ = ("received", "sent", "turns")

    def __init__(self, sent: CountChanges, received: CountChanges, turns: int) -> None:
        self.sent = sent
        self.received = received
        self.turns = turns


class Records:
    """All known agents, their kept checkpoints and their channels.

    Attributes:
        names, ordinals: agent by ordinal, ordinal by agent.
        members: by ordinal, whether the agent has joined.
        outgoing, incoming: by ordinal, the agent's channels by the name of the other end.
        numbers: by ordinal, the kept checkpoints, ascending; never empty.
        checkpoints: by ordinal, the kept checkpoints by number.
        last: by ordinal, the newest checkpoint; always kept.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ordinals: dict[str, int] = {}
        self.members: list[bool] = []
        self.outgoing: list[dict[str, Channel]] = []
        self.incoming: list[dict[str, Channel]] = []
        self.numbers: list[list[int]] = []
        self.checkpoints: list[dict[int, KeptCheckpoint]] = []
        self.last: list[int] = []

    def ordinal(self, agent: str) -> int:
        """Return the ordinal of `agent`, given out now if it is new."""
        known = self.ordinals.get(agent)
        if known is not None:
            return known
        self.ordinals[agent] = len(self.names)
        self.names.append(agent)
        self.members.append(False)
        self.outgoing.append({})
        self.incoming.append({})
        self.numbers.append([0])
        self.checkpoints.append({0: KeptCheckpoint(CountChanges(), CountChanges(), 0)})
        self.last.append(0)
        return self.ordinals[agent]

    def outgoing_channel(self, agent: int, peer: str) -> Channel:
        """Return the channel from `agent` to `peer`, opened now if it is new."""
        return self.outgoing[agent].get(peer) or self._open(agent, self.ordinal(peer))

    def incoming_channel(self, agent: int, peer: str) -> Channel:
        """Return the channel from `peer` to `agent`, opened now if it is new."""
        return self.incoming[agent].get(peer) or self._open(self.ordinal(peer), agent)

    def _open(self, sender: int, receiver: int) -> Channel:
        channel = Channel(sender, receiver)
        self.outgoing[sender][self.names[receiver]] = channel
        self.incoming[receiver][self.names[sender]] = channel
        return channel

    def all_channels(self) -> Iterator[Channel]:
        """Every channel once."""
        for channels in self.outgoing:
            yield from channels.values()

    def add(self, agent: int, number: int, sent: Mapping[str, int], received: Mapping[str, int], turns: int) -> None:
        """Add a checkpoint after all others of `agent`. Ignores channels whose count is unchanged.

        Raises:
            ProtocolError: a count is below the known one; no checkpoint is added.
        """
        sent_on, received_on, sent_counts, received_counts = [], [], [], []
        known = self.outgoing[agent]
        for peer, count in sent.items():
            channel = known.get(peer) or self.outgoing_channel(agent, peer)
            if count > (newest := channel.sent.newest()):
                sent_on.append(channel)
                sent_counts.append(count)
            elif count < newest:
                raise self._fell(agent, number, f"sent {count} messages to {peer}", newest)
        known = self.incoming[agent]
        for peer, count in received.items():
            channel = known.get(peer) or self.incoming_channel(agent, peer)
            if count > (newest := channel.received.newest()):
                received_on.append(channel)
                received_counts.append(count)
            elif count < newest:
                raise self._fell(agent, number, f"received {count} messages from {peer}", newest)
        checkpoint = KeptCheckpoint(
            CountChanges(sent_on, sent_counts), CountChanges(received_on, received_counts), turns
        )
        for channel, count in checkpoint.sent:
            channel.sent.at.append(number)
            channel.sent.counts.append(count)
        for channel, count in checkpoint.received:
            channel.received.at.append(number)
            channel.received.counts.append(count)
        self.checkpoints[agent][number] = checkpoint
        self.numbers[agent].append(number)
        self.last[agent] = number

    def _fell(self, agent: int, number: int, text: str, known: int) -> ProtocolError:
        return ProtocolError(
            f"{self.names[agent]}, checkpoint {number}: {text} in all, but checkpoint {self.last[agent]} already had "
            f"{known}; report counts from the agent's first message on, and drop reports of a replaced incarnation"
        )

    def start_at(self, agent: int, number: int) -> None:
        """Set the agent's oldest kept checkpoint to `number`, not 0; only before any other is added."""
        self.checkpoints[agent] = {}
        self.numbers[agent] = []
        self.last[agent] = number

    def between(self, agent: int, low: int, high: int) -> list[int]:
        """The kept checkpoints above `low` and up to `high`, ascending."""
        numbers = self.numbers[agent]
        return numbers[bisect_right(numbers, low) : bisect_right(numbers, high)]

    def before(self, agent: int, number: int) -> int:
        """Return the newest kept checkpoint before `number`; the oldest kept one if there is none."""
        numbers = self.numbers[agent]
        return numbers[max(bisect_left(numbers, number) - 1, 0)]

    def after(self, agent: int, number: int) -> int:
        """Return the oldest kept checkpoint after `number`; one must exist."""
        numbers = self.numbers[agent]
        return numbers[bisect_right(numbers, number)]

    def truncate(self, agent: int, number: int) -> None:
        """Remove every checkpoint after `number`."""
        for void in reversed(self.between(agent, number, self.last[agent])):
            checkpoint = self.checkpoints[agent].pop(void)
            columns = [channel.sent for channel in checkpoint.sent.channels]
            columns += [channel.received for channel in checkpoint.received.channels]
            for column in columns:
                column.at.pop()
                column.counts.pop()
            self.numbers[agent].pop()
        self.last[agent] = number

    def forget(self, agent: int, number: int) -> None:
        """Remove one kept checkpoint that is not the newest; its changes move to the next kept one."""
        heir_number = self.after(agent, number)
        successor, forgotten = self.checkpoints[agent][heir_number], self.checkpoints[agent].pop(number)
        new_sent, new_received = (
            heirs_changes(successor.sent, forgotten.sent),
            heirs_changes(successor.received, forgotten.received),
        )
        for channel in forgotten.sent.channels:
            hand_down(channel.sent, number, heir_number)
        for channel in forgotten.received.channels:
            hand_down(channel.received, number, heir_number)
        successor.sent, successor.received = new_sent, new_received
        self.numbers[agent].remove(number)


def heirs_changes(successor: CountChanges, gone: CountChanges) -> CountChanges:
    """The changes of both checkpoints as those of the later one."""
    both = dict(gone) | dict(successor)
    return CountChanges(list(both), list(both.values()))


def hand_down(column: Column, number: int, successor: int) -> None:
    """Pass the count of checkpoint `number` to the next kept one, `successor`, unless it has a newer one."""
    index = bisect_left(column.at, number)
    if index + 1 < len(column.at) and column.at[index + 1] == successor:
        del column.at[index], column.counts[index]
    else:
        column.at[index] = successor
