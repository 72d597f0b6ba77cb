"""Guards of handlers: nothing that a guard rejects leaves its turn, and a turn that is run again decides as it did."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent_runtime.test_durable import Go, Notes, saved

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import DONE, GUARD, SegmentEnd, TurnJournal, encode_result, read_call, rolled
from snapline.agent_runtime.guards import OutputGuard
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.errors import FleetDefinitionError, GuardViolationError
from snapline.messages.payloads import split_message
from snapline.sim.pytest_plugin import Simulation
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry

LIMIT = 100


class Pay(snapline.Message):
    amount: int


def too_much(agent: Any, output: snapline.TurnOutput) -> str | None:
    amounts = [message.amount for _, message in (*output.sent, *output.emitted) if isinstance(message, Pay)]
    amounts += [output.reply.amount] if isinstance(output.reply, Pay) else []
    return f"pays {max(amounts)}" if max(amounts, default=0) > LIMIT else None


def amount_of(payload: bytes) -> int:
    return msgspec.msgpack.decode(split_message(read_call(payload)[1])[1], type=Pay).amount


# -- one turn ---------------------------------------------------------------------------------------------------------


def run(made: snapline.Agent, what: str = "", sender: str = "@web", **start: Any) -> Any:  # TurnEnded or TurnFailed
    """Run a turn, or the first segment of a durable one."""
    fleet = snapline.Fleet("guarded", agents={"a": made})
    ended: list[Any] = []

    async def turn() -> None:
        turns = Turns(fleet, ended.append, lambda text: None)
        turns.add("a", fleet.make("a"))
        found = turns.run(ev.StartTurn("a", 1, start.pop("kind", "message"), sender, encode_message(Go(what)), **start))
        while found is None and not ended:
            await asyncio.sleep(0)
        ended.append(found or ended[0])
        ended.append(turns.object_of("a"))

    asyncio.run(turn())
    return (*ended[-2:],)


class Seer(snapline.Agent):
    """Sends, emits and answers, and keeps what its guard has seen outside of its state."""

    state: Notes
    seen: ClassVar[list[tuple[snapline.TurnOutput, list[str]]]] = []

    def check(self, output: snapline.TurnOutput) -> str | None:
        type(self).seen.append((output, list(self.state.seen)))
        return None

    @snapline.handler(guard=check)
    async def on_go(self, message: Go, ctx: Context) -> None:
        self.state.seen.append("here")
        ctx.send("b", Pay(1))
        ctx.emit("paid", Pay(2))
        ctx.send("c", Go("hello"))
        ctx.reply(Pay(3))
        ctx.set_timer("later", 1, Pay(4))


def test_a_guard_sees_all_that_leaves_as_typed_values_and_the_state() -> None:
    Seer.seen.clear()
    ended, _ = run(Seer(Notes()))
    assert isinstance(ended, ev.TurnEnded) and len(ended.sends) == 2
    output = snapline.TurnOutput((("b", Pay(1)), ("c", Go("hello"))), (("paid", Pay(2)),), Pay(3))
    assert Seer.seen == [(output, ["here"])]


class Draft(msgspec.Struct):
    amount: int


class Changer(snapline.Agent):
    state: Notes

    @snapline.handler(
        guard=lambda agent, output: "too much" if output.sent[0][1].amount > LIMIT else None, on_violation="escalate"
    )
    async def on_go(self, message: Go, ctx: Context) -> None:
        draft = Draft(LIMIT + 1)
        ctx.send("b", draft)
        draft.amount = 1


def test_a_guard_sees_what_was_sent_and_not_what_became_of_the_object() -> None:
    failed, _ = run(Changer(Notes()))
    assert isinstance(failed, ev.TurnFailed) and "'on_go' rejects the turn's output: too much" in failed.error
    assert failed.retries == 0, "escalated at once"


class Payer(snapline.Agent):
    """Pays too much in one of several ways."""

    state: Notes

    async def fall_back(self, message: Go, ctx: Context) -> None:
        assert self.state.seen == [], "the state is that from before the turn"
        self.state.seen.append("fallback")
        if message.what == "fallback":
            ctx.send("b", Pay(LIMIT + 5))
        ctx.send("b", Pay(5))
        ctx.reply(Pay(6))

    @snapline.handler(guard=too_much, on_violation=fall_back)
    async def on_go(self, message: Go, ctx: Context) -> None:
        self.state.seen.append("first")
        ctx.reply(Pay(LIMIT + 1))
        ctx.emit("paid", Pay(LIMIT + 1))
        ctx.set_timer("t", 1, Pay(1))
        ctx.stop()


class Sender(snapline.Agent):
    state: Notes
    retries = (1, 2)

    @snapline.handler(guard=too_much)
    def on_go(self, message: Go, ctx: Context) -> None:
        ctx.send("b", Pay(LIMIT + 1))


def test_a_fallback_takes_over_with_the_state_from_before_and_nothing_of_the_first_leaves() -> None:
    ended, agent = run(Payer(Notes()))
    assert isinstance(ended, ev.TurnEnded) and not ended.stops and not ended.timers and not ended.outputs
    assert [amount_of(payload) for _, payload in ended.sends] == [5] and amount_of(ended.reply) == 6
    assert agent.state.seen == ["fallback"]


def test_a_fallback_is_guarded_too_and_not_tried_again() -> None:
    failed, _ = run(Payer(Notes()), "fallback")
    assert isinstance(failed, ev.TurnFailed) and failed.retries == 0 and "pays 105" in failed.error


def test_a_plain_turn_is_retried_as_after_any_error() -> None:
    failed, _ = run(Sender(Notes()))
    assert isinstance(failed, ev.TurnFailed) and (failed.retries, len(failed.waits_ns)) == (2, 2)
    assert failed.restart is None and "GuardViolationError: the guard of handler 'on_go'" in failed.error


class Threaded(snapline.Agent):
    state: Notes

    @snapline.handler(thread=True, guard=too_much)
    def on_go(self, message: Go, ctx: Context) -> None:
        ctx.send("b", Pay(LIMIT + 1))


class Wrong(snapline.Agent):
    state: Notes

    @snapline.handler(guard=lambda agent, output: 5)  # type: ignore[arg-type,return-value]  # that is what is wrong
    async def on_go(self, message: Go, ctx: Context) -> None:
        pass


def test_threads_are_guarded_and_a_guard_that_says_something_odd_fails_the_turn() -> None:
    failed, _ = run(Threaded(Notes()))
    assert isinstance(failed, ev.TurnFailed) and "pays 101" in failed.error
    failed, _ = run(Wrong(Notes()))
    assert "the guard of handler 'on_go' returned 5: return a text, or None" in failed.error


async def waiting_guard(agent: Any, output: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_violation": "escalate"}, "and no guard"),
        ({"guard": 5}, "the guard 5 is no plain function"),
        ({"guard": waiting_guard}, "is no plain function"),
        ({"guard": too_much, "on_violation": "shout"}, 'use "retry", "escalate" or another handler'),
        ({"guard": too_much, "on_violation": too_much, "durable": True}, "async def fallback"),
    ],
)
def test_a_guard_that_cannot_work_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FleetDefinitionError, match=text):
        snapline.handler(**options)


class Keeper(snapline.Agent):
    state: Notes
    on_error = "keep"

    @snapline.handler(guard=too_much)
    async def on_go(self, message: Go, ctx: Context) -> None: ...


def test_a_guarded_turn_can_be_undone() -> None:
    with pytest.raises(FleetDefinitionError, match=r"on_go has a guard, and .*on_error is 'keep'"):
        agent_type(Keeper)


# -- durable turns ----------------------------------------------------------------------------------------------------


class Caller(snapline.Agent):
    """Its turn has three parts. `what` says which of them pay too much, and whether the handler catches that."""

    state: Notes

    @snapline.handler(durable=True, guard=too_much)
    async def on_go(self, message: Go, ctx: Context) -> None:
        for part in (1, 2):
            ctx.send("b", Pay(part))
            try:
                await ctx.call("b", Pay(LIMIT + part if str(part) in message.what else part), Pay)
            except GuardViolationError:
                if "catch" not in message.what:
                    raise
                ctx.send("people", Go(f"part {part}"))
                await ctx.step("ask", str, part)
        ctx.send("b", Pay(LIMIT + 3 if "3" in message.what else 3))


def test_a_violation_at_a_wait_begins_the_turn_again_and_nothing_leaves() -> None:
    failed, _ = run(Caller(Notes()), "1")
    assert isinstance(failed, ev.TurnFailed) and failed.restart is not None and failed.restart.at_most == 2
    assert failed.restart.reason == "the guard of handler 'on_go' rejects the turn's output: pays 101"


def test_a_caught_violation_is_an_entry_and_only_what_follows_leaves() -> None:
    ended, _ = run(Caller(Notes()), "1 catch")
    assert isinstance(ended, ev.TurnEnded) and ended.pause is not None
    assert ended.pause.entries == [JournalEntry(GUARD, "pays 101", b"", DONE)]
    assert [to for to, _ in ended.sends] == ["people"]


def never(guard: OutputGuard) -> str:
    raise AssertionError("the journal says what the guard said")


def test_a_rerun_turn_takes_violations_from_its_journal_and_checks_only_what_has_not_left() -> None:
    first, _ = run(Caller(Notes()), "1 catch")
    assert first.pause is not None
    journal = [*first.pause.entries, msgspec.structs.replace(first.pause.waits, outcome=DONE, result=b"\xa0")]
    begun = saved(journal, what="1 catch")
    ended, _ = run(Caller(Notes()), "1 catch", kind="segment", turn=begun, number=1)
    assert ended.pause.waits.kind == "call" and [to for to, _ in ended.sends] == ["b", "b"]
    waiting = saved(journal[:1], first.pause.waits, what="1 catch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputGuard, "rejects", never)
        again, _ = run(Caller(Notes()), "1 catch", kind="segment", turn=waiting, number=1)
    assert isinstance(again, ev.TurnEnded) and again.pause is not None
    assert not again.sends and again.pause.waits == first.pause.waits


class Adopter(snapline.Agent):
    """The log has the results of all its steps, so its parts leave together."""

    state: Notes

    @snapline.handler(durable=True, guard=lambda agent, output: "two" if len(output.sent) > 1 else None)
    async def on_go(self, message: Go, ctx: Context) -> None:
        for number in range(3):
            ctx.send("b", Pay(number))
            ctx.emit("paid", Pay(number))
            if number == 1:
                ctx.send("b", Pay(number))
            try:
                await ctx.step("note", str, number)
            except GuardViolationError:
                await ctx.step("note", str, number)
        await ctx.sleep(1)


def test_parts_that_leave_together_after_a_recovery_are_checked_one_by_one() -> None:
    """Each step's result is logged as a first run would have it: the digest covers the violation behind the first."""
    logged: list[LoggedEntry] = []
    for _ in range(6):
        ended, _ = run(Adopter(Notes()), logged=tuple(logged), number=1)
        assert isinstance(ended, ev.TurnEnded) and ended.pause is not None
        waits, place = ended.pause.waits, len(ended.pause.entries)
        if waits.kind == "sleep":
            break
        entry = msgspec.structs.replace(waits, outcome=DONE, result=encode_result("note", "x"))
        prefix = rolled(b"", ended.pause.entries)
        logged.append(LoggedEntry("a", 1, ended.pause.seed, place, prefix, entry))
    assert isinstance(ended, ev.TurnEnded) and ended.pause is not None
    assert [amount_of(payload) for _, payload in ended.sends] == [0, 2]
    assert [msgspec.msgpack.decode(split_message(payload)[1])["amount"] for _, payload, _ in ended.outputs] == [0, 2]
    assert [entry.kind for entry in ended.pause.entries] == ["step", GUARD, "step", "step"]


