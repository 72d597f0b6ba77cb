"""What a handler may not ask of effects, each told in one sentence; and compensations that are not there any more."""

import sys
from collections.abc import Callable
from os import system
from pathlib import Path
from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.effect_ledger import undo_payload
from snapline.agent_runtime.fleet import own_modules
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.sagas import load_undo, reference_of
from snapline.errors import UsageError
from snapline.storage.packs.checkpoint import MadeEffect


class Go(snapline.Message):
    what: str


class Plain(snapline.Message):
    pass


class Order(msgspec.Struct, frozen=True):
    number: int


class Notes(msgspec.Struct):
    seen: list[str] = []


def pay(*args: object, key: str) -> str:
    return key


def take_back(order: Order, amount: int, *, key: str) -> str:
    return f"{order.number} {amount} {type(order).__name__}"


OWN = ("tests",)

Asking = Callable[[Context], Any]

WRONG: dict[str, tuple[Asking, str]] = {
    "name": (lambda ctx: ctx.effect("", pay), "an effect is named by a text"),
    "key": (lambda ctx: ctx.effect("pay", pay, key="@1"), "those are the runtime's"),
    "generation": (lambda ctx: ctx.effect("pay", pay, key="a#2"), "those are the runtime's"),
    "undo": (lambda ctx: ctx.effect("pay", pay, key="a/undo"), "those are the runtime's"),
    "long": (lambda ctx: ctx.effect("pay", pay, key="k" * 257), "up to 256 printable characters"),
    "unprintable": (lambda ctx: ctx.effect("pay", pay, key="a\n"), "up to 256 printable characters"),
    "instant": (lambda ctx: ctx.effect("pay", pay, timeout_s=0), "timeout_s of effect 'pay' is 0"),
    "for ever": (lambda ctx: ctx.effect("pay", pay, timeout_s=float("inf")), "timeout_s of effect 'pay' is inf"),
    "repeated": (lambda ctx: ctx.effect("pay", pay, repeatable=False, retries=2), "is not repeatable, and has retries"),
    "retries": (lambda ctx: ctx.effect("pay", pay, retries=-1), "retries of effect 'pay' are -1"),
    "lambda": (lambda ctx: ctx.effect("pay", pay, compensate=(lambda key: None,)), "at the top of a module"),
    "method": (lambda ctx: ctx.effect("pay", pay, compensate=("".join, [])), "at the top of a module"),
    "no tuple": (lambda ctx: ctx.effect("pay", pay, compensate=take_back), r"give \(function, \*arguments\)"),  # type: ignore[arg-type]  # the mistake
    "secret": (lambda ctx: ctx.effect("pay", pay, object()), "the arguments of step 'pay' cannot be kept"),
    "undo secret": (lambda ctx: ctx.effect("pay", pay, compensate=(pay, object())), "an argument of the compensation"),
}


class Payer(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        if message.what in WRONG:
            await WRONG[message.what][0](ctx)
        if message.what == "pay":
            self.state.seen.append(await ctx.effect("pay", pay, 1, key="k", compensate=(take_back, Order(1), 5)))

    @snapline.handler
    async def on_plain(self, message: Plain, ctx: Context) -> None:
        with pytest.raises(UsageError, match=r"ctx\.saga waits, and a plain turn cannot"):
            ctx.saga("trip")
        await ctx.effect("pay", pay)


class Seat:
    """Turns of one agent."""

    def __init__(self) -> None:
        self.told: list[ev.StepEnded] = []
        self.tasks: list[Any] = []
        fleet = snapline.Fleet("payers", agents={"a": Payer(Notes())})
        self.ended: list[Any] = []
        self.turns = Turns(fleet, self.ended.append, lambda _: None, start=self._begin, step_ended=self.told.append)
        self.turns.add("a", fleet.make("a"))

    def _begin(self, coroutine: Any) -> Any:
        self.tasks.append(coroutine)

    def start(self, message: snapline.Message) -> Any:
        return self.turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(message)))


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_an_effect_fails_the_turn_with_a_sentence(what: str) -> None:
    failed = Seat().start(Go(what))
    assert type(failed) is ev.TurnFailed
    with pytest.raises(ValueError, match=WRONG[what][1]):
        raise ValueError(failed.error)


async def test_a_plain_turn_can_have_no_effect() -> None:
    seat = Seat()
    assert seat.start(Plain()) is None
    with pytest.raises(StopIteration):
        seat.tasks[0].send(None)
    assert "ctx.effect waits, and a plain turn cannot: mark the handler" in seat.ended[0].error


