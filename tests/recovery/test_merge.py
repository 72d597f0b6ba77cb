"""Traces of hosts become one trace: the execution is the one that a world with a single true order has seen.

The worlds are those of `tests/agent_runtime`: they note every event in the order in which it happens, and beside that each
host writes lines as `agent_runtime/trace.py` does, into a "file" of its own. A host that dies loses the end of its file, at
most back to the last checkpoint, for that one was flushed.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import pytest
from tests.agent_runtime.coins import CoinWorld, SlowHost
from tests.agent_runtime.logged_coins import LineWorld, LoggedHost

import snapline
from snapline.agent_runtime import host_events as ev
from snapline.errors import TraceError
from snapline.protocols.names import CHANDY_LAMPORT, KOO_TOUEG, UNCOORDINATED
from snapline.recovery.analysis import Analysis, analyze
from snapline.recovery.merge import Merged, merge_traces
from snapline.recovery.trace import MessageReceived, MessageSent, Recovery, Trace, read_trace
from snapline.sim.host_world import Cut, HostWorld, SimHost

Files = dict[str, list[bytes]]


class Tape:
    """One file, as `TraceWriter` writes it; the clock of its host is wrong by some seconds."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.lines: list[bytes] = []
        self.flushed = 0
        self.clock_ns = sum(host.name.encode()) * 10**9

    def add(self, line: dict[str, object]) -> None:
        time_ns = self.clock_ns + self.host.world.now_ns
        self.lines.append(msgspec.json.encode({**line, "time_ns": time_ns}) + b"\n")
        if line["event"] == "checkpoint":
            self.flushed = len(self.lines)

    def carry(self, command: ev.Command) -> None:
        match command:
            case ev.TakeCheckpoint() if command.basis in ("basic", "forced"):
                self.checkpoint(command.agent, command.control.number, command.basis)
            case ev.TakeCheckpoint():  # no line, but what it holds is in the file before it is durable
                self.flushed = len(self.lines)
            case ev.CaptureState() if command.control.is_born:
                self.checkpoint(command.agent, command.control.number, "coordinated")
            case ev.Trace() if command.what == "checkpoint":
                self.checkpoint(command.agent, command.number, command.other)
            case ev.Trace():
                ends = (command.agent, command.other) if command.what == "send" else (command.other, command.agent)
                line = {"event": command.what, "agent": command.agent, "message": f"{'>'.join(ends)}:{command.number}"}
                self.add(line if command.what == "receive" else {**line, "to": command.other})

    def checkpoint(self, agent: str, number: int, kind: str) -> None:
        self.add({"event": "checkpoint", "agent": agent, "index": number, "kind": kind})

    def feed(self, event: ev.Event) -> None:
        core = self.host.core
        if isinstance(event, ev.AgentsLoaded) and event.plan == core.plan and not core.is_loaded:
            line = {each.agent: each.checkpoint.number if each.checkpoint else 0 for each in event.agents}
            self.add({"event": "plan", "plan": event.plan, "line": line})

    def after_kill(self, chance: random.Random) -> list[bytes]:
        """What is found in the file afterwards, perhaps with half a line at its end."""
        kept = chance.randint(self.flushed, len(self.lines))
        found = self.lines[:kept]
        if kept < len(self.lines) and chance.random() < 0.5:
            found.append(self.lines[kept][: chance.randrange(len(self.lines[kept]) - 1)])
        return found


class TapedHost(LoggedHost):
    def __init__(self, world: HostWorld, name: str, start: int) -> None:
        super().__init__(world, name, start)
        self.tape = Tape(self)
        self.core.trace_every = getattr(world, "trace_every", 1)

    def feed(self, event: ev.Event) -> None:
        self.tape.feed(event)
        super().feed(event)

    def _carry(self, command: ev.Command) -> None:
        self.tape.carry(command)
        super()._carry(command)