class Trip(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True, guard=too_much, on_violation="escalate")
    async def on_go(self, message: Go, ctx: Context) -> None:
        async with ctx.saga("trip"):
            await ctx.effect("book", book, key="k", compensate=(undo_booking,))
            ctx.send("b", Pay(LIMIT + 1))
            if message.what == "error":
                raise ValueError("no seat")
            await ctx.sleep(1)


def book(*, key: str) -> str:
    return "booked"


def undo_booking(*, key: str) -> None: ...


@pytest.mark.parametrize("what", ["", "error"])
def test_a_saga_undoes_its_effects_when_the_guard_rejects_and_when_both_fail(what: str) -> None:
    first, _ = run(Trip(Notes()), what)
    effect = msgspec.structs.replace(first.pause.waits, outcome=DONE, result=encode_result("book", "booked"))
    ended, _ = run(Trip(Notes()), what, kind="segment", turn=saved([effect], what=what), number=1)
    assert isinstance(ended, ev.TurnEnded) and ended.pause is not None
    assert ended.pause.waits.name == "book/undo" and not ended.sends
    undone = msgspec.structs.replace(ended.pause.waits, outcome=DONE, result=b"\xc0")
    turn = saved([effect, *ended.pause.entries, undone], what=what)
    failed, _ = run(Trip(Notes()), what, kind="segment", turn=turn, number=1)
    assert isinstance(failed, ev.TurnFailed)
    assert ("no seat" in failed.error) == bool(what) and (failed.retries == 0) == (not what)


