"""What a host keeps of what it traces while somebody looks: within bounds, each line told once, and nothing while nobody does."""

import json
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.agent_runtime.driving import SECOND, Driver
from tests.agent_runtime.test_host_core_epochs import begin, mark

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host import host_trace
from snapline.agent_runtime.host.driver_interfaces import HostEnvironment
from snapline.agent_runtime.host.host_trace import KEPT_S, LOOK_S, RecentLines, Tracing
from snapline.errors import ProtocolError
from snapline.messages.client_requests import TRACE, Question, RecentTrace, TraceWanted
from snapline.messages.client_wire import decode_question, encode_question, trace_question, trace_wanted
from snapline.security.rpc_authorization import RPC_RULES


class Clock:
    """Time that a test moves, and what is to be called then."""

    def __init__(self) -> None:
        self.now = SECOND
        self.calls: list[tuple[int, Callable[[], None]]] = []

    def now_ns(self) -> int:
        return self.now

    def wall_ns(self) -> int:
        return 1_000 * SECOND + self.now

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        self.calls.append((self.now + round(delay_s * SECOND), function))

    def pass_by(self, seconds: float) -> None:
        end = self.now + round(seconds * SECOND)
        while due := [call for call in self.calls if call[0] <= end]:
            first = min(due, key=lambda call: call[0])
            self.calls.remove(first)
            self.now = first[0]
            first[1]()
        self.now = end


@pytest.fixture
def clock() -> Clock:
    return Clock()


def kept(clock: Clock, plan: int = 1) -> RecentLines:
    return RecentLines("h1", "1-1", clock.wall_ns, plan=plan)


def lines_of(answer: RecentTrace) -> list[dict[str, Any]]:
    return [json.loads(bytes(line)) for line in answer.lines]


def numbers_of(answer: RecentTrace) -> list[int]:
    """Of messages, those of the channel."""
    return [int(line["message"].rpartition(":")[2]) for line in lines_of(answer) if line["event"] == "send"]


