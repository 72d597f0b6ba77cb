"""Queues that keep a client's sends in order, with one queue per agent.

All sends to one agent form one *queue*, which is always in exactly one stage. Each stage except "idle" and "out" has a table. A queue
appears only in the table of its current stage.

    idle ── a send is added ──► ready if the agent's host is known, otherwise lost
    lost ── the coordinator is asked ──► finding ──► ready, or resting
    ready ── a request takes sends from its front ──► out ──► ready or lost; resting if an input was not accepted
    resting ── the wait has ended ──► ready or lost
"""

import heapq
import zlib
from collections import deque

from snapline.client import client_events as ev

BATCH_INPUTS_MAX = 500
BATCH_BYTES_MAX = 1024 * 1024
"""Largest size of one request, in inputs and in bytes. It is half of what a host accepts, and half of what a host's log writes at once. An
input larger than that gets a request of its own."""

WAIT_LEAST_NS, WAIT_MOST_NS = 50_000_000, 1_000_000_000
"""Shortest and longest wait before a retry. A recovery takes about a second, so a client that waited much longer would delay its sends
needlessly."""

PLACES_MAX = 20_000
"""Largest number of agents whose hosts are cached, which is also the largest number of agents in a fleet. The oldest cache entry is evicted
first."""

FOUND_MAX = 1000
"""Largest number of agents in one request to the coordinator. It is half of what the coordinator allows."""

FINDING_NS = 2_000_000_000
"""Longest wait for the coordinator's answer. The coordinator answers from memory. If an election is in progress, which takes a second or
two, the client asks again."""

OVER = {"finished": "the fleet has ended", "failed": "the fleet has failed"}
"""Phases in which a fleet no longer accepts or answers inputs, each with the reason."""

HostAddress = tuple[str, str]
"""A host's id and its address."""


class Entry:
    """One open send.

    Attributes:
        is_in_doubt: whether a request that contained the send has ended without an answer.
        is_over: whether the outcome of the send has been decided. A request in flight keeps its sends even if their outcomes have been
            decided.
    """

    __slots__ = ("agent", "deadline_ns", "is_in_doubt", "is_over", "send", "size_bytes")

    def __init__(self, given: ev.Send) -> None:
        self.send = given.send
        self.agent = given.agent
        self.size_bytes = given.size_bytes
        self.deadline_ns = given.deadline_ns
        self.is_in_doubt = False
        self.is_over = False


class AgentQueue:
    """Queue of one agent's open sends.

    Attributes:
        waiting: sends that are not part of a request in flight, in order.
        stage: one of the stages listed in the module docstring.
        place: the agent's host; only valid in the stage "ready".
        failures: number of consecutive failures.
        reason: why the last attempt failed.
    """

    __slots__ = ("agent", "due_ns", "failures", "place", "reason", "stage", "waiting")

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.waiting: deque[Entry] = deque()
        self.stage = "idle"
        self.place: HostAddress = ("", "")
        self.failures = 0
        self.due_ns = 0
        self.reason = "nobody has answered yet"


