"""Steps that run at the same time in a durable turn: `ctx.gather`, its places in the journal, and what a recovery does with it."""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent_runtime.driving import MS, Driver
from tests.agent_runtime.test_durable import SEED, Clock, Go, Notes, Told, saved
from tests.agent_runtime.test_durable_turns import GO, control
from tests.agent_runtime.test_step_log import appended, batches

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import (
    DONE,
    FAILED,
    GROUP_MAX,
    LATE,
    LOST,
    GroupEnd,
    Pause,
    SegmentEnd,
    TurnJournal,
    call_id,
    encode_error,
    encode_result,
    reply_payload,
    rolled,
)
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.durable_turns import DurableTurns
from snapline.agent_runtime.host.host_log import PendingEntry, StepLog
from snapline.agent_runtime.host.host_state import DurableTurn, LocalAgent
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.errors import DivergenceError, StepFailedError, UsageError
from snapline.messages import host_messages as msg
from snapline.messages.payloads import REPLY
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import TURN_TIMER, JournalEntry, SavedTurn

# -- the handler's side ---------------------------------------------------------------------------------------------------


def context(begun: SavedTurn | None = None, logged: Sequence[LoggedEntry] = ()) -> Context:
    ctx = Context("a", 1, "z", Clock())
    ctx.begin(journal=TurnJournal(SEED, begun, logged))
    return ctx


def open_group(journal: Sequence[JournalEntry], members: Sequence[JournalEntry]) -> SavedTurn:
    turn = saved(journal)
    return SavedTurn(turn.what, turn.sender, turn.payload, turn.seed, "", turn.journal, None, list(members))


async def play(ctx: Context, sizes: Sequence[int], seen: list[object]) -> None:
    """A handler that runs groups of these sizes, and single steps for 0."""
    for index, size in enumerate(sizes):
        if size:
            seen.append(await ctx.gather(*[ctx.step(f"g{index}.{n}", int, index * 100 + n) for n in range(size)]))
        else:
            seen.append(await ctx.step(f"s{index}", int, index))
        ctx.send("c", Told(index))


def ended(stand: SegmentEnd, place: int) -> JournalEntry:
    """The entry of a step that has ended: a member of the group, or the single step."""
    work = stand.works[place] if stand.works else stand.work
    request = stand.members[place - min(place_of(stand))] if stand.works else stand.waits
    assert work is not None
    result = encode_result(request.name, work.function())
    return JournalEntry(request.kind, request.name, request.digest, DONE, result)


def place_of(stand: SegmentEnd) -> range:
    """The places of the group, of which some members may have ended before."""
    first = next(iter(stand.works)) - [bool(member.outcome) for member in stand.members].index(False)
    return range(first, first + len(stand.members))


@given(st.data())
def test_results_are_in_order_and_each_step_runs_once_wherever_the_turn_is_cut(data: st.DataObject) -> None:
    """Members end in any order. The process may die between any two events: the journal and the members that have ended are kept."""
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=4))
    expected = [[index * 100 + n for n in range(size)] if size else index for index, size in enumerate(sizes)]
    chosen = random.Random(data.draw(st.integers(0, 2**32)))
    journal: list[JournalEntry] = []
    members: list[JournalEntry] = []
    waits: JournalEntry | None = None
    ran: list[str] = []
    sent = 0
    coroutine: Any = None
    found: Any = None
    while True:
        if coroutine is None:
            begun = None
            if journal or members or waits is not None:
                begun = SavedTurn("message", "z", saved().payload, SEED, "", journal, waits, members)
            seen: list[object] = []
            ctx, found = context(begun), None
            coroutine = play(ctx, sizes, seen)
        try:
            stand = coroutine.send(found)
        except StopIteration:
            sent += len(ctx.take_segment().sends)
            break
        segment = ctx.take_segment()
        sent += 0 if stand.is_repeated else len(segment.sends)
        journal, members = [*journal, *stand.entries], list(stand.members)
        waits = None if members else stand.waits
        open_members = [place for place in stand.works] if members else [len(journal)]
        chosen.shuffle(open_members)
        for place in open_members:
            if data.draw(st.booleans()):
                break
            entry = ended(stand, place)
            ran.append(entry.name)
            if members:
                members[place - len(journal)] = entry
            else:
                waits, journal = None, [*journal, entry]
        if members and all(member.outcome for member in members):
            found, journal, members = members, [*journal, *members], []
            if data.draw(st.booleans()):
                coroutine = None
        elif not members and waits is None:
            found = journal[-1]
        else:
            coroutine = None  # the process dies while steps run
    assert seen == expected and sent == len(sizes)
    names = [f"g{i}.{n}" for i, size in enumerate(sizes) for n in range(size)]
    names += [f"s{index}" for index, size in enumerate(sizes) if not size]
    assert sorted(ran) == sorted(names), "each step has run once"


