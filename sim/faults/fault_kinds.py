"""The kinds of faults that a scenario's `[[fault]]` tables may contain, with their durations and failpoints.

Each kind of fault is a struct whose fields are the keys of an inline TOML table. `host = ""` means that a random host is chosen when the
fault begins, and `host = "*"` means every host. A duration is text with a unit, such as "250us", "1ms" or "1.5s". A failpoint is a named
location in the product's code at which a fault can be injected. Some failpoints are reached in the simulated world, and the others only in
real processes. `faults.py` executes the faults.

A link is a TCP stream, so snapline never sees duplicate, reordered or damaged packets. Scenarios with such packet faults are rejected,
because these faults would have no effect.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from snapline.errors import UsageError
from snapline.sim.faults.fault_executor import (
    WHEN_CAPTURING,
    WHEN_DECIDING,
    WHEN_RECEIVING,
    WHEN_RECORDING,
    WHEN_RECOVERING,
    WHEN_SENDING,
    WHEN_WORKING,
    HangingCall,
)

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}

_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,9})?(ns|us|ms|s|m|h)"

_DURATION = re.compile(r"(-?[0-9]{1,30}(?:\.[0-9]{1,9})?)(ns|us|ms|s|m|h)")

Duration = Annotated[str, msgspec.Meta(pattern=f"^{_NUMBER}\\Z")]

OptionalDuration = Annotated[str, msgspec.Meta(pattern=f"^({_NUMBER})?\\Z")]
"""Optional duration. Each field documents what "" means."""

SignedDuration = Annotated[str, msgspec.Meta(pattern=f"^-?{_NUMBER}\\Z")]


def duration_ns(text: str) -> int:
    """Convert a duration such as "250us", "1ms", "1.5s" or "-3m" to nanoseconds. "" means 0.

    Raises:
        UsageError: If the text is not a duration.
    """
    if not text:
        return 0
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise UsageError(f"{text!r} is not a duration: write 250us, 1ms, 1.5s or 3m")
    return int(Decimal(parts[1]) * _UNITS_NS[parts[2]])


def format_duration(ns: int) -> str:
    """Convert nanoseconds to the shortest text that consists of a whole number and a unit, such as "15ms". The inverse of `duration_ns`."""
    for unit in ("h", "m", "s", "ms", "us"):
        if ns and ns % _UNITS_NS[unit] == 0:
            return f"{ns // _UNITS_NS[unit]}{unit}"
    return f"{ns}ns" if ns else "0s"


Hit = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
PerMille = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]

EVERY_HOST = "*"


class FaultKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of all kinds of faults. `at` is the time at which the fault begins. The default "" means 1 s, or 0 s if the fault waits at
    a failpoint."""

    at: OptionalDuration = ""

    @property
    def at_ns(self) -> int:
        if not self.at:
            return 0 if self.point else 10**9
        return duration_ns(self.at)

    @property
    def point(self) -> str:
        """Return the failpoint at which the fault waits, or "" if there is none."""
        return ""

    def ends_ns(self, hosts: int) -> int:
        """Return the time at which the fault ends in a fleet with `hosts` hosts. For permanent faults and faults at failpoints, which last
        until `heal`, return the time at which they begin."""
        return self.at_ns

    def problems(self) -> Iterator[str]:
        """Yield a description of each combination of keys that is not allowed. Each description begins with one of the keys."""
        yield from ()

    def nodes(self) -> Iterator[tuple[str, str]]:
        """Yield each node that the fault names, together with the key that names it."""
        yield from ()


class LastingFault(FaultKind, frozen=True, kw_only=True):
    """A fault whose duration the key `for` specifies."""

    lasts: Duration = msgspec.field(default="1s", name="for")

    @property
    def lasts_ns(self) -> int:
        return duration_ns(self.lasts)

    def ends_ns(self, hosts: int) -> int:
        return self.at_ns if self.point else self.at_ns + self.lasts_ns


def _restart_ns(text: str) -> int | None:
    """Return the time in nanoseconds after which a node restarts, or None for "", which means no restart. The result is at least 1 ns,
    because `arm_failpoint` interprets 0 as no restart."""
    return max(1, duration_ns(text)) if text else None