class Leaver(snapline.Agent):
    state: Notes

    async def instead(self, message: Go, ctx: Context) -> None:
        self.state.seen.append("instead")

    @snapline.handler(durable=True, guard=too_much, on_violation=instead)
    async def on_go(self, message: Go, ctx: Context) -> None:
        async with ctx.saga("trip"):
            await ctx.effect("book", book, key="k", compensate=(undo_booking,))
            try:
                ctx.send("b", Pay(LIMIT + 1))
                await ctx.sleep(1)
            finally:
                ctx.send("b", Pay(LIMIT + 2))


def test_the_fallback_takes_over_although_a_saga_drops_more_on_the_way() -> None:
    first, _ = run(Leaver(Notes()))
    effect = msgspec.structs.replace(first.pause.waits, outcome=DONE, result=encode_result("book", "booked"))
    undoing, _ = run(Leaver(Notes()), kind="segment", turn=saved([effect]), number=1)
    undone = msgspec.structs.replace(undoing.pause.waits, outcome=DONE, result=b"\xc0")
    turn = saved([effect, *undoing.pause.entries, undone])
    ended, agent = run(Leaver(Notes()), kind="segment", turn=turn, number=1)
    assert isinstance(ended, ev.TurnEnded) and agent.state.seen == ["instead"]


