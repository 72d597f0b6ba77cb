"""Dependency records of running agents, and algorithms that compute recovery lines and cuts from them.

Theory of operation
-------------------
A dependency record contains the numbers of the last message sent and received on each channel. Most of these numbers do not change between
two checkpoints, so only changes are stored. Each change of a number is stored twice. One copy, with the checkpoint, serves to step from
checkpoint to checkpoint, and the other, in a column of its channel, serves for searches. In a column, both the checkpoint numbers and the
message counts are strictly increasing, so a search needs only one bisection.

- Bisecting the checkpoint numbers finds the count of messages sent or received at a checkpoint.
- Bisecting the counts finds the first checkpoint that has sent message number c, or has received more than c messages.

In this module, agents are identified by small ordinals. If an agent that has not joined is the sender or receiver of a known channel, it
also has an ordinal, with an empty initial checkpoint. `members` shows which agents have joined.

When a checkpoint is forgotten, its changes move to the next stored checkpoint, whose counts stay the same.

Recovery lines
--------------
An agent's *place* is the state to which it returns: either a checkpoint number, or LIVE if the agent keeps its live state. For an agent at
LIVE, the received counts come from the report of its live state if there is one, otherwise from its last checkpoint. A `Reported` mapping
contains the counts in reports of live states, by channel.

`descend` computes the recovery line (protocols.md, section 6): as long as the receiver on some channel has received more messages than the
sender has sent, the receiver returns to its last checkpoint with received <= sent. Consistent cuts are closed under entrywise maximum. So
the greatest consistent cut at or before the initial places is unique, whatever the order in which agents are rolled back. If an agent
returns from place q to place p, it can cause orphans only on channels on which it sent messages between p and q. The algorithm visits only
these channels, so it visits each recorded change at most once.

`single_failures` computes the recovery lines for the failure of each single agent in one pass over the rollback-dependency graph (Bhargava
and Lian). The nodes of the graph are intervals between checkpoints, each named after the checkpoint that begins it. An edge leads from each
interval to the next one of the same agent. For each interval with sends on a channel, an edge leads to the interval in which the receiver
received the first of these messages. The later messages were received in the same or later intervals, since channels are FIFO. If `failed`
fails, each agent restarts from the beginning of its first interval reachable from the live interval of `failed`. If there is no such
interval, the agent keeps its live state. One pass over the strongly connected components (Tarjan) computes all sets of reachable intervals.
Each set is stored as the bits of one integer. The recovery line for several simultaneous failures is the entrywise minimum of the lines for
the single failures.

Cuts by numbers
---------------
Channels are FIFO, and their messages are numbered 1, 2, 3 …, so a number n stands for the first n messages. Let sent_i and received_j be
the numbers of the last message sent and received on the channel i → j in a cut.

- The channel i → j has orphans if and only if received_j > sent_i. The orphans sent_i + 1 … received_j were received inside the cut but
  sent outside it. A cut is consistent if and only if no channel has orphans (G1).
- The messages in transit are exactly the numbers received_j + 1 … sent_i (G2).

These two rules apply to all checkpoints, whatever the reason for which they were taken. The functions have no side effects, except that
`descend` changes its argument `places`.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from snapline.errors import ProtocolError


class Column:
    """The message counts at the sender or at the receiver of a channel. There is an entry for each checkpoint at which the count had
    changed.

    Attributes:
        at, counts: the checkpoint numbers and the message counts at these checkpoints. Both lists are strictly increasing.
        on_line: the count at the agent's checkpoint on the total-failure line. `TotalLine` updates it.
    """

    __slots__ = ("at", "counts", "on_line")

    def __init__(self) -> None:
        self.at: list[int] = []
        self.counts: list[int] = []
        self.on_line = 0

    def by(self, number: int) -> int:
        """Return the message count at checkpoint `number`."""
        index = bisect_right(self.at, number)
        return self.counts[index - 1] if index else 0

    def newest(self) -> int:
        """Return the message count at the newest checkpoint."""
        return self.counts[-1] if self.counts else 0

    def first_with(self, count: int) -> int:
        """Return the first checkpoint whose message count is at least `count`, which must exist."""
        return self.at[bisect_left(self.counts, count)]

    def first_beyond(self, count: int) -> int | None:
        """Return the first checkpoint whose message count exceeds `count`, or None if there is none."""
        if not self.counts or self.counts[-1] <= count:
            return None
        return self.at[bisect_right(self.counts, count)]


class Channel:
    """A channel, with the ordinals of its sender and receiver and the message counts of both."""

    __slots__ = ("received", "receiver", "sender", "sent")

    def __init__(self, sender: int, receiver: int) -> None:
        self.sender = sender
        self.receiver = receiver
        self.sent = Column()
        self.received = Column()


class CountChanges:
    """The channels whose message count has changed, and the new counts in the same order."""

    __slots__ = ("channels", "counts")

    def __init__(self, channels: Sequence[Channel] = (), counts: Sequence[int] = ()) -> None:
        self.channels = tuple(channels)
        self.counts = tuple(counts)

    def __iter__(self) -> Iterator[tuple[Channel, int]]:
        return zip(self.channels, self.counts, strict=True)


class KeptCheckpoint:
    """A stored checkpoint, with the counts of sent and received messages that have changed since the agent's previous stored checkpoint.
    `turns` is the number of turns since the agent's creation."""

    __slots__ = ("received", "sent", "turns")

    def __init__(self, sent: CountChanges, received: CountChanges, turns: int) -> None:
        self.sent = sent
        self.received = received
        self.turns = turns