# -- lines and cursors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_who_asks_with_cursors_has_every_line_once_and_knows_how_many_are_missing(
    clock: Clock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks how often and for how much: several with cursors of their own."""
    monkeypatch.setattr(host_trace, "RECENT_LINES_MAX", 12)
    chance, lines = random.Random(seed), kept(clock)
    cursors, told, missed = ["", "", ""], [list[int](), list[int](), list[int]()], [0, 0, 0]
    traced = 0
    for who in range(3):
        cursors[who] = lines.since(TraceWanted())().cursor
    for _ in range(200):
        for _ in range(chance.randrange(9)):
            traced += 1
            lines.message("send", "a", "b", traced)
        who = chance.randrange(3)
        most = chance.choice([3, 5, 100])
        answer = lines.since(TraceWanted(cursors[who], 1, most))()
        found = numbers_of(answer)
        assert len(found) <= min(most, 12) and found == list(range(traced - len(found) + 1, traced + 1)), (
            "the newest, in order"
        )
        cursors[who] = answer.cursor
        told[who] += found
        missed[who] += answer.missed
        assert len(told[who]) + missed[who] == traced and len(set(told[who])) == len(told[who])
    assert sum(missed) > 0 and min(map(len, told)) > 50


def test_a_host_keeps_so_many_lines_and_tells_none_that_is_old(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_trace, "RECENT_LINES_MAX", 100)
    lines = kept(clock)
    for number in range(host_trace.RECENT_LINES_MAX + 5):
        lines.message("send", "a", "b", number)
    answer = lines.since(TraceWanted("1-1.0", most=1 << 30))()
    assert len(numbers_of(answer)) == host_trace.RECENT_LINES_MAX and answer.missed == 5
    clock.pass_by(KEPT_S + 1)
    lines.message("send", "a", "b", 7)
    assert numbers_of(lines.since(TraceWanted())()) == [7]


@pytest.mark.parametrize(
    "cursor", ["", "1-2.1", "1-1", "1-1.", "1-1.x", "1-1.-1", f"1-1.{'9' * 5000}", "nonsense", "²"]
)
def test_a_cursor_that_is_none_of_this_run_is_of_one_who_has_had_nothing(clock: Clock, cursor: str) -> None:
    lines = kept(clock)
    lines.message("send", "a", "b", 1)
    answer = lines.since(TraceWanted(cursor))()
    assert (numbers_of(answer), answer.cursor, answer.missed) == ([1], "1-1.1", 0)


def test_a_cursor_beyond_the_end_is_at_the_end(clock: Clock) -> None:
    lines = kept(clock)
    lines.message("send", "a", "b", 1)
    answer = lines.since(TraceWanted("1-1.999999999999999999"))()
    assert (answer.lines, answer.cursor, answer.missed) == ([], "1-1.1", 0)


def test_who_begins_late_is_told_that_nothing_is_missing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_trace, "RECENT_LINES_MAX", 3)
    lines = kept(clock)
    for number in range(10):
        lines.message("send", "a", "b", number)
    assert lines.since(TraceWanted())().missed == 0


def test_each_answer_says_first_what_its_lines_are_under(clock: Clock) -> None:
    """Also where the plan's own line was told before, or is told now."""
    lines = kept(clock, plan=4)
    lines.message("send", "a", "b", 1)
    first = lines.since(TraceWanted())()
    lines.checkpoint("a", 2, "coordinated", (7,))
    lines.plan(5, {"a": 2})
    lines.marker("send_marker", "h1", "h2", 8)
    second = lines.since(TraceWanted(first.cursor))()
    lines.marker("receive_marker", "h1", "h2", 8)
    third = lines.since(TraceWanted(second.cursor))()
    told = [[{k: v for k, v in line.items() if k != "time_ns"} for line in lines_of(each)] for each in (first, second)]
    assert told[0][0] == {"event": "plan", "plan": 4, "line": {}} and told[0][1]["message"] == "a>b:1"
    assert told[1] == [
        {"event": "plan", "plan": 4, "line": {}},
        {"event": "checkpoint", "agent": "a", "index": 2, "kind": "coordinated", "epochs": [7]},
        {"event": "plan", "plan": 5, "line": {"a": 2}},
        {"event": "send_marker", "host": "h1", "to": "h2", "epoch": 8},
    ]
    assert [(line["event"], line.get("plan"), line.get("from")) for line in lines_of(third)] == [
        ("plan", 5, None),
        ("receive_marker", None, "h2"),
    ]


# -- who looks -----------------------------------------------------------------------------------------------------------