def _pair_problems(between: list[str]) -> Iterator[str]:
    if between and (len(between) != 2 or between[0] == between[1] or "" in between):
        yield f"between is {json.dumps(between)}: name two different nodes, or leave it out"


def _pair_nodes(between: list[str]) -> Iterator[tuple[str, str]]:
    for index, node in enumerate(between):
        yield f"between[{index}]", node


class PairFault(LastingFault, frozen=True, kw_only=True):
    """Fault between two nodes. If the scenario names no nodes, the kind of the fault determines which nodes are affected."""

    between: list[str] = []

    def problems(self) -> Iterator[str]:
        yield from _pair_problems(self.between)

    def nodes(self) -> Iterator[tuple[str, str]]:
        yield from _pair_nodes(self.between)


class PathFault(PairFault, frozen=True, kw_only=True):
    """A fault that affects the traffic between two nodes or between all nodes. With the direction "one-way", it affects only the traffic
    from the first node to the second."""

    direction: Literal["both", "one-way"] = "both"

    def problems(self) -> Iterator[str]:
        yield from PairFault.problems(self)
        if self.direction == "one-way" and not self.between:
            yield 'direction = "one-way" needs between'


class HostFault(LastingFault, frozen=True, kw_only=True):
    """A fault that affects hosts. The host name "" means a random host, and "*" means every host."""

    host: str = ""

    def nodes(self) -> Iterator[tuple[str, str]]:
        if self.host != EVERY_HOST:
            yield "host", self.host


class DelayFault(PathFault, frozen=True, kw_only=True):
    """Packets between two nodes, or between all nodes, are delayed."""

    least: Duration = "50ms"
    jitter: Duration = "50ms"


class LossFault(PathFault, frozen=True, kw_only=True):
    """Packets between two nodes, or between all nodes, are lost, and TCP resends them."""

    per_mille: PerMille = 100


class HoldFault(PairFault, frozen=True, kw_only=True):
    """Markers between two hosts are held back until the fault ends. All other traffic passes."""


class ClogFault(PairFault, frozen=True, kw_only=True):
    """Traffic from the first node to the second is blocked. Traffic in the opposite direction is not affected."""


class SwizzleFault(LastingFault, frozen=True, kw_only=True):
    """Some nodes are disconnected one after another, and later reconnected in a different order."""


Moment = Literal["", "working", "recording", "recovering", "telling", "deciding", "hearing"]
"""Moments at which a fault may affect a node, in the order of the values. "working": an agent takes a turn. "recording": an agent records
its state. "recovering": a host applies a recovery plan. "telling": the coordinator has sent a message to one host and perhaps not yet to
the next. "deciding": the coordinator learns the outcome of a proposal. "hearing": a host has received a message from the coordinator."""

MOMENTS = {
    "working": WHEN_WORKING,
    "recording": WHEN_RECORDING,
    "recovering": WHEN_RECOVERING,
    "telling": WHEN_SENDING,
    "deciding": WHEN_DECIDING,
    "hearing": WHEN_RECEIVING,
}


class ResetFault(FaultKind, frozen=True, kw_only=True):
    """A stream between two nodes breaks repeatedly, `times` times in total. If the scenario names no nodes, a random pair of nodes is
    chosen each time.

    Attributes:
        when: a moment, such as "recording". If `when` is set, the fault waits until this moment occurs for the `hit`-th time in the fleet.
            Then all streams of the node at which it occurred break.
    """

    between: list[str] = []
    when: Moment = ""
    hit: Hit = 1
    times: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    every: Duration = "200ms"

    @property
    def point(self) -> str:
        return MOMENTS.get(self.when, "")

    def ends_ns(self, hosts: int) -> int:
        return self.at_ns if self.point else self.at_ns + (self.times - 1) * duration_ns(self.every)

    def problems(self) -> Iterator[str]:
        yield from _pair_problems(self.between)
        if self.when and self.between:
            yield "between does not go with when: the streams of whoever comes to that moment break"

    def nodes(self) -> Iterator[tuple[str, str]]:
        yield from _pair_nodes(self.between)


