"""The host core's component for effects. The component runs calls with consequences outside the fleet, such as payments, mails and orders.

Theory of operation
-------------------
An effect is called only after its *intent* has been released as an output of its agent (`host_outputs.py`; output commit: Strom and Yemini
1985). When a turn requests an effect, the turn waits for a journal entry. At the same time, the agent emits the intent under a reserved
topic and requests an epoch. Once the intent has been released, every recovery restores a state that contains the intent. No failure can
therefore undo a turn that has acted outside the fleet, and no external action has to be reconciled afterwards (G12). When the effect has
ended, its outcome is added to the journal, to the window of keys (`agent_effects.py`) and to the agent's outputs at the same time.

A recovery restores the turn, the open effect and the window of keys from the same checkpoint. The epoch of that checkpoint has released or
will release the intent. An earlier incarnation of the agent may therefore have called the effect and crashed before it recorded the
outcome. An open effect that comes from a checkpoint is therefore *in doubt*, and is treated in one of three ways:

- By default, the effect is called again with the same key, so the external service must detect duplicate keys.
- If the effect has a probe, the probe first asks the external service whether the effect was performed.
- If the effect must not be repeated, it is not called, and the agent waits for the decision of an operator. Before an effect that must not
  be repeated is called for the first time, a *mark* is written to the host log. The logs of earlier plans are sealed before they are read.
  If the log contains no mark, no earlier incarnation has called the effect or will call it.

An operator's resolution of the effect is an input that the waiting turn consumes (`dead_letters.py`). The resolution "done" becomes the
effect's outcome, and "not done" allows the call. After a recovery to a state before the resolution, the turn would consume the resolution
again, although the effect may have been called since. The resolution is therefore also emitted as an output, and the effect is called only
after this output has been released, as with an intent.

If a turn with effects fails permanently, the agent's next turn undoes the effects that have compensations, newest first. The undoing turn
is put into the agent's stash. Each compensation is itself an effect. Effects without compensations are recorded as "left".

*Quiesce.* Before agents move or a host stops, the coordinator holds back new effects and waits until running calls have ended. Otherwise,
running calls would be in doubt under the next plan.

Guarantees: this module provides G12. External actions are unique only if the external services detect duplicate keys, because this module
cannot stop a call in progress.
"""

import msgspec

from snapline.agent_runtime.durable import ADOPTED, DONE, REFUSED, EffectIntent, describe_result
from snapline.agent_runtime.effect_ledger import undo_payload
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.commits import Commits
from snapline.agent_runtime.host.host_log import StepLog, mark_of
from snapline.agent_runtime.host.host_outputs import Outputs
from snapline.agent_runtime.host.host_state import UNDONE, DurableTurn, HostState, LocalAgent
from snapline.agent_runtime.message_encoding import encode_message
from snapline.messages import effect_records
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord, outside_key
from snapline.messages.host_messages import Quiesce, Quiesced
from snapline.storage.log.answer_files import RecordedAnswer
from snapline.storage.log.log_record import EFFECT
from snapline.storage.packs.checkpoint import JournalEntry, OpenEffect

_UNDONE = "it was done and undone in a history that the fleet has given up, and is done anew"

_SHADOW = "the fleet is a fork that was made without --live, and does nothing outside"