@given(
    parts=st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6),
    known=st.integers(0, 8),
    catches=st.booleans(),
)
def test_no_rejected_message_leaves_and_each_run_passes_on_the_same(
    parts: list[list[int]], known: int, catches: bool
) -> None:
    """A handler sends the numbers of each part, and waits. The guard rejects those with a 3. Whatever the journal holds, the same leaves."""

    async def handle(ctx: Context) -> None:
        for part in parts:
            for number in part:
                ctx.send("b", Pay(number))
            try:
                await ctx.sleep(1)
            except GuardViolationError:
                if not catches:
                    raise

    def leaves(journal: list[JournalEntry], count: int) -> tuple[list[list[int]], list[JournalEntry]]:
        ctx = Context("a", 1, "z", TurnEnvironment())
        ctx.begin(journal=TurnJournal(b"", saved(journal)))
        guard = OutputGuard(
            "on_go", None, lambda agent, output: "3" if any(pay.amount == 3 for _, pay in output.sent) else None
        )
        ctx.guard_with(guard)
        coroutine, left, entry = handle(ctx), [], None
        try:
            while count:
                count -= 1
                end = coroutine.send(entry)
                assert isinstance(end, SegmentEnd)
                journal = [*journal, *end.entries]
                outcome = ctx.take_segment()
                left.append([amount_of(payload) for _, payload in outcome.sends])
                entry = msgspec.structs.replace(end.waits, outcome=DONE)
                journal.append(entry)
        except (StopIteration, GuardViolationError):
            pass
        coroutine.close()
        return left, journal

    whole, journal = leaves([], 100)
    assert all(3 not in part for part in whole)
    before, upto = leaves([], known)
    assert journal[: len(upto)] == upto
    behind, again = leaves(upto, 100)
    assert before + behind == whole and again == journal


