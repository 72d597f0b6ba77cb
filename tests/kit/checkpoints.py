"""Checkpoint packs without a store: what the production writer makes of an agent's numbers, kept as the coordinator reads it."""

from collections import Counter
from collections.abc import Iterable

from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.host.checkpoint_writer import TakenCheckpoint
from snapline.agent_runtime.host.host_events import Control, TakeCheckpoint
from snapline.coordinator.leader.events import StoredCheckpoint
from snapline.messages.host_messages import ReportedPack
from snapline.storage.capture.image import StateImage
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, decode_checkpoint, size_of
from snapline.storage.packs.pack import PackReference

Tables = tuple[dict[str, int], dict[str, int]]
"""The other end of a channel → the last number sent; and received."""

KNOWN = agent_type(Agent)
PAYLOAD = b"10 bytes. "


def taken(agent: str, number: int, basis: str, round_: int, now: Tables, before: Tables = ({}, {})) -> TakenCheckpoint:
    """An agent without a state at a checkpoint, and at the one before. The log holds what it has sent since."""
    sent, received = map(_changed, now, before)
    log = {
        peer: [InTransitMessage(n, 0, PAYLOAD) for n in range(before[0].get(peer, 0) + 1, last + 1)]
        for peer, last in sent.items()
    }
    control = Control(1, number, True, True, False, [], [], [], [], 0)
    command = TakeCheckpoint(agent, basis, round_, control, *now, sent, received, log, 1)
    return TakenCheckpoint(KNOWN, 0, StateImage(b"\xc0"), command, 0, 0)


def _changed(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {peer: number for peer, number in now.items() if number != before.get(peer, 0)}


class Packs:
    """A store, as far as a writer of checkpoints needs one. `found`: path → plan, and what the pack holds."""

    digest = None

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, list[StoredCheckpoint]]] = {}
        self._written = Counter[str]()

    def write_checkpoints(
        self, *, writer: str, plan: int, blobs: Iterable[tuple[str, int, bytes]], chunks: Iterable[object]
    ) -> PackReference:
        """The pack is durable when this returns."""
        self._written[writer] += 1
        pack = ReportedPack(f"checkpoints/{writer}/{plan}.{self._written[writer]}", 1, b"i")
        self.found[pack.path] = plan, [_stored(decode_checkpoint(blob), pack) for _, _, blob in blobs]
        return PackReference(pack.path, pack.size_bytes, pack.index_digest)


def _stored(x: AgentCheckpoint, pack: ReportedPack) -> StoredCheckpoint:
    log_bytes = size_of(x.sender_log.values())[1]
    return StoredCheckpoint(x.agent, x.number, x.basis, x.round, pack, x.sent, x.received, x.turns, log_bytes)
