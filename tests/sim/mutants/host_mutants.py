"""Mutants of hosts, the epoch-stamped protocol, links and the store."""

from collections.abc import Callable
from typing import Any

import msgspec

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import driver
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.entries import Mark
from snapline.agent_runtime.host.host_state import AgentInlet, LocalAgent
from snapline.agent_runtime.host.modes.coordinated import CoordinatedMode
from snapline.agent_runtime.host.plans import HostPlans
from snapline.agent_runtime.host.turn_ends import TurnEnds
from snapline.agent_runtime.host.turns import Turns
from snapline.channels.frame import Items
from snapline.channels.incoming import IncomingOrder
from snapline.channels.link_events import Command
from snapline.channels.order import OutgoingOrder
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.messages.host_messages import StopEvaluated
from snapline.protocols.epoch_stamped import EpochRecording, EpochStampedCore, RecordedPart, WaitingMessage
from snapline.sim.world.disk import NodeDisk
from snapline.sim.world.product_patches import Patch
from snapline.storage.disk import record
from snapline.storage.packs import pack
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.store.store import Store

LATE_NS = 30_000_000
"""Delay of markers in nanoseconds. It is at least as long as the delivery of a message."""


def deliver_before_record() -> list[Patch]:
    """Let an agent that has to record its state handle one more entry first. Numbers in markers are not compared with received messages."""
    original = CoordinatedMode.before_turn

    def before_turn(self: CoordinatedMode, agent: LocalAgent) -> None:
        if not agent.mailbox:
            original(self, agent)

    return [(CoordinatedMode, "before_turn", before_turn), *_without_balance()]


def _without_balance() -> list[Patch]:
    """Skip the comparison of a record's messages with the numbers in markers."""

    def close(self: EpochRecording, channel: str, last_number: int) -> None:
        self.markers[channel] = last_number

    return [(EpochRecording, "close", close), (EpochRecording, "validate", lambda *_: None)]


def marker_late() -> list[Patch]:
    """Delay markers. Stamps would hide the delay and the numbers in markers would detect it, so both are disabled."""
    shown, check, handle = CoordinatedMode._show, CoordinatedMode._check, HostCore.handle

    def check_epochs(self: CoordinatedMode) -> None:
        now = self._shared.now
        begun = vars(self).setdefault("_begun", {})
        late = [each for each in self.epochs.values() if now < begun.setdefault(each.number, now) + LATE_NS]
        for epoch in late:
            epoch.unrecorded["late"] = None
        check(self)
        for epoch in late:
            del epoch.unrecorded["late"]

    def handle_and_check(self: HostCore, now_ns: int, event: Any) -> Any:
        commands = handle(self, now_ns, event)
        if isinstance(self.mode, CoordinatedMode) and self.mode.epochs:
            self.mode._check()  # the check may add commands
        return commands

    def show(self: CoordinatedMode, owner: LocalAgent, inlet: AgentInlet, stamp: int, payload: bytes) -> None:
        if stamp < owner.protocol.recorded:
            shown(self, owner, inlet, stamp, payload)

    return [
        (HostCore, "handle", handle_and_check),
        (CoordinatedMode, "_check", check_epochs),
        (CoordinatedMode, "_show", show),
        *_without_balance(),
    ]


def channel_state_dropped() -> list[Patch]:
    original = EpochStampedCore.record_of

    def record_of(self: EpochStampedCore, epoch: int) -> RecordedPart:
        return msgspec.structs.replace(original(self, epoch), in_transit={})

    return [(EpochStampedCore, "record_of", record_of)]