class Records:
    """All known agents, with their stored checkpoints and their channels.

    Attributes:
        names, ordinals: for each ordinal, the agent's name, and for each name, the agent's ordinal.
        outgoing, incoming: for each ordinal, the agent's channels. The key is the name of the receiver or sender, respectively.
        numbers: for each ordinal, the numbers of the agent's stored checkpoints, in ascending order. The list is empty only between
            `start_at` and the next `add`.
        checkpoints: for each ordinal and checkpoint number, the stored checkpoint.
        last: for each ordinal, the number of the newest checkpoint, which is always stored.
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
        """Return the ordinal of `agent`. If the agent is new, assign an ordinal."""
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
        """Return the channel from `agent` to `peer`. If the channel is new, add it."""
        return self.outgoing[agent].get(peer) or self._open(agent, self.ordinal(peer))

    def incoming_channel(self, agent: int, peer: str) -> Channel:
        """Return the channel from `peer` to `agent`. If the channel is new, add it."""
        return self.incoming[agent].get(peer) or self._open(self.ordinal(peer), agent)

    def _open(self, sender: int, receiver: int) -> Channel:
        channel = Channel(sender, receiver)
        self.outgoing[sender][self.names[receiver]] = channel
        self.incoming[receiver][self.names[sender]] = channel
        return channel

    def all_channels(self) -> Iterator[Channel]:
        """Yield every channel once."""
        for channels in self.outgoing:
            yield from channels.values()

    def add(self, agent: int, number: int, sent: Mapping[str, int], received: Mapping[str, int], turns: int) -> None:
        """Add a checkpoint of `agent`. The number must be greater than the numbers of the agent's other checkpoints. Channels with an
        unchanged count are ignored.

        Raises:
            ProtocolError: If a count is lower than the count at an earlier checkpoint, in which case the checkpoint is not added.
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
        """Make `number` the agent's oldest checkpoint instead of 0. This method may be called only before another checkpoint is added."""
        self.checkpoints[agent] = {}
        self.numbers[agent] = []
        self.last[agent] = number

    def between(self, agent: int, low: int, high: int) -> list[int]:
        """Return the agent's stored checkpoints that are greater than `low` and at most `high`, in ascending order."""
        numbers = self.numbers[agent]
        return numbers[bisect_right(numbers, low) : bisect_right(numbers, high)]

    def before(self, agent: int, number: int) -> int:
        """Return the newest stored checkpoint before `number`. If there is none, return the oldest stored checkpoint."""
        numbers = self.numbers[agent]
        return numbers[max(bisect_left(numbers, number) - 1, 0)]

    def after(self, agent: int, number: int) -> int:
        """Return the oldest stored checkpoint after `number`, which must exist."""
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
        """Remove a stored checkpoint, which must not be the newest. The changes of the removed checkpoint move to the next stored
        checkpoint."""
        next_number = self.after(agent, number)
        successor, forgotten = self.checkpoints[agent][next_number], self.checkpoints[agent].pop(number)
        new_sent, new_received = (
            _combined_changes(successor.sent, forgotten.sent),
            _combined_changes(successor.received, forgotten.received),
        )
        for channel in forgotten.sent.channels:
            _move_count(channel.sent, number, next_number)
        for channel in forgotten.received.channels:
            _move_count(channel.received, number, next_number)
        successor.sent, successor.received = new_sent, new_received
        self.numbers[agent].remove(number)


