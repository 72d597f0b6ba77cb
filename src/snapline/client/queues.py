"""Waiting sends of each agent, and their progress: the part of a client's core that keeps order.

All sends to one agent are one *queue*. Its stage says where the queue is; each stage but "idle" and "out" has a table here, and a queue is
in the table of its stage and in no other.

    idle ── a send comes ──► ready, if its place is known; else lost
    lost ── the coordinator is asked ──► finding ──► ready, or resting
    ready ── a request takes from its front ──► out ──► ready or lost for the rest; resting, if something was not taken
    resting ── the wait is over ──► ready or lost
"""

import heapq
import zlib
from collections import deque

from snapline.client import events as ev

BATCH_INPUTS_MAX = 500
BATCH_BYTES_MAX = 1024 * 1024
"""Largest size of one request; a larger input goes alone. Half of what a host takes, and what its log writes at once."""

WAIT_LEAST_NS, WAIT_MOST_NS = 50_000_000, 1_000_000_000
"""Waits before a send is tried again. A recovery takes a second or so: a client that waited much longer would be late after each."""

PLACES_MAX = 20_000
"""Largest number of agents whose place is remembered: as many as a fleet may have. The one found longest ago is forgotten first."""

FOUND_MAX = 1000
"""Largest number of agents in one request to the coordinator: half of what it allows."""

FINDING_NS = 2_000_000_000
"""Longest wait for the coordinator, which reads its memory: an election takes a second or two, and then it is asked again."""

OVER = {"finished": "the fleet has ended", "failed": "the fleet has failed"}
"""Phases in which nothing is taken, or answered, any more."""

Place = tuple[str, str]
"""A host and its address."""


class Entry:
    """One send on its way.

    Attributes:
        is_in_doubt: a request that held it has ended without an answer.
        is_over: it has ended; while it is in a request it stays there.
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
    """The sends to one agent that are not over.

    Attributes:
        waiting: in order, those that are in no request.
        stage: see the module.
        place: where it is ready for.
        failures: in a row.
        reason: why the last try came to nothing.
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
        places: agent → where it lives, as far as that is known.
        lost: agents whose place has not been requested yet.
        ready: place → agents there whose first inputs can go.
    """

    def __init__(self, seed: int) -> None:
        self.places: dict[str, Place] = {}
        self.lost: dict[str, None] = {}
        self.ready: dict[Place, dict[str, None]] = {}
        self._seed = seed
        self._queues: dict[str, AgentQueue] = {}
        self._rests: list[tuple[int, str]] = []
        """Heap of due time and agent; a queue that has left its rest early leaves its entry behind."""

    def of(self, agent: str) -> AgentQueue | None:
        """Return the queue of an agent, if something waits for it or is in a request."""
        return self._queues.get(agent)

    def add(self, entry: Entry) -> None:
        """Add a send, behind those before it."""
        queue = self._queues.get(entry.agent)
        if queue is None:
            queue = self._queues[entry.agent] = AgentQueue(entry.agent)
        queue.waiting.append(entry)
        if queue.stage == "idle":
            self.go(queue)

    def remember(self, agent: str, place: Place) -> None:
        """Remember where an agent lives."""
        self.places.pop(agent, None)
        self.places[agent] = place
        if len(self.places) > PLACES_MAX:
            del self.places[next(iter(self.places))]

    def put_back(self, queue: AgentQueue, entries: list[Entry]) -> None:
        """Put back sends that a request has left undecided: before all that came since."""
        queue.waiting.extendleft([entry for entry in reversed(entries) if not entry.is_over])

    # ---- stages -----------------------------------------------------------------------------------------------------

    def go(self, queue: AgentQueue) -> None:
        """Move a queue as far as it can get now. It is in no table."""
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
        """Wait, longer each time. It is in no table."""
        queue.failures += 1
        queue.reason = reason
        if not queue.waiting:
            self.retire(queue)
            return
        queue.stage = "resting"
        queue.due_ns = now_ns + wait_ns(queue.failures, f"{self._seed}/{queue.agent}/{queue.failures}")
        heapq.heappush(self._rests, (queue.due_ns, queue.agent))

    def retire(self, queue: AgentQueue) -> None:
        """Remove a queue in which nothing waits: the next send begins anew. It is in no table."""
        queue.stage = "idle"
        del self._queues[queue.agent]

    def take_out(self, entry: Entry) -> bool:
        """Remove a send that is no longer waited for; False if it is in a request, and not here."""
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

    def take_lost(self, most: int) -> list[AgentQueue]:
        """Take the agents to look up now."""
        agents = list(self.lost)[:most]
        for agent in agents:
            del self.lost[agent]
            self._queues[agent].stage = "finding"
        return [self._queues[agent] for agent in agents]

    def take_batch(self, place: Place) -> list[Entry]:
        """Take one batch of what is ready for a host. Of an agent it takes the first ones, so what stays comes behind them."""
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
        """Wake the queues whose rests are over."""
        while self._rests and self._rests[0][0] <= now_ns:
            due_ns, agent = heapq.heappop(self._rests)
            queue = self._queues.get(agent)
            if queue is not None and queue.stage == "resting" and queue.due_ns == due_ns:
                self.go(queue)

    @property
    def wakeup_ns(self) -> int | None:
        """Return when a rest is over next."""
        return self._rests[0][0] if self._rests else None

    # ---- invariants -------------------------------------------------------------------------------------------------

    def validate(self, *, finding: set[str], out: set[str]) -> list[Entry]:
        """Cross-check the tables with the agents being looked up and those in requests; returns all that wait."""
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
    """Return how long to wait after this many failures in a row; spread by the text."""
    full_ns = min(WAIT_LEAST_NS << min(failures - 1, 10), WAIT_MOST_NS)
    return full_ns // 2 + _spread(text, full_ns // 2)


def _spread(text: str, below: int) -> int:
    """A number below `below` that follows from the text."""
    return zlib.crc32(text.encode()) % below