class PartitionFault(LastingFault, frozen=True, kw_only=True):
    """Network partition. With the direction "one-way", only the traffic in one direction is cut, which is chosen at random. The key `host`
    or `agent` selects the node to isolate. If both keys are "", a random node is isolated."""

    shape: Literal[
        "one",
        "pair",
        "majority",
        "minority-third",
        "majorities-ring",
        "bridge",
        "isolate-leader",
        "isolate-host",
        "isolate-agent",
    ] = "majority"
    direction: Literal["both", "one-way"] = "both"
    host: str = ""
    agent: str = ""

    def problems(self) -> Iterator[str]:
        if self.host and self.shape != "isolate-host":
            yield 'host goes with shape = "isolate-host" only'
        if self.agent and self.shape != "isolate-agent":
            yield 'agent goes with shape = "isolate-agent" only'

    def nodes(self) -> Iterator[tuple[str, str]]:
        yield "host", self.host


class SlowFault(HostFault, frozen=True, kw_only=True):
    """A host's CPU is slowed down until the fault ends."""

    percent: Percent = 10


class PauseFault(HostFault, frozen=True, kw_only=True):
    """A node is paused and later resumed. The node is either a host or the node that reaches a failpoint."""

    failpoint: str = ""
    hit: Hit = 1

    @property
    def point(self) -> str:
        return self.failpoint

    def problems(self) -> Iterator[str]:
        if self.host and self.failpoint:
            yield "host does not go with failpoint: the node that passes it is paused"


class HangFault(HostFault, frozen=True, kw_only=True):
    """Calls of one kind hang on a host until the fault ends.

    Attributes:
        what: the kind of calls that hang. "store" means calls to the store, so the host applies no plan and stores no epoch. "stop" means
            calls of the user's function `stop_when`. The calls "store" and "stop" run in threads, so heartbeats continue. "loop" means that
            a message handler blocks the event loop. If the event loop is blocked, no heartbeat is sent, but the host's streams remain open.
    """

    what: HangingCall = "store"


class ClockFault(HostFault, frozen=True, kw_only=True):
    """A host's wall clock shows a wrong time until the fault ends."""

    skew: SignedDuration = "3s"
    drift_ppm: Annotated[int, msgspec.Meta(ge=-500_000, le=500_000)] = 0

    @property
    def skew_ns(self) -> int:
        return duration_ns(self.skew)


ROLLING_PAUSE_NS = 100_000_000
"""Time between the restart of one host and the crash of the next. It is long enough to detect the restarted host, but
too short for that host to rejoin."""


class CrashFault(FaultKind, frozen=True, kw_only=True):
    """A host is killed at a given time, at a failpoint, or at a given moment.

    Attributes:
        restart_after: time until the killed host restarts. The value "" means that the host remains down until `heal` starts it.
        failpoint: name of a failpoint that is armed at the time `at`. The host or coordinator that is the `hit`-th in the fleet to reach
            this failpoint is killed.
        is_power_cut: whether the node also loses power. If so, random choices decide whether its unsynced data is kept, lost or torn. This
            key requires a failpoint or a moment.
        is_all: whether all hosts are killed at once.
        is_rolling: whether all hosts are killed one after another, each after the previous host has restarted.
        when: moment at which a host or coordinator is killed. The node at which this moment occurs for the `hit`-th time is killed.
    """

    host: str = ""
    restart_after: OptionalDuration = "500ms"
    failpoint: str = ""
    hit: Hit = 1
    is_all: bool = msgspec.field(default=False, name="all")
    is_rolling: bool = msgspec.field(default=False, name="rolling")
    when: Moment = ""
    is_power_cut: bool = msgspec.field(default=False, name="power_cut")

    @property
    def restart_after_ns(self) -> int | None:
        return _restart_ns(self.restart_after)

    @property
    def point(self) -> str:
        return self.failpoint or MOMENTS.get(self.when, "")

    @property
    def is_of_all(self) -> bool:
        return self.is_all or self.host == EVERY_HOST

    def ends_ns(self, hosts: int) -> int:
        if self.point:
            return self.at_ns
        after_ns = self.restart_after_ns or 0
        return self.at_ns + (hosts * (after_ns + ROLLING_PAUSE_NS) if self.is_rolling else after_ns)

    def problems(self) -> Iterator[str]:
        chosen = {"host": self.host, "all": self.is_all, "rolling": self.is_rolling}
        given = [key for key, value in (chosen | {"failpoint": self.failpoint, "when": self.when}).items() if value]
        if len(given) > 1:
            yield f"{given[0]} does not go with {given[1]}: give each its own [[fault]]"
        if self.is_power_cut and not self.point:
            yield 'power_cut goes with failpoint or when only: use disk = { mode = "power-cut" }'
        if self.is_rolling and not self.restart_after:
            yield "rolling needs a restart_after: the next host waits for the last one"

    def nodes(self) -> Iterator[tuple[str, str]]:
        if self.host != EVERY_HOST:
            yield "host", self.host


