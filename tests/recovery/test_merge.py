"""Traces of hosts become one trace: the execution is the one that a world with a single true order has seen.

The fleets are those of `tests/kit`: they note every event in the order in which it happens, and beside that each host
writes lines as `agent_runtime/host/host_trace.py` does, into a "file" of its own. A host that dies loses the end of its file, at
most back to the last checkpoint, for that one was flushed.
"""

import functools
import json
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.agent_runtime.coins import make_fleet
from tests.kit.fleet import FleetWorld
from tests.kit.host import Host
from tests.kit.logged_fleet import LoggedFleet

import snapline
from snapline.agent_runtime.host import host_events as ev
from snapline.errors import TraceError
from snapline.protocols.names import CHANDY_LAMPORT, KOO_TOUEG, UNCOORDINATED
from snapline.recovery import trace_merge
from snapline.recovery.trace import MessageReceived, MessageSent, Recovery, Trace, read_trace
from snapline.recovery.trace_analysis import Analysis, analyze
from snapline.recovery.trace_merge import Merged, merge_traces

Files = dict[str, list[bytes]]


class Tape:
    """One file, as `TraceWriter` writes it; the clock of its host is wrong by some seconds."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.lines: list[bytes] = []
        self.flushed = 0
        self.clock_ns = sum(host.name.encode()) * 10**9

    def add(self, line: dict[str, object]) -> None:
        time_ns = self.clock_ns + self.host.world.now_ns
        self.lines.append(msgspec.json.encode({**line, "time_ns": time_ns}) + b"\n")
        if line["event"] == "checkpoint":
            self.flushed = len(self.lines)

    def carry(self, command: ev.HostOutput) -> None:
        match command:
            case ev.TakeCheckpoint() if command.basis in ("basic", "forced"):
                self.checkpoint(command.agent, command.control.number, command.basis)
            case ev.TakeCheckpoint():  # no line, but what it holds is in the file before it is durable
                self.flushed = len(self.lines)
            case ev.CaptureState() if command.control.is_born:
                self.checkpoint(command.agent, command.control.number, "coordinated", command.epochs)
            case ev.Trace() if command.what == "checkpoint":
                self.checkpoint(command.agent, command.number, command.other)
            case ev.Trace() if command.what in ("send_marker", "receive_marker"):
                end = "to" if command.what == "send_marker" else "from"
                about = {"host": command.agent, end: command.other, "epoch": command.number}
                self.add({"event": command.what, **about})
            case ev.Trace():
                ends = (command.agent, command.other) if command.what == "send" else (command.other, command.agent)
                line: dict[str, object] = {
                    "event": command.what,
                    "agent": command.agent,
                    "message": f"{'>'.join(ends)}:{command.number}",
                }
                self.add(line if command.what == "receive" else {**line, "to": command.other})

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        line: dict[str, object] = {"event": "checkpoint", "agent": agent, "index": number, "kind": kind}
        self.add({**line, "epochs": epochs} if epochs else line)

    def feed(self, event: ev.Heard) -> None:
        core = self.host.core
        if isinstance(event, ev.AgentsLoaded) and event.plan == core.plan and not core.is_loaded:
            line = {each.agent: each.checkpoint.number if each.checkpoint else 0 for each in event.agents}
            self.add({"event": "plan", "plan": event.plan, "line": line})

    def after_kill(self, chance: random.Random) -> list[bytes]:
        """What is found in the file afterwards, perhaps with half a line at its end."""
        kept = self.flushed if chance.random() < 0.7 else chance.randint(self.flushed, len(self.lines))
        found = self.lines[:kept]
        if kept < len(self.lines) and chance.random() < 0.5:
            found.append(self.lines[kept][: chance.randrange(len(self.lines[kept]) - 1)])
        return found


class TapedHost(Host):
    def __init__(self, world: FleetWorld, name: str, start: int) -> None:
        super().__init__(world, name, start)
        self.tape = Tape(self)

    def feed(self, event: ev.Heard) -> None:
        self.tape.feed(event)
        super().feed(event)

    def _carry(self, command: ev.HostOutput) -> None:
        self.tape.carry(command)
        super()._carry(command)


def files_of(world: FleetWorld, *, is_lossy: bool) -> Files:
    """What is found of each run of a host; those that were killed lose the end if `is_lossy`."""
    chance = random.Random(len(world.trace))
    found = {}
    for host in world.runs:
        assert isinstance(host, TapedHost)
        is_killed = world.hosts[host.name] is not host
        lines = host.tape.after_kill(chance) if is_lossy and is_killed else host.tape.lines
        found[f"{host.name}.{host.start}.jsonl"] = lines
    return found


@functools.lru_cache(maxsize=32)
def play(seed: int, protocol: str, *, steps: int = 1600, trace_every: int = 1) -> FleetWorld:
    """A run with crashes and cut streams, stopped in the middle of its work. Several tests read one: it is not changed."""
    kind = FleetWorld if protocol == CHANDY_LAMPORT else LoggedFleet
    triggers = [snapline.Every(0.05 + 0.01 * (seed % 7))] if protocol != CHANDY_LAMPORT else []
    fleet = make_fleet(3 + seed % 5, protocol=protocol, triggers=triggers)
    world = kind(fleet, 2 + seed % 3, seed, trace_every=trace_every, host_class=TapedHost)
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


def is_deciding(world: FleetWorld) -> bool:
    """Does any host not know yet what the coordinator has decided?"""
    if len(world.confirmed) < len(world.names) or getattr(world, "freezing", None) is not None:
        return True
    return any(host.directives for host in world.hosts.values())


@functools.lru_cache(maxsize=1)
def truth(world: FleetWorld) -> Trace:
    return read_trace([msgspec.json.encode(line) for line in world.trace])


@functools.lru_cache(maxsize=1)
def true_analysis(world: FleetWorld) -> Analysis:
    return analyze(truth(world))


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


def check_equal(world: FleetWorld, merged: Merged) -> Trace:
    expected, got = truth(world), read(merged)
    agents = {event.agent for event in expected.events}
    assert agents == {event.agent for event in got.events}
    for agent in agents:
        own = [[event for event in each.events if event.agent == agent] for each in (expected, got)]
        assert own[0] == own[1], agent
    assert facts(true_analysis(world), agents) == facts(analyze(got), agents)
    return got


PROTOCOLS = (CHANDY_LAMPORT, KOO_TOUEG, UNCOORDINATED, "bcs", "hmnr", "fdas")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_merged_trace_is_the_execution_that_happened(protocol: str) -> None:
    """Agent by agent, and in all that the analysis says; clocks of the hosts are seconds apart. Files are whole, or lack their ends."""
    seen: Counter[str] = Counter()
    for seed in range(4):
        world = play(seed, protocol)
        whole = files_of(world, is_lossy=False)
        for files in (whole, files_of(world, is_lossy=True)):
            merged = merge_traces(files)
            assert not merged.omitted, (protocol, seed)
            got = check_equal(world, merged)
        seen["recoveries"] += sum(isinstance(item, Recovery) for item in merged.items)
        seen["files"] += len(files) - len(world.names)
        seen["lost"] += sum(map(len, whole.values())) - sum(map(len, files.values()))
        seen["again"] += sum(is_later(event.message) for event in got.events if isinstance(event, MessageSent))
    assert seen["recoveries"] > 5 and seen["files"] > 5 and seen["again"] > 5 and seen["lost"] > 10, seen


@pytest.mark.parametrize("protocol", [CHANDY_LAMPORT, "hmnr"])
def test_a_sampled_trace_is_the_execution_of_the_sampled_messages(protocol: str) -> None:
    """But for agents whose creation is undone and whose creating message is not in the sample: nothing tells of that."""
    messages = 0
    for seed in range(3):
        world = play(seed, protocol, trace_every=3)
        merged = merge_traces(files_of(world, is_lossy=True))
        expected, got = truth(world), read(merged)
        for agent in world.fleet.agents:
            own = [[event for event in each.events if event.agent == agent] for each in (expected, got)]
            assert own[0] == own[1], (seed, agent)
        messages += sum(isinstance(event, MessageReceived) for event in got.events)
    assert messages > 25


def is_later(message: str) -> bool:
    """Was it sent after a recovery?"""
    return not message.partition(">")[0].endswith("/1")


Method = Callable[..., Any]
MUTANTS: dict[str, tuple[object, str, Method]] = {
    "nothing is lost": (trace_merge, "_find_lost", lambda own, sent: {}),
    "only the receive is lost": (trace_merge, "_kept", lambda section, cuts: deque(section.events)),
    "who is in no line goes back to 0": (
        trace_merge._Merger,
        "_whole",
        lambda self, line, active: {**dict.fromkeys(self._histories, 0), **line},
    ),
    "who is in no line keeps all": (trace_merge._Merger, "_whole", lambda self, line, active: line),
    "recoveries are left out": (trace_merge._Merger, "_recover", lambda self, line: None),
    "the oldest first, whatever has been sent": (
        trace_merge,
        "interleaved",
        lambda queues, sent: iter(sorted((line for queue in queues for line in queue), key=lambda line: line.time_ns)),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises((AssertionError, TraceError, KeyError)):
        for seed in range(6):
            for protocol in (CHANDY_LAMPORT, KOO_TOUEG):
                world = play(seed, protocol)
                check_equal(world, merge_traces(files_of(world, is_lossy=True)))


# -- by hand ------------------------------------------------------------------------------------------------------------


def file(*lines: str | dict[str, object]) -> list[bytes]:
    """`a>b:1` sends, `>a>b:1` receives, `a 2` takes a checkpoint; times ascend."""
    found = []
    for time_ns, line in enumerate(lines):
        fields = parsed(line) if isinstance(line, str) else line
        found.append(json.dumps({**fields, "time_ns": time_ns}).encode() + b"\n")
    return found


def parsed(text: str) -> dict[str, object]:
    if text.startswith(">"):
        return {"event": "receive", "agent": text.split(">")[2].split(":")[0], "message": text[1:]}
    if ">" in text:
        agent, rest = text.split(">")
        return {"event": "send", "agent": agent, "message": text, "to": rest.split(":")[0]}
    agent, number = text.split()
    return {"event": "checkpoint", "agent": agent, "index": int(number), "kind": "basic"}


def plan(number: int, **line: int) -> dict[str, object]:
    return {"event": "plan", "plan": number, "line": line}


def told(files: Files) -> list[dict[str, Any]]:
    return [json.loads(line) for line in merge_traces(files).lines()]


def test_messages_carry_the_plan_of_their_send() -> None:
    """A number used again is another message; one that is delivered again is the same."""
    lines = told(
        {
            "h1.x": file(plan(1, a=0), "a>b:1", "a 1", "a>b:2", plan(2, a=1), "a>b:2"),
            "h2.y": file(plan(1, b=0), ">a>b:1", ">a>b:2"),
            "h2.z": file(plan(2, b=0), ">a>b:1", ">a>b:2"),
        }
    )
    assert lines[0] == {"snapline_trace": 1, "agents": ["a", "b"]}
    assert [line.get("message") for line in lines[1:]] == [
        "a/1>b:1", "a/1>b:1", None, "a/1>b:2", "a/1>b:2", None, "a/1>b:1", "a/2>b:2", "a/2>b:2",
    ]  # fmt: skip
    assert lines[6] == {"event": "recovery", "line": {"a": 1, "b": 0}}


def test_what_has_no_send_is_left_out_with_all_that_follows() -> None:
    whole = ["b>c:1", ">a>b:1", "b>c:2", "b 1"]
    files = {
        "h1.x": file(plan(1, a=0)),
        "h2.y": file(plan(1, b=0), *whole),
        "h3.z": file(plan(1, c=0), ">b>c:1", "c 1", ">b>c:2", "c 2"),
    }
    merged = merge_traces(files)
    assert merged.omitted == {"b": "a>b:1", "c": "a>b:1"}
    names = [getattr(event, "message", "checkpoint") for event in read(merged).events]
    assert names == ["b/1>c:1", "b/1>c:1", "checkpoint"]
    files["h3.z"] += file(plan(2, c=1, b=0, a=0))
    assert merge_traces(files).omitted == {}, "the recovery has undone it"
    files["h3.z"][-1:] = file(plan(2, c=2, b=1, a=0))
    with pytest.raises(TraceError, match=r"plan 2 keeps checkpoint 2 of agent 'c'.* 'a>b:1'.* the file of 'a'"):
        merge_traces(files)
    del files["h1.x"], files["h3.z"][-1:]
    with pytest.raises(TraceError, match="no file traces 'a'"):
        merge_traces(files)


def test_numbers_without_a_line_stand_behind_the_checkpoint_before() -> None:
    """Its state could not be saved, or the agent was not born."""
    lines = told({"h1": file(plan(1, a=0), "a>b:1", "a 1", "a>b:2", "a 4", "a>b:3", plan(2, a=4), "a 6")})
    kinds = [line.get("index", line["event"]) for line in lines[1:]]
    assert kinds == ["send", 1, 2, 3, "send", 4, "send", "recovery", 5, 6]


def test_a_round_that_its_host_did_not_live_to_hear_of() -> None:
    lines = told({"h1.x": file(plan(1, a=0), "a>a:1"), "h1.y": file(plan(2, a=1))})
    assert [line["event"] for line in lines[1:]] == ["send", "checkpoint", "recovery"]


def test_an_agent_in_no_line_keeps_what_the_line_allows() -> None:
    """`gone` had left inside the line, `late` came after it, `down` is on a host that does not come up."""
    first = file(
        plan(1, a=0, down=0, gone=0),
        *("a>gone:1", ">a>gone:1", "gone>a:1", ">gone>a:1", "a>down:1", "a 1"),
        *(">a>down:1", "down 1", "a>late:1", ">a>late:1", "late>late:1", "a>down:2", ">a>down:2", "down>a:1"),
    )
    lines = told({"h1.x": first, "h1.y": file(plan(2, a=1)), "h1.z": file(plan(3, a=1, down=1))})
    found = [line["line"] for line in lines if line["event" if "event" in line else "agents"] == "recovery"]
    assert found == [{"a": 1, "down": 1, "late": 0}, {"a": 1, "down": 1}]
    names = [line.message for line in read_trace([json.dumps(line).encode() for line in lines]).events
             if isinstance(line, MessageSent)]  # fmt: skip
    assert names == ["a/1>gone:1", "gone/1>a:1", "a/1>down:1"]


def test_a_name_that_is_used_again_begins_anew() -> None:
    """Even if no sampled message tells that its first creation is undone."""
    files = {"h1": file(plan(1, a=0), "child 1", plan(2, a=0), "child 1", plan(3, a=0, child=1))}
    assert [line.get("line") for line in told(files)][2:] == [{"a": 0, "child": 0}, None, {"a": 0, "child": 1}]


def test_torn_and_blank_lines() -> None:
    lines = file(plan(1, a=0), "a>b:1", "a 1")
    torn = [*lines[:2], b"\n", lines[2][:20]]
    assert [line["event"] for line in told({"h1": torn})[1:]] == ["send"]
    with pytest.raises(TraceError, match="h1: line 4: no line of a host's trace"):
        merge_traces({"h1": [*torn, lines[2]]})


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"h": file("a>b:1")}, "h: line 1: agent 'a' moves before any plan"),
        ({"h": file(plan(2, a=0), plan(1, a=0))}, "h: line 2: plan 1 comes after plan 2"),
        ({"h": file(plan(1, a=0), {"event": "recovery", "line": {}})}, "h: line 2: no line of a host's trace"),
        ({"h": file(plan(1, a=0), "a 1", "a 1")}, "agent 'a' takes checkpoint 1 after checkpoint 1"),
        ({"h": file(plan(1, a=0), "a>b:1", "a>b:1")}, "agent 'a' sends 'a>b:1' twice"),
        (
            {"h": file(plan(1, a=0), {"event": "send", "agent": "a", "message": "b>a:1", "to": "b"})},
            "'b>a:1' to 'b': that is no message of it",
        ),
        ({"h": file(plan(3, a=7))}, "plan 3 puts agent 'a' at checkpoint 7.* is 0: trace a fleet from its first start"),
        ({"h": file(plan(3, a=1))}, "plan 3 puts agent 'a' at checkpoint 1"),
        ({"h": file(plan(1, a=0)), "i": file(plan(1, a=0), "a 1"), "j": file(plan(1), "a 1")}, "j and i: agent 'a'"),
        ({"h": file(plan(1, a=0), "a 1", plan(2, a=1)), "i": file(plan(2, a=0))}, "i: plan 2 puts agent 'a' at"),
        (
            {"h": file(plan(1, a=0), ">b>a:1", "a>b:1"), "i": file(plan(1, b=0), ">a>b:1", "b>a:1")},
            "'b>a:1', 'a>b:1'.* contradict each other",
        ),
    ],
)
def test_files_that_contradict_themselves_or_each_other(files: Files, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        merge_traces(files)


def test_nothing_makes_an_empty_trace() -> None:
    assert read(merge_traces({})) == read(merge_traces({"h": []})) == Trace([], [])