def failing(*outcomes: str) -> list[JournalEntry]:
    errors = [encode_error(ValueError(f"step {n}")) for n in range(len(outcomes))]
    return [
        JournalEntry("step", f"s{n}", b"", outcome, errors[n] if outcome == FAILED else encode_result(f"s{n}", n))
        for n, outcome in enumerate(outcomes)
    ]


def test_the_first_failure_in_the_order_of_the_steps_is_raised() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.gather(*[ctx.step(f"s{n}", int) for n in range(3)])

    coroutine = handler(context())
    stand = coroutine.send(None)
    assert isinstance(stand, SegmentEnd) and [member.name for member in stand.members] == ["s0", "s1", "s2"]
    with pytest.raises(StepFailedError, match="step 's1' failed: ValueError: step 1"):
        coroutine.send(failing(DONE, FAILED, FAILED))


def first_of(members: Any) -> SegmentEnd:
    async def handler(ctx: Context) -> None:
        await ctx.gather(*members(ctx))

    coroutine = handler(context())
    try:
        stand = coroutine.send(None)
    finally:
        coroutine.close()
    assert isinstance(stand, SegmentEnd)
    return stand


async def saga_in_member(ctx: Context) -> None:
    async with ctx.saga("trip"):
        await ctx.step("s", int)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (lambda ctx: [ctx.effect("pay", int, 1, key="k"), ctx.effect("p", int, 1, key="k")], "have the key 'k'"),
        (lambda ctx: [saga_in_member(ctx)], "a member of a group has no saga in it"),
        (lambda ctx: [ctx.sleep_until(datetime.now(UTC))], "reads the clock: .* use ctx.sleep in it"),
        (lambda ctx: [7], "a group takes .*, and not a int"),
        (lambda ctx: [ctx.gather(ctx.step("s", int))], "a group has no groups in it: a group takes"),
        (lambda ctx: [ctx.rolled_back()], "known at once and is no member of a group: a group takes"),
        (lambda ctx: [ctx.step(f"s{n}", int) for n in range(GROUP_MAX + 1)], "at most 64 members, not 65"),
        (lambda ctx: [ctx.receive(Told), ctx.receive(Told)], "one ctx.receive of each type"),
    ],
    ids=["one key", "saga", "clock", "value", "group", "rollbacks", "too many", "received twice"],
)
def test_what_a_group_cannot_take_is_refused_in_a_sentence(members: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        first_of(members)


def test_a_plain_turn_has_no_groups() -> None:
    ctx = Context("a", 1, "z", Clock())
    ctx.begin()
    with pytest.raises(UsageError, match=r"ctx\.gather waits, and a plain turn cannot"):
        ctx.gather().send(None)


def test_a_member_that_asks_for_more_than_one_step_is_refused() -> None:
    async def two(ctx: Context) -> None:
        await ctx.step("one", int)
        await ctx.step("two", int)

    async def handler(ctx: Context) -> None:
        await ctx.gather(two(ctx))

    coroutine = handler(context())
    coroutine.send(None)
    with pytest.raises(UsageError, match=r"a member of a group waits once"):
        coroutine.send([JournalEntry("step", "one", b"", DONE, encode_result("one", 0))])


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_turn_that_stood_in_a_group_and_asks_for_another_one_diverges(size: int) -> None:
    async def handler(ctx: Context) -> None:
        if size:
            await ctx.gather(*[ctx.step(f"s{n}", int) for n in range(size)])
        else:
            await ctx.step("s0", int)

    request = [JournalEntry("step", f"s{n}", b"") for n in range(2)]
    with pytest.raises(DivergenceError, match=r"entry 1 of the turn's journal begins a group of 2, and now"):
        handler(context(open_group([], request))).send(None)


def test_logged_members_are_adopted_whatever_other_members_returned() -> None:
    requests = [JournalEntry("step", f"s{n}", b"") for n in range(3)]
    result = JournalEntry("step", "s2", b"", DONE, encode_result("s2", 5))
    logged = [LoggedEntry("a", 1, SEED, 2, rolled(b"", requests[:2]), result)]

    async def handler(ctx: Context) -> list[Any]:
        return await ctx.gather(*[ctx.step(f"s{n}", int) for n in range(3)])

    coroutine = handler(context(logged=logged))
    stand = coroutine.send(None)
    assert isinstance(stand, SegmentEnd)
    assert stand.members == [*requests[:2], result] and list(stand.works) == [0, 1]
    other = [LoggedEntry("a", 1, SEED, 2, rolled(b"", [result]), result)]
    stand = handler(context(logged=other)).send(None)
    assert isinstance(stand, SegmentEnd) and list(stand.works) == [0, 1, 2], "that one has another past"


class Grouping(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        while True:
            await ctx.gather(*[ctx.step(f"s{n}", int) for n in range(3)])


class Task:
    """A step that runs, as the runtime holds it."""

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def test_all_steps_of_a_group_are_cancelled_with_their_turn_and_none_of_earlier_groups() -> None:
    tasks: list[Task] = []

    def begin(coroutine: Any) -> Task:
        tasks.append(Task(coroutine))
        return tasks[-1]

    fleet = snapline.Fleet("groups", agents={"a": Grouping(Notes())})
    turns = Turns(fleet, lambda event: None, lambda text: None, start=begin)
    turns.add("a", fleet.make("a"))
    turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(Go())))
    for number in range(3):
        for place in range(3 * number, 3 * number + 3):
            turns.run_step(ev.RunStep("a", 1, place, f"s{place % 3}"))
        if number < 2:
            done = tuple(JournalEntry("step", f"s{n}", b"", DONE, encode_result(f"s{n}", 0)) for n in range(3))
            turns.run(ev.StartTurn("a", 1, "segment", "z", b"", group=done))
    turns.forget("a")
    assert [task.is_cancelled for task in tasks] == [False] * 6 + [True] * 3
    for task in tasks:
        task.coroutine.close()


