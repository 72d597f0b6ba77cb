"""Types of the fleet's state in the view: the documents that `snapline.Client` returns.

A document may come from another release: missing fields have a neutral default, and new fields are ignored.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from snapline.messages.answers import LocatedAgent
from snapline.messages.host_messages import OpenTurn
from snapline.messages.outputs import ReadConsumersReply, ReadOutputsReply
from snapline.messages.status import AskedReplica
from snapline.messages.views import AgentState, RecentTrace

COURSE_MAX = 120
"""Largest number of samples in the sparkline: two minutes, one a second."""

WINDOW_S = 5.0
"""Window of a rate, the last few seconds: hosts report their counts with heartbeats, not on request."""


DAY_S = 86_400.0

ENDED = ("finished", "failed")
"""Phases in which the fleet has ended."""


class HostFacts(msgspec.Struct, frozen=True):
    """One host, as described in `messages/status.py`."""

    host: str
    address: str = ""
    host_start: int = 0
    state: str = ""
    agents: int = 0
    turns: int = 0
    dead_letters: int = 0
    parked: int = 0
    busy: tuple[OpenTurn, ...] = ()
    inputs_waiting: int = 0
    outputs_waiting: int = 0
    output_bytes_waiting: int = 0
    agents_full: int = 0
    is_drained: bool = False
    agents_standing: int = 0


class StoreFacts(msgspec.Struct, frozen=True):
    """The store; times in seconds."""

    location: str = ""
    state: str = ""
    since_s: float = 0.0
    reason: str = ""
    next_try_s: float = 0.0
    skipped: int = 0


class ConcernFacts(msgspec.Struct, frozen=True):
    """A concern: something the fleet waits for or lacks, as `messages/concerns.py` describes it."""

    kind: str = ""
    hosts: tuple[str, ...] = ()
    since_s: float = 0.0
    text: str = ""
    agents: tuple[str, ...] = ()
    remedy: str = ""

    def line(self, now_s: float) -> str:
        """Return the concern, its age (from `now_s - since_s` of the local clock), and the remedy, for terminals."""
        return f"{self.text}, since {_clock(now_s - self.since_s, now_s)}" + f". To do: {self.remedy}" * bool(
            self.remedy
        )


def _clock(at_s: float, now_s: float) -> str:
    return time.strftime("%H:%M:%S" if now_s - at_s < DAY_S / 2 else "%Y-%m-%d %H:%M", time.localtime(at_s))


class RecoveryFacts(msgspec.Struct, frozen=True):
    """A finished recovery; times in seconds. `lost_s` None: unknown."""

    plan: int = 0
    is_failure: bool = True
    plan_s: float = 0.0
    load_s: float = 0.0
    agents: int = 0
    rolled_back: int = 0
    lost_s: float | None = None

    @property
    def took_s(self) -> float:
        """Return the time from the first suspicion until all hosts had applied the plan."""
        return self.plan_s + self.load_s


class LossFacts(msgspec.Struct, frozen=True):
    """Cost of a failure now, and of earlier failures; times in seconds."""

    at_risk_s: float | None = None
    failures: int = 0
    observed_s: float = 0.0
    recoveries: tuple[RecoveryFacts, ...] = ()
    rpo_s: float = 0.0
    rto_s: float = 0.0
    missed: tuple[str, ...] = ()


class IntervalFacts(msgspec.Struct, frozen=True):
    """Cost of epochs; times in seconds."""

    period_s: float = 0.0
    policy: str = ""
    epochs: int = 0
    duration_s: float = 0.0
    duration_max_s: float = 0.0
    gap_s: float = 0.0
    pause_s: float | None = None
    capture_s: float | None = None
    new_bytes: int | None = None
    state_bytes: int | None = None
    channel_state_bytes: int | None = None

    @property
    def every_s(self) -> float:
        """Return the time between the starts of two epochs, as measured or else as configured; 0: unknown."""
        return self.gap_s or self.period_s

    @property
    def share(self) -> float | None:
        """Return the share of time that agents wait for checkpoints; None: unknown."""
        return self.capture_s / self.every_s if self.capture_s is not None and self.every_s else None


class FleetFacts(msgspec.Struct, frozen=True):
    """The fleet, as `messages/status.py` describes it."""

    fleet: str = ""
    phase: str = ""
    protocol: str = ""
    mode: str = ""
    plan: int = 0
    line_epoch: int = 0
    hosts: tuple[HostFacts, ...] = ()
    hosts_expected: int = 0
    agents: int = 0
    epochs_begun: int = 0
    epochs_completed: int = 0
    epochs_aborted: int = 0
    epochs_open: int = 0
    last_complete_epoch: int = 0
    reason: str = ""
    leader: str = ""
    term: int = 0
    replicas: tuple[str, ...] = ()
    store: StoreFacts = StoreFacts()
    concerns: tuple[ConcernFacts, ...] = ()
    loss: LossFacts = LossFacts()
    interval: IntervalFacts = IntervalFacts()
    caller_role: str = ""

    def total(self, name: str) -> int:
        """The sum of a figure over the hosts."""
        return sum([getattr(host, name) for host in self.hosts])


class FleetCalls(Protocol):
    """Calls of the view to a fleet: a subset of `snapline.Client`."""

    async def status(self) -> dict[str, object]: ...
    async def agents(self) -> list[LocatedAgent]: ...
    async def describe(self, agent: str, timeout_s: float = ...) -> dict[str, object]: ...


class ViewCalls(FleetCalls, Protocol):
    """Calls that the view's other screens need as well."""

    async def state(self, agent: str, *, live: bool = ..., timeout_s: float = ...) -> AgentState: ...
    async def snapshot_at(self, snapshot: str) -> dict[str, object]: ...
    async def line_of(self, failed: Sequence[str]) -> Mapping[str, object]: ...
    async def lines_of_each(self) -> dict[str, object]: ...
    async def recoveries(self) -> dict[str, object]: ...
    async def epoch_history(self) -> dict[str, object] | None: ...
    async def replicas(self) -> list[AskedReplica]: ...
    async def waiting(self) -> dict[str, object]: ...
    async def outputs_page(self, after: str, topic: str = ...) -> ReadOutputsReply: ...
    async def consumers(self) -> ReadConsumersReply: ...
    async def recent_traces(
        self, after: Mapping[str, str], *, every: int, most: int
    ) -> Mapping[str, RecentTrace | None]: ...


