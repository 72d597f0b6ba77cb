"""Kinds of faults that a scenario's `[[fault]]` tables may contain, with their durations and failpoints.

Each kind is a struct whose fields are the keys of an inline table. `host = ""` means a host that is drawn when the fault begins, and `host
= "*"` means every host. A duration is text with a unit, such as "250us", "1ms" or "1.5s". A failpoint is a named line in the product's
code. The simulated world reaches some failpoints; only real processes reach the rest. `faults.py` executes the faults.

A link is a TCP stream, so duplicate, reordered or damaged packets never reach snapline. Faults of these kinds are
rejected, because they would have no effect.
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
    """Convert nanoseconds to the shortest text that consists of a whole number and a unit. The inverse of `duration_ns`."""
    for unit in ("h", "m", "s", "ms", "us"):
        if ns and ns % _UNITS_NS[unit] == 0:
            return f"{ns // _UNITS_NS[unit]}{unit}"
    return f"{ns}ns" if ns else "0s"


Hit = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
PerMille = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]

EVERY_HOST = "*"


class FaultKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of all kinds of faults. `at` is the time at which the fault begins. "" means 1 s, or 0 s if the fault
    waits at a failpoint."""

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
        """Return the time at which the fault ends in a fleet with this number of hosts. Permanent faults and faults at
        failpoints last until `heal`; for them, this is only the start of the fault."""
        return self.at_ns

    def problems(self) -> Iterator[str]:
        """Yield a description of each combination of keys that is not allowed. A description begins with a key."""
        yield from ()

    def nodes(self) -> Iterator[tuple[str, str]]:
        """Yield (key, node) for each node that the fault names."""
        yield from ()


class LastingFault(FaultKind, frozen=True, kw_only=True):
    """Fault whose duration is given by the key `for`."""

    lasts: Duration = msgspec.field(default="1s", name="for")

    @property
    def lasts_ns(self) -> int:
        return duration_ns(self.lasts)

    def ends_ns(self, hosts: int) -> int:
        return self.at_ns if self.point else self.at_ns + self.lasts_ns


def _restart_ns(text: str) -> int | None:
    """Return None for "", which means no restart. Otherwise return at least 1 ns, because `arm_failpoint` takes 0 to mean no restart."""
    return max(1, duration_ns(text)) if text else None


def _pair_problems(between: list[str]) -> Iterator[str]:
    if between and (len(between) != 2 or between[0] == between[1] or "" in between):
        yield f"between is {json.dumps(between)}: name two different nodes, or leave it out"


def _pair_nodes(between: list[str]) -> Iterator[tuple[str, str]]:
    for index, node in enumerate(between):
        yield f"between[{index}]", node


class PairFault(LastingFault, frozen=True, kw_only=True):
    """Fault between two nodes. If no nodes are named, the fault's kind determines which nodes are affected."""

    between: list[str] = []

    def problems(self) -> Iterator[str]:
        yield from _pair_problems(self.between)

    def nodes(self) -> Iterator[tuple[str, str]]:
        yield from _pair_nodes(self.between)


class PathFault(PairFault, frozen=True, kw_only=True):
    """Fault that affects the traffic between two nodes or between all nodes. "one-way" affects only the traffic from
    the first node to the second."""

    direction: Literal["both", "one-way"] = "both"

    def problems(self) -> Iterator[str]:
        yield from PairFault.problems(self)
        if self.direction == "one-way" and not self.between:
            yield 'direction = "one-way" needs between'


class HostFault(LastingFault, frozen=True, kw_only=True):
    """Fault that affects a host. "" means a drawn host, and "*" means every host."""

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
    """Markers between two hosts are held back. All other traffic passes."""


class ClogFault(PairFault, frozen=True, kw_only=True):
    """Traffic from the first node to the second is blocked. Traffic in the opposite direction passes."""


class SwizzleFault(LastingFault, frozen=True, kw_only=True):
    """Some nodes are cut off one after another, and later reconnected in a different order."""


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
    """A stream between two nodes breaks `times` times. If no nodes are named, a new pair is drawn each time.

    Attributes:
        when: a moment. If it is set, the fault waits until this moment occurs for the `hit`-th time in the fleet, and
            then breaks all streams of the host or coordinator at which it occurred.
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
    """Network partition. "one-way" cuts the traffic in only one, drawn, direction. `host` or `agent` selects the
    isolated node. If both are "", the node is drawn."""

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
    """A host's CPU is slowed down."""

    percent: Percent = 10


class PauseFault(HostFault, frozen=True, kw_only=True):
    """A host, or the node that reaches a failpoint, is paused and later resumed."""

    failpoint: str = ""
    hit: Hit = 1

    @property
    def point(self) -> str:
        return self.failpoint

    def problems(self) -> Iterator[str]:
        if self.host and self.failpoint:
            yield "host does not go with failpoint: the node that passes it is paused"


class HangFault(HostFault, frozen=True, kw_only=True):
    """Calls of a host hang until the fault ends.

    Attributes:
        what: calls that hang. "store" means store calls, so the host applies no plan and stores no epoch. "stop" means
            calls of `stop_when`. Both kinds of calls run in threads, so heartbeats continue. "loop" means a handler,
            which blocks the event loop. Then no heartbeat is sent, but the host's streams stay open.
    """

    what: HangingCall = "store"


class ClockFault(HostFault, frozen=True, kw_only=True):
    """A host's wall clock is skewed."""

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
        restart_after: time until the killed host restarts. "" means that the host stays down until `heal` starts it.
        failpoint: failpoint that is armed at the time `at`. The host or coordinator that is the `hit`-th to reach the failpoint is killed.
        is_power_cut: whether the node also loses power, so that choices decide whether its unsynced data is kept, lost
            or torn. Allowed only with a failpoint or moment.
        is_all: whether all hosts are killed at once.
        is_rolling: whether hosts are killed one after another, each after the previous host has restarted.
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
    """Disk fault. `host = "*"` means all hosts and coordinators, or all hosts if the fault is a power cut.

    Attributes:
        mode: kind of disk fault. "power-cut" and "torn" mean the same: choices decide whether unsynced data is kept,
            lost or torn. "bit-flip" damages the newest complete epoch, provided that an older one exists; otherwise the
            fault tries again until the duration `for` has passed.
        restart_after: time until the host restarts after a power cut. "" means that it does not restart.
        failpoint: failpoint that raises OSError once, instead of failing disk operations for the duration `for`.
            Allowed only with mode "eio".
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
    """Encoding an agent's state fails `times` times, starting with the `hit`-th attempt in the fleet."""

    hit: Hit = 1
    times: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1

    @property
    def point(self) -> str:
        return WHEN_CAPTURING


class CoordinatorFault(FaultKind, frozen=True, kw_only=True):
    """Fault that affects the coordinator. With `for = ""`, the fault lasts until `heal`. `node` names the replica that
    "kill" kills. If `node` is "", the replica is drawn."""

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
        host: name of the host. For "leave", "" means a drawn host; for "join", "" means the next new host.
        back_after: time until a host that left joins again, or a host that joined leaves. "" means that this never happens.
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