class DiskFault(HostFault, frozen=True, kw_only=True):
    """A fault of a disk. The host name "*" means all hosts and coordinators, or only all hosts if the fault is a power cut.

    Attributes:
        mode: kind of disk fault. "power-cut" and "torn" mean the same: random choices decide whether unsynced data is kept, lost or torn.
            "bit-flip" damages the newest complete epoch, provided that an older complete epoch exists. If there is none, the fault tries
            again until the duration `for` has passed.
        restart_after: time until the host restarts after a power cut. The value "" means that the host does not restart.
        failpoint: name of the failpoint that raises OSError once. Without a failpoint, disk operations fail for the duration `for`. This
            key requires the mode "eio".
    """

    mode: Literal["power-cut", "torn", "bit-flip", "eio", "failed-sync", "full", "slow", "stale-read", "away"] = (
        "power-cut"
    )
    restart_after: OptionalDuration = "500ms"
    failpoint: str = ""
    hit: Hit = 1

    @property
    def is_cut(self) -> bool:
        return self.mode in ("power-cut", "torn")

    @property
    def restart_after_ns(self) -> int | None:
        return _restart_ns(self.restart_after)

    @property
    def point(self) -> str:
        return self.failpoint

    def ends_ns(self, hosts: int) -> int:
        return self.at_ns + (self.restart_after_ns or 0) if self.is_cut else LastingFault.ends_ns(self, hosts)

    def problems(self) -> Iterator[str]:
        if self.failpoint and self.mode != "eio":
            yield 'failpoint goes with mode = "eio" only'
        if self.host and self.failpoint:
            yield "host does not go with failpoint: whoever gets there gets the error"
        if self.host and self.mode == "bit-flip":
            yield "host does not go with bit-flip: the store is everybody's"


class CaptureFault(FaultKind, frozen=True, kw_only=True):
    """Attempts to encode an agent's state fail. The first attempt to fail is the `hit`-th in the fleet, and `times` attempts fail in
    total."""

    hit: Hit = 1
    times: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1

    @property
    def point(self) -> str:
        return WHEN_CAPTURING


class CoordinatorFault(FaultKind, frozen=True, kw_only=True):
    """A fault that affects the coordinator. If the duration `for` is "", the fault lasts until `heal`. For the kind "kill", `node` is the
    name of the replica to kill, where "" means a random replica."""

    kind: Literal["kill-leader", "lose-quorum", "depose", "unknown-outcome", "kill"] = "kill-leader"
    node: str = ""
    lasts: OptionalDuration = msgspec.field(default="1s", name="for")
    per_mille: PerMille = 300

    @property
    def lasts_ns(self) -> int | None:
        return _restart_ns(self.lasts)

    def ends_ns(self, hosts: int) -> int:
        return self.at_ns + (0 if self.kind == "depose" else self.lasts_ns or 0)

    def problems(self) -> Iterator[str]:
        if self.node and self.kind != "kill":
            yield 'node goes with kind = "kill" only'

    def nodes(self) -> Iterator[tuple[str, str]]:
        yield "node", self.node


