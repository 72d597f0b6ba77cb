"""State that the parts of a host core share: the host's plan and epochs, its agents and peers, the time, and the commands given so far.

Fields used by only one part belong to that part.
"""

from collections import deque
from collections.abc import Iterable

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.local_agent import LocalAgent, Peer
from snapline.messages.effect_records import DONE, FAILED, LEFT, NOT_DONE

ENDED_KEPT = 64
"""Number of ended epochs remembered, so that a late marker or directive does not reopen one; at most four are open."""


UNDONE = "undone"


class HostCounts:
    """Counts of what a host has done since its start.

    Attributes:
        turns: turns that succeeded.
        dead_letters: dead letters of this host's agents, and messages for departed agents.
        checkpoints, forced: checkpoints of agents of a logged protocol, and the forced ones; put_off: basic checkpoints skipped because the store was
            busy.
        piggybacked, piggyback_bytes: messages sent in a logged protocol, and the size of their piggybacks.
        effects: recorded outcomes of effects; completed compensations count as "undone".
        plans, first_plan_ns: number of applied plans, and time of the first; each later plan is a failure of the fleet.
    """

    __slots__ = (
        *(
            "checkpoints",
            "dead_letters",
            "effects",
            "first_plan_ns",
            "forced",
            "piggyback_bytes",
            "piggybacked",
            "plans",
        ),
        *("put_off", "turns"),
    )

    def __init__(self) -> None:
        self.turns = self.dead_letters = 0
        self.checkpoints = self.forced = self.put_off = 0
        self.piggybacked = self.piggyback_bytes = 0
        self.plans = self.first_plan_ns = 0
        self.effects = dict.fromkeys((DONE, FAILED, LEFT, NOT_DONE, UNDONE), 0)


class HostState:
    """State shared by the parts of one host core; they change it inside `handle` only.

    Attributes:
        host: id of this host.
        trace_every: trace every N-th message of each channel; 0 = none. It changes while a viewer is connected.
        is_watched: an observer wants to know when each logged message leaves.
        start: number of this run of the host, from the coordinator; 0 before the first Welcome.
        cluster: id of this fleet's run.
        plan: number of the plan applied, or being applied; 0 before the first.
        plan_hosts: the hosts of that plan.
        begun_epoch: the latest epoch known to have begun; in logged protocols, when the plan was made.
        plan_epoch: latest epoch begun when the plan was made.
        is_loaded: the plan's agents are here.
        ended: newest epochs that have ended under this plan.
        agents: the agents here, by id.
        routes: agent → (host, incarnation), as far as known.
        ordinals: agent → index in the protocol's vectors, for all receivers of messages.
        peers: the other hosts of the plan that have a link, by id.
        local: the peer of this host's own channels.
        counts: counts since the start of the host.
        now: time of the event being handled.
        out: commands given so far in this event.
    """

    def __init__(self, host: str, *, trace_every: int, is_watched: bool) -> None:
        self.host = host
        self.trace_every = trace_every
        self.is_watched = is_watched
        self.start = 0
        self.cluster = ""
        self.plan = 0
        self.plan_hosts: tuple[str, ...] = ()
        self.begun_epoch = self.plan_epoch = 0
        self.is_loaded = False
        self.ended: deque[int] = deque(maxlen=ENDED_KEPT)
        self.agents: dict[str, LocalAgent] = {}
        self.routes: dict[str, tuple[str, int]] = {}
        self.ordinals: dict[str, int] = {}
        self.peers: dict[str, Peer] = {}
        self.local = Peer(host, 0, None)
        self.counts = HostCounts()
        self.now = 0
        self.out: list[ev.HostOutput] = []
        self._requests = 0

    def next_request(self) -> int:
        """Return the number of the next question to the coordinator."""
        self._requests += 1
        return self._requests

    def not_ended(self, epochs: Iterable[int]) -> dict[int, None]:
        """Return the epochs that are still to be waited for."""
        return {epoch: None for epoch in epochs if epoch not in self.ended}

    def note(self, level: str, text: str) -> None:
        """Log a message."""
        self.out.append(ev.Note(level, text))