# -- whole fleets -----------------------------------------------------------------------------------------------------


class Begin(snapline.Message):
    number: int


class Count(msgspec.Struct):
    left: int = 0
    paid: list[int] = []
    notes: int = 0
    asked: int = 0


def price(number: int) -> int:
    raise AssertionError("the simulator calls the stub")


class Kind(snapline.Agent):
    """Pays what a step says, by turns of one kind, which goes on when the last one has been paid."""

    state: Count
    retries = 20

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.left:
            ctx.send(ctx.agent, Begin(self.state.left))

    async def pay(self, number: int, ctx: snapline.Context) -> None:
        ctx.send("bank", Go("note"))
        amount = await ctx.step("price", price, number)
        ctx.send("bank", Pay(amount))
        ctx.emit("paid", Pay(amount))
        await ctx.step("price", price, -number)
        self.state.left -= 1
        if self.state.left:
            ctx.send(ctx.agent, Begin(self.state.left))

    @snapline.handler
    async def on_pay(self, message: Pay, ctx: snapline.Context) -> None:
        self.state.paid.append(message.amount)

    @snapline.handler
    async def on_note(self, message: Go, ctx: snapline.Context) -> None:
        self.state.notes += 1


class AgainPayer(Kind):
    @snapline.handler(durable=True, guard=too_much)
    async def on_begin(self, message: Begin, ctx: snapline.Context) -> None:
        await self.pay(message.number, ctx)


class PlainPayer(Kind):
    @snapline.handler(guard=too_much)
    async def on_begin(self, message: Begin, ctx: snapline.Context) -> None:
        await self.pay(message.number, ctx)


class FallbackPayer(Kind):
    async def ask(self, message: Begin, ctx: snapline.Context) -> None:
        self.state.asked += 1
        self.state.left -= 1
        ctx.send("bank", Pay(LIMIT))
        await ctx.step("price", price, 1)
        if self.state.left:
            ctx.send(ctx.agent, Begin(self.state.left))

    @snapline.handler(durable=True, guard=too_much, on_violation=ask)
    async def on_begin(self, message: Begin, ctx: snapline.Context) -> None:
        await self.pay(message.number, ctx)


class CatchingPayer(Kind):
    @snapline.handler(durable=True, guard=too_much)
    async def on_begin(self, message: Begin, ctx: snapline.Context) -> None:
        left = self.state.left
        try:
            await self.pay(message.number, ctx)
        except GuardViolationError:
            self.state.left = left
            await FallbackPayer.ask(self, message, ctx)  # type: ignore[arg-type]  # it needs no more of it


KINDS = {"again": AgainPayer, "plain": PlainPayer, "fallback": FallbackPayer, "caught": CatchingPayer}
TURNS = 6


def payers(recovery: Any = "global") -> snapline.Fleet:
    drawn = iter(range(10**6))
    agents = {name: made(Count(TURNS)) for name, made in KINDS.items()}
    return snapline.Fleet(
        "payers",
        agents={**agents, "bank": Kind(Count())},
        triggers=[snapline.Every(seconds=0.1)],
        recovery=recovery,
        simulate={"price": lambda number: (next(drawn) * 37) % (2 * LIMIT)},
    )


