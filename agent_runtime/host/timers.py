"""The part of a host core for delays: agents' timers, and messages that are to be retried."""

import heapq

from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.mailboxes import Mailboxes


class Timers:
    """Timers and retries of the agents here, in two heaps; the agents' own fields tell which of their entries still count."""

    def __init__(self, shared: HostState, mailboxes: Mailboxes) -> None:
        self._shared = shared
        self._mailboxes = mailboxes
        self._timers: list[tuple[int, int, str, str]] = []
        self._retries: list[tuple[int, str, int]] = []
        self._count = 0

    def reset(self) -> None:
        """Clear everything: a plan ends the history of every agent here."""
        self._timers.clear()
        self._retries.clear()

    def set(self, agent: LocalAgent, name: str, delay_ns: int, payload: bytes) -> None:
        """Set a timer of that name, instead of an older one."""
        self._count += 1
        due_ns = self._shared.now + delay_ns
        agent.timers[name] = (due_ns, self._count, payload)
        heapq.heappush(self._timers, (due_ns, self._count, agent.id, name))

    def retry_in(self, agent: LocalAgent, wait_ns: int) -> None:
        """Delay the first message of the agent's mailbox by this time."""
        agent.retry_ns = self._shared.now + wait_ns
        heapq.heappush(self._retries, (agent.retry_ns, agent.id, agent.incarnation))

    def wakeups_ns(self) -> list[int]:
        """Return the times at which `fire` and `retry` must be called."""
        return [heap[0][0] for heap in (self._timers, self._retries) if heap]

    def fire(self) -> None:
        """Put timers that are due into their agents' mailboxes, as messages."""
        shared = self._shared
        while self._timers and self._timers[0][0] <= shared.now:
            _, count, agent_id, name = heapq.heappop(self._timers)
            agent = shared.agents.get(agent_id)
            timer = agent.timers.get(name) if agent is not None else None
            if agent is None or timer is None or timer[1] != count:
                continue  # the timer was cancelled, or set again
            del agent.timers[name]
            agent.mailbox.append((None, name or "timer", timer[2]))
            self._mailboxes.next_turn(agent)

    def retry(self) -> None:
        """Retry the messages that are due."""
        shared = self._shared
        while self._retries and self._retries[0][0] <= shared.now:
            due_ns, agent_id, incarnation = heapq.heappop(self._retries)
            agent = shared.agents.get(agent_id)
            if agent is not None and (agent.retry_ns, agent.incarnation) == (due_ns, incarnation):
                agent.retry_ns = None
                self._mailboxes.next_turn(agent)
