"""Seeded bugs of effects (R3, G12): time of the call, key, saved data, and compensation."""

from typing import Any

from snapline.agent_runtime import sagas as asked
from snapline.agent_runtime.host.agent_effects import COMPENSATED, AgentEffects
from snapline.agent_runtime.host.agent_io import AgentOutputs
from snapline.agent_runtime.host.host_effects import Effects
from snapline.agent_runtime.host.host_log import StepLog
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.sagas import Saga
from snapline.sim.world.product_patches import Patch
from snapline.storage.packs.checkpoint import SavedEffects


def before_its_release() -> list[Patch]:
    """Call an effect at once, before it is released."""
    return [(AgentOutputs, "holds", lambda self, number: False)]


def key_per_incarnation() -> list[Patch]:
    """Use different keys for each incarnation of an agent."""
    original = Effects._call_if_released

    def call(self: Effects, agent: LocalAgent, *rest: Any) -> None:
        cluster, self._shared.cluster = self._shared.cluster, f"life-{agent.incarnation}"
        original(self, agent, *rest)
        self._shared.cluster = cluster

    return [(Effects, "_call_if_released", call)]


def outcome_not_logged() -> list[Patch]:
    """Continue the turn after an effect without logging the effect's outcome."""
    original = StepLog.put

    def put(self: StepLog, agent: LocalAgent, turn: Any) -> None:
        if turn.journal[-1].kind != "effect":
            original(self, agent, turn)

    return [(StepLog, "put", put)]


def keys_not_saved() -> list[Patch]:
    """Save the open effect and the effects done, but no keys."""
    original = AgentEffects.saved

    def saved(self: AgentEffects) -> SavedEffects | None:
        effects = original(self)
        return effects if effects is None else SavedEffects([], effects.made, effects.open)

    return [(AgentEffects, "saved", saved)]


def key_adopted_without_arguments() -> list[Patch]:
    """Return a key's outcome to any request for the key, whatever its arguments."""
    original = AgentEffects.settled

    def settled(self: AgentEffects, intent: Any, digest: bytes, name: str) -> tuple[str, bytes] | None:
        key_record = self.keys.get(self.identity(intent)[0])
        return original(self, intent, digest if key_record is None else key_record.digest, name)

    return [(AgentEffects, "settled", settled)]


def undone_and_adopted() -> list[Patch]:
    """Leave the key of a compensated effect valid."""

    def undone(self: AgentEffects, opened: Any) -> None:
        self.made = [made for made in self.made if made.key != opened.undoes]

    return [(AgentEffects, "_undone", undone)]


def adopted_and_undone() -> list[Patch]:
    """Undo an effect although a later turn has adopted it, when the first turn's dead letter is retried."""
    return [(AgentEffects, "_stands", lambda self, intent: False)]


def same_key_after_undoing() -> list[Patch]:
    """Give a repeated effect the key of the compensated one."""

    def identity(self: AgentEffects, intent: Any) -> tuple[str, int]:
        key, generation = original(self, intent)
        known = self.keys.get(key)
        return key, generation - (not intent.is_undo and known is not None and known.outcome == COMPENSATED)

    original = AgentEffects.identity
    return [(AgentEffects, "identity", identity)]


def failed_turn_oldest_first() -> list[Patch]:
    """Undo the effects of a failed turn oldest first."""
    original = AgentEffects.turn_ended

    def ended(self: AgentEffects, letter: int = 0) -> Any:
        return original(self, letter)[::-1]

    return [(AgentEffects, "turn_ended", ended)]


def failed_turn_not_undone() -> list[Patch]:
    """Keep the effects of a failed turn."""
    return [(AgentEffects, "turn_ended", _all_forgotten)]


def _all_forgotten(self: AgentEffects, letter: int = 0) -> Any:
    made, self.made = self.made, []
    return [] if letter else made


def saga_oldest_first() -> list[Patch]:
    """Undo the effects of a saga oldest first."""
    original = Saga._undo_all

    async def undo_all(self: Saga, error: BaseException) -> None:
        self._made.reverse()
        await original(self, error)

    return [(Saga, "_undo_all", undo_all)]


def saga_not_undone() -> list[Patch]:
    """Keep the effects of a failed saga."""
    return [(asked.Saga, "add", lambda self, made: None)]


def undone_without_the_failed() -> list[Patch]:
    """Count an effect that has raised as not done, and do not undo it."""
    original = AgentEffects.end

    def end(self: AgentEffects, *, is_done: bool, result: bytes, ended_ns: int, late_s: float = 0.0) -> None:
        opened = self.open
        original(self, is_done=is_done, result=result, ended_ns=ended_ns, late_s=late_s)
        if not is_done and opened is not None:
            self.made = [made for made in self.made if made.key != opened.key]

    return [(AgentEffects, "end", end)]
