"""The host core's component for durable turns. The component runs a handler's segments, and the waits between segments.

Theory of operation
-------------------
To the other components of the core, a segment looks like any other turn. Messages that a segment sends leave when the segment ends. After
each segment, the agent is between two turns: it may record its state, take a checkpoint, be frozen, or be held. While the agent is held,
the durable turn does not continue. The message that started the turn counts as consumed when the first segment has ended. Until the turn
ends, the agent's checkpoints contain the state at the start of the turn, the turn's message, and its journal. A recovery restores them, and
the handler is rerun up to the end of the journal (`durable.py`).

While a durable turn waits, the agent starts no other turn. A call waits for the reply with the call's id, and `receive` waits for the next
message of a given type. In the mailbox, other messages may precede the awaited message. Earlier messages on the same channel are consumed
before the awaited message, in order, and are moved to the agent's *stash*. A single sequence number therefore still tells which messages of
a channel have been consumed (G2). Protocols treat stashed messages as received. When the durable turn has ended, stashed messages are
handled before all other messages.

The result of a step is added to the journal as soon as the step has ended. The result is also in the host log before the turn continues
(`host_log.py`). Steps do not use channels.

Guarantees: this module provides G3 for durable turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

import msgspec

from snapline.agent_runtime.durable import (
    DONE,
    FAILED,
    LATE,
    LOST,
    ROLLED_BACK,
    EffectIntent,
    Pause,
    call_id,
    decision_of,
    encode_rollbacks,
    has_failed,
    reply_to,
)
from snapline.agent_runtime.host import approvals, dead_letters
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import (
    IDLE,
    Entry,
    InputEntry,
    MessageEntry,
    OperatorCommandEntry,
    SegmentEntry,
    Stage,
    StashedEntry,
    TimerEntry,
    is_on,
    key_of,
    sender_of,
    stashed_entry,
)
from snapline.agent_runtime.host.failures import HostFailures, last_line
from snapline.agent_runtime.host.host_answers import answers_to, count_questions, find_answer
from snapline.agent_runtime.host.host_effects import Effects
from snapline.agent_runtime.host.host_events import TurnKind
from snapline.agent_runtime.host.host_inputs import Inputs
from snapline.agent_runtime.host.host_log import StepLog
from snapline.agent_runtime.host.host_state import (
    AgentInlet,
    DurableTurn,
    HostState,
    LocalAgent,
    OpenWait,
)
from snapline.agent_runtime.host.mailboxes import Mailboxes, Timers
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.agent_runtime.message_encoding import is_of_type
from snapline.agent_runtime.rollback_errors import RestartRequest
from snapline.messages.agent_commands import read_effect_resolution
from snapline.messages.approvals import read_approval_answer
from snapline.messages.payloads import REPLY
from snapline.storage.log.log_record import EFFECT
from snapline.storage.packs.checkpoint import (
    TURN_TIMER,
    AbandonedTurn,
    ApprovalDecision,
    JournalEntry,
    SavedTurn,
    StashedMessage,
)

OUTSIDE = ("step", EFFECT)
"""Kinds of journal entries whose results do not come from a mailbox."""

ABANDONED_ENTRIES_MAX = 64
"""Largest number of journal entries that a restarted turn knows of an earlier attempt. The newest are kept."""

STASH_MAX = 10_000
"""Largest number of messages that are stashed until a durable turn has ended. If a call or receive would require more, it times out."""


class DurableTurns:
    """Durable turns of the agents on this host."""

    _mode: HostMode

    def __init__(
        self,
        shared: HostState,
        failures: HostFailures,
        mailboxes: Mailboxes,
        timers: Timers,
        inputs: Inputs,
        steps: StepLog,
        effects: Effects,
    ) -> None:
        self._shared = shared
        self._failures = failures
        self._mailboxes = mailboxes
        self._timers = timers
        self._inputs = inputs
        self._steps = steps
        self._effects = effects

    def wire(self, mode: HostMode) -> None:
        """Connect this component to the components of the host core above it."""
        self._mode = mode

    # ---- segments -------------------------------------------------------------------------------------------------

    def paused(self, agent: LocalAgent, entry: Entry, pause: Pause) -> None:
        """Handle the end of a segment that is followed by a wait."""
        turn = agent.turn
        if turn is None:
            turn = agent.turn = self._begin(agent, entry, pause.seed)
        if pause.entries:  # the host log already had the results
            self._forget_requests(agent, turn)
            turn.waits, turn.members = None, []
        turn.journal.extend(pause.entries)
        turn.is_logged, turn.group = pause.is_logged, 0
        is_again = turn.waits is not None or bool(turn.members)
        turn.is_live, turn.since_ns, turn.look = True, self._shared.now, OpenWait(pause.ends_at)
        if pause.members:
            turn.waits, turn.members = None, list(pause.members)
        elif turn.waits is None:
            turn.waits = pause.waits
        timeouts_ns, first = pause.timeouts_ns or [pause.timeout_ns], len(turn.journal)
        answers = answers_to(self._shared, agent, turn, pause.ends_at)
        for place, request in turn.open_requests():
            if place not in answers:  # effects, which `intended` opens, and whatever loses a race
                continue
            timeout_ns, answer = timeouts_ns[place - first], answers[place]
            name = timer_of(turn, place)
            if timeout_ns is not None and request.kind not in OUTSIDE and not (is_again and _has_time_out(agent, name)):
                self._timers.set(agent, name, timeout_ns, b"")  # also if it was cancelled, and the turn is retried
            if request.kind == ROLLED_BACK:
                self._finish(agent, turn, place, request, DONE, encode_rollbacks(self._shared.rollbacks))
            elif request.kind == "step":
                run = agent.id, agent.incarnation, place, request.name
                self._shared.out.append(ev.RunStep(*run) if answer is None else ev.TakeAnswer(*run, answer))
            elif answer is not None:
                decided = msgspec.structs.replace(request, result=answer.result, sender=answer.sender)
                approvals.decide(agent, approvals.of_entry(approvals.id_of(turn, place, request), decided))
                self._finish(agent, turn, place, request, answer.outcome, answer.result, answer.sender)
        if is_again:
            for place, request in turn.open_requests():
                if request.kind == "call" and request.name not in agent.outlets and turn.is_open(place):
                    self._unanswered(agent, turn, place, request)  # the callee proved missing during the replay

    def intended(self, agent: LocalAgent, intents: Mapping[int, EffectIntent]) -> None:
        """Handle a turn that waits for effects, by their places. The caller has already emitted the segment's outputs. All effects of a
        group are opened before one of them is called, so that one snapshot releases all intents."""
        turn = agent.turn
        assert turn is not None
        agent.stage = Stage.BETWEEN_SEGMENTS  # so that a checkpoint contains the whole segment
        requests = [(place, request) for place, request in turn.open_requests() if place in intents]
        settled: dict[int, tuple[str, bytes] | None] = {}
        for place, request in requests:
            recorded = find_answer(self._shared, agent, turn, place, request)
            settled[place] = self._effects.intended(agent, place, request, intents[place], recorded)
        for place, request in requests:
            intent, outcome = intents[place], settled[place]
            if outcome is not None:
                identity = self._effects.identity_of(agent, intent) if outcome[0] == DONE else ""
                self._finish(agent, turn, place, request, *outcome, identity)
                continue
            logged = self._steps.logged_of(agent, turn, place, request, self._effects.identity(agent, place))
            if logged is None:
                self._effects.call(agent, turn, place, intent)
            else:
                late_s = 0.0 if logged.outcome == DONE else intent.timeout_s
                self._effect_ended(agent, turn, place, request, logged.outcome, logged.result, intent.asked_ns, late_s)
        agent.stage = IDLE

    def _effect_ended(
        self,
        agent: LocalAgent,
        turn: DurableTurn,
        place: int,
        request: JournalEntry,
        outcome: str,
        result: bytes,
        time_ns: int,
        late_s: float = 0.0,
    ) -> None:
        """Record that an effect has ended. The window of keys, the outputs and the journal change together. Until all three have changed,
        the agent counts as busy, so that no checkpoint or segment can come in between."""
        stage, agent.stage = agent.stage, Stage.BETWEEN_SEGMENTS
        identity = self._effects.identity(agent, place)
        self._effects.ended(agent, place, outcome, result, time_ns, late_s)
        agent.stage = stage
        self._finish(agent, turn, place, request, outcome, result, identity)

    def _begin(self, agent: LocalAgent, entry: Entry, seed: bytes) -> DurableTurn:
        """Create the record of a durable turn after the turn's first segment, and consume the turn's message."""
        kind, sender, payload = entry.kind, sender_of(agent, entry), entry.payload
        if isinstance(entry, OperatorCommandEntry):  # the turn's message is that of the dead letter
            kind, sender, payload = dead_letters.turn_of(agent, entry.payload)
            dead_letters.handled(agent, entry.payload, key_of(entry))
        turn = DurableTurn(
            SavedTurn(kind, sender, payload, seed, key_of(entry), abandoned=_abandoned_before(entry)),
            self._steps.began(agent),
        )
        self._mailboxes.consume(entry, is_open=True)
        self._mailboxes.free_windows(agent)
        return turn

    def restart(self, agent: LocalAgent, entry: Entry, request: RestartRequest, time_ns: int) -> bool:
        """Let a durable turn begin again behind the turn that undoes its effects. Return False if it has begun again too often."""
        abandoned = agent.turn.abandoned if agent.turn is not None else _abandoned_before(entry)
        if len(abandoned) >= request.at_most:
            return False
        turn = agent.turn
        if turn is None:  # the turn has not waited yet, so its message is not consumed
            self._note_consumed(agent, entry.kind, sender_of(agent, entry), entry.payload)
            turn = agent.turn = self._begin(agent, entry, b"")
        self._note_consumed(agent, "again", turn.sender, turn.payload, is_stashed=True)
        attempts = [*abandoned, AbandonedTurn(request.reason, requests_in(turn.journal))]
        agent.stash.insert(0, StashedMessage(turn.sender, turn.payload, turn.key, attempts))
        self._undo_effects(agent, time_ns, dead_letter=0)
        self.ended(agent, is_restarted=True)
        return True

    def _undo_effects(self, agent: LocalAgent, time_ns: int, *, dead_letter: int) -> None:
        """Let the agent's next turn undo the effects of the turn that has just failed."""
        undo = self._effects.turn_failed(agent, time_ns, dead_letter=dead_letter)
        if undo:
            agent.stash.insert(0, StashedMessage(agent.id, undo))
            self._note_consumed(agent, "effect", agent.id, undo, is_stashed=True)

    def ended(
        self,
        agent: LocalAgent,
        *,
        reply: bytes = b"",
        is_dead_lettered: bool = False,
        is_restarted: bool = False,
    ) -> None:
        """End the agent's durable turn. The input of a turn that begins again is not answered yet."""
        turn, agent.turn = agent.turn, None
        assert turn is not None
        self._steps.ended(agent)
        count_questions(self._shared, agent, turn.journal)
        if turn.key and not is_restarted:
            self._inputs.close(agent, turn.key, is_dead_lettered=is_dead_lettered, reply=reply)
        self._effects.turn_ended(agent)
        self._forget_requests(agent, turn)

    def passed(self, agent: LocalAgent) -> None:
        """Count a durable turn that ended or failed permanently without ever waiting."""
        self._steps.began(agent)
        self._steps.ended(agent)

    def failed(self, agent: LocalAgent, event: ev.TurnFailed) -> bool:
        """Handle an error raised by the handler, and return whether the turn may be retried. If the rerun turn made different requests,
        suspend the turn."""
        turn = agent.turn
        assert turn is not None
        turn.is_live = False
        if event.is_divergent:
            turn.problem, turn.since_ns = last_line(event.error), self._shared.now
            agent.current, agent.stage, agent.attempts = None, IDLE, 0
            self._shared.note("error", f"agent {agent.id} stands in the middle of a turn: {turn.problem}")
        return not event.is_divergent

    def retried(self, agent: LocalAgent) -> None:
        """Prepare the retry of a turn that failed because of a step. If the last journal entry is the failed step, the turn waits for it
        again. If the last entries are a group, its failed steps run again."""
        turn = agent.turn
        if turn is None:  # the log had the failure, so the turn has not waited yet
            self._steps.retried(agent, place=0)
            return
        if turn.group:
            members, turn.group = turn.journal[-turn.group :], 0
            del turn.journal[-len(members) :]
            has_failed_step = any((member.kind, member.outcome) == ("step", FAILED) for member in members)
            turn.members = [
                JournalEntry(x.kind, x.name, x.digest)
                if has_failed_step and (x.outcome == LOST or (x.kind, x.outcome) == ("step", FAILED))
                else x
                for x in members
            ]
        elif turn.journal and (turn.journal[-1].kind, turn.journal[-1].outcome) == ("step", FAILED):
            step = turn.journal.pop()
            turn.waits = JournalEntry(step.kind, step.name, step.digest)  # so what was sent before it stays sent
        turn.logged = min(turn.logged, len(turn.journal))
        self._steps.retried(agent, place=len(turn.journal))

    def dead_letter(self, agent: LocalAgent, event: ev.TurnFailed) -> None:
        """End a turn that failed permanently, and make its message a dead letter."""
        turn = agent.turn
        assert turn is not None
        self._undo_effects(agent, event.time_ns, dead_letter=agent.last_dead_letter + 1)
        stashed = StashedMessage(turn.sender, turn.payload, turn.key)
        self._failures.dead_letter(agent, stashed_entry(stashed), event.error, agent.attempts, event.time_ns)
        self.ended(agent, is_dead_lettered=True)

    # ---- continuing -----------------------------------------------------------------------------------------------

    def next_entry(self, agent: LocalAgent) -> Entry | None:
        """Return the next entry of an agent that has a durable turn or stashed messages. Return None if no entry is ready yet."""
        turn = agent.turn
        if turn is None:
            return stashed_entry(agent.stash.pop(0))
        if turn.problem or agent.is_full or (turn.unlogged and not turn.members):
            return None
        while not self._has_come(agent, turn) or self._waits_for_outbox(agent):
            if not self._make_room(agent, turn):
                return None
        return SegmentEntry()

    def _has_come(self, agent: LocalAgent, turn: DurableTurn) -> bool:
        """Return whether the durable turn may continue. A turn that is being rerun may always continue, because the awaited entry must not
        be consumed before the rerun reaches its wait."""
        if not turn.open_requests() or not (turn.is_live or agent.is_crowded):
            return True
        return self._find(agent, turn) or not turn.is_live

    def _waits_for_outbox(self, agent: LocalAgent) -> bool:
        """Return whether the agent must wait until its outbox has become smaller. If the agent cannot stash any more messages, it does not
        wait, because two such agents would deadlock."""
        return agent.is_crowded and len(agent.stash) < STASH_MAX

    def start(self, agent: LocalAgent) -> None:
        """Start the next segment of the agent's durable turn."""
        turn = agent.turn
        assert turn is not None
        start = ev.StartTurn(agent.id, agent.incarnation, "segment", turn.sender, turn.payload)
        if turn.is_live and turn.group:
            self._shared.out.append(msgspec.structs.replace(start, group=tuple(turn.journal[-turn.group :])))
            return
        if turn.is_live:
            self._shared.out.append(msgspec.structs.replace(start, found=turn.journal[-1]))
            return
        logged = agent.begun.logged.get(turn.number, ()) if agent.begun is not None else ()
        start = msgspec.structs.replace(start, turn=turn.whole(), number=turn.number, logged=logged)
        if self._failures.deaths.known:
            start = self._mailboxes.refused_if_deadly(agent, start, turn.what, turn.sender, turn.payload)
        self._shared.out.append(start)

    def on_step_ended(self, event: ev.StepEnded) -> None:
        agent = self._shared.agents.get(event.agent)
        turn = agent.turn if agent is not None else None
        if agent is None or turn is None or agent.incarnation != event.incarnation:
            return
        request = dict(turn.open_requests()).get(event.place)
        if request is None or request.kind not in OUTSIDE:
            return
        if request.kind == EFFECT:
            ended = event.outcome, event.result, event.time_ns, event.late_s
            self._effect_ended(agent, turn, event.place, request, *ended)
        else:
            self._finish(agent, turn, event.place, request, event.outcome, event.result)
        if turn.is_logged and not turn.members and not turn.group:
            self._steps.put(agent, turn)
        self._mode.moved(agent)
        self._mailboxes.next_turn(agent)

    def gone(self, agent: LocalAgent, callee: str) -> None:
        """End the wait for replies from `callee`, because `callee` does not exist or has left. All messages from `callee` have already
        arrived on this host."""
        turn = agent.turn
        if turn is None or not turn.is_live:
            return
        calls = [each for each in turn.open_requests() if (each[1].kind, each[1].name) == ("call", callee)]
        ended = [x for x, call in calls if turn.is_open(x) and self._unanswered(agent, turn, x, call)]
        if ended:
            self._mode.moved(agent)
            self._mailboxes.next_turn(agent)

    def _unanswered(self, agent: LocalAgent, turn: DurableTurn, place: int, call: JournalEntry) -> bool:
        """End a call of the turn without a reply, unless the reply has already arrived. Return whether the call was ended."""
        is_over = not any(_is_it(agent, turn, place, call, entry) for entry in agent.mailbox)
        if is_over:
            self._finish(agent, turn, place, call, DONE, b"")
        return is_over

    def _finish(
        self,
        agent: LocalAgent,
        turn: DurableTurn,
        place: int,
        request: JournalEntry,
        outcome: str,
        result: bytes,
        sender: str = "",
    ) -> None:
        """Record the result of a request. When a group has ended, its members' entries enter the journal, in their order."""
        if request.kind not in OUTSIDE:
            _forget_time_out(agent, timer_of(turn, place))
        entry = JournalEntry(request.kind, request.name, request.digest, outcome, result, sender)
        is_kept = self._shared.keeps_answers and request.kind in ("approval", EFFECT)
        if turn.waits is not None:
            turn.journal.append(entry)
            turn.waits = None
            if is_kept:
                self._steps.put(agent, turn)
            return
        index, ends_at = place - len(turn.journal), turn.look.ends_at
        turn.members[index] = entry
        is_decided = ends_at == "first" or (ends_at == "failure" and has_failed(entry))
        if is_decided:
            self._lose_others(agent, turn)
        if request.kind in OUTSIDE or is_kept:
            self._steps.put_member(agent, turn, index, decision_of(turn.members, ends_at) if is_decided else None)
        if all(member.outcome for member in turn.members):
            self._steps.group_ended(agent, turn)
            self._effects.group_ended(agent)
            turn.journal.extend(turn.members)
            turn.group, turn.members = len(turn.members), []

    def _lose_others(self, agent: LocalAgent, turn: DurableTurn) -> None:
        """End the open requests of a group that ends early. Late replies and ends of steps are ignored then, and messages not consumed."""
        self._forget_requests(agent, turn)
        for place, request in turn.open_requests():
            lost = JournalEntry(request.kind, request.name, request.digest, LOST)
            turn.members[place - len(turn.journal)] = lost

    def _forget_requests(self, agent: LocalAgent, turn: DurableTurn) -> None:
        """Cancel the time limits of the turn's open requests, and let its approvals expire."""
        for place, request in turn.open_requests():
            if request.kind not in OUTSIDE:
                _forget_time_out(agent, timer_of(turn, place))
            if request.kind == "approval" and turn.members:
                approvals.decide(agent, ApprovalDecision(approvals.id_of(turn, place, request), False))

    # ---- arrivals -------------------------------------------------------------------------------------------------

    def _find(self, agent: LocalAgent, turn: DurableTurn) -> bool:
        """Consume the awaited messages that have arrived, and stash the earlier messages on their channels. Return whether the turn waits
        for nothing more.

        Each mailbox entry is compared with the open requests only once. Comparing all entries again would require, on each arrival, a
        scan of a mailbox that may contain thousands of entries.
        """
        look, mailbox = turn.look, agent.mailbox
        awaited = [request for request in turn.open_requests() if request[1].kind != "step"]
        count = len(awaited)
        if not look.has_seen_stash:
            awaited = [each for each in awaited if turn.is_open(each[0]) and not self._find_earlier(agent, turn, *each)]
            look.has_seen_stash = True  # later entries were compared in the mailbox
        while awaited and look.mailbox < len(mailbox):
            entry = mailbox[look.mailbox]
            found = next((each for each in awaited if _is_it(agent, turn, *each, entry)), None)
            if found is not None:
                self._take(agent, turn, *found, look.mailbox)
                awaited = [each for each in awaited if turn.is_open(each[0])]
            else:
                look.is_pressed |= isinstance(entry, MessageEntry) and _is_full(entry.inlet)
                look.mailbox += 1
        if len(awaited) < count and turn.members:
            self._mode.moved(agent)
        return turn.waits is None and not turn.members

    def _take_resolution(
        self, agent: LocalAgent, turn: DurableTurn, request_place: int, request: JournalEntry, place: int
    ) -> None:
        """Consume an operator's resolution of an awaited effect. If it says that the effect is not done, the turn continues to wait. All
        inputs before the resolution are stashed without limit, because the turn can continue only with the resolution."""
        entry = agent.mailbox[place]
        assert isinstance(entry, InputEntry)
        earlier = list(_before(agent, place))
        self._consume(agent, turn, earlier, is_stashed=True)
        self._consume(agent, turn, [place - len(earlier)], is_stashed=False)
        command = read_effect_resolution(entry.payload)
        if command.is_done:
            self._effect_ended(agent, turn, request_place, request, DONE, command.result, entry.input.admitted_ns)
            self._mode.moved(agent)
            return
        agent.stage = Stage.BETWEEN_SEGMENTS
        self._effects.not_done(agent, turn, request_place, entry.input.admitted_ns)
        agent.stage = IDLE
        self._mode.before_turn(agent)

    def _find_earlier(self, agent: LocalAgent, turn: DurableTurn, request_place: int, request: JournalEntry) -> bool:
        """Find the message to receive in the stash, or an answer to an approval there or among the answers that the agent keeps. Remove it,
        so that it does not get a turn of its own. Return whether it was there."""
        if request.kind not in ("receive", "approval"):
            return False
        kept = None
        if request.kind == "approval":
            kept = approvals.take_kept(agent, approvals.id_of(turn, request_place, request))
        if kept is not None:
            self._approve(agent, turn, request_place, request, kept.payload, kept.sender)
            return True
        for place, stashed in enumerate(agent.stash):
            if request.kind == "approval" and _is_answer_to(turn, request_place, request, stashed):
                del agent.stash[place]
                self._note_consumed(agent, "stashed", stashed.sender, stashed.payload)
                agent.stage = Stage.BETWEEN_SEGMENTS
                self._inputs.close(agent, stashed.key, is_dead_lettered=False, reply=approvals.reply_to_taken())
                agent.stage = IDLE
                self._approve(agent, turn, request_place, request, stashed.payload, stashed.sender)
                return True
            if request.kind == "receive" and is_of_type(stashed.payload, request.name):
                del agent.stash[place]
                self._note_consumed(agent, "stashed", stashed.sender, stashed.payload)
                if stashed.key:
                    # A reply to a waiting client may cause a checkpoint, and then the next segment.
                    agent.stage = Stage.BETWEEN_SEGMENTS
                    self._inputs.close(agent, stashed.key, is_dead_lettered=False, reply=b"")
                    agent.stage = IDLE
                self._finish(agent, turn, request_place, request, DONE, stashed.payload, stashed.sender)
                return True
        return False

    def _take(
        self, agent: LocalAgent, turn: DurableTurn, request_place: int, request: JournalEntry, place: int
    ) -> None:
        """Consume the mailbox entry at `place`, which ends a request."""
        entry = agent.mailbox[place]
        if isinstance(entry, TimerEntry):
            del agent.mailbox[place]
            if request.kind == "approval":
                approvals.decide(agent, ApprovalDecision(approvals.id_of(turn, request_place, request), False))
            self._finish(agent, turn, request_place, request, DONE if request.kind == "sleep" else LATE, b"")
            return
        if request.kind == EFFECT:
            self._take_resolution(agent, turn, request_place, request, place)
            return
        earlier = list(_before(agent, place))
        if request.kind == "approval":
            # Earlier inputs are stashed without limit, because the turn can continue only with the answer.
            self._consume(agent, turn, earlier, is_stashed=True)
            reply = approvals.reply_to_taken()
            self._consume(agent, turn, [place - len(earlier)], is_stashed=False, reply=reply)
            self._approve(agent, turn, request_place, request, entry.payload, sender_of(agent, entry))
            return
        if len(agent.stash) + len(earlier) > STASH_MAX:
            self._finish(agent, turn, request_place, request, LATE, b"")
            return
        self._consume(agent, turn, earlier, is_stashed=True)
        self._consume(agent, turn, [place - len(earlier)], is_stashed=False)
        payload = entry.payload
        if request.kind == "call":
            payload = payload[len(_reply_to(turn, request_place)) :]
        self._finish(agent, turn, request_place, request, DONE, payload, sender_of(agent, entry))

    def _approve(
        self, agent: LocalAgent, turn: DurableTurn, place: int, request: JournalEntry, payload: bytes, sender: str
    ) -> None:
        """End the wait for an approval with this answer."""
        answer = read_approval_answer(payload)
        approvals.decide(agent, approvals.of_answer(answer, sender))
        self._finish(agent, turn, place, request, DONE, approvals.result_of(answer), sender)

    def _make_room(self, agent: LocalAgent, turn: DurableTurn) -> bool:
        """Stash messages to make room in full channels, because the awaited message can be sent only after earlier messages were received.
        If the agent's own outbox exceeds its limit, make room in all channels, because their senders may have to send before they can
        receive.

        Return True if any entry was stashed.
        """
        room, senders = STASH_MAX - len(agent.stash), None
        if not agent.is_crowded:
            requests = [request for _, request in turn.open_requests() if request.kind in ("call", "receive")]
            if not requests or not turn.look.is_pressed:
                return False
            if all(request.kind == "call" for request in requests):
                senders = {request.name for request in requests}
        places = list(islice(_in_full_channels(agent, senders), room))
        turn.look.is_pressed = False  # if the stash is full, it stays full until this wait ends
        self._consume(agent, turn, places, is_stashed=True)
        return bool(places)

    def _consume(
        self, agent: LocalAgent, turn: DurableTurn, places: list[int], *, is_stashed: bool, reply: bytes = b""
    ) -> None:
        """Consume mailbox entries as if each had a turn of its own. The protocol processes the entries one by one, and each entry counts as
        received. If the entry is an operator's command, its author gets `reply`.

        `places` are indexes in the mailbox, in ascending order. Entries that arrive in the meantime are added behind all entries at
        `places`.
        """
        for removed, place in enumerate(places):
            entry = agent.mailbox[place - removed]
            del agent.mailbox[place - removed]
            turn.look.mailbox -= place - removed < turn.look.mailbox
            self._consume_one(agent, entry, is_stashed=is_stashed, reply=reply)

    def _consume_one(self, agent: LocalAgent, entry: Entry, *, is_stashed: bool, reply: bytes) -> None:
        sender, payload = sender_of(agent, entry), entry.payload
        is_stashed = is_stashed and not payload.startswith(REPLY)  # reply to a call that has timed out
        self._mailboxes.consuming(agent, entry)
        if is_stashed:
            agent.stash.append(StashedMessage(sender, payload, key_of(entry)))
        self._note_consumed(agent, entry.kind, sender, payload, is_stashed=is_stashed)
        # Consuming may free credit, so that further messages arrive, which must not start the next segment now.
        agent.stage = Stage.BETWEEN_SEGMENTS
        self._mailboxes.consume(entry, is_open=is_stashed, reply=reply)
        agent.stage = IDLE

    def _note_consumed(
        self,
        agent: LocalAgent,
        what: TurnKind | Literal["effect", "again"],
        sender: str,
        payload: bytes,
        *,
        is_stashed: bool = False,
    ) -> None:
        if self._shared.is_watched:
            self._shared.out.append(ev.MessageConsumedInTurn(agent.id, what, sender, payload, is_stashed))


