"""Seeded bugs of durable turns."""

from typing import Any

import msgspec

from snapline.agent_runtime.context import Context
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.turns import Turns
from snapline.sim.world.patches import Patch
from snapline.storage.packs.checkpoint import JournalEntry


def _control_without(**fields: Any) -> list[Patch]:
    original = LocalAgent.control

    def control(self: LocalAgent, *arguments: Any) -> Any:
        return msgspec.structs.replace(original(self, *arguments), **fields)

    return [(LocalAgent, "control", control)]


def turn_not_saved() -> list[Patch]:
    return _control_without(turn=None)


def stash_not_saved() -> list[Patch]:
    return _control_without(stash=[])


def state_from_the_middle() -> list[Patch]:
    original = Turns._image

    def image(self: Turns, agent: str, running: Any, base: Any) -> Any:
        flight, running.flight = running.flight, None
        try:
            return original(self, agent, running, base)
        finally:
            running.flight = flight

    return [(Turns, "_image", image)]


def segments_repeated() -> list[Patch]:
    """What left before is collected again."""

    async def wait(
        self: Context, kind: str, name: str, digest: bytes, *, timeout_s: float | None = None, work: Any = None
    ) -> JournalEntry:
        assert self.journal is not None
        timeout_ns = None if timeout_s is None else round(timeout_s * 1e9)
        return await self.journal.wait(kind, name, digest, timeout_ns=timeout_ns, work=work)

    return [(Context, "_wait", wait)]
