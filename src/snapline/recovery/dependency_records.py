"""Dependency records of running agents, and the recovery lines and cuts computed from them.

Theory of operation
-------------------
A record contains, per channel, the last number sent and the last number received. Most channels do not change between two checkpoints, so
only changes are kept. Each change is stored twice: with the checkpoint, to step from one checkpoint to the next, and in a column of its
channel, to search. The checkpoint numbers and the counts in a column are strictly increasing, so

- one bisection by checkpoint number finds the count sent or received at a checkpoint;
- one bisection by count finds the first checkpoint that had sent number c, or had received more than c.

In this module, agents are identified by small ordinals. An agent that is known only as the other end of a channel also has an ordinal, and
an empty checkpoint 0; `members` tells which agents have joined.

When a checkpoint is forgotten, its changes move to the next kept checkpoint, whose counts stay the same.

Recovery lines
--------------
The *place* of an agent is the state to which it returns: either a checkpoint number or LIVE, which means its live state. The counts
received at LIVE come from the live report if there is one, otherwise from the last checkpoint. A `Reported` mapping contains the counts of
live reports, by channel.

`descend` computes the fixed point for orphans (protocols.md, section 6): while a channel has received > sent, its receiver returns to its
last checkpoint with received <= sent. Consistent cuts are closed under entrywise maximum, so the greatest one at or below the start is
unique, and every order of steps ends there. If an agent moves from place q to p, it can cause orphans only on channels on which it sent
messages in between. The work list visits only these channels, and therefore each recorded change at most once.

`single_failures` gives the answer for every agent at once by the rollback-dependency graph (Bhargava and Lian). Nodes are intervals, each
named by the checkpoint that begins it. An edge leads from each interval to the next one of the same agent. Per channel, an edge leads from
an interval with sends to the interval that received the first of these messages. (Channels are FIFO: the later messages were received in
that interval or later, which the edges to the next intervals cover.) If `failed` fails, an agent restarts from the checkpoint that begins
its first interval reachable from the live interval of `failed`, and keeps its live state if there is no such interval. One pass over the
strongly connected components (Tarjan) computes all reachable sets, as bits of integers. The line for several failures is the entrywise
minimum of the lines for the single failures.

Cuts by numbers
---------------
Channels are FIFO and numbered 1, 2, 3 …, so the numbers sent and received both describe prefixes. For a cut with one record per agent:

- The channel i → j has orphans iff received_j > sent_i: the numbers sent_i + 1 … received_j were consumed inside the cut but sent outside
  it. A cut is consistent iff no channel has orphans (G1).
- The messages in transit are exactly the numbers received_j + 1 … sent_i (G2).

These two rules apply to all checkpoints, whatever triggered them. The functions are pure and do not change their arguments, except that
`descend` changes `places`.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from snapline.errors import ProtocolError


class Column:
    """One end of a channel, with the message count at each checkpoint of that end's agent at which the count had changed.

    Attributes:
        at, counts: checkpoint numbers, and the last message number at each of these checkpoints; both are strictly increasing.
        on_line: the count at this end's checkpoint on the total-failure line. `TotalLine` updates it.
    """

    __slots__ = ("at", "counts", "on_line")

    def __init__(self) -> None:
        self.at: list[int] = []
        self.counts: list[int] = []
        self.on_line = 0

    def by(self, number: int) -> int:
        """Return the count at checkpoint `number`."""
        index = bisect_right(self.at, number)
        return self.counts[index - 1] if index else 0

    def newest(self) -> int:
        """Return the count at the newest checkpoint."""
        return self.counts[-1] if self.counts else 0

    def first_with(self, count: int) -> int:
        """Return the first checkpoint whose count is at least `count`. Such a checkpoint must exist."""
        return self.at[bisect_left(self.counts, count)]

    def first_beyond(self, count: int) -> int | None:
        """Return the first checkpoint whose count exceeds `count`, or None if there is none."""
        if not self.counts or self.counts[-1] <= count:
            return None
        return self.at[bisect_right(self.counts, count)]


class Channel:
    """One channel, with the ordinals of its two agents and a column of counts for each end."""

    __slots__ = ("received", "receiver", "sender", "sent")

    def __init__(self, sender: int, receiver: int) -> None:
        self.sender = sender
        self.receiver = receiver
        self.sent = Column()
        self.received = Column()


class CountChanges:
    """The channels whose count has changed, and their new counts in the same order."""

    __slots__ = ("channels", "counts")

    def __init__(self, channels: Sequence[Channel] = (), counts: Sequence[int] = ()) -> None:
        self.channels = tuple(channels)
        self.counts = tuple(counts)

    def __iter__(self) -> Iterator[tuple[Channel, int]]:
        return zip(self.channels, self.counts, strict=True)


class KeptCheckpoint:
    """An agent's changes, sent and received, since its previous kept checkpoint. `turns` is counted from the agent's start."""

    __slots__ = ("received", "sent", "turns")

    def __init__(self, sent: CountChanges, received: CountChanges, turns: int) -> None:
        self.sent = sent
        self.received = received
        self.turns = turns


class Records:
    """All known agents, their kept checkpoints and their channels.

    Attributes:
        names, ordinals: ordinal → agent, and agent → ordinal.
        members: ordinal → whether the agent has joined.
        outgoing, incoming: ordinal → the agent's channels, each by the name of the agent at the other end.
        numbers: ordinal → numbers of the kept checkpoints, ascending. The list is empty only between `start_at` and the next `add`.
        checkpoints: ordinal → number → kept checkpoint.
        last: ordinal → number of the newest checkpoint, which is always kept.
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
        """Add a checkpoint of `agent` that follows all its other checkpoints. Channels with an unchanged count are ignored.

        Raises:
            ProtocolError: a count is lower than the known count. The checkpoint is not added then.
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
        """Make `number` the agent's oldest checkpoint instead of 0. The call is allowed only before another checkpoint is added."""
        self.checkpoints[agent] = {}
        self.numbers[agent] = []
        self.last[agent] = number

    def between(self, agent: int, low: int, high: int) -> list[int]:
        """Return the kept checkpoints, ascending, that are above `low` and at most `high`."""
        numbers = self.numbers[agent]
        return numbers[bisect_right(numbers, low) : bisect_right(numbers, high)]

    def before(self, agent: int, number: int) -> int:
        """Return the newest kept checkpoint before `number`, or the oldest kept checkpoint if there is none."""
        numbers = self.numbers[agent]
        return numbers[max(bisect_left(numbers, number) - 1, 0)]

    def after(self, agent: int, number: int) -> int:
        """Return the oldest kept checkpoint after `number`. Such a checkpoint must exist."""
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
        """Remove one kept checkpoint, which must not be the newest. The changes of the removed checkpoint move to the next kept
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
    """Return the changes of both checkpoints combined, as changes of the later checkpoint. If both checkpoints have a count for a channel,
    the later count is used."""
    both = dict(gone) | dict(successor)
    return CountChanges(list(both), list(both.values()))


def _move_count(column: Column, number: int, successor: int) -> None:
    """Move the count of checkpoint `number` to the next kept checkpoint, `successor`, unless `successor` already has a count."""
    index = bisect_left(column.at, number)
    if index + 1 < len(column.at) and column.at[index + 1] == successor:
        del column.at[index], column.counts[index]
    else:
        column.at[index] = successor


LIVE = 1 << 62
"""The place of an agent that keeps its live state. LIVE exceeds every checkpoint number, so that minima are correct."""

Reported = Mapping[Channel, int]


def descend(records: Records, places: list[int], received: Reported, sent: Reported | None = None) -> None:
    """Move `places` down to the greatest consistent cut at or below them.

    Args:
        records: the agents, checkpoints and channels.
        places: ordinal → place; changed in place.
        received: channel → count received by an agent at LIVE, if it exceeds the count at the agent's last checkpoint.
        sent: channel → count sent by an agent at LIVE, if it exceeds the count at the agent's last checkpoint. If None, such agents have
            sent everything that was received from them, since sends of live states are never undone.
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
    """Return the channels on which `sender` may have sent messages after `place`, up to `examined`."""
    if examined is None or examined == LIVE:  # the sends of the sender's live state are unknown, so check all channels
        return list(records.outgoing[sender].values())
    checkpoints = records.checkpoints[sender]
    channels: dict[Channel, None] = {}
    for number in records.between(sender, place, examined):
        channels.update(dict.fromkeys(checkpoints[number].sent.channels))
    return list(channels)