def test_a_store_that_takes_no_outputs_takes_no_effects() -> None:
    seat = Seat()
    seat.turns.use_store(takes_outputs=False)
    failed = seat.start(Go("pay"))
    assert "the store overwrites objects" in failed.error


async def test_the_function_gets_the_outside_key() -> None:
    seat = Seat()
    paused = seat.start(Go("pay"))
    asked = paused.pause.intents[0]
    assert (asked.key, asked.arguments, asked.undo) == ("k", "[1]", f"{__name__}:take_back")
    seat.turns.run_step(ev.RunEffect("a", 1, 0, "pay", "fleet/a/k", is_in_doubt=False))
    await seat.tasks[0]
    (told,) = seat.told
    found = msgspec.structs.replace(paused.pause.waits, outcome=told.outcome, result=told.result)
    seat.turns.run(ev.StartTurn("a", 1, "segment", "z", b"", found))
    assert seat.turns.object_of("a").state.seen == ["fleet/a/k"]


# ---- compensations ---------------------------------------------------------------------------------------------------


def test_a_compensation_gets_what_it_declares() -> None:
    kept = reference_of("pay", (take_back, Order(7), 5), OWN)
    assert load_undo("pay", *kept, OWN)(key="k") == "7 5 Order"


@pytest.mark.parametrize(
    "reference", ["tests.no_such_module:f", f"{__name__}:no_such_function", ":", f"{__name__}:Seat.start"]
)
def test_one_that_is_not_there_any_more_says_so_when_it_is_called(reference: str) -> None:
    with pytest.raises(UsageError, match="there is no such function any more"):
        load_undo("pay", reference, [], OWN)(key="k")


@pytest.mark.parametrize(
    "reference", ["os:system", "antigravity:fly", "testsuite:f", "snapline.testing:f", "x", f"{__name__}:system"]
)
def test_functions_of_other_modules_are_not_called_whatever_stands_in_the_store(reference: str, tmp_path: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(UsageError, match=r"nothing else is called|no such function"):
        load_undo("pay", reference, [msgspec.msgpack.encode(f"touch {tmp_path}/evil")], OWN)(key="k")
    assert not list(tmp_path.iterdir()) and set(sys.modules) == before, "and nothing is imported"


def test_a_fleet_names_the_other_modules_whose_functions_undo_effects() -> None:
    with pytest.raises(UsageError, match=r"is a function of module posix.* Fleet\(compensation_modules="):
        reference_of("pay", (system, "true"), OWN)
    assert reference_of("pay", (system, "true"), (*OWN, "posix"))[0] == "posix:system"
    for wrong in ("os", ["os:system"], [1], 7):
        with pytest.raises(snapline.FleetDefinitionError, match="compensation_modules names modules"):
            snapline.Fleet("f", agents={"a": Payer(Notes())}, compensation_modules=wrong)  # type: ignore[arg-type]


def test_an_agents_own_modules_are_the_packages_of_its_class_and_its_bases() -> None:
    class Child(Payer):
        __module__ = "shop.agents.payer"

    assert own_modules(Child, ["billing.refunds"]) == ("shop", "tests", "billing.refunds")
    Child.__module__ = "snapline.adapters.langgraph.graph_agent"
    assert own_modules(Child, [])[0] == "snapline.adapters.langgraph", "not all of snapline"


def test_arguments_that_it_does_not_take_any_more_are_told() -> None:
    reference, _ = reference_of("pay", (take_back,), OWN)
    with pytest.raises(UsageError, match="does not take the arguments that were kept"):
        load_undo("pay", reference, [b"\x01"], OWN)(key="k")


async def test_the_turn_that_undoes_goes_on_over_failures_and_names_them_and_is_not_tried_again() -> None:
    seat = Seat()
    made = [MadeEffect("one", 1, "pay", f"{__name__}:gone"), MadeEffect("two", 1, "pay", f"{__name__}:pay")]
    paused = seat.turns.run(ev.StartTurn("a", 1, "stashed", "a", undo_payload(made)))
    for place, key in enumerate(["one", "two"]):
        assert isinstance(paused, ev.TurnEnded) and paused.pause is not None
        assert paused.pause.intents[place].key == key
        outcome, result = ("failed", b"\x92\xa1E\xa3why") if key == "one" else ("done", b"\xc0")
        found = msgspec.structs.replace(paused.pause.waits, outcome=outcome, result=result)
        paused = seat.turns.run(ev.StartTurn("a", 1, "segment", "a", b"", found))
        assert place < 2
    assert isinstance(paused, ev.TurnFailed) and paused.is_final
    assert "not undone: 'pay' (key one): E: why. Retry this dead letter" in paused.error
