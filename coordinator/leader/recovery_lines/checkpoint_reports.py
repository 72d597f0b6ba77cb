"""Hosts' reports of stored checkpoints: from columns to one struct for each."""

from collections.abc import Callable, Iterator

import msgspec

from snapline.coordinator.leader.events import StoredCheckpoint
from snapline.messages.host_messages import CheckpointsStored


def without_departed_agents(checkpoint: StoredCheckpoint, has_left: Callable[[str], bool]) -> StoredCheckpoint:
    """Return the checkpoint without the numbers of agents that have left: messages received from them would look like orphans."""
    if not any(map(has_left, (*checkpoint.sent, *checkpoint.received))):
        return checkpoint
    sent = {agent: number for agent, number in checkpoint.sent.items() if not has_left(agent)}
    received = {agent: number for agent, number in checkpoint.received.items() if not has_left(agent)}
    return msgspec.structs.replace(checkpoint, sent=sent, received=received)


def shape_problem(message: CheckpointsStored) -> str:
    """Return what is wrong with the columns' lengths or indices; "": nothing."""
    names, agents = len(message.names), len(message.agents)
    if not {len(message.numbers), len(message.bases)} <= {agents} or len(message.turns) not in (0, agents):
        return "the columns of its agents differ in length"
    if len({len(message.sent_of), len(message.sent_to), len(message.sent_number)}) > 1:
        return "the columns of channels sent on differ in length"
    if len({len(message.received_of), len(message.received_from), len(message.received_number)}) > 1:
        return "the columns of channels received on differ in length"
    columns = (message.agents, names), (message.sent_of, agents), (message.sent_to, names)
    for column, size in (*columns, (message.received_of, agents), (message.received_from, names)):
        if column and max(column) >= size:
            return f"index {max(column)} of {size}"
    return ""


def checkpoints_of(message: CheckpointsStored) -> Iterator[StoredCheckpoint]:
    """Yield the report's checkpoints, with the channels that have changed. The first one carries the size of all logs."""
    names = message.names
    sent: list[dict[str, int]] = [{} for _ in message.agents]
    received: list[dict[str, int]] = [{} for _ in message.agents]
    for index, peer, number in zip(message.sent_of, message.sent_to, message.sent_number, strict=True):
        sent[index][names[peer]] = number
    for index, peer, number in zip(message.received_of, message.received_from, message.received_number, strict=True):
        received[index][names[peer]] = number
    turns = message.turns or (0,) * len(message.agents)
    for index, agent in enumerate(message.agents):
        yield StoredCheckpoint(
            names[agent],
            message.numbers[index],
            message.bases[index],
            message.epoch,
            message.pack,
            sent[index],
            received[index],
            turns[index],
            0 if index else message.log_bytes,
        )
