"""Between a host's agents and the store: images become checkpoints of an epoch, and a line becomes agents again.

Images are taken on the event loop, between turns; that is the only pause an agent feels. Everything else here runs in a
worker thread.
"""

import msgspec

from snapline.agent_runtime import host_events as ev
from snapline.agent_runtime.agent import Agent, AgentType
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.turns import restored
from snapline.errors import DamagedDataError, EncodingError
from snapline.protocols.epoch_stamped import EpochRecord
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.storage.checkpoint import AgentCheckpoint, InTransitMessage, encode_checkpoint
from snapline.storage.pack import PackReference
from snapline.storage.store import Store


class Capture(msgspec.Struct):
    """An agent's image and what belongs to it, waiting for its channel states to close."""

    known: AgentType
    state_version: int
    state: bytes
    control: ev.Control
    recorded_ns: int
    capture_ns: int


Captures = dict[str, Capture]


def write_epoch(
    store: Store, writer: str, host_start: int, command: ev.StoreEpoch, captures: Captures
) -> pb.EpochReport:
    """Write this host's part of an epoch as one pack; returns the report for the coordinator.

    Raises:
        EncodingError: a state would not come back from its image.
        StoreError: the store cannot be written; nothing refers to what is left there.
    """
    blobs = []
    report = pb.EpochReport(epoch=command.epoch, host_start=host_start)
    for agent, record in command.records.items():
        capture = captures.get(agent)
        checkpoint = checkpoint_of(agent, record, capture)
        blobs.append((agent, encode_checkpoint(checkpoint)))
        report.state_bytes += len(checkpoint.state)
    _fill_columns(report, command, captures)
    reference = store.write_pack(writer=writer, epoch=command.epoch, blobs=blobs)
    report.pack.CopyFrom(reported(reference))
    report.capture_ns = max((capture.capture_ns for capture in captures.values()), default=0)
    return report


def reported(reference: PackReference) -> pb.PackReference:
    """What the coordinator is told of a pack."""
    return pb.PackReference(path=reference.path, size_bytes=reference.size_bytes, index_digest=reference.index_digest)


def _check_image(agent: str, capture: Capture) -> None:
    """A field may hold what it does not declare: that can be written, and only a recovery would find out."""
    try:
        capture.known.state_reader.decode(capture.state)
    except Exception as error:
        raise EncodingError(
            f"the state of agent {agent!r} ({capture.known.state_name}) does not come back as declared: {error}; "
            "a handler of its class puts something else there"
        ) from error


def checkpoint_of(agent: str, record: EpochRecord, capture: Capture | None) -> AgentCheckpoint:
    """Put an agent's image and its closed channel states together; without an image the agent is unborn.

    Raises:
        EncodingError: the state would not come back from its image.
    """
    in_transit = {
        sender: [InTransitMessage(message.number, message.stamp, message.payload) for message in messages]
        for sender, messages in record.in_transit.items()
    }
    if capture is None:  # unborn: the message that creates the agent is in transit
        return AgentCheckpoint(
            agent=agent, kind="", incarnation=0, number=0, epoch=record.epoch, is_unborn=True, is_started=False,
            is_leaving=False, state=b"", state_type="", state_version=0, state_fields={}, sent=record.sent,
            received=record.received, protocol_state=b"", in_transit=in_transit, outbox=[], spawns=[], timers=[],
            dead_letters=[], dead_letter_count=0, recorded_ns=0,
        )  # fmt: skip
    image = image_of(agent, capture, sent=record.sent, received=record.received)
    return msgspec.structs.replace(image, epoch=record.epoch, in_transit=in_transit)