def requests_in(journal: Sequence[JournalEntry]) -> list[tuple[str, str, str]]:
    """Return kind, name and outcome of the newest journal entries, oldest first."""
    return [(each.kind, each.name, each.outcome) for each in journal[-ABANDONED_ENTRIES_MAX:]]


def _abandoned_before(entry: Entry) -> list[AbandonedTurn]:
    """Return the earlier attempts at the turn of this entry."""
    return entry.stashed.abandoned if isinstance(entry, StashedEntry) else []


def _before(agent: LocalAgent, place: int) -> Iterator[int]:
    """Yield the mailbox indexes of all entries that precede this entry on the same channel. If this entry is an input, yield the indexes of
    all earlier inputs."""
    awaited = agent.mailbox[place]
    for other, entry in enumerate(islice(agent.mailbox, place)):
        if is_on(entry, awaited.inlet) if isinstance(awaited, MessageEntry) else isinstance(entry, InputEntry):
            yield other


def _in_full_channels(agent: LocalAgent, senders: set[str] | None) -> Iterator[int]:
    """Yield the mailbox indexes of the entries that arrived on full channels. If `senders` is given, consider only channels from them."""
    full = {inlet: None for inlet in agent.inlets.values() if _is_full(inlet)}
    if senders is not None:
        full = {inlet: None for inlet in full if inlet.sender in senders}
    if full:
        yield from [
            place
            for place, entry in enumerate(agent.mailbox)
            if isinstance(entry, MessageEntry) and entry.inlet in full
        ]