# -- the core's side ------------------------------------------------------------------------------------------------------

MEMBERS = [JournalEntry("step", f"s{n}", b"") for n in range(3)]


def group_begun() -> Driver:
    """A driver with an open log, whose agent `a` waits for a group."""
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    driver.end("a", pause=Pause(SEED, MEMBERS[0], None, [], True, members=MEMBERS, timeouts_ns=[None] * 3))
    driver.feed(msg.LogOpened(1))
    return driver


def asked_of(driver: Driver) -> list[tuple[int, str]]:
    return [(each.place, each.name) for each in driver.said if isinstance(each, ev.RunStep)]


def end(driver: Driver, place: int, outcome: str = DONE) -> None:
    driver.feed(ev.StepEnded("a", 1, place, outcome, b"%d" % place))


def member(place: int, outcome: str = DONE) -> JournalEntry:
    return JournalEntry("step", f"s{place}", b"", outcome, b"%d" % place)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_turn_goes_on_when_all_members_are_in_the_log(order: tuple[int, ...]) -> None:
    driver = group_begun()
    assert asked_of(driver) == [(0, "s0"), (1, "s1"), (2, "s2")]
    for place in order:
        assert "a" not in driver.turns
        end(driver, place)
        end(driver, place, FAILED)  # a late or repeated end counts for nothing
        if place == order[0]:
            driver.feed(msg.LogOpened(1))
    durable = 0
    while "a" not in driver.turns:
        appended(driver)
        durable += 1
    assert durable == len(batches(driver)), "it goes on when all is durable, and not before"
    turn = driver.turns["a"]
    assert turn.group == tuple(member(place) for place in range(3)) and turn.found is None
    logged = [entry for batch in batches(driver) for entry in batch.entries]
    expected = [LoggedEntry("a", 1, SEED, n, rolled(b"", MEMBERS[:n]), member(n)) for n in order]
    assert logged == expected