def _combined_changes(successor: CountChanges, gone: CountChanges) -> CountChanges:
    """Combine the changes of two successive checkpoints into the changes of the later one. If both checkpoints have a count for a channel,
    keep the later count."""
    both = dict(gone) | dict(successor)
    return CountChanges(list(both), list(both.values()))


def _move_count(column: Column, number: int, successor: int) -> None:
    """Move the count of checkpoint `number` to the checkpoint `successor`, unless `successor` already has a count."""
    index = bisect_left(column.at, number)
    if index + 1 < len(column.at) and column.at[index + 1] == successor:
        del column.at[index], column.counts[index]
    else:
        column.at[index] = successor


LIVE = 1 << 62
"""The place of an agent that keeps its live state. LIVE exceeds every checkpoint number, so that minima are correct."""

Reported = Mapping[Channel, int]


def descend(records: Records, places: list[int], received: Reported, sent: Reported | None = None) -> None:
    """Move `places` back to the greatest consistent cut that is not after them.

    Args:
        places: for each ordinal, the agent's place. The function changes this list.
        received: for each channel, the count received by the live state of its receiver, if it exceeds the count at the receiver's last
            checkpoint.
        sent: for each channel, the count sent by the live state of its sender, if it exceeds the count at the sender's last checkpoint.
            None means that every message received from a live state counts as sent, because sends of live states are never undone.
    """
    examined: list[int | None] = [None] * len(places)  # the sends after this place have been checked
    waiting = deque(agent for agent, place in enumerate(places) if place != LIVE or sent is not None)
    is_waiting = [place != LIVE or sent is not None for place in places]
    while waiting:
        sender = waiting.popleft()
        is_waiting[sender] = False
        place = places[sender]
        for channel in undone_channels(records, sender, place, examined[sender]):
            count = channel.sent.by(place)
            if place == LIVE and sent is not None:
                count = max(count, sent.get(channel, 0))
            receiver = channel.receiver
            moved = last_place_within(records, channel, count, places[receiver], received)
            if moved < places[receiver]:
                places[receiver] = moved
                if not is_waiting[receiver]:
                    is_waiting[receiver] = True
                    waiting.append(receiver)
        examined[sender] = place


def undone_channels(records: Records, sender: int, place: int, examined: int | None) -> list[Channel]:
    """Return the channels on which `sender` may have sent messages after place `place`, up to place `examined`."""
    if examined is None or examined == LIVE:  # the sends of the sender's live state are unknown, so check all channels
        return list(records.outgoing[sender].values())
    checkpoints = records.checkpoints[sender]
    channels: dict[Channel, None] = {}
    for number in records.between(sender, place, examined):
        channels.update(dict.fromkeys(checkpoints[number].sent.channels))
    return list(channels)