class Effects:
    """The effects of this host's agents.

    Attributes:
        are_refused: whether effects must not be performed because the fleet is a fork.
        are_held: whether new effects are held back until the next Quiesce directive, the next plan, or the next coordinator stream.
    """

    def __init__(self, shared: HostState, outputs: Outputs, steps: StepLog, commits: Commits) -> None:
        self._shared = shared
        self._commits = commits
        self._outputs = outputs
        self._steps = steps
        self.are_refused = self.are_held = False
        self._number = 0
        """Number of the Quiesce directive that must still be answered, or 0 if there is none."""

    def welcomed(self, *, are_refused: bool) -> None:
        """Record whether the coordinator forbids the fleet to perform effects."""
        self.are_refused = are_refused

    def reset(self) -> None:
        """Stop holding back effects when a recovery plan ends the history of all agents on this host."""
        self.are_held, self._number = False, 0

    def on_quiesce(self, event: Quiesce) -> None:
        """Hold back new effects, or call the effects that were held back, depending on the directive."""
        self.are_held, self._number = event.holds_effects, event.number if event.holds_effects else 0
        if self.are_held:
            self.report_quiesced()
            return
        if event.holds_inputs and self._shared.commits.is_on:
            self._shared.out.append(Quiesced(event.number))  # from now on, effects wait for an epoch
        for agent in list(self._shared.agents.values()):
            if agent.effects is not None:
                self.released(agent)

    def report_quiesced(self) -> None:
        """Answer the coordinator's Quiesce directive, if there is one, as soon as no effect is being called and the frozen agents are
        committed."""
        if not self._number or not self._commits.are_frozen_committed:
            return
        agents = self._shared.agents.values()
        if not any(agent.effects is not None and agent.effects.is_called for agent in agents):
            self._shared.out.append(Quiesced(self._number))
            self._number = 0

    # ---- calling --------------------------------------------------------------------------------------------------

    def intended(
        self,
        agent: LocalAgent,
        place: int,
        waits: JournalEntry,
        intent: EffectIntent,
        recorded: RecordedAnswer | None = None,
    ) -> tuple[str, bytes] | None:
        """Open the effect that a handler waits for at this place of its journal, and return None. If the effect's outcome is already known
        or `recorded`, or the effect is refused, return the outcome and the result for the journal instead."""
        if agent.effects is None:
            agent.effects = AgentEffects()
        effects = agent.effects
        if place in effects.open and effects.resumes_undone_effect(place):
            record = self._outcome(effect_records.FAILED, agent.id, effects.open.pop(place).opened, _UNDONE)
            self._emit(agent, record, intent.asked_ns)
        if place not in effects.open:
            settled = effects.settled(intent, waits.digest, waits.name)
            if settled is not None:
                if settled[0] == DONE:
                    self._emit(agent, self._taken_over(agent, waits.name, intent, settled[1]), intent.asked_ns)
                return settled
            if recorded is not None:
                return self._take_recorded(agent, waits, intent, recorded)
            if self.are_refused:
                return REFUSED, f"effect {waits.name!r} (key {intent.key}) is refused: {_SHADOW}".encode()
            number = 1 + (agent.outputs.number if agent.outputs is not None else 0)
            is_begun = effects.begin(place, intent, waits.digest, number, waits.name)
            self._emit(agent, self._intent(agent.id, is_begun, intent), intent.asked_ns)
        return None

    def _take_recorded(
        self, agent: LocalAgent, waits: JournalEntry, intent: EffectIntent, recorded: RecordedAnswer
    ) -> tuple[str, bytes]:
        """Return a recorded outcome. The effect that succeeded counts as one of an earlier turn, so that this turn never undoes it."""
        if recorded.outcome not in (DONE, ADOPTED):
            return recorded.outcome, recorded.result
        assert agent.effects is not None
        agent.effects.record(intent, waits.digest, recorded.result)
        record = self._taken_over(agent, waits.name, intent, recorded.result)
        record = msgspec.structs.replace(record, stage=effect_records.RECORDED, undo="", undo_arguments=[])
        self._emit(agent, record, intent.asked_ns)
        return ADOPTED, recorded.result

    def identity(self, agent: LocalAgent, place: int) -> str:
        """Return the identity of the agent's open effect at this place, as recorded in the journal and in the host log."""
        assert agent.effects is not None
        opened = agent.effects.open[place].opened
        return f"{opened.key}#{opened.generation}"

    def identity_of(self, agent: LocalAgent, intent: EffectIntent) -> str:
        """Return the identity of an effect that need not be called."""
        assert agent.effects is not None
        key, generation = agent.effects.identity(intent)
        return f"{key}#{generation}"

    def call(self, agent: LocalAgent, turn: DurableTurn, place: int, intent: EffectIntent) -> None:
        """Call the open effect as soon as its intent has been released, unless an operator must first decide whether to call it."""
        assert agent.effects is not None
        effect = agent.effects.open[place]
        opened = effect.opened
        if opened.is_marked and not opened.is_begun and not opened.is_repeated:
            effect.is_in_doubt = False  # no incarnation has called it, since there is no mark
        if effect.is_in_doubt and not (intent.is_repeatable or intent.has_probe):
            effect.needs_people = True
            self._shared.note("error", _needs_people(agent.id, opened))
        else:
            effect.is_ready = True
            self._call_if_released(agent, turn, agent.effects, place)

    def released(self, agent: LocalAgent) -> None:
        """Call the open effects whose intents have been released."""
        effects, turn = agent.effects, agent.turn
        if effects is not None and turn is not None:
            for place in [place for place, effect in effects.open.items() if effect.is_ready]:
                self._call_if_released(agent, turn, effects, place)

    def _call_if_released(self, agent: LocalAgent, turn: DurableTurn, effects: AgentEffects, place: int) -> None:
        """Call the effect if its intent has been released, so that no recovery can undo the request. Otherwise request an epoch."""
        effect, waits_for_commit = (
            effects.open[place],
            self._shared.commits.is_on and not self._shared.commits.is_ending,
        )
        opened = effect.opened
        if waits_for_commit and opened.number > agent.committed_outputs:
            effect.is_ready = True
            self._commits.say(agent)
            return
        if not waits_for_commit and agent.outputs is not None and agent.outputs.holds(opened.number):
            effect.is_ready = True  # also if its mark was made while it waited for a commit
            self._outputs.await_release(agent)
            return
        if self.are_held and not effect.is_called:  # an effect with a mark counts as called already
            effect.is_ready = True
            return
        effect.is_ready, effect.is_called = False, True
        if opened.is_marked and not opened.is_begun:
            self._steps.mark(agent, turn, place, opened)
            return
        key = outside_key(self._shared.cluster, agent.id, opened.key, opened.generation)
        undoes, wait_s = "", 0.0
        if opened.undoes:
            undoes = outside_key(self._shared.cluster, agent.id, opened.undoes, opened.undoes_generation)
            wait_s = effects.late_s(opened)
        run = ev.RunEffect(agent.id, agent.incarnation, place, opened.name, key, effect.is_in_doubt)
        self._shared.out.append(msgspec.structs.replace(run, undoes=undoes, wait_s=wait_s))

    def marked(self, agent: LocalAgent, turn: DurableTurn, mark: JournalEntry) -> None:
        """Call an effect, because its mark is now durable in the log. From now on, no later incarnation can assume that the effect was not
        called."""
        effects = agent.effects
        for place, effect in list(effects.open.items()) if effects is not None else ():
            if effects is not None and mark == mark_of(effect.opened):
                effect.begun()
                self._shared.note_change(agent.id)
                self._call_if_released(agent, turn, effects, place)

    def not_done(self, agent: LocalAgent, turn: DurableTurn, place: int, time_ns: int) -> None:
        """Record an operator's resolution that the effect was not done. The effect is called as soon as no recovery can undo the
        resolution.

        After a restore, the same resolution may be consumed again. If a host log contains the mark of a call after it, the effect is in
        doubt again, because the resolution says nothing of that call.
        """
        assert agent.effects is not None and agent.outputs is not None
        effect = agent.effects.open[place]
        resolved_number = effect.opened.number
        effect.not_done(1 + agent.outputs.number)
        self._emit(agent, self._outcome(effect_records.NOT_DONE, agent.id, effect.opened), time_ns)
        if self._steps.has_mark(agent, effect.opened, resolved_number):
            effect.begun()
            effect.is_in_doubt, effect.is_ready, effect.needs_people = True, False, True
            self._shared.note("error", _needs_people(agent.id, effect.opened))
        else:
            self._call_if_released(agent, turn, agent.effects, place)

    # ---- endings --------------------------------------------------------------------------------------------------

    def ended(self, agent: LocalAgent, place: int, outcome: str, result: bytes, time_ns: int, late_s: float) -> None:
        """Record the end of an effect that was called or that an operator has resolved. `late_s` is the time in seconds for which the
        effect's last call may still run."""
        effects = agent.effects
        assert effects is not None
        is_done = outcome == DONE
        stage = effect_records.DONE if is_done else effect_records.FAILED
        record = self._outcome(stage, agent.id, effects.open[place].opened, describe_result(result, is_done=is_done))
        effects.end(place, is_done=is_done, result=result, ended_ns=time_ns, late_s=late_s)
        self._emit(agent, record, time_ns)
        self.report_quiesced()

    def turn_ended(self, agent: LocalAgent) -> None:
        """Handle the end of a turn that succeeded. The turn's effects remain done."""
        if agent.effects is not None:
            agent.effects.turn_ended()

    def turn_failed(self, agent: LocalAgent, time_ns: int, *, dead_letter: int) -> bytes:
        """Handle a turn that failed permanently, or that begins again. Return the message of the turn that undoes the turn's effects, newest
        first. If there are no effects to undo, return b"". `dead_letter` is the number of the turn's dead letter, or 0 if there is none.

        If the turn failed while effects were open, these are undone too, because they may have been called.
        """
        effects = agent.effects
        if effects is None:
            return b""
        self._end_open_effects(agent, effects, time_ns)
        turn_effects = effects.turn_ended(dead_letter=dead_letter)
        for effect in turn_effects:
            if not effect.undo:
                key = outside_key(self._shared.cluster, agent.id, effect.key, effect.generation)
                self._emit(
                    agent, EffectRecord(effect_records.LEFT, effect.key, effect.generation, effect.name, key), time_ns
                )
        to_undo = [effect for effect in reversed(turn_effects) if effect.undo]
        return undo_payload(to_undo) if to_undo else b""

    def _end_open_effects(self, agent: LocalAgent, effects: AgentEffects, time_ns: int) -> None:
        identities = self._identities_in_group(agent, effects)
        for place, effect in list(effects.open.items()):
            record = self._outcome(
                effect_records.FAILED, agent.id, effect.opened, "its turn failed before it had ended"
            )
            effects.end(place, is_done=False, result=b"", ended_ns=time_ns, late_s=effect.opened.timeout_s)
            self._emit(agent, record, time_ns)
        effects.group_ended(identities)  # also if the group has only other open members
        self.report_quiesced()

    def group_ended(self, agent: LocalAgent) -> None:
        """Put the effects of the group that has just ended into the order of their places."""
        if agent.effects is not None:
            agent.effects.group_ended(self._identities_in_group(agent, agent.effects))

    def _identities_in_group(self, agent: LocalAgent, effects: AgentEffects) -> list[str]:
        """Return the identities of the effects in the group for which the turn waits, in the order of their places."""
        turn = agent.turn
        members = enumerate(turn.members, len(turn.journal)) if turn is not None else ()
        return [
            self.identity(agent, place) if place in effects.open else member.sender
            for place, member in members
            if member.kind == EFFECT
        ]

    def _taken_over(self, agent: LocalAgent, name: str, intent: EffectIntent, result: bytes) -> EffectRecord:
        """Return a new ledger record of an effect that this turn has taken over from a failed turn, or from a discarded history. The ledger
        calls such an effect "left", or does not contain it any more."""
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

    # ---- ledger records -------------------------------------------------------------------------------------------

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
        outcome, counts = (
            UNDONE if record.undoes and record.stage == effect_records.DONE else record.stage,
            self._shared.counts.effects,
        )
        if outcome in counts:
            counts[outcome] += 1
        payload = encode_message(record)
        if self._shared.is_watched:
            self._shared.out.append(ev.EffectRecordEmitted(agent.id, payload))
        self._outputs.emit(agent, [(EFFECTS_TOPIC, payload, time_ns)])


def _needs_people(agent: str, opened: OpenEffect) -> str:
    return (
        f"agent {agent} waits for effect {opened.name!r}: it may have been done before a recovery, and may not be repeated. Find out under its key "
        f"{opened.key!r}, and say it: `snapline effect resolve {agent} {opened.key} --result JSON`, or `--not-done`"
    )