def test_a_checkpoint_contains_the_members_that_have_ended() -> None:
    driver = group_begun()
    end(driver, 1)
    turn = control(driver).turn
    assert turn is not None and (turn.journal, turn.members) == ([], [MEMBERS[0], member(1), MEMBERS[2]])
    assert turn.awaited == MEMBERS[0]


def test_only_failed_members_run_again_when_the_turn_is_retried() -> None:
    driver = group_begun()
    for place, outcome in ((0, FAILED), (1, DONE), (2, FAILED)):
        end(driver, place, outcome)
    while "a" not in driver.turns:
        appended(driver)
    del driver.turns["a"]
    driver.feed(ev.TurnFailed("a", 1, "StepFailedError", 0, "undo", 3, False, (0,), is_durable=True, is_of_step=True))
    turn = driver.core.agents["a"].turn
    assert turn is not None and turn.members == [MEMBERS[0], member(1), MEMBERS[2]] and turn.journal == []


@pytest.mark.parametrize("ends_at", ["failure", "first"])
def test_a_retried_group_has_the_time_limits_of_its_cancelled_members_again(ends_at: GroupEnd) -> None:
    members = [JournalEntry("sleep", "", b"5"), JournalEntry("step", "s")]
    timeouts_ns = [100 * MS, None]
    driver = Driver()
    driver.remote_sends("z", "a", GO)
    driver.feed(msg.LogOpened(1))
    pause = Pause(SEED, members[0], None, [], True, members=members, timeouts_ns=timeouts_ns, ends_at=ends_at)
    for _ in range(2):
        driver.end("a", pause=pause)
        end(driver, 1, FAILED)
        while "a" not in driver.turns:
            appended(driver)
        assert not driver.core.agents["a"].timers
        driver.fail("a", retries=9, is_durable=True, is_of_step=True)
    driver.end("a", pause=pause)
    driver.feed(ev.TimerFired(), 101 * MS)
    if ends_at == "first":
        assert [each.outcome for each in driver.turns["a"].group] == [DONE, LOST]
    else:
        turn = driver.core.agents["a"].turn
        assert turn is not None and [each.outcome for each in turn.members] == [DONE, ""]


def test_an_approval_of_a_retried_group_has_its_details_again() -> None:
    async def handle(ctx: Context) -> None:
        await ctx.gather(ctx.approval("refund", {"amount": 7}), ctx.step("s", int), on_error="cancel")

    first: SegmentEnd = handle(context()).send(None)
    reopened = [JournalEntry(each.kind, each.name, each.digest) for each in first.members]
    again: SegmentEnd = handle(context(open_group([], reopened))).send(None)
    assert again.members == first.members and first.members[0].result


# -- calls, messages and sleeps -------------------------------------------------------------------------------------------

MIXED = [
    JournalEntry("call", "z"),
    JournalEntry("step", "s"),
    JournalEntry("receive", "Told"),
    JournalEntry("call", "z", b"2"),
    JournalEntry("sleep", "", b"3"),
    JournalEntry("call", "b"),
]
TOLD = encode_message(Told(5))


def mixed(members: Sequence[JournalEntry] = MIXED) -> Driver:
    """A driver whose agent `a` waits for calls, a step, a message and a sleep at the same time."""
    driver = Driver(here=("a", "b"))
    driver.remote_sends("z", "a", GO)
    timeouts_ns = [None if each.kind == "step" else (index + 1) * 100 * MS for index, each in enumerate(members)]
    pause = Pause(SEED, members[0], None, [], True, members=list(members), timeouts_ns=timeouts_ns)
    driver.end("a", ("b", GO), ("z", GO), pause=pause)
    return driver


def reply(place: int) -> bytes:
    return reply_payload(call_id(SEED, place), b"%d" % place)


def do(driver: Driver, what: str) -> None:
    match what:
        case "replies":  # those of two calls, in the other order, and a message between them that nobody awaits
            driver.remote_sends("z", "a", reply(3), encode_message(Go()), reply(0))
        case "step":
            end(driver, 1)
            driver.feed(msg.LogOpened(1))
        case "message":
            driver.remote_sends("z", "a", TOLD)
        case "local":
            driver.end("b", ("a", reply(5)))
        case "time":
            driver.feed(ev.TimerFired(), 500 * MS)


