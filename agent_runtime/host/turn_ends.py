"""The part of the host core that handles the outcome of a turn. After a successful turn, it sends the turn's messages. A failed turn is
undone, retried or dead-lettered, or crashes its agent."""

from snapline.agent_runtime.durable import refusal_of
from snapline.agent_runtime.host import dead_letters
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.channel_ends import Outlets
from snapline.agent_runtime.host.durable_turns import DurableTurns, requests_in
from snapline.agent_runtime.host.entries import (
    IDLE,
    CreationEntry,
    Entry,
    FirstEntry,
    MessageEntry,
    OperatorCommandEntry,
    Stage,
    key_of,
    sender_of,
)
from snapline.agent_runtime.host.failures import HostFailures, HostRollbacks, TurnDeaths, last_line
from snapline.agent_runtime.host.host_answers import count_questions
from snapline.agent_runtime.host.host_outputs import Outputs
from snapline.agent_runtime.host.host_state import HostState, LocalAgent
from snapline.agent_runtime.host.mailboxes import Mailboxes, Timers, about
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.agent_runtime.host.plans import Membership
from snapline.agent_runtime.host.views import Views
from snapline.agent_runtime.rollback_errors import RollbackRequest
from snapline.messages import host_messages as msg


class TurnEnds:
    """Handles the outcomes of the turns of this host's agents.

    An agent may fail during or just before its turn, for example because a forced checkpoint could not be taken. The turn's changes are
    then lost together with the agent's state. The turn's message counts as not received, and none of the turn's messages are sent. If they
    were sent, other agents would depend on a checkpoint that does not exist.
    """

    _mode: HostMode

    def __init__(
        self,
        shared: HostState,
        failures: HostFailures,
        mailboxes: Mailboxes,
        outlets: Outlets,
        timers: Timers,
        membership: Membership,
        outputs: Outputs,
        views: Views,
        durable: DurableTurns,
    ) -> None:
        self._shared = shared
        self._agents, self._poison, self._deaths = shared.agents, failures.poison, failures.deaths.known
        self._failures = failures
        self._mailboxes = mailboxes
        self._outlets = outlets
        self._timers = timers
        self._membership = membership
        self._outputs = outputs
        self._views = views
        self._durable = durable

    def wire(self, mode: HostMode) -> None:
        """Store references to parts of the host core that are created after this part."""
        self._mode = mode

    @property
    def rollbacks(self) -> HostRollbacks:
        """Return the rollback requests of this host's agents."""
        return self._failures.rollbacks

    @property
    def deaths(self) -> TurnDeaths:
        """Return the turns during which processes have died."""
        return self._failures.deaths

    def on_turn_ended(self, event: ev.TurnEnded) -> None:
        agent = self._agents.get(event.agent)
        if agent is None or agent.incarnation != event.incarnation or agent.current is None:
            return
        if agent.is_failed:
            self._mailboxes.put_back(agent)
            return
        entry = agent.current
        if event.pause is None:
            agent.attempts = 0
        self._shared.counts.turns += 1
        self._shared.note_change(agent.id)
        if self._deaths and event.pause is None:
            turn = agent.turn
            whole = about(agent, entry) if turn is None else (turn.what, turn.sender, turn.payload)
            self._failures.deaths.survived(agent.id, *whole)
        if event.entries:
            count_questions(self._shared, agent, event.entries)  # the core has not seen them before
        if event.is_durable and agent.turn is None:
            self._durable.passed(agent)
        if agent.turn is not None or event.pause is not None:
            self._segment_ended(agent, entry, event)
        elif isinstance(entry, MessageEntry):
            self._mailboxes.consume_message(entry)
        else:
            if isinstance(entry, OperatorCommandEntry):
                dead_letters.handled(agent, entry.payload, key_of(entry))
            self._mailboxes.consume_own(entry, is_dead_lettered=False, reply=event.reply, agent=agent)
        if not agent.is_started and isinstance(entry, FirstEntry):
            agent.is_started = agent.is_born = True
        if self._poison:
            self._failures.forgive(agent, entry)
        for name in event.cancelled:
            agent.timers.pop(name, None)
        for name, delay_ns, payload in event.timers:
            self._timers.set(agent, name, delay_ns, payload)
        if event.stops:
            agent.is_leaving = True
        if event.spawns:
            self._membership.hold(agent, event)
        else:
            self._outlets.leave(agent, event.sends)
        agent.current, agent.stage = None, IDLE
        self._mode.turn_ended(agent, entry, event)
        intents = event.pause.intents if event.pause is not None else None
        if intents:
            agent.stage = Stage.BETWEEN_SEGMENTS  # so that a checkpoint for the outputs contains the intent too
        if event.outputs:
            self._outputs.emit(agent, event.outputs)
        if intents:
            self._durable.intended(agent, intents)
        if agent.is_leaving:
            self._membership.retire_if_drained(agent)
        if self._views.waiting:
            self._views.turn_ended(agent)
        self._mailboxes.next_turn(agent)

    def on_external_sends(self, event: ev.ExternalSends) -> None:
        """Send an agent's messages that belong to no turn. If a checkpoint of the agent is due, it is taken afterwards, as after a turn."""
        agent = self._agents.get(event.agent)
        if agent is None or agent.incarnation != event.incarnation:
            return
        if agent.is_busy:  # the agent's turn has not run yet, and a record follows it
            self._outlets.leave(agent, event.sends)
            return
        agent.stage = Stage.SENDING
        self._outlets.leave(agent, event.sends)
        agent.stage = IDLE
        self._mode.moved(agent)
        self._mailboxes.next_turn(agent)

    def _segment_ended(self, agent: LocalAgent, entry: Entry, event: ev.TurnEnded) -> None:
        if event.pause is not None:
            self._durable.paused(agent, entry, event.pause)
        elif agent.turn is not None:
            self._durable.ended(agent, reply=event.reply)

    def on_turn_failed(self, event: ev.TurnFailed) -> None:
        agent = self._agents.get(event.agent)
        if agent is None or agent.incarnation != event.incarnation or agent.current is None:
            return
        if agent.is_failed:
            self._mailboxes.put_back(agent)
            return
        agent.attempts += 1
        self._shared.note_change(agent.id)
        entry = agent.current
        if event.on_error == "recover" and not event.is_final:
            self._mailboxes.put_back(agent)
            self._failures.crash(agent, entry, event)
            return
        if event.on_error == "undo" and not event.is_final:
            self._shared.out.append(ev.UndoTurn(agent.id))
        if agent.turn is not None and not self._durable.failed(agent, event):
            return
        if event.rollback is not None:
            self._suspend_agent(agent, event.rollback, event)
            return
        if event.restart is not None and self._durable.restart(agent, entry, event.restart, event.time_ns):
            count_questions(self._shared, agent, event.entries)  # the core has not seen them before
            agent.attempts = 0
            agent.current, agent.stage = None, IDLE
            self._mode.moved(agent)
            self._views.turn_ended(agent)
            self._mailboxes.next_turn(agent)
            return
        if event.restart is None and agent.attempts <= event.retries and not event.is_final:
            self._try_again(agent, entry, event)
        else:
            self._give_up(agent, entry, event)

    def _try_again(self, agent: LocalAgent, entry: Entry, event: ev.TurnFailed) -> None:
        if event.is_of_step:
            self._durable.retried(agent)
        wait_ns = event.waits_ns[agent.attempts - 1] if event.waits_ns else 0
        if not wait_ns:
            self._mailboxes.start(agent, entry)
            return
        message = f"failed, and is tried again in {wait_ns / 1e9:g} s: {last_line(event.error)}"
        self._shared.note("warning", f"a message from {sender_of(agent, entry)} to {agent.id} {message}")
        self._wait_to_retry(agent, wait_ns)

    def _suspend_agent(self, agent: LocalAgent, rollback_request: RollbackRequest, event: ev.TurnFailed) -> None:
        """Suspend an agent that has requested a rollback. The suspended agent starts no turn until a plan arrives."""
        agent.attempts = 0
        self._mailboxes.put_back(agent)
        number, entries = 0, list(event.entries)
        if agent.turn is not None:
            number, entries = agent.turn.number, [*agent.turn.journal, *entries]
        elif event.is_durable:  # the turn has never waited
            number = 1 + (agent.begun.count if agent.begun is not None else 0)
        self._failures.rollbacks.want(agent, rollback_request, number, requests_in(entries))
        self._end_between_turns(agent)

    def on_rollback_refused(self, event: msg.RollbackRefused) -> None:
        self._failures.rollbacks.on_refused(event)

    def _wait_to_retry(self, agent: LocalAgent, wait_ns: int) -> None:
        """Put the entry of a failed turn back at the front of its queue, so that no other entry overtakes it. The agent is now between two
        turns and may record its state.

        The protocol must process the message again at the retry, because messages may leave and checkpoints may be taken before the retry.
        """
        self._mailboxes.put_back(agent)
        self._timers.retry_in(agent, wait_ns)
        self._end_between_turns(agent)

    def _end_between_turns(self, agent: LocalAgent) -> None:
        self._mode.tried(agent)
        self._views.turn_ended(agent)
        self._mailboxes.next_turn(agent)

    def _give_up(self, agent: LocalAgent, entry: Entry, event: ev.TurnFailed) -> None:
        turn = agent.turn
        count_questions(self._shared, agent, event.entries)  # the core has not seen them before
        caller, refusal = sender_of(agent, entry), refusal_of(entry.payload)
        if turn is not None:
            caller, refusal = turn.sender, refusal_of(turn.payload)
            self._durable.dead_letter(agent, event)
        else:
            if event.is_durable:
                self._durable.passed(agent)
            self._failures.dead_letter(agent, entry, event.error, agent.attempts, event.time_ns)
            self._consume_dead_lettered(agent, entry)
        agent.attempts = 0
        if isinstance(entry, FirstEntry) and not (event.is_final and isinstance(entry, CreationEntry)):
            agent.is_started = agent.is_born = True  # the agent continues with its initial state
        if refusal:
            self._outlets.leave(agent, ((caller, refusal),))
        agent.current, agent.stage = None, IDLE
        self._views.turn_ended(agent)
        self._mailboxes.next_turn(agent)

    def _consume_dead_lettered(self, agent: LocalAgent, entry: Entry) -> None:
        if isinstance(entry, MessageEntry):
            self._mailboxes.consume_message(entry)
        else:
            self._mailboxes.consume_own(entry, is_dead_lettered=True, agent=agent)
