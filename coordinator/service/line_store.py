"""Storing a recovery line as an epoch, and scanning the store for checkpoints.

If agents checkpoint on their own, hosts write checkpoint packs. For each checkpoint, a pack contains the state, the channel numbers, and
all messages sent since the agent's previous checkpoint. A *recovery line* consists of one checkpoint of each agent. To become an epoch, a
recovery line also needs its channel states. The state of channel i→j consists of the messages `received_j + 1 … sent_i` (docs/protocols.md,
sections 1 and 3). The messages of a channel state were sent before the recovery line. Each of them is either in the base epoch's channel
state, or in a log that i wrote between the base and the recovery line.

A restart from the new epoch must find exactly the messages in transit (G1, G2). `read_line` therefore checks these conditions:

- There is no orphan: `received_j <= sent_i` on every channel.
- There is no gap and no duplicate: the numbers of the messages found are exactly `received_j + 1 … sent_i`, in order.
- Every pack has the reported digests, and contains the checkpoints that the recovery line names (G11).

An agent without a checkpoint on the recovery line has been removed. An agent is removed only after all its messages were received in a
complete epoch (`ComposedLine.finished`). The channel numbers of a removed agent are no longer needed, and each host drops them when
convenient.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from snapline.coordinator.leader.events import (
    LineAgent,
    ManifestAgent,
    MaterialiseLine,
    ScanCheckpoints,
    StoredCheckpoint,
    WriteManifest,
)
from snapline.errors import DamagedDataError, NotFoundError, ProtocolError
from snapline.messages.host_messages import ReportedPack
from snapline.storage.disk.record import damaged
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, encode_checkpoint, size_of
from snapline.storage.packs.pack import PackNeeds, PackReference
from snapline.storage.store.store import Store

_log = logging.getLogger("snapline.coordinator")

Messages = list[InTransitMessage]

SHOWN_MAX = 8
"""Largest number of messages that one error names."""


class ComposedLine(msgspec.Struct, frozen=True):
    """Content of the epoch that is made from a recovery line.

    Attributes:
        checkpoints: one checkpoint per agent, in the order of the command's agents.
        channels: channels between these agents on which at least one message was sent.
        reused: digests of the chunks that the base epoch already contains.
        copied: for each checkpoint pack, by path, the digests of the chunks that are copied from it.
        finished: stopped agents whose messages have all been received before the recovery line.
    """

    checkpoints: list[AgentCheckpoint]
    channels: list[tuple[str, str]]
    reused: list[bytes] = []
    copied: dict[str, list[bytes]] = {}

    @property
    def finished(self) -> tuple[str, ...]:
        heard = {sender for x in self.checkpoints for sender in x.in_transit}
        return tuple(
            [
                x.agent
                for x in self.checkpoints
                if x.is_leaving and not x.outbox and not x.spawns and x.agent not in heard
            ]
        )


class _Member(msgspec.Struct):
    """One agent's data for a recovery line, as read from the store.

    Attributes:
        checkpoint: the agent's checkpoint on the recovery line; None if the agent has not been created yet.
        base: the agent's checkpoint in the base epoch; None if that epoch does not contain the agent. The state in `base` is omitted if the
            recovery line contains a later checkpoint.
        logs: for each receiver, the messages sent to it after the base checkpoint and before the recovery line, in order.
    """

    checkpoint: AgentCheckpoint | None
    base: AgentCheckpoint | None
    logs: dict[str, Messages]


# ---- line to epoch ------------------------------------------------------------------------------------------------


def read_line(store: Store, command: MaterialiseLine) -> ComposedLine:
    """Read the base epoch and the checkpoint packs, each once, and compose the new epoch. While the epoch is being composed, the states of
    all agents are in memory.

    Raises:
        DamagedDataError: a file is damaged, or differs from the report about it. The error message names the file.
        ProtocolError: the recovery line is not a consistent cut, or messages are missing. The error message names the channel.
        StoreError: the store is currently unreadable.
    """
    base = dict(_read_base(store, command))
    members = _read_members(store, command, base)
    incoming = _Incoming(members)
    composed = []
    for agent, member in members.items():
        in_transit = incoming.of(agent, member)
        if member.checkpoint is None:
            composed.append(
                AgentCheckpoint(agent=agent, kind="", incarnation=0, epoch=command.epoch, is_unborn=True,
                                in_transit=in_transit)
            )  # fmt: skip
        else:
            composed.append(
                msgspec.structs.replace(
                    member.checkpoint, epoch=command.epoch, in_transit=in_transit, sender_log={}
                )
            )  # fmt: skip
    reused, copied = _find_chunks(store, command, composed)
    return ComposedLine(composed, incoming.channels, reused, copied)


def _find_chunks(
    store: Store, command: MaterialiseLine, composed: list[AgentCheckpoint]
) -> tuple[list[bytes], dict[str, list[bytes]]]:
    """Return the chunks of the states that are already in the base epoch, and, by path, those that must be copied from checkpoint packs."""
    if not any(checkpoint.chunked for checkpoint in composed):
        return [], {}
    held: set[bytes] = set()
    if command.base_epoch:
        manifest = store.read_manifest(command.base_root, epoch=command.base_epoch)
        held = {chunk.digest for chunk in manifest.chunks}
    reused: dict[bytes, None] = {}
    copied: dict[str, list[bytes]] = {}
    seen: set[bytes] = set()
    for agent, checkpoint in zip(command.agents, composed, strict=True):
        for digest in checkpoint.digests():
            if digest in held or not agent.paths:
                reused[digest] = None
            elif digest not in seen:
                seen.add(digest)
                copied.setdefault(agent.paths[-1], []).append(digest)
    return list(reused), copied


def write_line(store: Store, command: MaterialiseLine, line: ComposedLine) -> WriteManifest:
    """Write the epoch's only pack, which is durable when the function returns. Return the command that writes the epoch's manifest."""
    blobs = ((x.agent, encode_checkpoint(x)) for x in line.checkpoints)
    chunks = (chunk for path, digests in line.copied.items() for chunk in store.read_chunks(path, digests))
    needs = PackNeeds(command.base_epoch if line.reused else 0, line.reused)
    reference = store.write_pack(writer=command.writer, epoch=command.epoch, blobs=blobs, chunks=chunks, needs=needs)
    sizes = [size_of(x.in_transit.values()) for x in line.checkpoints]
    return WriteManifest(
        epoch=command.epoch,
        plan=command.plan,
        trigger=command.trigger,
        hosts=command.hosts,
        packs=(_reported(reference),),
        agents=tuple(
            [
                ManifestAgent(agent.agent, agent.kind, agent.host, agent.incarnation, checkpoint.is_unborn, 0)
                for agent, checkpoint in zip(command.agents, line.checkpoints, strict=True)
            ]
        ),
        channels=tuple(line.channels),
        bases={command.base_epoch: command.base_root} if command.base_epoch else {},
        state_bytes=sum([x.state_bytes for x in line.checkpoints]),
        channel_state_bytes=sum([size_bytes for _, size_bytes in sizes]),
        channel_state_messages=sum([count for count, _ in sizes]),
        inputs={x.agent: x.inputs.settled for x in line.checkpoints if x.inputs.settled},
        outputs={x.agent: x.outputs.number for x in line.checkpoints if x.outputs.number},
        durable_turns={x.agent: x.ended_turns for x in line.checkpoints if x.ended_turns},
    )


def _read_base(store: Store, command: MaterialiseLine) -> Iterator[tuple[str, AgentCheckpoint]]:
    if command.base_epoch == 0:
        return
    needed = {agent.agent for agent in command.agents if not agent.paths}
    manifest = store.read_manifest(command.base_root, epoch=command.base_epoch)
    for checkpoint in store.read_checkpoints(manifest):
        is_whole = checkpoint.agent in needed
        yield checkpoint.agent, checkpoint if is_whole else _without_contents(checkpoint)


def _without_contents(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    """Return the checkpoint without its state and saved journal, but with its numbers and logs."""
    return msgspec.structs.replace(checkpoint, state=b"", parts=[], saved_journal=msgspec.UNSET)


def _read_members(store: Store, command: MaterialiseLine, base: Mapping[str, AgentCheckpoint]) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    wanted: dict[str, dict[str, list[int]]] = {}
    for agent in command.agents:
        start = base.get(agent.agent)
        is_made = start is not None and not start.is_unborn
        for number, path in enumerate(agent.paths, _first_number(agent, start)):
            wanted.setdefault(path, {}).setdefault(agent.agent, []).append(number)
        members[agent.agent] = _Member(None if agent.paths or not is_made else start, start, {})
    chains: dict[str, dict[int, AgentCheckpoint]] = {agent.agent: {} for agent in command.agents}
    lines = {agent.agent: agent.number for agent in command.agents}
    for path, numbers in wanted.items():
        for checkpoint in _read_pack(store, command, path, numbers):
            is_line = checkpoint.number == lines[checkpoint.agent]
            kept = checkpoint if is_line else _without_contents(checkpoint)
            chains[checkpoint.agent][checkpoint.number] = kept
    for name, chain in chains.items():
        for number in sorted(chain):
            members[name].checkpoint = chain[number]
            for receiver, log in chain[number].sender_log.items():
                members[name].logs.setdefault(receiver, []).extend(log)
    return members


def _first_number(agent: LineAgent, base: AgentCheckpoint | None) -> int:
    """Return the number of the agent's first checkpoint after the base. Raise ProtocolError if the recovery line contradicts the base
    epoch."""
    first = agent.number - len(agent.paths) + 1
    if base is not None and not base.is_unborn:
        fits = agent.base_number == base.number and first == base.number + 1
    else:  # An initial agent begins with number 0; an agent created later has no file for number 0.
        fits = agent.base_number <= 0 and (first in (0, 1) if agent.paths else agent.number == 0)
    if fits:
        return first
    base_checkpoint = "no checkpoint" if base is None or base.is_unborn else f"checkpoint {base.number}"
    raise ProtocolError(
        f"the line holds checkpoint {agent.number} of agent {agent.agent} in {len(agent.paths)} packs after number "
        f"{agent.base_number}, and the base epoch holds {base_checkpoint}: that does not fit"
    )


def _read_pack(
    store: Store, command: MaterialiseLine, path: str, wanted: Mapping[str, Collection[int]]
) -> Iterator[AgentCheckpoint]:
    """Yield the checkpoints in one pack that are needed for the recovery line. One agent may have several checkpoints in the pack."""
    reported = command.packs.get(path)
    if reported is None:
        raise ProtocolError(f"the line names {path}, and nothing was reported of it")
    try:
        checkpoints = store.read_checkpoint_pack(
            PackReference(reported.path, reported.size_bytes, reported.index_digest), wanted
        )
    except NotFoundError as error:
        raise damaged(path, f"it is not what was reported: {error}") from error
    for checkpoint in checkpoints:
        if checkpoint.round not in (0, command.epoch):
            raise ProtocolError(
                f"{path}: checkpoint {checkpoint.number} of agent {checkpoint.agent} belongs to round {checkpoint.round}"
            )
        yield checkpoint


class _Incoming:
    """Messages sent to each agent of a recovery line, by receiver and sender.

    Attributes:
        channels: channels between agents of the recovery line on which messages were sent, sorted.
    """

    def __init__(self, members: Mapping[str, _Member]) -> None:
        self._sent: dict[str, dict[str, int]] = {agent: {} for agent in members}
        self._logs: dict[str, dict[str, Messages]] = {agent: {} for agent in members}
        self.channels: list[tuple[str, str]] = []
        for agent in sorted(members):
            self._add(agent, members[agent])

    def _add(self, sender: str, member: _Member) -> None:
        checkpoint = member.checkpoint
        for receiver, number in sorted(checkpoint.sent.items()) if checkpoint is not None else ():
            if receiver in self._sent and number:  # Messages to departed agents are dead letters.
                self._sent[receiver][sender] = number
                self.channels.append((sender, receiver))
        for receiver, log in member.logs.items():
            if receiver in self._logs:
                self._logs[receiver][sender] = log

    def of(self, receiver: str, member: _Member) -> dict[str, Messages]:
        """Return the states of all channels to `receiver`. Raise ProtocolError if the messages found are not exactly the messages in
        transit."""
        received = {} if member.checkpoint is None else member.checkpoint.received
        base_received = {} if member.base is None else member.base.received
        base_in_transit = {} if member.base is None else member.base.in_transit
        sent, logs = self._sent[receiver], self._logs[receiver]
        in_transit = {}
        for sender in sorted({*received, *sent, *logs, *base_in_transit}):
            if sender not in self._sent:
                numbers = received.get(sender, 0), base_received.get(sender, 0)
                _check_departed_sender(f"{sender}→{receiver}", *numbers, base_in_transit.get(sender, ()))
                continue
            first = received.get(sender, 0) + 1
            last = sent.get(sender, 0)
            sent_messages = [*base_in_transit.get(sender, ()), *logs.get(sender, ())]
            messages = [message for message in sent_messages if message.number >= first]
            _check_channel(f"{sender}→{receiver}", first, last, [message.number for message in messages])
            if messages:
                in_transit[sender] = messages
        return in_transit


def _check_departed_sender(
    channel: str, received: int, base_received: int, in_transit: Sequence[InTransitMessage]
) -> None:
    """Check a channel whose sender has left the fleet. Raise ProtocolError if a message was received on this channel since the base epoch,
    or is in transit on it."""
    if received > base_received:
        raise ProtocolError(
            f"the line is NOT consistent: on channel {channel} message {received} was received, and the sender is not in the "
            "line; no epoch is made of it"
        )
    if in_transit:
        raise ProtocolError(
            f"on channel {channel} {len(in_transit)} messages are in transit in the base epoch, and the sender is not in the "
            "line: it has left too early; no epoch is made of it"
        )


def _check_channel(channel: str, first: int, last: int, found: list[int]) -> None:
    if first > last + 1:
        raise ProtocolError(
            f"the line is NOT consistent: on channel {channel} message {first - 1} was received, and {last} were sent; "
            "no epoch is made of it"
        )
    if found != list(range(first, last + 1)):
        shown = ", ".join(map(str, found[:SHOWN_MAX])) + (", …" if len(found) > SHOWN_MAX else "")
        raise ProtocolError(
            f"the messages in transit on channel {channel} are not all there: base epoch and sender logs hold "
            f"{shown or 'none'}, {f'{first} to {last}' if first <= last else 'none'} must be; no epoch is made of the line"
        )


# ---- scans of the store -------------------------------------------------------------------------------------------


def scan_base(store: Store, command: ScanCheckpoints) -> list[StoredCheckpoint]:
    """Return the checkpoints of the base epoch, including entries for its unborn agents.

    Raises:
        DamagedDataError: the epoch is damaged. The error message names the file.
        StoreError: the store is currently unreadable.
    """
    if command.base_epoch == 0:
        return []
    manifest = store.read_manifest(command.base_root, epoch=command.base_epoch)
    checkpoints = []
    for line, checkpoint in zip(manifest.agents, store.read_checkpoints(manifest), strict=True):
        stored = _stored(checkpoint, manifest.packs[line.pack], epoch=command.base_epoch)
        if checkpoint.is_unborn:
            stored = msgspec.structs.replace(stored, basis="unborn", number=0, sent={}, received={})
        checkpoints.append(stored)
    return checkpoints


def scan_packs(store: Store, command: ScanCheckpoints) -> list[StoredCheckpoint]:
    """Return all checkpoints in the plan's checkpoint packs, sorted. A damaged pack is logged and skipped.

    Raises:
        StoreError: the store is currently unreadable.
    """
    checkpoints: list[StoredCheckpoint] = []
    for path in store.checkpoint_packs(command.plan):
        try:
            reference = store.reference_checkpoint_pack(path)
            checkpoints += [_stored(x, reference, epoch=x.round) for x in store.read_checkpoint_pack(reference)]
        except DamagedDataError as error:
            _log.warning("its checkpoints are left out: %s", error)
    return sorted(checkpoints, key=lambda x: (x.agent, x.number, x.epoch, x.pack.path))


def _stored(checkpoint: AgentCheckpoint, pack: PackReference, *, epoch: int) -> StoredCheckpoint:
    return StoredCheckpoint(
        agent=checkpoint.agent,
        number=checkpoint.number,
        basis=checkpoint.basis,
        epoch=epoch,
        pack=_reported(pack),
        sent=checkpoint.sent,
        received=checkpoint.received,
        turns=checkpoint.turns,
        log_bytes=size_of(checkpoint.sender_log.values())[1],
    )


def _reported(pack: PackReference) -> ReportedPack:
    return ReportedPack(pack.path, pack.size_bytes, pack.index_digest)
