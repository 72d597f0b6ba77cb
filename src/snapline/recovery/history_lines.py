"""Recovery lines from the records of running agents: one line by the orphan fix-point, or the lines of all single failures at once.

Theory of operation
-------------------
The *place* of an agent is the state that it goes back to: a checkpoint number, or LIVE, its live state. The counts received at LIVE come from
the live report, else from the last checkpoint. `reported` holds the counts of live reports, by channel.

`descend` is the orphan fix-point of protocols.md, section 6: while a channel has received > sent, its receiver goes
back to its last checkpoint with received <= sent. Consistent cuts are closed under entrywise maximum, so the greatest
one at or below the start is unique and every order of steps ends there. An agent that moved from place q to p can have
made orphans only on channels on which it sent messages in between. The work list visits only those, hence each recorded
change at most once.

`single_failures` answers for every agent at once by the rollback-dependency graph (Bhargava and Lian): nodes are
intervals, named by the checkpoint that opens them; edges lead from each to the next one of the same agent and, per
channel, from an interval with sends to the interval that received the first of these messages (FIFO: the later messages
were received there or later, which the edges to the next intervals cover). If `failed` fails, an
agent restarts from the checkpoint that opens its first interval reachable from the live interval of `failed`, and
keeps its live state if there is none. All reachable sets come from one pass over the strongly connected components
(Tarjan), as bits of integers. The line of several failures is the entrywise minimum of those of the single ones.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from snapline.recovery.history_records import Channel, Records

LIVE = 1 << 62
"""Place of an agent that keeps its live state: above every checkpoint number, so that minima are correct."""

Reported = Mapping[Channel, int]


def descend(records: Records, places: list[int], received: Reported, sent: Reported | None = None) -> None:
    """Move `places` down to the greatest consistent cut at or below them.

    Args:
        places: by ordinal; changed in place.
        received: counts of agents at LIVE beyond their last checkpoints.
        sent: counts sent by agents at LIVE, likewise. None: they sent everything that was received from them, since
            sends of live states are never undone. Otherwise they sent only these counts and those of their last checkpoints.
    """
    examined: list[int | None] = [None] * len(places)  # sends after this place have been checked
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
    """Return the channels on which `sender` may have sent after `place`, up to `examined`."""
    if examined is None or examined == LIVE:  # the sends of its live state are unknown: check all channels
        return list(records.outgoing[sender].values())
    checkpoints = records.checkpoints[sender]
    channels: dict[Channel, None] = {}
    for number in records.between(sender, place, examined):
        channels.update(dict.fromkeys(checkpoints[number].sent.channels))
    return list(channels)


def last_place_within(records: Records, channel: Channel, sent: int, place: int, received: Reported) -> int:
    """Return the last place of the receiver, not above `place`, at which it has received at most `sent` on the channel."""
    first = channel.received.first_beyond(sent)
    if first is not None and first <= place:
        return records.before(channel.receiver, first)
    if place == LIVE and received.get(channel, 0) > sent:
        return records.last[channel.receiver]
    return place


def single_failures(records: Records, ends: Sequence[int], received: Reported) -> list[list[int]]:
    """Return, by failed agent, the places of all agents.

    Args:
        ends: by ordinal, the newest checkpoint that counts: where the agent's live interval begins.
        received: counts of live states beyond `ends`.
    """
    graph = IntervalGraph(records, ends, received)
    return [graph.line_of(reachable) for reachable in graph.reachable_from_ends()]


class IntervalGraph:
    """The rollback-dependency graph of all intervals that begin at or before `ends`.

    Attributes:
        numbers: by ordinal, the checkpoints that open the intervals.
        base: by ordinal, the node of its first interval; the others follow.
        next_nodes: by node, the targets of its edges.
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
            (count, max(receiver_nodes[number] - 1, oldest_receiver))  # no interval lies before the oldest kept one
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
        sends.append((LIVE, oldest_sender + len(sender_nodes) - 1))  # the live interval sent the rest
        before, place = 0, 0  # numbers up to `before` were sent earlier
        for count, node in sends:
            while place < len(receives) and receives[place][0] <= before:
                place += 1
            if place == len(receives):
                return
            if node >= oldest_sender:
                self.next_nodes[node].append(receives[place][1])
            before = count

    def reachable_from_ends(self) -> list[int]:
        """Return, by ordinal, as bits, the nodes reachable from its last interval, that one included."""
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
    """Return, by node, as bits, the nodes reachable from it, itself included.

    Tarjan's components, without recursion. A component is complete only after all components that it leads to, so its set
    is the union of their sets and its own nodes.
    """
    count = len(next_nodes)
    order, low = [0] * count, [0] * count  # order 0: not visited yet
    reach = [0] * count  # 0: its component is not complete
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
    """Close a component: all nodes above `root` on the stack reach each other and the targets of all their edges."""
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
