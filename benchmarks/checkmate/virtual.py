"""A query in virtual time: the production code on simulated hosts, looked at from outside while it runs, and judged by the simulator's oracles."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from benchmarks.checkmate.costs import costs_of
from benchmarks.checkmate.generator import due
from benchmarks.checkmate.oracle import expected
from benchmarks.checkmate.queries import (
    DIGESTS,
    NONE,
    Conversion,
    Counts,
    Feed,
    Reached,
    Seen,
    Tables,
    fleet,
    middle_s,
    streams,
)

from snapline.channels.frame import Frame, Items, encode_frame
from snapline.sim.faults.fault_kinds import CrashFault
from snapline.sim.run import run
from snapline.sim.scenario import DelayPart, FaultPart, FleetPart, LivenessPart, NetworkPart, RunPart, Scenario
from snapline.sim.workloads.workload import Workload
from snapline.sim.world.network import Stream
from snapline.sim.world.world import World

SECOND_NS = 1_000_000_000
LOOK_NS = 50_000_000
DRAIN_S = 120
"""Longest time of a run after its last event: an overloaded run has a queue left."""

LAG_MAX_S = 5.0
"""Lag at which a search for a sustained rate gives up."""

CALM_S = 2.0
"""Time for which the lag must stay at its level before the failure to count as recovered."""

RESTART_S = 0.5
"""Restart time of a killed host, as measured by `benchmarks/startup.py` until its first turn."""

SEED = 1


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `rate_per_s`: of all workers; `hot`: part of popular persons; `fails_at`: when a host dies, 0: never; `stands_for`: each event is
    simulated for so many, whose costs it has; rates are of those that are simulated. `drains`: it ends when all was handled, not with the input, and must then be right."""

    query: str
    protocol: str
    workers: int
    rate_per_s: float
    seconds: float = 60.0
    every_s: float = 5.0
    hot: float = 0.0
    fails_at: float = 0.0
    stands_for: int = 500
    tick_s: float = 0.25
    drains: bool = True


class Wire:
    """Bytes on the links of a world. `frames`: all of them, as they are encoded; `payload`: of messages in them."""

    def __init__(self) -> None:
        self.frames = self.payload = 0

    def listen(self, world: World) -> None:
        network, name = world.shared.network, "open"
        really = network.open

        def opened(*arguments: Any) -> Stream:
            stream = really(*arguments)
            send, method = stream.send, "send"

            def counted(sender: str, item: object) -> None:
                self._count(item)
                send(sender, item)

            setattr(stream, method, counted)
            return stream

        setattr(network, name, opened)

    def _count(self, item: object) -> None:
        if isinstance(item, Frame):
            self.frames += len(encode_frame(item))
            if isinstance(item.body, Items):
                self.payload += sum(
                    len(each) for to, each in zip(item.body.channel, item.body.payload, strict=True) if to
                )


class Look(NamedTuple):
    """At one moment. `lag_s`: how old the input is that waits; None while some agent is not there."""

    t_s: float
    lag_s: float | None


class QueryWork(Workload):
    """Workload that ends when all events are handled; the sinks must then match the oracle.

    Attributes:
        looks: in the order of time. states: of the end. wire: of all links.
        began_s, failed_s: when the sources and the failure did; 0 before.
        back_s: when all agents were there again after it.
    """

    def __init__(self, setting: Setting) -> None:
        events = round(setting.rate_per_s * setting.seconds)
        self.setting = setting
        self.streams = streams(setting.query, setting.workers, setting.rate_per_s, events, setting.hot, setting.tick_s)
        made = fleet(
            setting.query, setting.protocol, str(setting.workers), f"{setting.every_s:g}",
            repr(setting.rate_per_s), str(events), repr(setting.hot), repr(setting.tick_s),
        )  # fmt: skip
        made.stop_when = None  # the world detects its end itself
        costs = costs_of(setting.protocol, len(made.agents)).for_messages(setting.stands_for)
        super().__init__(made, ends=True, costs=costs)
        self.looks: list[Look] = []
        self.wire = Wire()
        self.states: dict[str, object] = {}
        self.began_s = self.failed_s = self.back_s = 0.0
        self._world: World | None = None

    # ---- what the world asks ----------------------------------------------------------------------------------------

    def is_done(self, states: Mapping[str, object]) -> bool:
        return all(state.position == state.stream.events for state in states.values() if isinstance(state, Feed))

    def check_end(self, states: Mapping[str, object]) -> str | None:
        self.states = dict(states)
        sinks = [state for state in states.values() if isinstance(state, Seen)]
        result = sum(x.rows for x in sinks), sum(x.digests for x in sinks) % DIGESTS
        expected_result = expected(self.setting.query, self.streams)
        return (
            None
            if result == expected_result
            else f"{result[0]} rows have come out, and {expected_result[0]} should have; or others than those"
        )

    # ---- looking ----------------------------------------------------------------------------------------------------

    def begin(self, world: World) -> None:
        self._world = world
        self.wire.listen(world)
        world.shared.kernel.at(LOOK_NS, self._look)

    def _look(self, _: object) -> None:
        world = self._world
        assert world is not None
        kernel = world.shared.kernel
        now_s = kernel.now_ns / 1e9
        states = world.pending_work.states()
        is_whole = len(states) == len(self.fleet.agents)
        self.looks.append(Look(now_s, self._lag_s(states, world) if is_whole else None))
        if world.shared.faults and not self.failed_s:
            self.failed_s = world.shared.faults[0].at_ns / 1e9
        if self.failed_s and not self.back_s and is_whole and self._has_moved(world):
            self.back_s = now_s
        is_over = self.began_s and now_s >= self.began_s + self.setting.seconds
        if self.setting.drains or not (is_over or self.is_hopeless):
            kernel.at(kernel.now_ns + LOOK_NS, self._look)
        else:
            kernel.is_over = True

    @property
    def is_hopeless(self) -> bool:
        """More waits than a run could make up for that does not drain."""
        lag_s = self.looks[-1].lag_s if self.looks else None
        return not self.setting.drains and lag_s is not None and lag_s > LAG_MAX_S

    def _has_moved(self, world: World) -> bool:
        return world.log.canonical.plan_number > 1 and all(run.driver.core.is_loaded for run in world.hosts.alive())

    def _lag_s(self, states: Mapping[str, object], world: World) -> float | None:
        feeds = [state for state in states.values() if isinstance(state, Feed)]
        if not all(feed.started_ns for feed in feeds):
            return None
        wall_ns = world.shared.clocks.wall_ns("h1")
        self.began_s = self.began_s or world.shared.kernel.now_ns / 1e9
        events_due = sum(due(feed.stream, wall_ns - feed.started_ns) - feed.position for feed in feeds)
        sent, passed = sum(feed.sent for feed in feeds), sum(feed.position for feed in feeds)
        operators = (x for x in states.values() if isinstance(x, Conversion | Counts | Tables | Reached))
        waiting = sent - sum(operator.taken for operator in operators)
        rate_per_s = self.setting.rate_per_s
        return events_due / rate_per_s + (waiting / rate_per_s * passed / sent if sent else 0.0)