class TapedSlowHost(SlowHost):
    """The same for chandy-lamport, with the true order."""

    def __init__(self, world: HostWorld, name: str, start: int) -> None:
        super().__init__(world, name, start)
        self.tape = Tape(self)
        self.core.trace_every = getattr(world, "trace_every", 1)

    def feed(self, event: ev.Event) -> None:
        self.tape.feed(event)
        super().feed(event)

    def _carry(self, command: ev.Command) -> None:
        self.tape.carry(command)
        world: Any = self.world
        if self.core.plan != world.plan:
            pass  # a plan that is committed has undone it already
        elif isinstance(command, ev.CaptureState):
            world.trace.append({"event": "checkpoint", "agent": command.agent, "index": command.control.number})
        elif isinstance(command, ev.Trace):
            LineWorld.note_message(world, command)
        super()._carry(command)


class Taped(Protocol):
    """What both worlds have."""

    trace: list[dict[str, object]]

    def files(self, *, is_lossy: bool) -> Files: ...


def boot(world: Any, name: str, kind: Callable[[HostWorld, str, int], Any]) -> None:
    start = 1
    if name in world.hosts:
        world.dead.append(world.hosts[name].tape)
        start = world.hosts[name].start + 1
    host = world.hosts[name] = kind(world, name, start)
    host.feed(ev.Welcomed(start, "sim"))


def files_of(world: Any, seed: int, *, is_lossy: bool) -> Files:
    chance = random.Random(seed)
    found = {
        f"{tape.host.name}.{tape.host.start}.jsonl": tape.after_kill(chance) if is_lossy else tape.lines
        for tape in world.dead
    }
    for host in world.hosts.values():
        found[f"{host.name}.{host.start}.jsonl"] = host.tape.lines
    return found


class TapedLineWorld(LineWorld):
    def __init__(self, seed: int, *, trace_every: int = 1, **options: Any) -> None:
        self.dead: list[Tape] = []
        self.seed = seed
        self.trace_every = trace_every
        super().__init__(3 + seed % 5, 2 + seed % 3, seed, **options)

    def _boot(self, name: str) -> None:
        boot(self, name, TapedHost)

    def _adopt(self, cut: Cut) -> None:
        """A round is committed: its checkpoints are permanent, whether their hosts live to hear of it or not."""
        if not self.is_autonomous:
            for agent, found in cut.items():
                before = self.base.get(agent)
                if not found.is_unborn and found.number > (before.number if before is not None else 0):
                    self.note({"event": "checkpoint", "agent": agent, "index": found.number})
        super()._adopt(cut)

    def note_message(self, command: ev.Trace) -> None:
        if self.trace_every == 1 or command.what == "send" or (command.other, command.agent, command.number) in self.ids:
            super().note_message(command)

    def files(self, *, is_lossy: bool) -> Files:
        return files_of(self, self.seed, is_lossy=is_lossy)


class TapedCoinWorld(CoinWorld):
    """Chandy-lamport. Agents that have left before the line are in no cut, and keep what they did."""

    def __init__(self, seed: int, *, trace_every: int = 1, **options: Any) -> None:
        self.dead: list[Tape] = []
        self.seed = seed
        self.trace_every = trace_every
        self.trace: list[dict[str, object]] = []
        self.ids: dict[tuple[str, str, int], str] = {}
        super().__init__(3 + seed % 5, 2 + seed % 3, seed, **options)

    def note(self, line: dict[str, object]) -> None:
        self.trace.append(line)

    def _boot(self, name: str) -> None:
        boot(self, name, TapedSlowHost)

    def _recover(self) -> None:
        epoch = max(self.lines)
        cut = self.lines[epoch]
        gone = {agent for agent, kept in self.left.items() if kept[0] < epoch}
        line = {agent: cut[agent].number if agent in cut else 0 for agent in self.ordinals if agent not in gone}
        if self.plan:
            self.note({"event": "recovery", "line": line})
        super()._recover()

    def files(self, *, is_lossy: bool) -> Files:
        return files_of(self, self.seed, is_lossy=is_lossy)