def last_place_within(records: Records, channel: Channel, sent: int, place: int, received: Reported) -> int:
    """Return the receiver's last place, not after `place`, at which it has received at most `sent` messages on the channel."""
    first = channel.received.first_beyond(sent)
    if first is not None and first <= place:
        return records.before(channel.receiver, first)
    if place == LIVE and received.get(channel, 0) > sent:
        return records.last[channel.receiver]
    return place


def single_failures(records: Records, ends: Sequence[int], received: Reported) -> list[list[int]]:
    """Return, for each agent, the recovery line if only that agent fails, as a list of all agents' places.

    Args:
        ends: for each ordinal, the newest checkpoint to consider. The agent's live interval begins there.
        received: for each channel, the count received by the live state of its receiver, if it exceeds the count at the checkpoint in
            `ends`.
    """
    graph = IntervalGraph(records, ends, received)
    return [graph.line_of(reachable) for reachable in graph.reachable_from_ends()]


class IntervalGraph:
    """The rollback-dependency graph of all intervals that begin at or before `ends`.

    Attributes:
        numbers: for each ordinal, the checkpoints that begin the agent's intervals.
        base: for each ordinal, the node of the agent's first interval. The nodes of the agent's other intervals follow.
        next_nodes: for each node, the nodes to which its edges lead.
    """

    def __init__(self, records: Records, ends: Sequence[int], received: Reported) -> None:
        self.numbers = [records.between(agent, -1, end) for agent, end in enumerate(ends)]
        self.base: list[int] = []
        self.next_nodes: list[list[int]] = []
        for numbers in self.numbers:
            start = len(self.next_nodes)
            self.base.append(start)
            self.next_nodes += [[node + 1] for node in range(start, start + len(numbers))]
            self.next_nodes[-1] = []
        node_of = [
            {number: base + place for place, number in enumerate(numbers)}
            for base, numbers in zip(self.base, self.numbers, strict=True)
        ]
        for channel in records.all_channels():
            self._add_channel(channel, node_of[channel.sender], node_of[channel.receiver], received)

    def _add_channel(
        self, channel: Channel, sender_nodes: dict[int, int], receiver_nodes: dict[int, int], received: Reported
    ) -> None:
        oldest_sender, oldest_receiver = next(iter(sender_nodes.values())), next(iter(receiver_nodes.values()))
        receives = [
            (
                count,
                max(receiver_nodes[number] - 1, oldest_receiver),
            )  # there is no interval before the oldest checkpoint
            for number, count in zip(channel.received.at, channel.received.counts, strict=True)
            if number in receiver_nodes
        ]
        if (reported := received.get(channel, 0)) > (receives[-1][0] if receives else 0):
            receives.append((reported, oldest_receiver + len(receiver_nodes) - 1))
        if not receives:
            return
        sends = [
            (count, sender_nodes[number] - 1)
            for number, count in zip(channel.sent.at, channel.sent.counts, strict=True)
            if number in sender_nodes
        ]
        sends.append(
            (LIVE, oldest_sender + len(sender_nodes) - 1)
        )  # the remaining messages were sent in the live interval
        before, place = 0, 0  # the numbers up to `before` were sent in earlier intervals
        for count, node in sends:
            while place < len(receives) and receives[place][0] <= before:
                place += 1
            if place == len(receives):
                return
            if node >= oldest_sender:
                self.next_nodes[node].append(receives[place][1])
            before = count

    def reachable_from_ends(self) -> list[int]:
        """Return, for each ordinal, the set of nodes reachable from the agent's last interval, as a bit mask. The set includes the last
        interval itself."""
        reach = reachable_sets(self.next_nodes)
        return [reach[base + len(numbers) - 1] for base, numbers in zip(self.base, self.numbers, strict=True)]

    def line_of(self, reachable: int) -> list[int]:
        """Return the places of all agents if exactly the intervals whose bits are set are undone."""
        line = []
        for base, numbers in zip(self.base, self.numbers, strict=True):
            undone = (reachable >> base) & ((1 << len(numbers)) - 1)
            line.append(numbers[(undone & -undone).bit_length() - 1] if undone else LIVE)
        return line