def image_of(agent: str, capture: Capture, *, sent: dict[str, int], received: dict[str, int]) -> AgentCheckpoint:
    """Make an agent's image a checkpoint that is in no cut yet.

    Raises:
        EncodingError: the state would not come back from its image.
    """
    _check_image(agent, capture)
    control, known = capture.control, capture.known
    return AgentCheckpoint(
        agent=agent, kind=known.kind, incarnation=control.incarnation, number=control.number, epoch=0,
        is_unborn=False, is_started=control.is_started, is_leaving=control.is_leaving, state=capture.state,
        state_type=known.state_name, state_version=capture.state_version, state_fields=known.state_fields,
        sent=sent, received=received, protocol_state=control.protocol_state,
        outbox=control.outbox, spawns=control.spawns, timers=control.timers, dead_letters=control.dead_letters,
        dead_letter_count=control.dead_letter_count, recorded_ns=capture.recorded_ns,
    )  # fmt: skip


def _fill_columns(report: pb.EpochReport, command: ev.StoreEpoch, captures: Captures) -> None:
    """The numbers of all channels as parallel columns; names are listed once.

    Columns are gathered in lists and handed to protobuf at once: a thousand channels cost a quarter of a millisecond.
    """
    places = Places()
    sent_from: list[int] = []
    sent_to: list[int] = []
    sent_number: list[int] = []
    received_from: list[int] = []
    received_to: list[int] = []
    received_number: list[int] = []
    recorded_count: list[int] = []
    members = [(places[agent], record) for agent, record in command.records.items()]
    report.agents.extend([me for me, _ in members])
    report.unborn.extend([agent not in captures for agent in command.records])
    departed = [(places[agent], sent) for agent, sent in command.departed.items()]
    for me, sent in [*((me, record.sent) for me, record in members), *departed]:
        sent_from += [me] * len(sent)
        sent_to += [places[receiver] for receiver in sent]
        sent_number += sent.values()
    for me, record in members:
        received, in_transit = record.received, record.in_transit
        senders = received if in_transit.keys() <= received.keys() else dict.fromkeys([*received, *in_transit])
        received_from += [places[sender] for sender in senders]
        received_to += [me] * len(senders)
        received_number += [received.get(sender, 0) for sender in senders]
        recorded_count += [len(in_transit.get(sender, ())) for sender in senders]
        for messages in in_transit.values():
            report.channel_state_messages += len(messages)
            report.channel_state_bytes += sum([len(message.payload) for message in messages])
    report.sent_from.extend(sent_from)
    report.sent_to.extend(sent_to)
    report.sent_number.extend(sent_number)
    report.received_from.extend(received_from)
    report.received_to.extend(received_to)
    report.received_number.extend(received_number)
    report.recorded_count.extend(recorded_count)
    report.names.extend(places)


class Places(dict[str, int]):
    """Name → its place in the list of names, in order of first use."""

    def __missing__(self, name: str) -> int:
        place = self[name] = len(self)
        return place


def load_line(
    store: Store | None, fleet: Fleet, command: ev.LoadAgents
) -> tuple[list[ev.LoadedAgent], dict[str, Agent]]:
    """Make the agents of a line: initial ones from the fleet's definition, others from their checkpoints.

    Raises:
        DamagedDataError: a checkpoint is not what was written; nothing of it was used (G11).
        SnaplineError: an agent cannot be made; names it.
    """
    if command.line_epoch == 0 or store is None:
        made = {place.agent: fleet.make(place.agent) for place in command.agents}
        return [ev.LoadedAgent(place.agent, place.incarnation, None) for place in command.agents], made
    manifest = store.read_manifest(command.line_root, epoch=command.line_epoch)
    loaded: list[ev.LoadedAgent] = []
    objects: dict[str, Agent] = {}
    for place in command.agents:
        checkpoint = store.read_checkpoint(manifest, place.agent)
        if checkpoint.agent != place.agent or checkpoint.epoch != command.line_epoch:
            raise DamagedDataError(
                f"epoch {command.line_epoch}: the checkpoint of {place.agent} is that of {checkpoint.agent}, "
                f"epoch {checkpoint.epoch}"
            )
        loaded.append(ev.LoadedAgent(place.agent, place.incarnation, checkpoint))
        if not checkpoint.is_unborn:
            objects[place.agent] = restored(fleet, checkpoint)
    return loaded, objects
