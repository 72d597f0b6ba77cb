"""The host core's component for inputs from outside the fleet. The component admits, numbers and logs inputs, and delivers them to agents.

An acknowledged input takes effect exactly once, despite failures and rollbacks (R1). An input is acknowledged when its batch is durable in
the host log (`host_log.py`). The input is delivered to its agent only after it has been acknowledged.

Inputs do not belong to channel states, and they carry no protocol marks. An agent's checkpoint contains the number of the last input that
the agent has consumed, so each plan redelivers all later inputs in order. After a rollback that was requested, a plan may *drop* inputs
that were accepted under earlier plans. Each plan consumes the dropped inputs without running turns, until a checkpoint records that they
have been consumed. The numbers of dropped inputs are therefore not reused. If a client resends an input with the key of a dropped input,
the input is refused.

*Receivers.* Inputs are accepted for the agents in the plan. For agents created later, inputs are accepted once a complete epoch contains
the agent. If inputs were accepted earlier, a recovery could undo the creation of the agent, and its inputs would have no receiver. If the
epoch that contains the agent is later found to be damaged, the agent's inputs wait on this host until the agent is created again.

*Replies.* Clients may wait for the reply to an input (`ReplyWaiters`). An *early* reply is sent as soon as the turn of the input has ended.
A recovery may undo the turn of an early reply, and the rerun turn may give a different reply. Replies that are not early are sent when a
complete epoch contains the turn, and are never reverted (R2; output commit: Strom and Yemini 1985). Replies are kept together with the keys
of consumed inputs (`agent_io.py`), so they are part of the agent's state. If a client asks again, even on the agent's next host, the client
gets the same reply. Only the outcome "dead letter" is not final. If an operator retries the dead letter, the new turn gives the reply.
"""

from collections.abc import Sequence

from snapline.agent_runtime.host import approvals, dead_letters
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_io import DIGEST_BYTES, AgentInputs, PendingInput
from snapline.agent_runtime.host.commits import Commits
from snapline.agent_runtime.host.entries import InputEntry, input_entry
from snapline.agent_runtime.host.host_log import OwnLog
from snapline.agent_runtime.host.host_outputs import AgentRetirement
from snapline.agent_runtime.host.host_state import HostState, LocalAgent
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.modes.mode import EpochRequest
from snapline.agent_runtime.message_encoding import without_tail
from snapline.messages import host_messages as msg
from snapline.messages.agent_commands import is_effect_resolution
from snapline.messages.approvals import is_approval_answer
from snapline.messages.client_requests import (
    ACCEPTED,
    BURIED,
    KEY_CHARACTERS_MAX,
    REFUSED,
    REPEATED,
    REPLIED,
    RETRY,
    UNKNOWN,
    InputOutcome,
)
from snapline.messages.payloads import CREATE
from snapline.storage.disk.record import digest_of
from snapline.storage.log.log_record import LoggedInput

Place = tuple[str, str]
"""Agent and input key."""