class MembershipFault(FaultKind, frozen=True, kw_only=True):
    """A host leaves the fleet, or a new host joins.

    Attributes:
        host: name of the host that leaves or joins. The value "" means a random host for "leave", and the next new host for "join".
        back_after: time after which a host that left joins again, or a host that joined leaves. The value "" means never.
    """

    kind: Literal["leave", "join"] = "leave"
    host: str = ""
    back_after: OptionalDuration = ""

    @property
    def back_after_ns(self) -> int | None:
        return _restart_ns(self.back_after)

    def ends_ns(self, hosts: int) -> int:
        return self.at_ns + (self.back_after_ns or 0)

    def nodes(self) -> Iterator[tuple[str, str]]:
        if self.kind == "leave":
            yield "host", self.host


REFUSED_FAULT_KINDS = {
    "duplicate": "a link is a TCP stream, which drops doubled packets: use reset, or loss",
    "reorder": "a link is a TCP stream, which puts packets back in order: use reset, or loss",
    "corrupt": "a link is a TCP stream, which drops damaged packets: use reset, or loss",
    "rate": "there is no limit on bytes per second: use slow, or delay",
    "amnesia": "a host keeps nothing of its own over a crash: use crash",
    "restart": "hosts restart by restart_after: use crash",
    "jitter": "it is a key of delay: use delay",
    "skew": "it is a key of clock: use clock",
    "drift": "it is a key of clock, drift_ppm: use clock",
    "jump": "a clock jumps when a skew begins: use clock",
    "move": "agents move when a host leaves or joins: use membership",
}


def _write_once(*points: str) -> tuple[str, ...]:
    steps = ("opened", "written", "synced", "linked", "durable")
    return tuple(f"{point}.{step}" for point in points for step in steps)


FAILPOINTS: tuple[str, ...] = (
    "store.create.directories",
    "store.pack.directory",
    "store.checkpoints.directory",
    "store.chunks.directory",
    *_write_once("store.identity", "store.probe", "store.pack", "store.chunks", "store.checkpoints"),
    *_write_once("store.manifest", "store.held", "store.ref", "store.generation"),
    "store.log.batch.directory",
    "store.log.batch.deleted",
    "store.log.seal.directory",
    "store.log.seal.listed",
    "store.log.seal.closed",
    "store.log.read.found",
    *_write_once("store.log.batch", "store.log.seal", "store.log.mark"),
    "store.intent.created",
    "store.intent.unheld",
    "store.compact.packs",
    "store.compact.generation",
    "store.checkpoints.deleted",
    "store.delete.ref",
    "store.delete.manifest",
    "store.delete.packs",
    "store.sweep.manifests",
    "coordinator.epoch.checked",
    "coordinator.epoch.stored",
    "coordinator.epoch.completed",
    "coordinator.epoch.published",
    "coordinator.line.written",
    "store.outputs.directory",
    *_write_once("store.outputs.release"),
)
"""Failpoints in the product's code that the simulated world reaches. A test compares this list with the code."""

REAL_FAILPOINTS = (
    "coordinator.serving",
    "link.write",
    "raft.journal.created",
    "raft.journal.deleted",
    "raft.journal.written",
    "raft.journal.committed",
)

REAL_FAILPOINT_PREFIXES = (
    "raft.",
    "coordinator.service.backup.",
    "conformance.",
    "store.compact.retired",
    "store.copy.",
    "store.fork.",
    "coordinator.fork.",
    "store.keys.",
    "store.log.deletions.",
    "store.answers.",
    "store.mark.",
    "store.outputs.consumer",
    "store.outputs.deleted",
    "store.outputs.part",
    "store.outputs.read.",
    "store.pin.",
    "store.shelf.",
)
"""Prefixes of failpoints that are never drawn. Most of these failpoints are reached only by real processes. The simulated world has no
gRPC, pysyncobj, backup files, named consumers, pins, tags, copies, forks or encryption, and no releases of more than one part. Its runs
also end long before a replaced generation (an hour) or an output (a week) expires. `tests/storage` tests crashes at these failpoints."""

WORLD_FAILPOINTS = (*MOMENTS.values(), WHEN_CAPTURING)
