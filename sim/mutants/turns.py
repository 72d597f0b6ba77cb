"""Seeded bugs of durable turns."""

from typing import Any

import msgspec

from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import DONE, LoggedSteps, TurnJournal, call_id, turn_seed
from snapline.agent_runtime.host import epoch_files, turns
from snapline.agent_runtime.host.durable_turns import DurableTurns
from snapline.agent_runtime.host.host_log import StepLog
from snapline.agent_runtime.host.local_agent import DurableTurn, LocalAgent
from snapline.agent_runtime.host.turns import Turns
from snapline.sim.world.product_patches import Patch
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry


def _control_without(**fields: Any) -> list[Patch]:
    original = LocalAgent.control

    def control(self: LocalAgent, *arguments: Any) -> Any:
        return msgspec.structs.replace(original(self, *arguments), **fields)

    return [(LocalAgent, "control", control)]


def turn_not_saved() -> list[Patch]:
    return _control_without(turn=None, sealed=None)


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


def journal_without_its_beginning() -> list[Patch]:
    def unsealed(checkpoint: AgentCheckpoint, content: bytes) -> AgentCheckpoint:
        return msgspec.structs.replace(checkpoint, saved_journal=msgspec.UNSET)

    return [(epoch_files, "whole_turn", unsealed)]


def adopted_without_arguments() -> list[Patch]:
    """Adopt a logged step without comparing its arguments or the seed of its turn."""
    original = LoggedSteps.__init__

    def every(self: LoggedSteps, seed: bytes, logged: Any) -> None:
        original(self, seed, [msgspec.structs.replace(each, seed=seed) for each in logged])

    def find(self: LoggedSteps, place: int, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        entries = [each.entry for each in self._by_place.get(place, ()) if each.prefix == self._prefix]
        return next((entry for entry in entries if (entry.kind, entry.name) == (kind, name)), None)

    return [(LoggedSteps, "__init__", every), (LoggedSteps, "find", find)]


def prefix_not_compared() -> list[Patch]:
    def find(self: LoggedSteps, place: int, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        wanted = kind, name, digest
        entries = [each.entry for each in self._by_place.get(place, ())]
        return next((entry for entry in entries if (entry.kind, entry.name, entry.digest) == wanted), None)

    return [(LoggedSteps, "find", find)]


def turn_number_not_saved() -> list[Patch]:
    original = LocalAgent.control

    def control(self: LocalAgent, *arguments: Any) -> Any:
        control = original(self, *arguments)
        return msgspec.structs.replace(control, durable_turns=int(control.turn is not None))

    return [(LocalAgent, "control", control)]


def state_not_in_the_seed() -> list[Patch]:
    def seed(*whose: Any, sender: str, payload: bytes, state: bytes) -> bytes:
        return turn_seed(*whose, sender=sender, payload=payload, state=b"")

    return [(turns, "turn_seed", seed)]


def goes_on_before_its_batch() -> list[Patch]:
    original = StepLog.put

    def put(self: StepLog, agent: LocalAgent, turn: Any) -> None:
        original(self, agent, turn)
        turn.is_logging = False

    return [(StepLog, "put", put)]


def sends_lost_before_adopted_steps() -> list[Patch]:
    original = TurnJournal.wait

    async def wait(self: TurnJournal, *asked: Any, **more: Any) -> JournalEntry:
        entry = await original(self, *asked, **more)
        self.has_left = True
        return entry

    return [(TurnJournal, "wait", wait)]


def segments_repeated() -> list[Patch]:
    """Send again the messages that a durable turn had already sent."""

    async def wait(
        self: Context, kind: str, name: str, digest: bytes, *, timeout_s: float | None = None, work: Any = None
    ) -> JournalEntry:
        assert self.journal is not None
        timeout_ns = None if timeout_s is None else round(timeout_s * 1e9)
        return await self.journal.wait(kind, name, digest, timeout_ns=timeout_ns, work=work)

    return [(Context, "_wait", wait)]


def entry_after_its_checkpoint() -> list[Patch]:
    """Omit the last completed step from a checkpoint, although messages sent after that step have left."""
    original = LocalAgent.control

    def control(self: LocalAgent, *arguments: Any) -> Any:
        control = original(self, *arguments)
        turn = control.turn
        if turn is None or turn.waits is None or not turn.journal or turn.journal[-1].kind != "step":
            return control
        last = turn.journal[-1]
        waits = JournalEntry(last.kind, last.name, last.digest)
        return msgspec.structs.replace(
            control, turn=msgspec.structs.replace(turn, journal=turn.journal[:-1], waits=waits)
        )

    return [(LocalAgent, "control", control)]


def reply_of_an_undone_past() -> list[Patch]:
    """Reuse the remembered answer of a call when the turn reaches the call again."""
    original = DurableTurns._find
    known: dict[tuple[str, bytes], JournalEntry] = {}

    def find(self: DurableTurns, agent: LocalAgent, turn: DurableTurn, waits: JournalEntry) -> bool:
        key = agent.id, call_id(turn.seed, len(turn.journal))
        if waits.kind == "call" and key in known:
            self._finish(agent, turn, waits, DONE, known[key].result, known[key].sender)
            return True
        is_found = original(self, agent, turn, waits)
        if is_found and waits.kind == "call":
            known[key] = turn.journal[-1]
        return is_found

    return [(DurableTurns, "_find", find)]


def resumed_while_held() -> list[Patch]:
    """Let a held or frozen agent continue its durable turn."""
    original = vars(LocalAgent)["may_start"].fget

    def may_start(self: LocalAgent) -> bool:
        is_held, self.is_held = self.is_held, self.is_held and self.turn is None
        try:
            return bool(original(self))
        finally:
            self.is_held = is_held

    return [(LocalAgent, "may_start", property(may_start))]
