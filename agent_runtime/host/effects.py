"""The part of a host core that has things done outside: payments, mails, orders.

Theory of operation
-------------------
An effect is called when its *intent* was released as an output of its agent (`outputs.py`; output commit: Strom and Yemini 1985). A turn that
requests one waits at an entry of its journal; in the same step the agent emits, under a topic that users cannot have, what it is about to do, and
requests an epoch. Then its intent is in the state that every recovery goes back to: so no failure undoes a turn that has done something outside, and
nothing of what was done has to be settled afterwards (G12). The outcome is in the journal, in the window of keys (`agent_effects.py`), and among the
agent's outputs, in one step.

A recovery restores the turn, the open effect and the window from one checkpoint. That checkpoint's epoch has released the intent, or will: an earlier
life of the agent may have called it, and died before it could record the outcome. So an open effect that comes from a checkpoint is *in doubt*. It is
called again under the same key, which its service must know; or, with a probe, the service is asked first; or, if it may not be repeated, nothing
calls it, and the agent waits until people have decided. Such a one is called only when a *mark* in the host log says that it is about to be: logs of
earlier plans are sealed before they are read, so without a mark no life has called it, or ever will.

Their resolution is an input that the turn takes where it waits (`effect_words.py`). "It is done" is its outcome. "It was not" lets it be called; but
a recovery to before the resolution would find it again, and perhaps a call has left since. So the resolution is an output too, and the call waits
until that is released, as for an intent.

A turn that fails permanently leaves behind what it has done. What can be undone is undone right after it, by a turn of the agent itself in its stash:
newest first, and each compensation is an effect as any other. What cannot be is recorded as left.

*Quiesce.* Before agents move, or a host stops, the coordinator lets no effect begin, and waits for those being called: else the plan would put them
in doubt.

Carries G12. Uniqueness outside rests on services that honour their keys: nothing here fences a call that is on its way.
"""

import msgspec

from snapline.agent_runtime.durable import DONE, REFUSED, EffectIntent
from snapline.agent_runtime.encoding import encode_message
from snapline.agent_runtime.host import durable_events as de
from snapline.agent_runtime.host import watch_events as we
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.host_state import UNDONE, HostState
from snapline.agent_runtime.host.local_agent import DurableTurn, LocalAgent
from snapline.agent_runtime.host.outputs import Outputs
from snapline.agent_runtime.host.step_log import StepLog, mark_of
from snapline.agent_runtime.results import describe_result
from snapline.agent_runtime.undoing import undo_payload
from snapline.messages import effect_records
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord, outside_key
from snapline.messages.planned_ends import Quiesce, Quiesced
from snapline.storage.packs.checkpoint import JournalEntry
from snapline.storage.packs.saved_effects import OpenEffect

_UNDONE = "it was done and undone in a history that the fleet has given up, and is done anew"

_SHADOW = "the fleet is a fork that was made without --live, and does nothing outside"