def last_place_within(records: Records, channel: Channel, sent: int, place: int, received: Reported) -> int:
    """Return the receiver's last place, at most `place`, at which it has received at most `sent` on the channel."""
    first = channel.received.first_beyond(sent)
    if first is not None and first <= place:
        return records.before(channel.receiver, first)
    if place == LIVE and received.get(channel, 0) > sent:
        return records.last[channel.receiver]
    return place


def single_failures(records: Records, ends: Sequence[int], received: Reported) -> list[list[int]]:
    """Return, for each agent, the places of all agents if only that agent fails.

    Args:
        records: the agents, checkpoints and channels.
        ends: ordinal → the newest checkpoint to be considered, at which the agent's live interval begins.
        received: channel → count received by a live state, if it exceeds the count at `ends`.
    """
    graph = IntervalGraph(records, ends, received)
    return [graph.line_of(reachable) for reachable in graph.reachable_from_ends()]


class IntervalGraph:
    """The rollback-dependency graph of all intervals that begin at or before `ends`.

    Attributes:
        numbers: ordinal → the checkpoints that begin the agent's intervals.
        base: ordinal → node of the agent's first interval, which its other intervals follow.
        next_nodes: node → targets of its edges.
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
        """Return, by ordinal, the nodes reachable from the agent's last interval, as bits. The last interval itself is included."""
        reach = reachable_sets(self.next_nodes)
        return [reach[base + len(numbers) - 1] for base, numbers in zip(self.base, self.numbers, strict=True)]

    def line_of(self, reachable: int) -> list[int]:
        """Return the places that undo exactly the intervals whose bits are set."""
        line = []
        for base, numbers in zip(self.base, self.numbers, strict=True):
            undone = (reachable >> base) & ((1 << len(numbers)) - 1)
            line.append(numbers[(undone & -undone).bit_length() - 1] if undone else LIVE)
        return line


