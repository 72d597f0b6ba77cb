"""The part of a host core that deals with turns that fail: undoing, trying again, crashing, burying."""

import heapq

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.creation import CREATE
from snapline.agent_runtime.host.local_agent import DEAD_LETTERS_KEPT, START, Entry, LocalAgent
from snapline.agent_runtime.host.plans import HostPlans
from snapline.storage.checkpoint import DeadLetterRecord

POISON_KEPT = 1000
"""Messages that crashed an agent with on_error "recover" are remembered so far; the oldest are forgotten first."""


class HostFailures(HostPlans):
    """What becomes of a message whose turn fails. Dead letters count as consumed."""

    def _on_turn_failed(self, event: ev.TurnFailed) -> None:
        agent = self.agents.get(event.agent)
        if agent is None or agent.incarnation != event.incarnation or agent.current is None:
            return
        if agent.is_failed:
            self._discard_turn(agent)
            return
        agent.attempts += 1
        entry = agent.current
        if event.on_error == "recover" and not event.is_final:
            self._crash(agent, entry, event)
            return
        if event.on_error == "undo" and not event.is_final:
            self._out.append(ev.UndoTurn(agent.id))
        if agent.attempts <= event.retries and not event.is_final:
            wait_ns = event.waits_ns[agent.attempts - 1] if event.waits_ns else 0
            if wait_ns:
                told = f"failed, and is tried again in {wait_ns / 1e9:g} s: {_last_line(event.error)}"
                self._note("warning", f"a message from {self._sender_of(agent, entry)} to {agent.id} {told}")
                self._wait_to_retry(agent, entry, wait_ns)
            else:
                self._emit_turn(agent, entry)
            return
        agent.current = None
        self._bury(agent, entry, event.error, agent.attempts, event.time_ns)
        agent.attempts = 0
        self._consume(entry)
        if is_first(entry) and not (event.is_final and is_creation(entry)):
            agent.is_started = agent.is_born = True  # it lives on in its first state
        self._next_turn(agent)

    def _wait_to_retry(self, agent: LocalAgent, entry: Entry, wait_ns: int) -> None:
        """The message goes back to its place: the agent stands between two turns, may record, and nothing overtakes.

        What leaves the outbox and what is checkpointed meanwhile comes before it, so its protocol has to see it again.
        """
        agent.current = None
        agent.admitted = False
        agent.mailbox.appendleft(entry)
        agent.retry_ns = self._now + wait_ns
        heapq.heappush(self._retries, (agent.retry_ns, agent.id, agent.incarnation))
        if agent.logged is not None and agent.logged.has_moved:
            self._note_move(agent)  # something left its outbox during the turn, which would have been noted at its end
        self._next_turn(agent)

    def _retry(self) -> None:
        """The clock has passed times at which messages were to be tried again."""
        while self._retries and self._retries[0][0] <= self._now:
            due_ns, agent_id, incarnation = heapq.heappop(self._retries)
            agent = self.agents.get(agent_id)
            if agent is not None and (agent.retry_ns, agent.incarnation) == (due_ns, incarnation):
                agent.retry_ns = 0
                self._next_turn(agent)

    def _crash(self, agent: LocalAgent, entry: Entry, event: ev.TurnFailed) -> None:
        """The agent's state cannot be trusted."""
        agent.current = None
        agent.mailbox.appendleft(entry)
        key = poison_key(agent, entry)
        self._poison[key] = (self._poison.get(key, (0, 0))[0] + 1, event.retries)
        while len(self._poison) > POISON_KEPT:
            del self._poison[next(iter(self._poison))]
        self._fail(agent, event.error)

    def _is_poison(self, agent: LocalAgent, entry: Entry) -> bool:
        """Has this message crashed the agent more often than it may? Then it is buried without a turn."""
        times, retries = self._poison.get(poison_key(agent, entry), (0, 0))
        if times <= retries:
            return False
        if entry[1] == START:
            agent.is_started = True
        self._bury(agent, entry, f"crashed the agent {times} times", times, 0)
        return True

    def _bury(self, agent: LocalAgent, entry: Entry, error: str, attempts: int, time_ns: int) -> None:
        self._bury_letter(agent, self._sender_of(agent, entry), entry[2], error, attempts, time_ns)

    def _sender_of(self, agent: LocalAgent, entry: Entry) -> str:
        """Of timers and the first turn the agent itself."""
        return entry[0].sender if entry[0] is not None else agent.id

    def _bury_letter(
        self, agent: LocalAgent, sender: str, payload: bytes, error: str, attempts: int, time_ns: int
    ) -> None:
        agent.dead_letters.append(DeadLetterRecord(sender, payload, error, attempts, time_ns))
        del agent.dead_letters[:-DEAD_LETTERS_KEPT]
        agent.dead_letter_count += 1
        self.dead_letters += 1
        self._note_move(agent)
        self._note("warning", f"a message from {sender} to {agent.id} went to the dead letters: {_last_line(error)}")


def is_creation(entry: Entry) -> bool:
    """Does this message create its receiver?"""
    return entry[0] is not None and entry[2][:1] == CREATE


def is_first(entry: Entry) -> bool:
    """Does it run `on_start`?"""
    return entry[1] == START or is_creation(entry)


def poison_key(agent: LocalAgent, entry: Entry) -> tuple[str, str, bytes]:
    """What a message that crashed its agent is known by."""
    return agent.id, entry[0].sender if entry[0] is not None else agent.id, entry[2]


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]
