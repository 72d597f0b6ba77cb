"""Facts for the screen *Waiting*, and about effects: read once for all viewers, at most every few seconds."""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from snapline.agent_runtime.effect_ledger import Effect, with_standing
from snapline.messages.effect_records import UnfinishedEffect
from snapline.messages.views import WaitingAgents
from snapline.view.facts import ViewCalls
from snapline.view.ledger import EffectLedger, newest_outputs
from snapline.view.page_frame import Targets
from snapline.view.pending_work_page import WaitingFacts
from snapline.view.streams import PERIOD_S
from snapline.view.watch import FleetWatch


class PendingWorkReader:
    """Latest known facts. Use it from one event loop."""

    def __init__(self, calls: ViewCalls, watch: FleetWatch) -> None:
        self._calls = calls
        self._watch = watch
        self._ledger = EffectLedger()
        self._facts = WaitingFacts()
        self._asked_s = float("-inf")
        self._asking = asyncio.Lock()

    async def facts(self) -> WaitingFacts:
        """Return facts not older than a period of the streams. SnaplineError."""
        async with self._asking:
            if time.monotonic() - self._asked_s >= PERIOD_S:
                self._facts = await self._ask()
                self._asked_s = time.monotonic()
        return self._facts

    async def open_at(self, epochs: Sequence[int]) -> dict[int, list[Effect]]:
        """Return epoch → the effects that were open in its cut, with their current fates. SnaplineError."""
        async with self._asking:
            await self._ledger.catch_up(self._calls)
            return await asyncio.to_thread(self._ledger.open_at, epochs)

    async def _ask(self) -> WaitingFacts:
        state = await self._watch.now()
        fleet, waiting = state.facts, await self._calls.waiting()
        await self._ledger.catch_up(self._calls)
        effects_in_doubt = msgspec.convert(waiting.get("effects", []), list[UnfinishedEffect])
        agents = msgspec.convert(waiting, WaitingAgents)
        with_pages = [*[each.agent for each in state.agents], *[each.agent for each in agents.agents]]
        return WaitingFacts(
            fleet=fleet,
            agents=agents,
            outputs=await newest_outputs(self._calls, 0 if fleet is None else fleet.last_complete_epoch),
            consumers=(await self._calls.consumers()).consumers,
            effects=with_standing(await asyncio.to_thread(self._ledger.effects), effects_in_doubt),
            is_ledger_whole=self._ledger.is_whole,
            targets=Targets(agents=frozenset(with_pages)),
        )