def reachable_sets(next_nodes: Sequence[Sequence[int]]) -> list[int]:
    """Return, by node, the nodes reachable from that node, as bits. The node itself is included.

    The function uses Tarjan's algorithm for components, without recursion. A component is complete only after all components to which it
    leads. So its set is the union of their sets and its own nodes.
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
    """Complete a component. All nodes from `root` upwards on the stack reach each other and the targets of all their edges."""
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
    """The last number sent, by receiver, and the last number received, by sender. A missing entry means 0."""

    sent: Mapping[str, int]
    received: Mapping[str, int]


class Orphans(msgspec.Struct, frozen=True, gc=False):
    """The orphans on one channel, which are the messages `sent` + 1 … `received`."""

    sender: str
    receiver: str
    sent: int
    received: int


def orphans(cut: Mapping[str, DependencyRecord], *, gone: Collection[str] = ()) -> list[Orphans]:
    """Return the orphans on each channel that makes `cut` inconsistent, in the order of the cut.

    Args:
        cut: agent → record. An agent without a record has sent and received nothing inside the cut.
        gone: agents outside the cut that had left before it. The numbers of these agents are unknown and not checked.
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
    """Return a mapping from (sender, receiver) to the numbers sent but not received inside `cut`. Channels without such numbers have no
    entry.

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
