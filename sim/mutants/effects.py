"""Seeded bugs around effects (R3, G12): when they are called, under which key, what is kept of them, and what undoes them."""

from typing import Any

from snapline.agent_runtime import effects as asked
from snapline.agent_runtime.effects import Saga
from snapline.agent_runtime.host.agent_effects import COMPENSATED, AgentEffects
from snapline.agent_runtime.host.agent_outputs import AgentOutputs
from snapline.agent_runtime.host.effects import Effects
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.step_log import StepLog
from snapline.sim.world.patches import Patch
from snapline.storage.packs.saved_effects import SavedEffects


def before_its_release() -> list[Patch]:
    """An effect is called when its turn comes to it."""
    return [(AgentOutputs, "holds", lambda self, number: False)]


def key_of_its_life() -> list[Patch]:
    """Each life of an agent has keys of its own."""
    original = Effects._call_if_released

    def call(self: Effects, agent: LocalAgent, *rest: Any) -> None:
        cluster, self._shared.cluster = self._shared.cluster, f"life-{agent.incarnation}"
        original(self, agent, *rest)
        self._shared.cluster = cluster

    return [(Effects, "_call_if_released", call)]


def outcome_not_logged() -> list[Patch]:
    """The turn goes on from an effect, and no log holds what came of it."""
    original = StepLog.put

    def put(self: StepLog, agent: LocalAgent, turn: Any) -> None:
        if turn.journal[-1].kind != "effect":
            original(self, agent, turn)

    return [(StepLog, "put", put)]


def keys_not_saved() -> list[Patch]:
    """Checkpoints hold the open effect, and what the turn has done; no keys."""
    original = AgentEffects.saved

    def saved(self: AgentEffects) -> SavedEffects | None:
        found = original(self)
        return found if found is None else SavedEffects([], found.made, found.open)

    return [(AgentEffects, "saved", saved)]


def adopted_without_arguments() -> list[Patch]:
    """Give a key's outcome to any request for it, whatever the arguments are."""
    original = AgentEffects.settled

    def settled(self: AgentEffects, intent: Any, digest: bytes, name: str) -> tuple[str, bytes] | None:
        known = self.keys.get(self.identity(intent)[0])
        return original(self, intent, digest if known is None else known.digest, name)

    return [(AgentEffects, "settled", settled)]


def undone_and_adopted() -> list[Patch]:
    """Leave the key of what was undone valid."""

    def undone(self: AgentEffects, opened: Any) -> None:
        self.made = [made for made in self.made if made.key != opened.undoes]

    return [(AgentEffects, "_undone", undone)]


def adopted_and_undone() -> list[Patch]:
    """Undo what a later turn has taken over all the same, when the dead letter of the first one is retried."""
    return [(AgentEffects, "_stands", lambda self, intent: False)]


def same_key_after_undoing() -> list[Patch]:
    """Give what is done anew the key of what was undone."""

    def identity(self: AgentEffects, intent: Any) -> tuple[str, int]:
        key, generation = original(self, intent)
        known = self.keys.get(key)
        return key, generation - (not intent.is_undo and known is not None and known.outcome == COMPENSATED)

    original = AgentEffects.identity
    return [(AgentEffects, "identity", identity)]


def failed_turn_oldest_first() -> list[Patch]:
    """Undo what a failed turn has done oldest first."""
    original = AgentEffects.turn_ended

    def ended(self: AgentEffects, letter: int = 0) -> Any:
        return original(self, letter)[::-1]

    return [(AgentEffects, "turn_ended", ended)]


def failed_turn_not_undone() -> list[Patch]:
    """Keep what a failed turn has done."""
    return [(AgentEffects, "turn_ended", _all_forgotten)]


def _all_forgotten(self: AgentEffects, letter: int = 0) -> Any:
    made, self.made = self.made, []
    return [] if letter else made


def saga_oldest_first() -> list[Patch]:
    """A saga undoes what it has done oldest first."""
    original = Saga._undo_all

    async def undo_all(self: Saga, error: BaseException) -> None:
        self._made.reverse()
        await original(self, error)

    return [(Saga, "_undo_all", undo_all)]


def saga_not_undone() -> list[Patch]:
    """A saga that fails leaves what it has done."""
    return [(asked.Saga, "add", lambda self, made: None)]


def undone_without_the_failed() -> list[Patch]:
    """Count what has raised as not done, and do not undo it."""
    original = AgentEffects.end

    def end(self: AgentEffects, *, is_done: bool, result: bytes, ended_ns: int, late_s: float = 0.0) -> None:
        opened = self.open
        original(self, is_done=is_done, result=result, ended_ns=ended_ns, late_s=late_s)
        if not is_done and opened is not None:
            self.made = [made for made in self.made if made.key != opened.key]

    return [(AgentEffects, "end", end)]
