"""Waiting sends of each agent, and their progress: the part of a client's core that keeps order.

All sends to one agent are one *queue*, which is in one of these stages. Each stage except "idle" and "out" has a table here, and a queue is
in the table of its stage and in no other.

    idle ── a send is added ──► ready, if its place is known; else lost
    lost ── the coordinator is asked ──► finding ──► ready, or resting
    ready ── a request takes sends from its front ──► out ──► ready or lost for the rest; resting, if an input was not accepted
    resting ── the wait has ended ──► ready or lost
"""

import heapq
import zlib
from collections import deque

from snapline.client import client_events as ev

BATCH_INPUTS_MAX = 500
BATCH_BYTES_MAX = 1024 * 1024
"""Largest size of one request, half of what a host accepts and what its log writes at once. A larger input has a request of its own."""

WAIT_LEAST_NS, WAIT_MOST_NS = 50_000_000, 1_000_000_000
"""Shortest and longest wait before a retry. A recovery takes about a second; a client that waited much longer would add delay to each."""

PLACES_MAX = 20_000
"""Largest number of agents whose place is cached: as many as a fleet may have. The oldest entry is evicted first."""

FOUND_MAX = 1000
"""Largest number of agents in one request to the coordinator: half of what it allows."""

FINDING_NS = 2_000_000_000
"""Longest wait for the coordinator, which answers from memory: an election takes a second or two, and then it is asked again."""

OVER = {"finished": "the fleet has ended", "failed": "the fleet has failed"}
"""Phases in which no input is accepted or answered any more."""

Place = tuple[str, str]
"""A host and its address."""


class Entry:
    """One open send.

    Attributes:
        is_in_doubt: a request that contained it has ended without an answer.
        is_over: it has ended; if it is in a request, it stays there.
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
    """The open sends to one agent.

    Attributes:
        waiting: sends that are in no request, in order.
        stage: stage of the queue; see the module.
        place: place of the agent in the stage "ready".
        failures: consecutive failures.
        reason: reason of the last failure.
    """

    __slots__ = ("agent", "due_ns", "failures", "place", "reason", "stage", "waiting")

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.waiting: deque[Entry] = deque()
        self.stage = "idle"
        self.place: Place = ("", "")
        self.failures = 0
        self.due_ns = 0
        self.reason = "nobody has answered yet"


class AgentQueues:
    """The queues of one client.

    Attributes:
        places: agent → its last known place.
        lost: agents whose place is still to be requested.
        ready: place → agents there whose first inputs can be sent.
    """

    def __init__(self, seed: int) -> None:
        self.places: dict[str, Place] = {}
        self.lost: dict[str, None] = {}
        self.ready: dict[Place, dict[str, None]] = {}
        self._seed = seed
        self._queues: dict[str, AgentQueue] = {}
        self._rests: list[tuple[int, str]] = []
        """Heap of due time and agent; the entry of a queue that has left the stage early is stale."""

    def of(self, agent: str) -> AgentQueue | None:
        """Return the queue of an agent that has waiting sends or a request."""
        return self._queues.get(agent)

    def add(self, entry: Entry) -> None:
        """Add a send at the end of its queue."""
        queue = self._queues.get(entry.agent)
        if queue is None:
            queue = self._queues[entry.agent] = AgentQueue(entry.agent)
        queue.waiting.append(entry)
        if queue.stage == "idle":
            self.go(queue)

    def remember(self, agent: str, place: Place) -> None:
        """Cache the place of an agent."""
        self.places.pop(agent, None)
        self.places[agent] = place
        if len(self.places) > PLACES_MAX:
            del self.places[next(iter(self.places))]

    def put_back(self, queue: AgentQueue, entries: list[Entry]) -> None:
        """Put back sends that a request has left undecided, before all later ones."""
        queue.waiting.extendleft([entry for entry in reversed(entries) if not entry.is_over])

    # ---- stages -----------------------------------------------------------------------------------------------------

    def go(self, queue: AgentQueue) -> None:
        """Move a queue that is in no table to its next stage: ready if its place is known, else lost."""
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
        """Let a queue that is in no table wait, longer after each failure."""
        queue.failures += 1
        queue.reason = reason
        if not queue.waiting:
            self.retire(queue)
            return
        queue.stage = "resting"
        queue.due_ns = now_ns + wait_ns(queue.failures, f"{self._seed}/{queue.agent}/{queue.failures}")
        heapq.heappush(self._rests, (queue.due_ns, queue.agent))

    def retire(self, queue: AgentQueue) -> None:
        """Remove an empty queue that is in no table; the next send creates a new one."""
        queue.stage = "idle"
        del self._queues[queue.agent]

    def take_out(self, entry: Entry) -> bool:
        """Remove a send that no program waits for; return False if it is in a request, and not here."""
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
        """Take the agents to look up now from the table of lost ones."""
        agents = list(self.lost)[:most]
        for agent in agents:
            del self.lost[agent]
            self._queues[agent].stage = "finding"
        return [self._queues[agent] for agent in agents]

    def take_batch(self, place: Place) -> list[Entry]:
        """Take one batch of ready sends for a host. For each agent it takes the first ones, so the order is kept."""
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
        """Move on the queues whose wait has ended."""
        while self._rests and self._rests[0][0] <= now_ns:
            due_ns, agent = heapq.heappop(self._rests)
            queue = self._queues.get(agent)
            if queue is not None and queue.stage == "resting" and queue.due_ns == due_ns:
                self.go(queue)

    @property
    def wakeup_ns(self) -> int | None:
        """Return the next time at which a wait ends."""
        return self._rests[0][0] if self._rests else None

    # ---- invariants -------------------------------------------------------------------------------------------------

    def validate(self, *, finding: set[str], out: set[str]) -> list[Entry]:
        """Cross-check the tables with the agents being looked up and those in requests; return all waiting sends."""
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
    """Return the wait after this many consecutive failures, with jitter derived from `text`."""
    full_ns = min(WAIT_LEAST_NS << min(failures - 1, 10), WAIT_MOST_NS)
    return full_ns // 2 + _spread(text, full_ns // 2)


def _spread(text: str, below: int) -> int:
    """Return a number less than `below` that is derived from `text`."""
    return zlib.crc32(text.encode()) % below