class Effects:
    """Effects of the agents here.

    Attributes:
        are_refused: the fleet is a fork that may not touch the world outside.
        are_held: none is begun until the next Quiesce, plan or stream.
    """

    def __init__(self, shared: HostState, outputs: Outputs, steps: StepLog) -> None:
        self._shared = shared
        self._outputs = outputs
        self._steps = steps
        self.are_refused = self.are_held = False
        self._number = 0
        """Number of the hold that is to be answered; 0: it has been."""

    def welcomed(self, *, are_refused: bool) -> None:
        """Set whether the fleet may do any, as the coordinator says."""
        self.are_refused = are_refused

    def reset(self) -> None:
        """A plan ends the history of every agent here, and the hold."""
        self.are_held, self._number = False, 0

    def on_quiesce(self, event: Quiesce) -> None:
        """Hold effects back, or go on with held ones."""
        self.are_held, self._number = event.holds_effects, event.number if event.holds_effects else 0
        if self.are_held:
            self._tell_quiesced()
            return
        for agent in list(self._shared.agents.values()):
            if agent.effects is not None:
                self.released(agent)

    def _tell_quiesced(self) -> None:
        """Answer the coordinator, if it waits and no effect is being called."""
        agents = self._shared.agents.values()
        if self._number and not any(agent.effects is not None and agent.effects.is_called for agent in agents):
            self._shared.out.append(Quiesced(self._number))
            self._number = 0

    # ---- calling --------------------------------------------------------------------------------------------------

    def intended(self, agent: LocalAgent, waits: JournalEntry, intent: EffectIntent) -> tuple[str, bytes] | None:
        """Open the effect at which a handler waits, or return the known outcome of its key, as the journal takes it; None: it is open."""
        if agent.effects is None:
            agent.effects = AgentEffects()
        effects = agent.effects
        if effects.open is not None and effects.takes_up_undone():
            self._emit(agent, self._outcome(effect_records.FAILED, agent.id, effects.open, _UNDONE), intent.asked_ns)
            effects.let_go()
        if effects.open is None:
            is_news = effects.heard_of(intent)
            settled = effects.settled(intent, waits.digest, waits.name)
            if settled is not None:
                if is_news and settled[0] == DONE:
                    self._emit(agent, self._taken_over(agent, waits.name, intent, settled[1]), intent.asked_ns)
                return settled
            if self.are_refused:
                return REFUSED, f"effect {waits.name!r} (key {intent.key}) is refused: {_SHADOW}".encode()
            number = 1 + (agent.outputs.number if agent.outputs is not None else 0)
            begun = effects.begin(intent, waits.digest, number, waits.name)
            self._emit(agent, self._intent(agent.id, begun, intent), intent.asked_ns)
        return None

    def identity(self, agent: LocalAgent) -> str:
        """Return the identity of the open effect within its agent: for its entry in the journal and in the host log."""
        assert agent.effects is not None and agent.effects.open is not None
        opened = agent.effects.open
        return f"{opened.key}#{opened.generation}"

    def identity_of(self, agent: LocalAgent, intent: EffectIntent) -> str:
        """Return the same for an effect that need not be called."""
        assert agent.effects is not None
        key, generation = agent.effects.identity(intent)
        return f"{key}#{generation}"

    def call(self, agent: LocalAgent, turn: DurableTurn, intent: EffectIntent) -> None:
        """Call the effect as soon as its intent is released, unless people have to decide."""
        effects = agent.effects
        assert effects is not None and effects.open is not None
        opened = effects.open
        if opened.is_marked and not opened.is_begun and not opened.is_repeated:
            effects.is_in_doubt = False  # it comes from a checkpoint, and no life has called it
        if effects.is_in_doubt and not (intent.is_repeatable or intent.has_probe):
            effects.needs_people = True
            self._shared.note("error", _needs_people(agent.id, opened))
        else:
            effects.is_ready = True
            self._call_if_released(agent, turn, effects, opened)

    def released(self, agent: LocalAgent) -> None:
        """Call the open effect, if its intent is among the outputs released."""
        effects, turn = agent.effects, agent.turn
        if effects is not None and turn is not None and effects.is_ready and effects.open is not None:
            self._call_if_released(agent, turn, effects, effects.open)

    def _call_if_released(
        self, agent: LocalAgent, turn: DurableTurn, effects: AgentEffects, opened: OpenEffect
    ) -> None:
        """Call the effect, if no recovery can undo its intent any more; otherwise request an epoch."""
        if agent.outputs is not None and agent.outputs.holds(opened.number):
            self._outputs.await_release(agent)
            return
        if (
            self.are_held and not effects.is_called
        ):  # what has its mark is called: else it would be taken for one that was
            effects.is_ready = True
            return
        effects.is_ready, effects.is_called = False, True
        if opened.is_marked and not opened.is_begun:
            self._steps.mark(agent, turn, opened)
            return
        key = outside_key(self._shared.cluster, agent.id, opened.key, opened.generation)
        undoes, wait_s = "", 0.0
        if opened.undoes:
            undoes = outside_key(self._shared.cluster, agent.id, opened.undoes, opened.undoes_generation)
            wait_s = effects.late_s()
        run = de.RunEffect(agent.id, agent.incarnation, len(turn.journal), opened.name, key, effects.is_in_doubt)
        self._shared.out.append(msgspec.structs.replace(run, undoes=undoes, wait_s=wait_s))

    def marked(self, agent: LocalAgent, turn: DurableTurn, mark: JournalEntry) -> None:
        """Call an effect whose mark is in the log: now no later life takes it for one that was not called."""
        effects = agent.effects
        if effects is not None and effects.open is not None and mark == mark_of(effects.open):
            effects.begun()
            self._call_if_released(agent, turn, effects, effects.open)

    def not_done(self, agent: LocalAgent, turn: DurableTurn, time_ns: int) -> None:
        """Record people's resolution that the effect was not done. It is called when no recovery can undo that any more."""
        effects = agent.effects
        assert effects is not None and effects.open is not None and agent.outputs is not None
        effects.not_done(1 + agent.outputs.number)
        self._emit(agent, self._outcome(effect_records.NOT_DONE, agent.id, effects.open), time_ns)
        self._call_if_released(agent, turn, effects, effects.open)

    # ---- how they end ---------------------------------------------------------------------------------------------

    def ended(self, agent: LocalAgent, outcome: str, result: bytes, time_ns: int, late_s: float) -> None:
        """End an effect that was called, or that people have resolved. `late_s`: how long its last call may be on its way."""
        effects = agent.effects
        assert effects is not None and effects.open is not None
        is_done = outcome == DONE
        stage = effect_records.DONE if is_done else effect_records.FAILED
        record = self._outcome(stage, agent.id, effects.open, describe_result(result, is_done=is_done))
        effects.end(is_done=is_done, result=result, ended_ns=time_ns, late_s=late_s)
        self._emit(agent, record, time_ns)
        self._tell_quiesced()

    def turn_ended(self, agent: LocalAgent) -> None:
        """End a turn that succeeded: what it has done outside is kept."""
        if agent.effects is not None:
            agent.effects.turn_ended()

    def turn_failed(self, agent: LocalAgent, time_ns: int) -> bytes:
        """End a turn that failed permanently. Return the message of the turn that undoes what it has done, newest first, or b"".

        It may have failed before reaching an effect that an earlier life perhaps called: that is undone as well.
        """
        effects = agent.effects
        if effects is None:
            return b""
        if effects.open is not None:
            record = self._outcome(effect_records.FAILED, agent.id, effects.open, "its turn failed before it had ended")
            effects.end(is_done=False, result=b"", ended_ns=time_ns, late_s=effects.open.timeout_s)
            self._emit(agent, record, time_ns)
            self._tell_quiesced()
        made = effects.turn_ended(letter=agent.last_dead_letter + 1)
        for each in made:
            if not each.undo:
                key = outside_key(self._shared.cluster, agent.id, each.key, each.generation)
                self._emit(agent, EffectRecord(effect_records.LEFT, each.key, each.generation, each.name, key), time_ns)
        undone = [each for each in reversed(made) if each.undo]
        return undo_payload(undone) if undone else b""

    def _taken_over(self, agent: LocalAgent, name: str, intent: EffectIntent, result: bytes) -> EffectRecord:
        """Return the record of an effect of a discarded history that this turn has taken over: the ledger has lost that history's records."""
        assert agent.effects is not None
        key, generation = agent.effects.identity(intent)
        outside = outside_key(self._shared.cluster, agent.id, key, generation)
        return EffectRecord(
            *(effect_records.DONE, key, generation, name, outside, intent.arguments),
            describe_result(result, is_done=True),
            undo=intent.undo,
            undo_arguments=intent.undo_arguments,
            saga=intent.saga,
        )

    # ---- words of the ledger --------------------------------------------------------------------------------------

    def _intent(self, agent: str, opened: OpenEffect, intent: EffectIntent) -> EffectRecord:
        return msgspec.structs.replace(
            self._outcome(effect_records.INTENT, agent, opened),
            arguments=opened.arguments,
            undo=opened.undo,
            undo_arguments=opened.undo_arguments,
            saga=intent.saga,
            timeout_s=intent.timeout_s,
            has_probe=intent.has_probe,
            is_repeatable=intent.is_repeatable,
        )

    def _outcome(self, stage: str, agent: str, opened: OpenEffect, result: str = "") -> EffectRecord:
        key = outside_key(self._shared.cluster, agent, opened.key, opened.generation)
        return EffectRecord(
            stage,
            opened.key,
            opened.generation,
            opened.name,
            key,
            result=result,
            undoes=opened.undoes,
            undoes_generation=opened.undoes_generation,
        )

    def _emit(self, agent: LocalAgent, record: EffectRecord, time_ns: int) -> None:
        came_to, counts = (
            UNDONE if record.undoes and record.stage == effect_records.DONE else record.stage,
            self._shared.counts.effects,
        )
        if came_to in counts:
            counts[came_to] += 1
        payload = encode_message(record)
        if self._shared.is_watched:
            self._shared.out.append(we.EffectRecordEmitted(agent.id, payload))
        self._outputs.emit(agent, [(EFFECTS_TOPIC, payload, time_ns)])


def _needs_people(agent: str, opened: OpenEffect) -> str:
    return (
        f"agent {agent} stands at effect {opened.name!r}: it may have been done before a recovery, and may not be repeated. Find out under its key "
        f"{opened.key!r}, and say it: `snapline effect resolve {agent} {opened.key} --result JSON`, or `--not-done`"
    )