def channel_state_past_marker() -> list[Patch]:
    """Keep messages that arrive after a marker in the channel state. Stamps, which also identify such messages, are not
    checked, and neither is the record."""
    original = CoordinatedMode.arrived

    def arrived(self: CoordinatedMode, owner: LocalAgent, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        assert isinstance(mark, int)
        message = WaitingMessage(inlet.sender, inlet.arrived, mark, payload)
        for epoch in owner.protocol._open.values():
            if inlet.sender in epoch.markers:
                epoch.in_transit.setdefault(inlet.sender, []).append(message)
        original(self, owner, inlet, mark, payload)

    return [(CoordinatedMode, "arrived", arrived), (EpochRecording, "validate", lambda *_: None)]


def channel_state_doubled() -> list[Patch]:
    original = EpochStampedCore.record_of

    def record_of(self: EpochStampedCore, epoch: int) -> RecordedPart:
        record = original(self, epoch)
        doubled = {sender: [*messages, *messages[-1:]] for sender, messages in record.in_transit.items()}
        return msgspec.structs.replace(record, in_transit=doubled)

    return [(EpochStampedCore, "record_of", record_of)]


def markers_not_awaited() -> list[Patch]:
    original = CoordinatedMode._check

    def check(self: CoordinatedMode) -> None:
        for epoch in self.epochs.values():
            epoch.awaited.clear()
        original(self)

    return [(CoordinatedMode, "_check", check)]


def state_one_capture_old() -> list[Patch]:
    original = Turns.capture

    def capture(self: Turns, agent: str, base: Any = None) -> Any:
        known, version, image = original(self, agent)
        kept = vars(self).setdefault("_images", {}).setdefault(agent, [])
        if not kept or kept[-1] != image:
            kept.append(image)
        return known, version, kept[max(0, len(kept) - 2)]

    return [(Turns, "capture", capture)]


def outbox_lost() -> list[Patch]:
    return _restoring(lambda checkpoint: msgspec.structs.replace(checkpoint, outbox=[]))


def in_transit_lost() -> list[Patch]:
    """Drop in-transit messages, but count them as received. Otherwise the channel's next message would have a wrong number."""

    def forget(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
        received = dict(checkpoint.received)
        for sender, messages in checkpoint.in_transit.items():
            received[sender] = received.get(sender, 0) + len(messages)
        return msgspec.structs.replace(checkpoint, in_transit={}, received=received)

    return _restoring(forget)


def _restoring(change: Any) -> list[Patch]:
    original = HostPlans._restore_channels

    def restore_channels(self: HostPlans, agent: LocalAgent, checkpoint: AgentCheckpoint) -> None:
        original(self, agent, change(checkpoint))

    return [(HostPlans, "_restore_channels", restore_channels)]


def timers_lost() -> list[Patch]:
    original = HostPlans._place

    def place(self: HostPlans, loaded: Any) -> None:
        if loaded.checkpoint is not None:
            loaded = msgspec.structs.replace(loaded, checkpoint=msgspec.structs.replace(loaded.checkpoint, timers=[]))
        original(self, loaded)

    return [(HostPlans, "_place", place)]


def objects_survive() -> list[Patch]:
    original = Turns.add

    def add(self: Turns, agent: str, made: Any) -> None:
        original(self, agent, vars(self).setdefault("_kept", {}).setdefault(agent, made))

    return [(Turns, "add", add)]


def stops_too_early() -> list[Patch]:
    def ask_stop(
        fleet: Fleet, open_store: Callable[[], Store], epoch: int, *, is_decided: bool = False
    ) -> StopEvaluated:
        return StopEvaluated(epoch, fleet.stop_when is not None)

    return [(driver, "ask_stop", ask_stop)]


def failed_agent_goes_on() -> list[Patch]:
    """Count a failed agent's turn as ended, and let the messages that the turn sent leave."""
    original = TurnEnds.on_turn_ended

    def on_turn_ended(self: TurnEnds, event: ev.TurnEnded) -> None:
        agent = self._shared.agents.get(event.agent)
        if agent is None or not agent.is_failed:
            original(self, event)
            return
        agent.is_failed = False
        original(self, event)
        agent.is_failed = True

    return [(TurnEnds, "on_turn_ended", on_turn_ended)]


def no_dedupe() -> list[Patch]:
    """Disable deduplication at both ends. The sender ignores the received count in the Hello frame, and the receiver
    does not skip duplicates."""
    take_original, rewind_original = IncomingOrder.take, OutgoingOrder.rewind

    def take(self: IncomingOrder, first_number: int, items: Items) -> list[Command]:
        if first_number <= self.received and self.opened.issuperset(items.channel):
            first_number = self.received + 1
        return take_original(self, first_number, items)

    def rewind(self: OutgoingOrder, received: int) -> None:
        rewind_original(self, self.acked)

    return [(IncomingOrder, "take", take), (OutgoingOrder, "rewind", rewind)]


def no_resend() -> list[Patch]:
    take_original, rewind_original = IncomingOrder.take, OutgoingOrder.rewind

    def take(self: IncomingOrder, first_number: int, items: Items) -> list[Command]:
        return take_original(self, min(first_number, self.received + 1), items)

    def rewind(self: OutgoingOrder, received: int) -> None:
        rewind_original(self, self.written)

    return [(IncomingOrder, "take", take), (OutgoingOrder, "rewind", rewind)]


def nothing_synced() -> list[Patch]:
    """Skip all sync calls of the disk."""
    return [(NodeDisk, "sync_data", lambda *_: None), (NodeDisk, "sync_directory", lambda *_: None)]


def newest_epoch_deleted() -> list[Patch]:
    original = StoreKeeper.delete

    def delete(self: StoreKeeper, command: Any) -> None:
        original(self, command)
        newest = self._store.epochs()[-1:]
        for epoch in newest:
            self._store.delete_epoch(epoch)

    return [(StoreKeeper, "delete", delete)]


def needed_pack_deleted() -> list[Patch]:
    original = StoreKeeper.delete_checkpoints

    def delete_checkpoints(self: StoreKeeper, command: Any) -> None:
        original(self, command)
        self._store.delete_checkpoints(self._store.checkpoint_packs()[-1:])

    return [(StoreKeeper, "delete_checkpoints", delete_checkpoints)]


def damage_unnoticed() -> list[Patch]:
    """Make all digests equal, so that damage is not detected."""
    same = bytes(32)

    def digest_of(data: object) -> bytes:
        return same

    patches: list[Patch] = [(record, "digest_of", digest_of)]
    for module in (pack, pack):
        if "digest_of" in vars(module):
            patches.append((module, "digest_of", digest_of))
    return patches
