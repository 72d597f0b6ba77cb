"""Seeded bugs of hosts, links and the epoch-stamped protocol."""

from typing import Any

import msgspec

from snapline.agent_runtime.host_core import HostCore
from snapline.agent_runtime.host_epochs import HostEpochs
from snapline.agent_runtime.host_plans import HostPlans
from snapline.agent_runtime.local_agent import AgentInlet, LocalAgent
from snapline.agent_runtime.turns import Turns
from snapline.channels.frame import Items
from snapline.channels.incoming import IncomingOrder
from snapline.protocols.epoch_stamped import EpochRecord, EpochStampedCore
from snapline.storage.checkpoint import AgentCheckpoint

Patch = tuple[Any, str, Any]


def deliver_before_record() -> list[Patch]:
    original = HostCore._show_protocol

    def show_protocol(self: HostCore, owner: LocalAgent, inlet: AgentInlet, stamp: int, payload: bytes) -> None:
        if stamp < owner.protocol.recorded:
            original(self, owner, inlet, stamp, payload)

    return [(HostCore, "_show_protocol", show_protocol)]


def channel_state_dropped() -> list[Patch]:
    original = EpochStampedCore.record_of

    def record_of(self: EpochStampedCore, epoch: int) -> EpochRecord:
        return msgspec.structs.replace(original(self, epoch), in_transit={})

    return [(EpochStampedCore, "record_of", record_of)]


def channel_state_doubled() -> list[Patch]:
    original = EpochStampedCore.record_of

    def record_of(self: EpochStampedCore, epoch: int) -> EpochRecord:
        record = original(self, epoch)
        doubled = {sender: [*messages, *messages[-1:]] for sender, messages in record.in_transit.items()}
        return msgspec.structs.replace(record, in_transit=doubled)

    return [(EpochStampedCore, "record_of", record_of)]


def markers_not_awaited() -> list[Patch]:
    original = HostEpochs._check_epochs

    def check_epochs(self: HostEpochs) -> None:
        for epoch in self.epochs.values():
            epoch.awaited.clear()
        original(self)

    return [(HostEpochs, "_check_epochs", check_epochs)]


def state_one_capture_old() -> list[Patch]:
    original = Turns.capture

    def capture(self: Turns, agent: str) -> Any:
        known, version, image = original(self, agent)
        kept = vars(self).setdefault("_images", {}).setdefault(agent, [])
        if not kept or kept[-1] != image:
            kept.append(image)
        return known, version, kept[max(0, len(kept) - 2)]

    return [(Turns, "capture", capture)]


def outbox_lost() -> list[Patch]:
    return _restoring(lambda checkpoint: msgspec.structs.replace(checkpoint, outbox=[]))


def in_transit_lost() -> list[Patch]:
    return _restoring(lambda checkpoint: msgspec.structs.replace(checkpoint, in_transit={}))


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


def no_dedupe() -> list[Patch]:
    original = IncomingOrder.take

    def take(self: IncomingOrder, first_number: int, items: Items) -> Any:
        if first_number <= self.received and self._opened.issuperset(items.channel):
            first_number = self.received + 1
        return original(self, first_number, items)

    return [(IncomingOrder, "take", take)]