class ReplyWaiters:
    """The client requests that wait for replies from the agents on this host."""

    _membership: AgentRetirement

    def __init__(self, shared: HostState, request: "EpochRequest | Commits", *, has_cuts: bool) -> None:
        """`request` asks for what makes answers final: a commit, or an epoch if there are no commits. `has_cuts` is set if all agents record
        their states for an epoch after it has begun."""
        self._shared = shared
        self._request = request
        self._has_cuts = has_cuts
        self._waiting: dict[Place, list[tuple[int, bool]]] = {}
        """Numbers of waiting requests, each with whether it accepts an early reply."""

    def wire(self, membership: AgentRetirement) -> None:
        """Connect this component to the component above it that creates and removes agents."""
        self._membership = membership

    def reset(self) -> None:
        """Answer all requests with "retry", because a recovery plan ends the history of all agents on this host. The clients must then ask
        the agents' new hosts."""
        waiting, self._waiting = self._waiting, {}
        for requests in waiting.values():
            for request, _ in requests:
                self._tell(request, ev.AskAnswer(RETRY, reason="the fleet recovers"))

    def on_reply_awaited(self, event: ev.ReplyAwaited) -> None:
        agent = self._shared.agents.get(event.agent)
        if agent is None or not self._shared.is_loaded:
            self._tell(
                event.request, ev.AskAnswer(RETRY, reason=f"agent {event.agent} is not on host {self._shared.host}")
            )
            return
        inputs = agent.inputs
        if inputs is None or (event.key not in inputs.keys and event.key not in inputs.waiting):
            reason = f"agent {agent.id} knows no input of key {event.key!r}: it was never sent, or too long ago"
            self._tell(event.request, ev.AskAnswer(UNKNOWN, reason=reason))
            return
        if event.key in inputs.keys and inputs.keys[event.key].is_dropped:
            self._tell(event.request, ev.AskAnswer(UNKNOWN, reason=dropped_reason(event.key, agent.id)))
            return
        self._waiting.setdefault((agent.id, event.key), []).append((event.request, event.is_early))
        self.consumed(agent, event.key)

    def consumed(self, agent: LocalAgent, key: str) -> None:
        """Answer the requests that wait for the input with this key if its turn has ended or it has become a dead letter. If the key
        belongs to an operator command that retried a dead letter, also answer the requests for the dead letter's input."""
        inputs = agent.inputs
        if inputs is None:
            return
        for input_key in (key, inputs.retries.get(key)):
            place = agent.id, input_key or ""
            if place in self._waiting:
                self._answer(agent, place)
                known = inputs.answered(place[1])
                if place in self._waiting and known is not None and not known.is_open:
                    self._request.say(agent)

    def keeps(self, agent: LocalAgent) -> bool:
        """Return whether a stopped agent must be kept because a final reply may not have been sent yet. If the agent must be kept, request
        an epoch."""
        inputs = agent.inputs
        if inputs is None or inputs.consumed <= inputs.released:
            return False
        fresh = [known for known in inputs.keys.values() if known.number > inputs.released]
        has_dead_lettered = agent.last_dead_letter > 0  # operators ask only after the command was accepted
        is_unreported = any(
            has_dead_lettered or known.reply or (agent.id, known.key) in self._waiting for known in fresh
        )
        if is_unreported:
            self._request.say(agent)
        return is_unreported

    def committed(self, agent: LocalAgent, number: int, early: Sequence[int]) -> None:
        """Send the replies to the agent's inputs up to this number, and to those in `early`, because a durable commit contains the ends of
        their turns."""
        inputs = agent.inputs
        if inputs is not None and (number > inputs.released or early) and not self._shared.commits.is_ending:
            inputs.release_early(early)
            inputs.release(number)
            for place in [place for place in self._waiting if place[0] == agent.id]:
                self.consumed(agent, place[1])

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        """Send the replies to all inputs that are consumed in the complete epoch, because their turns can no longer be reverted. Replies to
        later inputs wait for a later epoch."""
        for name, number in zip(event.agents, event.inputs, strict=True):
            agent = self._shared.agents.get(name)
            if agent is not None and agent.inputs is not None:
                agent.inputs.release(number)
                if agent.is_leaving:
                    self._membership.retire_if_drained(agent)
        for place in list(self._waiting):
            agent = self._shared.agents.get(place[0])
            if agent is not None:
                if agent.inputs is not None and event.is_complete and self._has_cuts:
                    early = [number for number, begun in agent.inputs.early.items() if begun < event.epoch]
                    agent.inputs.release_early(early)
                self.consumed(agent, place[1])

    def removed(self, agent: str) -> None:
        """Answer all requests that wait for inputs of an agent that has left."""
        self._end_requests(agent, ev.AskAnswer(UNKNOWN, reason=f"agent {agent} has stopped"))

    def moved(self, agent: str) -> None:
        """Answer all requests that wait for inputs of an agent that moves to another host. The clients must then ask there."""
        self._end_requests(agent, ev.AskAnswer(RETRY, reason=f"agent {agent} moves to another host"))

    def _end_requests(self, agent: str, answer: ev.AskAnswer) -> None:
        for place in [place for place in self._waiting if place[0] == agent]:
            for request, _ in self._waiting.pop(place):
                self._tell(request, answer)

    def _answer(self, agent: LocalAgent, place: Place) -> None:
        assert agent.inputs is not None
        known = agent.inputs.answered(place[1])
        if known is None or known.is_open:
            return
        is_released = agent.inputs.is_released(known.number)
        requests = self._waiting.pop(place)
        answer = ev.AskAnswer(BURIED if known.is_dead_lettered else REPLIED, known.number, known.reply)
        for request, is_early in requests:
            if is_early or is_released:
                self._tell(request, answer)
            else:
                self._waiting.setdefault(place, []).append((request, is_early))

    def _tell(self, request: int, answer: ev.AskAnswer) -> None:
        self._shared.out.append(ev.AnswerAsk(request, answer))


def dropped_reason(key: str, agent: str) -> str:
    """Return the error message for a client that resends a dropped input or asks for its reply."""
    return f"the fleet went back on purpose, and the input of key {key!r} for {agent} was dropped: give it again with another key"