def reachable_sets(next_nodes: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each node, the set of nodes reachable from it, as a bit mask. The set includes the node itself.

    The function uses Tarjan's algorithm for strongly connected components, without recursion. The algorithm completes a component only
    after all components that are reachable from it. So the set of a component is the union of the sets of these components and its own
    nodes.
    """
    count = len(next_nodes)
    order, low = [0] * count, [0] * count  # order 0 means that the node has not been visited yet
    reach = [0] * count  # 0 means that the node's component is not complete
    met = 0
    open_nodes: list[int] = []
    for root in range(count):
        if order[root]:
            continue
        path = [root]
        edge_indices = [0]
        while path:
            node, edge_index = path[-1], edge_indices[-1]
            if edge_index == 0:
                met += 1
                order[node] = low[node] = met
                open_nodes.append(node)
            following = next_nodes[node]
            while edge_index < len(following) and order[following[edge_index]]:
                target = following[edge_index]
                if not reach[target] and order[target] < low[node]:
                    low[node] = order[target]
                edge_index += 1
            if edge_index < len(following):
                edge_indices[-1] = edge_index + 1
                path.append(following[edge_index])
                edge_indices.append(0)
                continue
            path.pop()
            edge_indices.pop()
            if path and low[node] < low[path[-1]]:
                low[path[-1]] = low[node]
            if low[node] == order[node]:
                close_component(node, open_nodes, next_nodes, reach)
    return reach


def close_component(root: int, open_nodes: list[int], next_nodes: Sequence[Sequence[int]], reach: list[int]) -> None:
    """Complete a component. The component consists of `root` and all nodes above it on the stack. The nodes of the component can reach each
    other and all nodes to which their edges lead."""
    component = []
    reachable = 0
    while True:
        node = open_nodes.pop()
        component.append(node)
        reachable |= 1 << node
        if node == root:
            break
    for node in component:
        for other in next_nodes[node]:
            reachable |= reach[other]
    for node in component:
        reach[node] = reachable


class DependencyRecord(msgspec.Struct, frozen=True, gc=False):
    """The number of the last message sent to each receiver and of the last message received from each sender. An entry that is missing
    counts as 0."""

    sent: Mapping[str, int]
    received: Mapping[str, int]


class Orphans(msgspec.Struct, frozen=True, gc=False):
    """The orphans on one channel, which are the messages `sent` + 1 … `received`."""

    sender: str
    receiver: str
    sent: int
    received: int


def orphans(cut: Mapping[str, DependencyRecord], *, gone: Collection[str] = ()) -> list[Orphans]:
    """Return the orphans of each channel on which `cut` is inconsistent, in the order of the cut.

    Args:
        cut: for each agent, its dependency record. An agent without a record has sent and received nothing inside the cut.
        gone: agents outside the cut that had left the fleet before it. The message numbers of these agents are unknown and not checked.
    """
    violations = []
    for receiver, record in cut.items():
        for sender, received in record.received.items():
            if sender in cut:
                sent = cut[sender].sent.get(receiver, 0)
            elif sender in gone:
                continue
            else:
                sent = 0
            if received > sent:
                violations.append(Orphans(sender, receiver, sent, received))
    return violations


def in_transit_numbers(
    cut: Mapping[str, DependencyRecord], *, gone: Collection[str] = ()
) -> dict[tuple[str, str], range]:
    """Return, for each channel, the numbers of the messages sent but not received inside `cut`. The result is keyed by sender and receiver.
    Channels without messages in transit have no entry.

    A receiver outside the cut has received nothing, so the first message to an agent that has not been created yet is in transit. Messages
    to an agent in `gone` are dead letters.
    """
    in_transit = {}
    for sender, record in cut.items():
        for receiver, sent in record.sent.items():
            if receiver in gone and receiver not in cut:
                continue
            received = cut[receiver].received.get(sender, 0) if receiver in cut else 0
            if sent > received:
                in_transit[sender, receiver] = range(received + 1, sent + 1)
    return in_transit
