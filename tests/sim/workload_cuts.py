"""Changes that make a consistent cut inconsistent, each by its name."""

import itertools
from collections.abc import Iterator

import msgspec

from snapline.messages.payloads import CREATE
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, ParkedMessage

SLOTS_TRIED = 12
"""So many of the messages in transit of one cut are dropped, and doubled, each in a cut of its own."""

Checkpoints = dict[str, AgentCheckpoint]
Queue = tuple[list[InTransitMessage] | list[ParkedMessage], int]


def copy_of(checkpoints: Checkpoints) -> Checkpoints:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(checkpoints), type=Checkpoints)


def slots(checkpoints: Checkpoints) -> list[Queue]:
    """Every message in transit: the list in which it lies, and its place."""
    lists: list[list[InTransitMessage] | list[ParkedMessage]] = []
    for found in checkpoints.values():
        lists += [*found.in_transit.values(), found.outbox]
    return [(messages, place) for messages in lists for place in range(len(messages))]


def some_slots(checkpoints: Checkpoints) -> range:
    """Numbers of slots, spread over all of them."""
    count = len(slots(checkpoints))
    return range(0, count, 1 + count // SLOTS_TRIED)


def dropped(checkpoints: Checkpoints, _after: Checkpoints) -> Iterator[Checkpoints]:
    for slot in some_slots(checkpoints):
        changed = copy_of(checkpoints)
        messages, place = slots(changed)[slot]
        del messages[place]
        if not looks_wanted(changed):
            yield changed


def doubled(checkpoints: Checkpoints, _after: Checkpoints) -> Iterator[Checkpoints]:
    for slot in some_slots(checkpoints):
        changed = copy_of(checkpoints)
        messages, place = slots(changed)[slot]
        messages.insert(place, messages[place])  # type: ignore[arg-type]
        yield changed


def swapped(checkpoints: Checkpoints, _after: Checkpoints) -> Iterator[Checkpoints]:
    """Neighbours of one channel change places; their numbers on the channel stay where they were."""
    for slot, (messages, place) in enumerate(slots(checkpoints)):
        if place + 1 < len(messages) and _receiver(messages[place]) == _receiver(messages[place + 1]):
            changed = copy_of(checkpoints)
            there, _ = slots(changed)[slot]
            exchanged = [
                msgspec.structs.replace(there[place], payload=there[place + 1].payload),
                msgspec.structs.replace(there[place + 1], payload=there[place].payload),
            ]
            there[place : place + 2] = exchanged  # type: ignore[assignment]  # both are of this list's type
            yield changed


def looks_wanted(checkpoints: Checkpoints) -> bool:
    """Is there a spawn that looks as if the coordinator had not granted it yet? `Cut` does not tell which spawns wait."""
    for agent, found in checkpoints.items():
        receivers = [parked.receiver for parked in found.outbox if parked.payload[:1] != CREATE]
        for lodger in receivers:
            is_created = any(parked.receiver == lodger and parked.payload[:1] == CREATE for parked in found.outbox)
            in_transit = checkpoints[lodger].in_transit.get(agent, []) if lodger in checkpoints else []
            is_there = lodger in checkpoints and bool(checkpoints[lodger].state)
            if lodger.startswith(f"{agent}-") and not (is_created or in_transit or is_there or found.spawns):
                return True
    return False


def _receiver(message: InTransitMessage | ParkedMessage) -> str:
    return message.receiver if isinstance(message, ParkedMessage) else ""


def moved(checkpoints: Checkpoints, _after: Checkpoints) -> Iterator[Checkpoints]:
    """The newest message of a channel is in another channel's place: the counts of all messages stay the same."""
    for receiver, found in checkpoints.items():
        senders = [sender for sender, messages in found.in_transit.items() if messages]
        for sender, other in itertools.pairwise(senders):
            changed = copy_of(checkpoints)
            channels = changed[receiver].in_transit
            channels[other].append(channels[sender].pop())
            yield changed


def too_new(checkpoints: Checkpoints, after: Checkpoints) -> Iterator[Checkpoints]:
    """One agent's state is that of its next turn; all else is from before."""
    yield from _mixed(checkpoints, after)


def too_old(checkpoints: Checkpoints, after: Checkpoints) -> Iterator[Checkpoints]:
    """One agent's state is that before its last turn; all else is from after."""
    yield from _mixed(after, checkpoints)


def _mixed(checkpoints: Checkpoints, other: Checkpoints) -> Iterator[Checkpoints]:
    for agent, found in checkpoints.items():
        if agent in other and found.state and other[agent].state and found.state != other[agent].state:
            changed = copy_of(checkpoints)
            changed[agent] = msgspec.structs.replace(found, state=other[agent].state)
            yield changed


def forgotten_timer(checkpoints: Checkpoints, _after: Checkpoints) -> Iterator[Checkpoints]:
    for agent, found in checkpoints.items():
        if found.timers:
            changed = copy_of(checkpoints)
            changed[agent].timers.pop()
            yield changed


def missing_agent(checkpoints: Checkpoints, _after: Checkpoints) -> Iterator[Checkpoints]:
    for agent in checkpoints:
        changed = {name: found for name, found in checkpoints.items() if name != agent}
        if (checkpoints[agent].state or checkpoints[agent].in_transit) and not looks_wanted(changed):
            yield changed


MUTATIONS = {
    mutation.__name__: mutation
    for mutation in (dropped, doubled, swapped, moved, too_new, too_old, forgotten_timer, missing_agent)
}