def play(seed: int, protocol: str, *, steps: int = 1600, trace_every: int = 1) -> TapedLineWorld | TapedCoinWorld:
    """A run with crashes and cut streams, stopped in the middle of its work."""
    kind = TapedCoinWorld if protocol == CHANDY_LAMPORT else TapedLineWorld
    triggers = [snapline.Every(0.05 + 0.01 * (seed % 7))] if protocol != CHANDY_LAMPORT else []
    world = kind(seed, trace_every=trace_every, protocol=protocol, triggers=triggers)
    chance = world.random.random
    for step in range(steps):
        world.step()
        if chance() < 0.012:
            world.begin_epoch()
        if chance() < 0.002:
            world.cut(*world.random.sample(world.names, 2))
        if chance() < 0.002 and step < 0.9 * steps:
            world.crash()
    while is_deciding(world):
        world.step()
    return world


def is_deciding(world: TapedLineWorld | TapedCoinWorld) -> bool:
    """Does any host not know yet what the coordinator has decided?"""
    if len(world.confirmed) < len(world.names) or getattr(world, "freezing", None) is not None:
        return True
    return any(host.directives for host in world.hosts.values())


def truth(world: Taped) -> Trace:
    return read_trace([msgspec.json.encode(line) for line in world.trace])


def read(merged: Merged) -> Trace:
    return read_trace(list(merged.lines()))


def facts(analysis: Analysis, agents: set[str]) -> dict[str, Any]:
    """All that does not depend on which of the equivalent orders the trace is in."""
    found: dict[str, Any] = msgspec.to_builtins(analysis)
    found["in_transit"] = sorted(found["in_transit"])
    found["agents"] = found["failed"] = None
    found["domino"].update(reached_initial=sorted(set(found["domino"]["reached_initial"]) & agents), rolled_back=None)
    for name in ("recovery_line", "rollback", "useless", "obsolete"):
        found[name] = {agent: value for agent, value in found[name].items() if agent in agents}
    return found


def check_equal(world: Taped, merged: Merged) -> Trace:
    expected, got = truth(world), read(merged)
    agents = {event.agent for event in expected.events}
    assert agents == {event.agent for event in got.events}
    for agent in agents:
        own = [[event for event in each.events if event.agent == agent] for each in (expected, got)]
        assert own[0] == own[1], agent
    assert facts(analyze(expected), agents) == facts(analyze(got), agents)
    return got


PROTOCOLS = (CHANDY_LAMPORT, KOO_TOUEG, UNCOORDINATED, "bcs", "hmnr", "fdas")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("is_lossy", [False, True])
def test_the_merged_trace_is_the_execution_that_happened(protocol: str, is_lossy: bool) -> None:
    """Agent by agent, and in all that the analysis says; clocks of the hosts are seconds apart."""
    seen: Counter[str] = Counter()
    for seed in range(6):
        world = play(seed, protocol)
        files = world.files(is_lossy=is_lossy)
        merged = merge_traces(files)
        assert not merged.left_out, (protocol, seed)
        got = check_equal(world, merged)
        seen["recoveries"] += sum(isinstance(item, Recovery) for item in merged.items)
        seen["files"] += len(files) - len(world.names)
        seen["lost"] += sum(len(tape.lines) for tape in world.dead) + sum(
            len(host.tape.lines) for host in world.hosts.values()
        ) - sum(map(len, files.values()))
        seen["again"] += sum(is_old(event.message) for event in got.events if isinstance(event, MessageSent))
    assert seen["recoveries"] > 5 and seen["files"] > 5 and seen["again"] > 5, seen
    assert (seen["lost"] > 10) == is_lossy, seen


def is_old(message: str) -> bool:
    return not message.partition(">")[0].endswith("/1")