class AgentQueues:
    """The queues of one client.

    Attributes:
        places: cache that maps each agent to its last known host.
        lost: agents whose hosts must be looked up.
        ready: maps each host to its agents whose next inputs can be sent.
    """

    def __init__(self, seed: int) -> None:
        self.places: dict[str, HostAddress] = {}
        self.lost: dict[str, None] = {}
        self.ready: dict[HostAddress, dict[str, None]] = {}
        self._seed = seed
        self._queues: dict[str, AgentQueue] = {}
        self._rests: list[tuple[int, str]] = []
        """Heap of pairs (due time, agent). If a queue leaves the stage "resting" early, its heap entry becomes stale."""

    def of(self, agent: str) -> AgentQueue | None:
        """Return the agent's queue, or None if the agent has no waiting sends and no pending request."""
        return self._queues.get(agent)

    def add(self, entry: Entry) -> None:
        """Append a send to its agent's queue."""
        queue = self._queues.get(entry.agent)
        if queue is None:
            queue = self._queues[entry.agent] = AgentQueue(entry.agent)
        queue.waiting.append(entry)
        if queue.stage == "idle":
            self.go(queue)

    def remember(self, agent: str, place: HostAddress) -> None:
        """Cache the host on which an agent runs."""
        self.places.pop(agent, None)
        self.places[agent] = place
        if len(self.places) > PLACES_MAX:
            del self.places[next(iter(self.places))]

    def put_back(self, queue: AgentQueue, entries: list[Entry]) -> None:
        """Return the undecided sends of a request to the front of the queue, ahead of all later sends."""
        queue.waiting.extendleft([entry for entry in reversed(entries) if not entry.is_over])

    # ---- stages -----------------------------------------------------------------------------------------------------

    def go(self, queue: AgentQueue) -> None:
        """Move a queue to the stage "ready" if its agent's host is known, otherwise to "lost". Remove the queue if it is empty."""
        place = self.places.get(queue.agent)
        if not queue.waiting:
            self.retire(queue)
        elif place is not None:
            queue.stage, queue.place = "ready", place
            self.ready.setdefault(place, {})[queue.agent] = None
        else:
            queue.stage = "lost"
            self.lost[queue.agent] = None

    def rest(self, queue: AgentQueue, now_ns: int, reason: str) -> None:
        """Delay the queue's next attempt. The delay grows with each failure. Remove the queue if it is empty."""
        queue.failures += 1
        queue.reason = reason
        if not queue.waiting:
            self.retire(queue)
            return
        queue.stage = "resting"
        queue.due_ns = now_ns + wait_ns(queue.failures, f"{self._seed}/{queue.agent}/{queue.failures}")
        heapq.heappush(self._rests, (queue.due_ns, queue.agent))

    def retire(self, queue: AgentQueue) -> None:
        """Remove an empty queue. The next send creates a new queue."""
        queue.stage = "idle"
        del self._queues[queue.agent]

    def take_out(self, entry: Entry) -> bool:
        """Remove a send from its queue. Return True if the send was in the queue, or False if it is part of a request."""
        queue = self._queues[entry.agent]
        if entry not in queue.waiting:
            return False
        queue.waiting.remove(entry)
        if not queue.waiting and queue.stage in ("lost", "ready", "resting"):
            self.lost.pop(queue.agent, None)
            if queue.stage == "ready":
                self._leave_ready(queue)
            self.retire(queue)
        return True

    def take_agents_to_look_up(self, most: int) -> list[AgentQueue]:
        """Take at most `most` agents out of the table `lost`, so that their hosts can be looked up. Return the agents' queues."""
        agents = list(self.lost)[:most]
        for agent in agents:
            del self.lost[agent]
            self._queues[agent].stage = "finding"
        return [self._queues[agent] for agent in agents]

    def take_batch(self, place: HostAddress) -> list[Entry]:
        """Take one batch of sends for this host out of the queues, and return it. Sends are taken from the front of each agent's queue,
        which keeps their order."""
        batch: list[Entry] = []
        size_bytes = 0
        for agent in list(self.ready[place]):
            queue = self._queues[agent]
            while queue.waiting and len(batch) < BATCH_INPUTS_MAX:
                size_bytes += queue.waiting[0].size_bytes
                if batch and size_bytes > BATCH_BYTES_MAX:
                    return batch
                batch.append(queue.waiting.popleft())
                if queue.stage == "ready":
                    self._leave_ready(queue)
                    queue.stage = "out"
        return batch

    def _leave_ready(self, queue: AgentQueue) -> None:
        ready = self.ready[queue.place]
        del ready[queue.agent]
        if not ready:
            del self.ready[queue.place]

    # ---- time -------------------------------------------------------------------------------------------------------

    def wake(self, now_ns: int) -> None:
        """Move all queues whose wait has ended to their next stage."""
        while self._rests and self._rests[0][0] <= now_ns:
            due_ns, agent = heapq.heappop(self._rests)
            queue = self._queues.get(agent)
            if queue is not None and queue.stage == "resting" and queue.due_ns == due_ns:
                self.go(queue)

    @property
    def wakeup_ns(self) -> int | None:
        """Return the time at which the next wait ends, or None if no queue is waiting."""
        return self._rests[0][0] if self._rests else None

    # ---- invariants -------------------------------------------------------------------------------------------------

    def validate(self, *, finding: set[str], out: set[str]) -> list[Entry]:
        """Check that the tables are consistent with `finding` (the agents being looked up) and `out` (the agents in requests). Return all
        sends that are not part of a request."""
        ready = {agent for agents in self.ready.values() for agent in agents}
        for agent, queue in self._queues.items():
            assert queue.waiting or queue.stage in ("out", "finding"), (
                f"nothing waits for {agent}, which is {queue.stage}"
            )
            for stage, table in (("lost", self.lost), ("ready", ready), ("out", out)):
                assert (queue.stage == stage) == (agent in table), (agent, queue.stage, stage)
            assert queue.stage != "finding" or agent in finding, agent
        assert {*self.lost, *ready, *out} <= set(self._queues), "an agent without a queue"
        waiting = [entry for queue in self._queues.values() for entry in queue.waiting]
        assert not [entry for entry in waiting if entry.is_over], "what is over waits"
        return waiting


def wait_ns(failures: int, text: str) -> int:
    """Return the wait, in nanoseconds, after the given number of consecutive failures, with jitter derived from `text`."""
    full_ns = min(WAIT_LEAST_NS << min(failures - 1, 10), WAIT_MOST_NS)
    return full_ns // 2 + _spread(text, full_ns // 2)


def _spread(text: str, below: int) -> int:
    """Return a hash of `text` between 0 and `below` - 1."""
    return zlib.crc32(text.encode()) % below