class Heard(msgspec.Struct, frozen=True):
    """Latest known state of the fleet.

    Attributes:
        facts: the last answer; None: there was none yet.
        heard_s: time of the last answer, in seconds since 1970.
        trouble: why the last request has no answer; "" if it has one.
        turns_per_s: turns per second of all hosts; None: unknown. host_turns_per_s: by host, if known.
        course: turns per second, from the oldest sample to the newest.
        agents: all agents, sorted.
    """

    facts: FleetFacts | None = None
    updated_s: float = 0.0
    trouble: str = ""
    turns_per_s: float | None = None
    host_turns_per_s: Mapping[str, float] = {}
    course: tuple[float, ...] = ()
    agents: tuple[LocatedAgent, ...] = ()


class TurnRates:
    """Turns per second, from the counts of hosts."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._course: deque[float] = deque(maxlen=COURSE_MAX)

    def note(self, now_s: float, facts: FleetFacts) -> tuple[dict[str, float], tuple[float, ...]]:
        """Add a sample; return the rate of each host with two samples or more, and the course of the sum."""
        turns = {host.host: host.turns for host in facts.hosts if host.state == "alive"}
        self._samples.append((now_s, turns))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()
        earlier_s, before = self._samples[0]
        passed_s = now_s - earlier_s
        if passed_s <= 0:
            return {}, tuple(self._course)
        rates = {
            host: max(0, count - before[host]) / passed_s  # a restarted host counts from 0
            for host, count in turns.items()
            if host in before
        }
        self._course.append(sum(rates.values()))
        return rates, tuple(self._course)