class Measured(NamedTuple):
    """`growth`: seconds by which the lag grows in a second. `restart_s`, `recovery_s`: from the failure until all agents are there again,
    and until no more waits than before it. `wire`: bytes on links for a byte of messages. NaN: not seen, or there were none."""

    agents: int
    growth: float
    p50_s: float
    p99_s: float
    restart_s: float
    recovery_s: float
    wire: float
    metrics: dict[str, float]


def scenario_of(setting: Setting) -> Scenario:
    host = (
        f"h{2 + int(setting.fails_at) % (setting.workers - 1)}" if setting.workers > 1 else "h1"
    )  # h1 owns the popular keys
    crash = CrashFault(
        at=f"{round(setting.fails_at * 1000)}ms", host=host, restart_after=f"{round(RESTART_S * 1000)}ms"
    )
    return Scenario(
        name=f"checkmate-{setting.query}",
        fleet=FleetPart(agents=setting.workers, hosts=setting.workers, protocol=_protocol(setting)),
        network=NetworkPart(delay=DelayPart(least="200us", jitter="200us")),
        fault=[FaultPart(crash=crash)] if setting.fails_at else [],
        liveness=LivenessPart(within=f"{round(setting.seconds + DRAIN_S)}s"),
        run=RunPart(until=f"{round(setting.seconds)}s", events_max=100_000_000),
    )


def _protocol(setting: Setting) -> str:
    return "chandy-lamport" if setting.protocol == NONE else setting.protocol


def play(setting: Setting) -> Measured:
    """Run it.

    Raises:
        AssertionError: the run did not pass: some guarantee was broken, or other rows came out than the oracle says.
    """
    work = QueryWork(setting)
    result = run(scenario_of(setting), SEED, workload=work, on_world=work.begin)
    assert result.verdict == "pass" or not (setting.drains or result.violations or result.error), (
        f"{setting}: {result.verdict} {result.violations[:1]} {result.pending} {result.error}"
    )
    latencies: dict[int, int] = {}
    for state in work.states.values():
        for number, count in state.latencies.items() if isinstance(state, Seen) else ():
            latencies[number] = latencies.get(number, 0) + count
    restart_s, recovery_s = recovered(work)
    half_s, most_s = quantile(latencies, 0.5), quantile(latencies, 0.99)
    wire = work.wire.frames / work.wire.payload if work.wire.payload else float("nan")
    return Measured(len(work.fleet.agents), growth(work), half_s, most_s, restart_s, recovery_s, wire, result.metrics)


def growth(work: QueryWork) -> float:
    """Of the lag, between the second and the last quarter of the input's time."""
    if work.is_hopeless:
        return float("inf")
    quarter_s = work.setting.seconds / 4
    second = lags(work, work.began_s + quarter_s, work.began_s + 2 * quarter_s)
    last = lags(work, work.began_s + 3 * quarter_s, work.began_s + 4 * quarter_s)
    if not second or not last:
        return float("nan")
    return (sum(last) / len(last) - sum(second) / len(second)) / (2 * quarter_s)


def lags(work: QueryWork, from_s: float, until_s: float) -> list[float]:
    return [look.lag_s for look in work.looks if from_s <= look.t_s < until_s and look.lag_s is not None]


def recovered(work: QueryWork) -> tuple[float, float]:
    """From the failure until all agents are there, and until no more waits than at the worst of the quarter before it."""
    if not work.back_s:
        return float("nan"), float("nan")
    before = max(lags(work, work.failed_s - work.setting.seconds / 4, work.failed_s), default=0.0)
    late_s = work.back_s
    for look in work.looks:
        if look.t_s > late_s + CALM_S:
            break
        if look.t_s >= work.back_s and (look.lag_s is None or look.lag_s > before):
            late_s = look.t_s
    return work.back_s - work.failed_s, late_s - work.failed_s


def quantile(latencies: Mapping[int, int], part: float) -> float:
    """In seconds."""
    left = part * sum(latencies.values())
    for number in sorted(latencies):
        left -= latencies[number]
        if left <= 0:
            return middle_s(number)
    return float("nan")