def check(cut: snapline.Cut) -> None:
    bank = cut.states.get("bank")
    amounts = [each.message.amount for each in cut.in_transit if isinstance(each.message, Pay)]
    assert not any(amount > LIMIT for amount in [*amounts, *(bank.paid if isinstance(bank, Count) else [])])
    assert not cut.dead_letters


def all_paid(states: Any) -> None:
    assert all(states[name].left == 0 for name in KINDS)
    bank = states["bank"]
    assert len(bank.paid) == TURNS * len(KINDS) and bank.notes >= len(bank.paid)
    assert bank.paid.count(LIMIT) >= states["fallback"].asked + states["caught"].asked


@pytest.mark.parametrize("recovery", ["global", "local"])
def test_no_rejected_payment_leaves_whatever_crashes_and_each_is_made_once(
    recovery: Any, snapline_sim: Simulation
) -> None:
    rejected: list[int] = []

    def at_end(states: Any) -> None:
        all_paid(states)
        rejected.extend(states[name].asked for name in ("fallback", "caught"))

    # In the last local one, four epochs that began before an outage end together after it.
    seeds = [*range(5), 116] if recovery == "local" else range(5)
    snapline_sim.check(lambda: payers(recovery), seeds=seeds, invariant=check, at_end=at_end)
    assert sum(rejected) > TURNS, "about half of all turns"


# -- mutants ----------------------------------------------------------------------------------------------------------


def only_at_the_end(patch: pytest.MonkeyPatch) -> None:
    original = Context.check_output

    def check_output(self: Context, *, is_over: bool = False) -> None:
        if is_over:
            original(self, is_over=True)

    patch.setattr(Context, "check_output", check_output)


def rejected_and_sent(patch: pytest.MonkeyPatch) -> None:
    """The handler learns of the violation, and its messages leave all the same."""
    original = Context.check_output

    def check_output(self: Context, *, is_over: bool = False) -> None:
        sends = list(self._sends)
        try:
            original(self, is_over=is_over)
        except GuardViolationError:
            self._sends = sends
            raise

    patch.setattr(Context, "check_output", check_output)


def violations_not_in_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TurnJournal, "violation", lambda self, rejects: "" if self._place < len(self._known) else rejects())


def all_parts_dropped(patch: pytest.MonkeyPatch) -> None:
    """What has been checked is dropped too when a later part is rejected."""
    original = Context.check_output

    def check_output(self: Context, *, is_over: bool = False) -> None:
        if self._guard is not None:
            self._guard.checked = 0, None, None, False
        original(self, is_over=is_over)

    patch.setattr(Context, "check_output", check_output)


def fallback_unguarded(patch: pytest.MonkeyPatch) -> None:
    original = Context.check_output

    def check_output(self: Context, *, is_over: bool = False) -> None:
        if self._guard is None or self._guard.violation is None:
            original(self, is_over=is_over)

    patch.setattr(Context, "check_output", check_output)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (only_at_the_end, test_a_violation_at_a_wait_begins_the_turn_again_and_nothing_leaves),
        (only_at_the_end, test_no_rejected_message_leaves_and_each_run_passes_on_the_same),
        (rejected_and_sent, test_a_caught_violation_is_an_entry_and_only_what_follows_leaves),
        (rejected_and_sent, test_no_rejected_message_leaves_and_each_run_passes_on_the_same),
        (violations_not_in_the_journal, test_no_rejected_message_leaves_and_each_run_passes_on_the_same),
        (all_parts_dropped, test_parts_that_leave_together_after_a_recovery_are_checked_one_by_one),
        (fallback_unguarded, test_a_fallback_is_guarded_too_and_not_tried_again),
    ],
)
def test_a_mutant_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, AttributeError)):
        test()


@pytest.mark.parametrize("mutant", [only_at_the_end, rejected_and_sent])
def test_the_simulator_finds_a_rejected_payment(
    mutant: Callable[[pytest.MonkeyPatch], None], snapline_sim: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="G3 workload"):
        snapline_sim.check(payers, seeds=8, invariant=check, at_end=all_paid, shrink_s=0)
