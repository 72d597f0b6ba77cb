"""Groups that end early: `ctx.race` and `on_error="cancel"`, what the log holds of them, and that a recovery does not decide again."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from tests.agent_runtime.driving import MS, Driver
from tests.agent_runtime.test_durable import SEED, Go, Notes, Told
from tests.agent_runtime.test_durable_turns import GO, control
from tests.agent_runtime.test_groups import MEMBERS, MIXED, TOLD, Task, asked_of, context, do, end, member, open_group
from tests.agent_runtime.test_step_log import appended, batches

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import (
    DECISION,
    DONE,
    FAILED,
    LATE,
    LOST,
    GroupEnd,
    Pause,
    SegmentEnd,
    decision_of,
    encode_error,
    encode_result,
    rolled,
)
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.recorded_answers import AnswerBook
from snapline.errors import StepFailedError, UsageError
from snapline.messages import host_messages as msg
from snapline.storage.log.answer_files import RecordedAnswer, RecordedAnswers
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry

EARLY: list[GroupEnd] = ["first", "failure"]


def begun(
    ends_at: GroupEnd, members: Sequence[JournalEntry] = MEMBERS, *, driver: Driver | None = None, timed: bool = False
) -> Driver:
    """A driver with an open log, whose agent `a` waits for a group that ends early."""
    driver = driver or Driver(here=("a", "b"))
    driver.remote_sends("z", "a", GO)
    timeouts_ns = [
        None if each.kind == "step" or not timed else (place + 1) * 100 * MS for place, each in enumerate(members)
    ]
    pause = Pause(SEED, members[0], None, [], True, {}, list(members), timeouts_ns, ends_at)
    driver.end("a", ("b", GO), ("z", GO), pause=pause)
    driver.feed(msg.LogOpened(1))
    return driver


def logged(driver: Driver) -> list[LoggedEntry]:
    return [entry for batch in batches(driver) for entry in batch.entries]


def durable(driver: Driver) -> list[LoggedEntry]:
    """Make all that was given to the log durable, and return it."""
    known = 0
    while known < len(batches(driver)):
        known += 1
        appended(driver)
    return logged(driver)


def outcomes(driver: Driver) -> list[str]:
    return [each.outcome for each in driver.turns["a"].group]


# -- the core's side ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3), 2)))
def test_the_first_step_ends_a_race_and_the_log_holds_the_decision_with_it(order: tuple[int, int]) -> None:
    driver, (first, late) = begun("first"), order
    end(driver, first)
    end(driver, late)
    assert "a" not in driver.turns, "the decision is not durable yet"
    entries = durable(driver)
    expected = [member(place) if place == first else JournalEntry("step", f"s{place}", b"", LOST) for place in range(3)]
    assert driver.turns["a"].group == tuple(expected)
    assert [(each.place, each.prefix) for each in entries] == [
        (first, rolled(b"", MEMBERS[:first])),
        (0, rolled(b"", MEMBERS)),
    ]
    assert [each.entry for each in entries] == [member(first), decision_of(expected, "first")]
    assert len(batches(driver)) == 1, "a crash loses both or none"


def test_the_first_failure_ends_a_group_that_cancels_and_what_had_ended_stays() -> None:
    driver = begun("failure")
    end(driver, 2)
    assert "a" not in driver.turns and len(logged(driver)) == 1
    end(driver, 0, FAILED)
    durable(driver)
    assert outcomes(driver) == [FAILED, LOST, DONE]
    assert [(each.entry.kind, each.entry.outcome) for each in logged(driver)] == [
        ("step", DONE), ("step", FAILED), (DECISION, FAILED),
    ]  # fmt: skip
    del driver.turns["a"]
    driver.feed(ev.TurnFailed("a", 1, "StepFailedError", 0, "undo", 3, False, (0,), is_durable=True, is_of_step=True))
    turn = driver.core.agents["a"].turn
    assert turn is not None and turn.members == [MEMBERS[0], MEMBERS[1], member(2)], "those run again"


def test_a_group_that_cancels_and_does_not_fail_waits_for_all() -> None:
    driver = begun("failure")
    for place in (2, 0, 1):
        assert "a" not in driver.turns
        end(driver, place)
    durable(driver)
    assert outcomes(driver) == [DONE] * 3 and not [each for each in logged(driver) if each.entry.kind == DECISION]


WINNERS = {"replies": (0, DONE), "step": (1, DONE), "message": (2, DONE), "local": (5, DONE), "time": (0, LATE)}


@pytest.mark.parametrize("what", WINNERS)
def test_whatever_comes_first_wins_and_the_rest_consumes_nothing(what: str) -> None:
    driver = begun("first", MIXED, timed=True)
    place, outcome = WINNERS[what]
    if what == "time":
        driver.feed(ev.TimerFired(), 100 * MS)
    elif what == "step":
        end(driver, 1)
    else:
        do(driver, what)
    durable(driver)
    won = next(index for index, each in enumerate(driver.turns["a"].group) if each.outcome != LOST)
    assert (won, driver.turns["a"].group[won].outcome) == ((3, DONE) if what == "replies" else (place, outcome))
    assert bool(logged(driver)) == (what == "step"), "another history may bring other messages"
    agent = driver.core.agents["a"]
    assert not [name for name in agent.timers if name], "no time limit is left"
    driver.end("a")
    for later in ("message", "replies", "local"):
        if later != what:
            do(driver, later)
    begun_later = []
    while "a" in driver.turns:
        begun_later.append(driver.turns["a"].payload)
        driver.end("a")  # the runtime ignores replies that come too late
    assert (TOLD in begun_later) == (what != "message"), "a message that lost has a turn of its own"
    driver.core.validate()


def test_an_approval_that_loses_expires() -> None:
    members = [JournalEntry("approval", "pay?", b"d" * 16, "", b"details"), MEMBERS[1]]
    driver = begun("first", members, timed=True)
    agent = driver.core.agents["a"]
    end(driver, 1)
    assert agent.approvals is not None and [each.is_granted for each in agent.approvals.decided] == [False]
    durable(driver)
    assert driver.turns["a"].group[0] == JournalEntry("approval", "pay?", b"d" * 16, LOST)


def test_a_checkpoint_holds_how_a_race_ended() -> None:
    driver = begun("first")
    end(driver, 1)
    turn = control(driver).turn
    assert turn is not None and [each.outcome for each in turn.journal] == [LOST, DONE, LOST] and not turn.members


@pytest.mark.parametrize("is_complete", [False, True])
def test_what_has_a_recorded_answer_comes_first(is_complete: bool) -> None:
    driver = Driver(here=("a", "b"))
    answer = RecordedAnswer("a", "step", "s1", b"", 1, DONE, encode_result("s1", 7))
    driver.core.shared.answers = AnswerBook(RecordedAnswers([answer], is_complete, False))
    begun("first", driver=driver)
    assert asked_of(driver) == [(1, "s1")] and [x.place for x in driver.said if isinstance(x, ev.TakeAnswer)] == [1]


# -- the handler's side ---------------------------------------------------------------------------------------------------

LOST_MEMBERS = [JournalEntry("step", f"s{n}", b"", LOST) for n in range(3)]


def won(place: int, outcome: str = DONE) -> list[JournalEntry]:
    result = encode_result("s", place) if outcome == DONE else encode_error(ValueError("no"))
    entry = JournalEntry("step", f"s{place}", b"", outcome, result)
    return [*LOST_MEMBERS[:place], entry, *LOST_MEMBERS[place + 1 :]]


async def race(ctx: Context, seen: list[Any]) -> None:
    seen.append(await ctx.race(*[ctx.step(f"s{n}", int) for n in range(3)]))


def log_of(entries: Sequence[JournalEntry], ends_at: GroupEnd = "first") -> list[LoggedEntry]:
    """What the log holds of a group that has ended like this."""
    steps = [
        LoggedEntry("a", 1, SEED, place, rolled(b"", MEMBERS[:place]), entry)
        for place, entry in enumerate(entries)
        if entry.outcome != LOST
    ]
    decision = decision_of(entries, ends_at)
    assert decision is not None
    return [*steps, LoggedEntry("a", 1, SEED, 0, rolled(b"", MEMBERS), decision)]


@pytest.mark.parametrize("place", range(3))
def test_a_race_gives_the_first_and_its_place(place: int) -> None:
    seen: list[Any] = []
    ctx = context()
    coroutine = race(ctx, seen)
    stand = coroutine.send(None)
    assert isinstance(stand, SegmentEnd) and (stand.ends_at, list(stand.works)) == ("first", [0, 1, 2])
    with pytest.raises(StopIteration):
        coroutine.send(won(place))
    assert seen == [(place, place)] and ctx.unawaited is not None and not ctx.unawaited.waiting


def test_the_error_of_the_first_is_raised() -> None:
    coroutine = race(context(), [])
    coroutine.send(None)
    with pytest.raises(StepFailedError, match="step 's1' failed: ValueError: no"):
        coroutine.send(won(1, FAILED))


@pytest.mark.parametrize("place", range(3))
def test_a_rerun_takes_the_decision_from_the_log(place: int) -> None:
    seen: list[Any] = []
    ctx = context(logged=log_of(won(place)))
    with pytest.raises(StopIteration):
        race(ctx, seen).send(None)
    assert seen == [(place, place)]
    assert ctx.journal is not None and ctx.journal.entries == won(place)


def test_the_newest_decision_counts_also_against_results_of_others() -> None:
    seen: list[Any] = []
    with pytest.raises(StopIteration):
        race(context(logged=[*log_of(won(0)), *log_of(won(2))]), seen).send(None)
    assert seen == [(2, 2)]


@pytest.mark.parametrize("what", ["no decision", "another result", "other requests", "another kind of end"])
def test_without_its_decision_a_race_is_run_again(what: str) -> None:
    entries = log_of(won(1))
    match what:
        case "no decision":
            entries.pop()
        case "another result":
            other = JournalEntry("step", "s1", b"", DONE, encode_result("s", 9))
            entries[0] = LoggedEntry("a", 1, SEED, 1, entries[0].prefix, other)
        case "other requests":
            entries[-1] = LoggedEntry("a", 1, SEED, 0, rolled(b"", MEMBERS[:2]), entries[-1].entry)
        case _:
            entries[-1] = log_of(won(1), "failure")[-1]
    stand = race(context(logged=entries), []).send(None)
    assert isinstance(stand, SegmentEnd) and list(stand.works) == [0, 1, 2]


async def cancelling(ctx: Context, seen: list[Any]) -> None:
    seen.append(await ctx.gather(*[ctx.step(f"s{n}", int) for n in range(3)], on_error="cancel"))


def test_a_rerun_of_a_group_that_cancels_takes_what_ended_and_ends_where_it_failed() -> None:
    done, failed = won(0)[0], won(1, FAILED)[1]
    entries = log_of([done, failed, LOST_MEMBERS[2]], "failure")
    for some in (entries, entries[:2]):  # without the decision, as if a reply had ended too
        with pytest.raises(StepFailedError, match="step 's1' failed"):
            cancelling(context(logged=some), []).send(None)
    stand = cancelling(context(logged=entries[:1]), []).send(None)
    assert isinstance(stand, SegmentEnd) and list(stand.works) == [1, 2]
    assert stand.members == [done, MEMBERS[1], MEMBERS[2]]


def test_a_rerun_from_a_checkpoint_within_the_group_takes_the_decision_too() -> None:
    done, failed = won(0)[0], won(1, FAILED)[1]
    begun_turn = open_group([], [done, MEMBERS[1], MEMBERS[2]])
    ctx = context(begun_turn, log_of([done, failed, LOST_MEMBERS[2]], "failure"))
    with pytest.raises(StepFailedError):
        cancelling(ctx, []).send(None)
    assert ctx.journal is not None and [each.outcome for each in ctx.journal.entries] == [DONE, FAILED, LOST]


def test_a_member_that_catches_its_error_cannot_be_cancelled_for() -> None:
    async def caught(ctx: Context) -> int:
        try:
            return await ctx.step("s0", int)
        except StepFailedError:
            return 0

    async def handler(ctx: Context) -> None:
        await ctx.gather(caught(ctx), ctx.step("s1", int), on_error="cancel")

    coroutine = handler(context())
    coroutine.send(None)
    with pytest.raises(UsageError, match="has caught its error: let it raise"):
        coroutine.send([won(0, FAILED)[0], LOST_MEMBERS[1]])


def test_a_group_has_its_results_behind_the_block() -> None:
    async def handler(ctx: Context) -> list[int]:
        async with ctx.group() as group:
            members = [group.add(ctx.step(f"s{n}", int)) for n in range(2)]
            with pytest.raises(UsageError, match="has its result behind the block"):
                assert members[0].result
            with pytest.raises(UsageError, match=r"a member of ctx\.group is not awaited"):
                await members[0]
        with pytest.raises(UsageError, match="members are added within the block"):
            group.add(ctx.step("s3", int))
        return [each.result for each in members]

    coroutine = handler(context())
    stand = coroutine.send(None)
    assert isinstance(stand, SegmentEnd) and stand.ends_at == "all"
    with pytest.raises(StopIteration) as ended:
        coroutine.send([won(0)[0], won(1)[1]])
    assert ended.value.value == [0, 1]


def test_a_block_that_raises_requests_nothing() -> None:
    ctx = context()

    async def handler() -> None:
        async with ctx.group("cancel") as group:
            group.add(ctx.step("s0", int))
            raise KeyError("no")

    with pytest.raises(KeyError):
        handler().send(None)
    assert ctx.journal is not None and not ctx.journal.entries
    assert ctx.unawaited is not None and not ctx.unawaited.waiting and not ctx.unawaited.dropped


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ctx: ctx.race(), r"ctx\.race has no members"),
        (lambda ctx: ctx.gather(on_error="stop"), r"on_error='stop': use \"wait\" or \"cancel\""),
        (lambda ctx: ctx.race(ctx.receive(Told), ctx.receive(Told)), "one ctx.receive of each type"),
        (lambda ctx: ctx.race(ctx.effect("pay", int, 1)), "effects cannot be cancelled"),
        (lambda ctx: ctx.gather(ctx.effect("pay", int, 1), on_error="cancel"), "effects cannot be cancelled"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(call: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        call(context()).send(None)


class Racing(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        await ctx.race(*[ctx.step(f"s{n}", int) for n in range(3)])
        await ctx.step("behind", int)


def test_steps_that_lose_are_cancelled_when_the_turn_goes_on() -> None:
    tasks: list[Task] = []

    def begin(coroutine: Any) -> Task:
        tasks.append(Task(coroutine))
        return tasks[-1]

    fleet = snapline.Fleet("races", agents={"a": Racing(Notes())})
    turns = Turns(fleet, lambda event: None, lambda text: None, start=begin)
    turns.add("a", fleet.make("a"))
    turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(Go())))
    for place in range(3):
        turns.run_step(ev.RunStep("a", 1, place, f"s{place}"))
    turns.run(ev.StartTurn("a", 1, "segment", "z", b"", group=tuple(won(1))))
    assert [task.is_cancelled for task in tasks] == [True] * 3, "that of the winner has ended"
    turns.run_step(ev.RunStep("a", 1, 3, "behind"))
    assert not tasks[3].is_cancelled
    for task in tasks:
        task.coroutine.close()