WAYS = list(itertools.permutations(["replies", "step", "message", "local"]))


@pytest.mark.parametrize("order", [*WAYS, ("time",)])
def test_members_of_all_kinds_end_in_any_order(order: tuple[str, ...]) -> None:
    """Whatever comes first, the group has one outcome."""
    driver = mixed()
    for what in order:
        assert "a" not in driver.turns
        do(driver, what)
    if order == ("time",):
        do(driver, "step")
        do(driver, "local")
    else:
        do(driver, "time")
    appended(driver)
    group = driver.turns["a"].group
    if order == ("time",):
        outcomes = [LATE, DONE, LATE, LATE, DONE, DONE]
        assert [each.outcome for each in group] == outcomes
    else:
        assert [(each.outcome, each.result) for each in group] == [
            *((DONE, b"0"), (DONE, b"1"), (DONE, TOLD), (DONE, b"3"), (DONE, b""), (DONE, b"5"))
        ]
        stash = driver.core.agents["a"].stash
        assert [each.payload for each in stash] == [encode_message(Go())], "it is put off until the turn has ended"
    assert not [name for name in driver.core.agents["a"].timers if name], "no time limit is left"
    driver.end("a")
    driver.core.validate()


def test_replies_that_wait_together_are_all_found() -> None:
    """Taking one reply consumes all that precedes it on its channel, among it the reply to another call of the group."""
    driver = mixed()
    agent = driver.core.agents["a"]
    agent.is_held = True
    do(driver, "replies")
    agent.is_held = False
    do(driver, "step")
    assert agent.turn is not None
    assert [each.outcome for each in agent.turn.members] == [DONE, DONE, "", DONE, "", ""]


def test_calls_of_a_group_to_an_agent_that_is_gone_end_without_replies() -> None:
    driver = mixed()
    turn = driver.core.agents["a"].turn
    assert turn is not None
    driver.remote_sends("z", "a", reply(3))
    driver.core._durable.gone(driver.core.agents["a"], "z")
    assert [(each.outcome, each.result) for each in turn.members] == [
        *((DONE, b""), ("", b""), ("", b""), (DONE, b"3"), ("", b""), ("", b""))
    ]


def test_the_time_limits_of_a_group_are_forgotten_with_its_turn() -> None:
    driver = mixed()
    agent = driver.core.agents["a"]
    assert agent.turn is not None and sum(name.startswith(TURN_TIMER) for name in agent.timers) == 5
    driver.core._durable.ended(agent)
    assert not agent.timers


def replies_before_it_dropped(patch: pytest.MonkeyPatch) -> None:
    find = DurableTurns._find

    def find_last(self: DurableTurns, agent: LocalAgent, turn: DurableTurn) -> bool:
        replies = [place for place, entry in enumerate(agent.mailbox) if entry.payload.startswith(REPLY)]
        if turn.members and len(replies) > 1:
            turn.look.mailbox = replies[-1]
        return find(self, agent, turn)

    patch.setattr(DurableTurns, "_find", find_last)


def one_timer_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("snapline.agent_runtime.host.durable_turns.timer_of", lambda turn, place: TURN_TIMER)


def calls_by_the_place_of_the_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "snapline.agent_runtime.host.durable_turns._reply_to",
        lambda turn, place: reply_payload(call_id(turn.seed, len(turn.journal)), b""),
    )


def only_the_last_step_awaited(patch: pytest.MonkeyPatch) -> None:
    def put(self: StepLog, turn: DurableTurn, entries: Iterable[LoggedEntry]) -> None:
        for entry in entries:
            self._log.put(PendingEntry(entry, turn))
            turn.unlogged = 1
        self._log.append()

    patch.setattr(StepLog, "_put", put)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (replies_before_it_dropped, test_replies_that_wait_together_are_all_found),
        (one_timer_for_all, lambda: test_members_of_all_kinds_end_in_any_order(("time",))),
        (calls_by_the_place_of_the_group, lambda: test_members_of_all_kinds_end_in_any_order(WAYS[0])),
        (only_the_last_step_awaited, lambda: test_a_turn_goes_on_when_all_members_are_in_the_log((0, 1, 2))),
    ],
)
def test_a_mutant_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, KeyError)):
        test()