QUEUED_BYTES_MAX = 64 * 1024 * 1024
"""Largest total size of inputs that wait for a batch. Above it, clients must retry, so that waiting inputs do not fill the memory while the
store is unavailable."""

WAITING_MAX = 10_000
"""Largest number of unconsumed inputs of one agent. Above it, clients must retry."""

RECOVERS = "the fleet recovers"


class Request:
    """A client's request in which some inputs have no outcome yet. `answers` has the same order as the inputs in the request."""

    __slots__ = ("answers", "open")

    def __init__(self, answers: list[InputOutcome | None]) -> None:
        self.answers = answers
        self.open = answers.count(None)


class Inputs:
    """The inputs of the agents on this host. `asks` contains the client requests that wait for replies."""

    def __init__(
        self,
        shared: HostState,
        mailboxes: Mailboxes,
        epoch_request: EpochRequest,
        log: OwnLog,
        commits: Commits,
        *,
        has_cuts: bool,
    ) -> None:
        self._shared = shared
        self._log = log
        self.asks = ReplyWaiters(shared, commits if shared.commits.is_on else epoch_request, has_cuts=has_cuts)
        self._are_held = False
        """Whether inputs are rejected until the next Quiesce, plan or stream."""
        self._mailboxes = mailboxes
        self._requests: dict[int, Request] = {}
        self._orphans: dict[str, list[tuple[LoggedInput, bool]]] = {}
        """Inputs of agents that are not in the plan, each with whether it is dropped."""
        self._young: dict[str, int] = {}
        """Agents created under this plan that are not known to be in a complete epoch, each with the newest epoch that had begun at its
        creation."""

    # ---- plans and epochs -----------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Clear all inputs when a recovery plan ends the history of all agents on this host."""
        self._are_held = False
        self.asks.reset()
        self._orphans.clear()
        self._young.clear()

    def hold(self, *, are_held: bool) -> None:
        """Stop accepting inputs because the fleet is about to end, or start accepting inputs again."""
        self._are_held = are_held

    def loaded(self, event: ev.AgentsLoaded) -> None:
        """Restore the inputs in the logs of earlier plans that are newer than the agents' checkpoints. The restored inputs then wait for
        their turns again."""
        shared = self._shared
        for loaded in event.agents:
            if loaded.checkpoint is not None and loaded.checkpoint.inputs.number:
                shared.agents[loaded.agent].inputs = AgentInputs(loaded.checkpoint.inputs)
        inputs = [*[(logged, True) for logged in event.dropped], *[(logged, False) for logged in event.inputs]]
        for logged, is_dropped in inputs:
            agent = shared.agents.get(logged.agent)
            if agent is not None:
                self._restore(agent, logged, is_dropped=is_dropped)
            elif logged.agent not in shared.routes:
                self._orphans.setdefault(logged.agent, []).append((logged, is_dropped))

    def _restore(self, agent: LocalAgent, logged: LoggedInput, *, is_dropped: bool) -> None:
        inputs = _inputs_of(agent)
        if logged.number <= inputs.consumed:
            return
        if is_dropped:
            inputs.drop(logged)
        else:
            inputs.add(logged, is_durable=True)
            agent.mailbox.append(input_entry(logged))

    def created(self, agent: LocalAgent, begun: int) -> None:
        """Record an agent that was created on this host after epoch `begun` had begun. The creation becomes permanent with the first
        complete epoch that contains the agent."""
        self._young[agent.id] = begun
        for logged, is_dropped in self._orphans.pop(agent.id, ()):
            self._restore(agent, logged, is_dropped=is_dropped)

    def epoch_ended(self, event: msg.EndEpoch) -> None:
        """Handle the end of an epoch. The creation of all agents that a complete epoch contains becomes permanent."""
        if event.is_complete:
            self._young = {
                agent: begun_epoch for agent, begun_epoch in self._young.items() if begun_epoch >= event.epoch
            }
        self.asks.epoch_ended(event)

    # ---- delivery---------------------------------------------------------------------------------------------------

    def consume(self, logged: LoggedInput, *, is_dead_lettered: bool, reply: bytes, is_open: bool) -> None:
        """Consume an input. If `is_open` is set, the input's turn is still running. Otherwise the turn has ended, or the input has become
        a dead letter."""
        agent = self._shared.agents.get(logged.agent)
        if agent is not None and agent.inputs is not None:  # otherwise the agent has left
            agent.inputs.consume(logged, is_dead_lettered=is_dead_lettered, reply=reply, is_open=is_open)
            if agent.turn is not None and not is_open:
                agent.inputs.early[logged.number] = self._shared.begun_epoch
            self._shared.note_change(agent.id)
            self.asks.consumed(agent, logged.key)

    def close(self, agent: LocalAgent, key: str, *, is_dead_lettered: bool, reply: bytes) -> None:
        """Handle the end of a turn whose input had already been consumed."""
        if agent.inputs is not None:
            agent.inputs.close(key, is_dead_lettered=is_dead_lettered, reply=reply)
            if agent.turn is not None:
                agent.inputs.early[agent.inputs.keys[key].number] = self._shared.begun_epoch
            self._shared.note_change(agent.id)
            self.asks.consumed(agent, key)

    def keeps(self, agent: LocalAgent) -> bool:
        """Return whether a stopped agent must be kept, because it has unconsumed inputs or clients' dead letters, or because replies have
        not been sent yet."""
        is_awaited = self.asks.keeps(agent)
        has_open = agent.inputs is not None and bool(agent.inputs.waiting)
        has_put_off = any(stashed.key for stashed in agent.stash)
        return (
            is_awaited
            or has_open
            or has_put_off
            or any(dead_letters.is_from_outside(dead_letter) for dead_letter in agent.dead_letters)
        )

    # ---- admission----------------------------------------------------------------------------------------------------

    def on_inputs_offered(self, event: ev.InputsOffered) -> None:
        answers = [self._take(event, place, offered) for place, offered in enumerate(event.inputs)]
        request = Request(answers)
        if request.open:
            self._requests[event.request] = request
            self._log.append()
        else:
            self._shared.out.append(ev.AnswerInputs(event.request, _decided(request)))

    def _take(self, event: ev.InputsOffered, place: int, offered: ev.OfferedInput) -> InputOutcome | None:
        """Admit an input. Return the outcome of the input, or None if the input waits for a batch."""
        agent = self._shared.agents.get(offered.agent)
        if agent is None or not self._shared.is_loaded:
            return InputOutcome(RETRY, reason=self._location_of(offered.agent))
        known = self._find(agent, event, place, offered)
        if known is not None:
            return known if known.status else None
        refusal = self._refusal_of(agent, offered)
        if refusal is not None:
            return refusal
        inputs = _inputs_of(agent)
        number = inputs.numbered + 1
        logged = LoggedInput(agent.id, number, event.client, offered.key, offered.payload, event.wall_ns)
        pending = inputs.add(logged, is_durable=False)
        pending.waiters.append((event.request, place))
        self._log.put(pending)
        return None

    def _location_of(self, agent: str) -> str:
        shared = self._shared
        if not shared.is_loaded:
            return f"host {shared.host} has no agents yet"
        route = shared.routes.get(agent)
        return f"agent {agent} is not on host {shared.host}" + (f", but on {route[0]}" if route is not None else "")

    def _find(
        self, agent: LocalAgent, event: ev.InputsOffered, place: int, offered: ev.OfferedInput
    ) -> InputOutcome | None:
        """Return the outcome of an earlier input with the same key, or None if there is no such input. If the status of the outcome is "",
        the request waits together with the first request for this key."""
        inputs = agent.inputs
        if inputs is None:
            return None
        known, pending = inputs.keys.get(offered.key), inputs.waiting.get(offered.key)
        payload = without_tail(offered.payload)
        if pending is not None:
            number, is_same = pending.input.number, without_tail(pending.input.payload) == payload
        elif known is not None:
            number, is_same = known.number, known.digest == digest_of(payload)[:DIGEST_BYTES]
        else:
            return None
        if not is_same:
            reason = f"key {offered.key!r} was used for another input of {agent.id}: give each input a key of its own"
            return InputOutcome(REFUSED, number, reason)
        if known is not None and known.is_dropped:
            return InputOutcome(REFUSED, number, dropped_reason(offered.key, agent.id))
        if pending is not None and not pending.is_durable:
            pending.waiters.append((event.request, place))
            return InputOutcome("")
        return InputOutcome(REPEATED, number)

    def _refusal_of(self, agent: LocalAgent, offered: ev.OfferedInput) -> InputOutcome | None:
        if not 0 < len(offered.key) <= KEY_CHARACTERS_MAX:
            return InputOutcome(
                REFUSED, reason=f"a key has 1 to {KEY_CHARACTERS_MAX} characters, not {len(offered.key)}"
            )
        if not offered.is_operator_command and offered.payload[:1] in (b"", CREATE):
            return InputOutcome(REFUSED, reason="it is no message")
        if agent.is_leaving and (
            agent.is_retiring or not (offered.is_operator_command and dead_letters.is_drop(offered.payload))
        ):
            only = (
                ": a dead letter of it can only be dropped"
                if offered.is_operator_command and not agent.is_retiring
                else ""
            )
            return InputOutcome(REFUSED, reason=f"agent {agent.id} has stopped{only}")
        refusal = _refusal_of_word(agent, offered.payload) if offered.is_operator_command else None
        if refusal is not None:
            return refusal
        if self._are_held and not offered.is_operator_command:  # an open effect may need an operator command
            return InputOutcome(RETRY, reason="the fleet is about to end, and takes no more inputs")
        if agent.id in self._young:
            return InputOutcome(RETRY, reason=f"agent {agent.id} is new: no complete epoch holds it yet")
        log = self._log
        if log.why_none:
            return InputOutcome(RETRY, reason=f"{log.why_none}: a fleet with inputs needs another one")
        if log.is_sealed:
            return InputOutcome(RETRY, reason=RECOVERS)
        if self._shared.commits.is_on and log.awaits_earlier:
            return InputOutcome(RETRY, reason=RECOVERS)
        if log.problem:
            return InputOutcome(RETRY, reason=f"the host log cannot be written: {log.problem}")
        if log.queued_bytes > QUEUED_BYTES_MAX:
            return InputOutcome(RETRY, reason=f"host {self._shared.host} has too many inputs that wait for the store")
        if agent.inputs is not None and len(agent.inputs.waiting) >= WAITING_MAX:
            return InputOutcome(RETRY, reason=f"agent {agent.id} has {WAITING_MAX:,} inputs waiting")
        if agent.is_full:
            return InputOutcome(RETRY, reason=f"outputs of agent {agent.id} wait for a snapshot: there are too many")
        return None

    def appended(self, pending: PendingInput, *, is_present: bool) -> None:
        """Acknowledge an input whose batch is in the log. If the log belongs to an earlier plan, the agent's current host will find the
        input in the log."""
        pending.is_durable = True
        self._answer(pending, InputOutcome(ACCEPTED, pending.input.number))
        if is_present or self._is_waiting(pending):
            self._deliver(pending.input)

    def _is_waiting(self, pending: PendingInput) -> bool:
        """Return whether the agent that has taken the input is still on this host. A plan may have let it go on."""
        agent = self._shared.agents.get(pending.input.agent)
        return agent is not None and agent.inputs is not None and agent.inputs.waiting.get(pending.input.key) is pending

    def lost(self, pending: PendingInput) -> None:
        """Tell the client of an input that will never be in the log to retry."""
        if self._is_waiting(pending):
            inputs = self._shared.agents[pending.input.agent].inputs
            assert inputs is not None
            inputs.withdraw(pending)
        self._answer(pending, InputOutcome(RETRY, reason=RECOVERS))

    def _deliver(self, logged: LoggedInput) -> None:
        agent = self._shared.agents.get(logged.agent)
        if agent is None:  # the agent has left since
            self._shared.counts.dead_letters += 1
            return
        agent.mailbox.append(input_entry(logged))
        if not agent.is_busy:
            self._mailboxes.next_turn(agent)

    def _answer(self, pending: PendingInput, answer: InputOutcome) -> None:
        for number, place in pending.waiters:
            request = self._requests[number]
            request.answers[place] = answer
            request.open -= 1
            if not request.open:
                del self._requests[number]
                self._shared.out.append(ev.AnswerInputs(number, _decided(request)))
            if answer.status == ACCEPTED:
                answer = InputOutcome(REPEATED, answer.number)
        pending.waiters.clear()

    # ---- invariants -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        for agent in self._shared.agents.values():
            inputs = agent.inputs
            if inputs is None:
                continue
            entries = [*agent.mailbox, *agent.deferred, agent.current]
            numbers = sorted([entry.input.number for entry in entries if isinstance(entry, InputEntry)])
            durable = [pending.input.number for pending in inputs.waiting.values() if pending.is_durable]
            assert numbers == sorted(durable), (agent.id, numbers, durable)
            first = inputs.consumed + 1
            assert numbers == list(range(first, first + len(numbers))), (agent.id, inputs.consumed, numbers)


def _refusal_of_word(agent: LocalAgent, payload: bytes) -> InputOutcome | None:
    if is_approval_answer(payload):
        return approvals.refusal_of(agent, payload)
    if is_effect_resolution(payload):
        return dead_letters.refusal_of_resolution(agent, payload)
    refusal = dead_letters.refusal_of(agent, payload)
    return InputOutcome(REFUSED, reason=refusal) if refusal else None


def _inputs_of(agent: LocalAgent) -> AgentInputs:
    if agent.inputs is None:
        agent.inputs = AgentInputs()
    return agent.inputs


def _decided(request: Request) -> tuple[InputOutcome, ...]:
    return tuple([answer for answer in request.answers if answer is not None])