class File:
    """A sink that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def message(self, what: str, agent: str, other: str, number: int) -> None:
        self.told.append((what, agent, other, number))

    def marker(self, what: str, host: str, other: str, epoch: int) -> None:
        self.told.append((what, host, other, epoch))

    def checkpoint(self, agent: str, number: int, kind: str, epochs: tuple[int, ...] = ()) -> None:
        self.told.append(("checkpoint", agent, number, kind, epochs))

    def plan(self, number: int, line: dict[str, int]) -> None:
        self.told.append(("plan", number))

    def flush(self) -> None: ...


class Traced:
    """A host core whose traces go where they belong."""

    def __init__(self, clock: Clock, file: File | None = None, file_every: int = 1) -> None:
        self.driver = Driver()
        self.driver.core.shared.trace_every = file_every if file is not None else 0
        around = cast(HostEnvironment, clock)  # of which it needs three calls
        self.tracing = Tracing(around, self.driver.core, self._feed, file, file_every)

    def _feed(self, event: ev.Event) -> None:
        for command in self.driver.feed(event):
            self._carry(command)

    def _carry(self, command: ev.HostOutput) -> None:
        if isinstance(command, ev.Trace):
            self.tracing.carry(command)

    def send(self, count: int = 1) -> int:
        """`a` sends so many messages to `b`; how often the core traces it."""
        found = 0
        for _ in range(count):
            self.driver.wake("a")
            for command in self.driver.end("a", ("b", b"\x01p")):
                found += isinstance(command, ev.Trace) and command.what == "send"
                self._carry(command)
            self.driver.end_all()
        return found

    def ask(self, cursor: str = "", every: int = 1) -> RecentTrace:
        return self.tracing.recent(TraceWanted(cursor, every))()


def test_while_nobody_looks_the_core_traces_nothing(clock: Clock) -> None:
    traced = Traced(clock)
    assert traced.send(5) == 0 and not traced.tracing.is_on and traced.driver.core.shared.trace_every == 0


def test_it_traces_from_the_first_question_on_and_stops_when_nobody_has_asked_for_some_seconds(clock: Clock) -> None:
    traced = Traced(clock)
    assert traced.ask().lines == [], "nothing was kept before"
    assert traced.tracing.is_on and traced.send(3) == 3
    clock.pass_by(LOOK_S - 0.1)
    first = traced.ask()
    assert numbers_of(first) == [1, 2, 3]
    clock.pass_by(LOOK_S - 0.1)
    assert traced.send() == 1, "somebody has asked meanwhile"
    clock.pass_by(0.2)
    assert traced.send() == 0 and not traced.tracing.is_on and traced.driver.core.shared.trace_every == 0
    assert clock.calls == [], "no timer is left"
    again = traced.ask(first.cursor)
    assert again.lines == [] and again.cursor.partition(".")[0] != first.cursor.partition(".")[0], "it kept nothing"
    assert traced.send() == 1


def test_both_ends_trace_the_same_messages_and_a_file_gets_its_own(clock: Clock) -> None:
    file = File()
    traced = Traced(clock, file, file_every=3)
    traced.ask(every=2)
    traced.send(12)
    assert [each[3] for each in file.told if each[0] == "send"] == [3, 6, 9, 12]
    assert numbers_of(traced.ask(every=2)) == [2, 4, 6, 8, 10, 12]
    clock.pass_by(LOOK_S + 1)
    assert traced.driver.core.shared.trace_every == 3 and traced.tracing.is_on
    traced.send(3)
    assert [each[3] for each in file.told if each[0] == "send"] == [3, 6, 9, 12, 15]


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_a_marker_is_traced_at_both_ends_under_one_name(clock: Clock, is_looked_at: bool) -> None:
    traced = Traced(clock)
    if is_looked_at:
        traced.ask()
    driver = traced.driver
    driver.connect()
    begin(driver, 1)
    mark(driver, 1)
    found = [(each.what, each.agent, each.other, each.number) for each in driver.all_of(ev.Trace)]
    markers = [("send_marker", "h1", "h2", 1), ("receive_marker", "h1", "h2", 1)]
    assert found == (markers if is_looked_at else [])


# -- the question --------------------------------------------------------------------------------------------------------


def test_a_question_comes_as_it_was_asked_and_a_wrong_one_is_refused() -> None:
    wanted = TraceWanted("1-1.7", 16, 300)
    assert trace_wanted(decode_question(encode_question(trace_question(wanted)))) == wanted
    assert trace_wanted(Question("", TRACE)) == TraceWanted()
    for wrong in ('{"every":0}', '{"every":1048577}', '{"most":0}', '{"other":1}', "[]", "{", "{}}"):
        with pytest.raises(ProtocolError, match="no part of a trace"):
            trace_wanted(Question("", TRACE, wrong))


# -- who may -------------------------------------------------------------------------------------------------------------

MAY = {
    "viewer": True,
    "approver": True,
    "operator": True,
    "admin": True,
    "host": False,
    "coordinator": False,
    "client": False,
}


@pytest.mark.parametrize("rpc", ["/snapline.protos.v1.Agents/Show", "/snapline.protos.v1.Coordinator/Status"])
def test_who_may_look_may_see_what_happens_and_nobody_else(rpc: str) -> None:
    """What the screen asks: who is there, and each host what it has traced. It changes nothing that outlives a few seconds, and is no act."""
    door = RPC_RULES[rpc]
    assert {role for role, may in MAY.items() if may} <= set(door.roles) and not door.changes_state
    if rpc.endswith("Show"):
        assert set(door.roles) == {role for role, may in MAY.items() if may}