def _is_full(inlet: AgentInlet) -> bool:
    return inlet.arrived >= inlet.credit_sent


def _is_it(agent: LocalAgent, turn: DurableTurn, place: int, request: JournalEntry, entry: Entry) -> bool:
    """Return whether the mailbox entry ends the request at this place of the turn's journal, or resolves the effect there."""
    if request.kind == EFFECT:
        return turn.is_live and dead_letters.is_resolution_of(agent, place, entry)
    if isinstance(entry, TimerEntry):
        return entry.name == timer_of(turn, place)
    if request.kind == "receive":
        return isinstance(entry, MessageEntry | InputEntry) and is_of_type(entry.payload, request.name)
    if request.kind == "approval":
        return _is_answer_to(turn, place, request, entry)
    if request.kind != "call" or not isinstance(entry, MessageEntry) or entry.inlet.sender != request.name:
        return False
    return entry.payload.startswith(_reply_to(turn, place))


def _is_answer_to(turn: DurableTurn, place: int, request: JournalEntry, entry: Entry | StashedMessage) -> bool:
    answer = approvals.answer_in(entry)
    return answer is not None and answer.id == approvals.id_of(turn, place, request)


def timer_of(turn: DurableTurn, place: int) -> str:
    """Return the name of the timer that ends the wait at this place."""
    return f"{TURN_TIMER}{place}" if turn.members else TURN_TIMER


def _has_time_out(agent: LocalAgent, name: str) -> bool:
    """Return whether the timeout of a wait has been set and not cancelled. It may have fired already."""
    entries = [*agent.deferred, *agent.mailbox] if name not in agent.timers else ()
    return name in agent.timers or any(isinstance(entry, TimerEntry) and entry.name == name for entry in entries)


def _forget_time_out(agent: LocalAgent, name: str) -> None:
    """Cancel the timeout of a wait. The timeout may already have fired, so that its entry is in the mailbox behind the awaited
    message."""
    if agent.timers.pop(name, None) is None:
        for place, entry in enumerate(agent.mailbox):
            if isinstance(entry, TimerEntry) and entry.name == name:
                del agent.mailbox[place]
                return


def _reply_to(turn: DurableTurn, place: int) -> bytes:
    """Return the byte prefix of the reply to the call at this place of the turn's journal."""
    return reply_to(call_id(turn.seed, place))
