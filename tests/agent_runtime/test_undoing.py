"""What undoes effects, and what an enemy makes of it: compensations that fail and are asked for otherwise, odd results, blocks used twice, words of strangers."""

import asyncio
import enum
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.agent_runtime import effect_world
from tests.agent_runtime.effect_world import RefusedError, World

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.effect_ledger import undo_payload
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.sagas import ARGUMENTS_BYTES_MAX
from snapline.storage.packs.checkpoint import MadeEffect


class Go(snapline.Message):
    turn: int


class Notes(msgspec.Struct):
    seen: list[str] = []


Body = Callable[[Notes, int, Context], Awaitable[None]]


def do(what: str, *, key: str) -> str:
    return effect_world.service.do(what, key)


def undo(what: str, *, key: str) -> None:
    effect_world.service.do(f"{what} back", key)


def refuse(what: str, *, key: str) -> None:
    raise RefusedError("not this one")


def undo_and_show(what: str, *, key: str) -> object:
    undo(what, key=key)
    return object()


def run(body: Body, *, turns: int = 1, seed: int = 0, crashes: int = 0) -> World:
    """An agent whose durable turns do this, one after the other."""

    class Payer(snapline.Agent):
        state: Notes

        async def on_start(self, ctx: Context) -> None:
            for turn in range(turns):
                ctx.send(ctx.agent, Go(turn))

        @snapline.handler(durable=True)
        async def on_go(self, message: Go, ctx: Context) -> None:
            await body(self.state, message.turn, ctx)

    return World(snapline.Fleet("payers", agents={"a": Payer(Notes())}), seed, crashes=crashes).run()


def done(world: World) -> list[str]:
    assert not world.problems
    return [what for _, what in world.service.does]


def errors(world: World) -> list[str]:
    return [letter.error.strip().rpartition("\n")[2] for letter in world.core.agents["a"].dead_letters]


# ---- compensations that fail ---------------------------------------------------------------------------------------------


async def pays_what_was_left(_: Notes, turn: int, ctx: Context) -> None:
    """The second turn takes over what the first one could not undo, and names what can."""
    await ctx.effect("mine", do, f"mine {turn}", key=f"mine-{turn}", compensate=(undo, f"mine {turn}"))
    await ctx.effect("shared", do, "shared", key="k", compensate=((refuse, undo)[turn], "shared"))
    raise RuntimeError("after all that")


@pytest.mark.parametrize("seed", range(10))
def test_what_could_not_be_undone_is_undone_as_a_later_turn_says(seed: int) -> None:
    """And what that one has done besides: a compensation that is asked for in another way does not stand in the way of others."""
    world = run(pays_what_was_left, turns=2, seed=seed, crashes=8)
    assert done(world) == ["mine 0", "shared", "mine 0 back", "mine 1", "shared back", "mine 1 back"]
    assert [error.rpartition(".")[2].partition(":")[0] for error in errors(world)].count("NotUndoneError") == 0
    assert "not undone: 'shared'" in " ".join(errors(world)), "the first one's letter"


async def cancels_what_was_left(notes: Notes, turn: int, ctx: Context) -> None:
    try:
        async with ctx.saga("trip"):
            await ctx.effect("mine", do, f"mine {turn}", key=f"mine-{turn}", compensate=(undo, f"mine {turn}"))
            await ctx.effect("shared", do, "shared", key="k", compensate=((refuse, undo)[turn], "shared"))
            raise KeyError("trip")
    except KeyError as error:
        notes.seen.append(str(error))
    if turn == 0:
        raise RuntimeError("after all that")


def test_a_saga_undoes_all_of_it_though_an_earlier_compensation_of_the_same_key_failed() -> None:
    world = run(cancels_what_was_left, turns=2)
    assert done(world) == ["mine 0", "shared", "mine 0 back", "mine 1", "shared back", "mine 1 back"]
    assert world.turns.object_of("a").state.seen == ["'trip'"], "the block's own error goes on"


async def undoes_with_an_odd_result(_: Notes, turn: int, ctx: Context) -> None:
    await ctx.effect("one", do, "one", compensate=(undo_and_show, "one"))
    raise RuntimeError("after all that")


def test_what_a_compensation_returns_is_nobodys() -> None:
    world = run(undoes_with_an_odd_result)
    assert done(world) == ["one", "one back"] and errors(world) == ["RuntimeError: after all that"]
    assert [record.result for record in world.released if record.undoes and record.stage == "done"] == ["null"]


# ---- blocks --------------------------------------------------------------------------------------------------------------


async def uses_a_saga_twice(_: Notes, turn: int, ctx: Context) -> None:
    saga = ctx.saga("trip")
    async with saga:
        await ctx.effect("one", do, "one", compensate=(undo, "one"))
    try:
        async with saga:
            await ctx.effect("two", do, "two", compensate=(undo, "two"))
            raise KeyError
    except KeyError:
        pass


def test_a_block_that_has_ended_well_stands_though_its_saga_is_used_again() -> None:
    assert done(run(uses_a_saga_twice)) == ["one", "two", "two back"]


async def nests_a_saga_in_itself(_: Notes, turn: int, ctx: Context) -> None:
    saga = ctx.saga("trip")
    async with saga, saga:
        pass


def test_a_saga_is_one_block_at_a_time() -> None:
    (error,) = errors(run(nests_a_saga_in_itself))
    assert error.endswith("saga 'trip' is open already: make one for each block with ctx.saga")


async def is_cancelled(_: Notes, turn: int, ctx: Context) -> None:
    try:
        async with ctx.saga("trip"):
            await ctx.effect("one", do, "one", compensate=(undo, "one"))
            raise asyncio.CancelledError
    except asyncio.CancelledError:
        pass


@pytest.mark.parametrize("seed", range(5))
def test_a_block_that_is_cancelled_has_raised(seed: int) -> None:
    assert done(run(is_cancelled, seed=seed, crashes=4)) == ["one", "one back"]


# ---- names, sizes ----------------------------------------------------------------------------------------------------------


class Name(enum.StrEnum):
    SEARCH = "search"


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("name", [Name.SEARCH, Text("search")])
def test_names_are_kept_as_plain_text(name: str) -> None:
    async def body(notes: Notes, turn: int, ctx: Context) -> None:
        notes.seen.append(await ctx.step(name, lambda: "found"))
        async with ctx.saga(name):
            notes.seen.append(await ctx.effect(name, do, "it", repeatable=1))  # type: ignore[arg-type]  # as people write
        notes.seen.append(await ctx.step(name, lambda: "again"))

    for seed in range(5):
        world = run(body, seed=seed, crashes=3)
        assert world.turns.object_of("a").state.seen == ["found", "receipt of it", "again"] and not errors(world)
        assert {(record.name, record.saga) for record in world.released} <= {("search", "search"), ("search", "")}


ODD: list[Any] = [7, None, b"search", object(), "\ud800"]
ASKING: list[Callable[[Context, Any], Awaitable[object]]] = [
    lambda ctx, name: ctx.step(name, lambda: 1),
    lambda ctx, name: ctx.effect(name, do, "it"),
    lambda ctx, name: ctx.saga(name).__aenter__(),
]


@pytest.mark.parametrize("name", ODD, ids=["number", "none", "bytes", "object", "surrogate"])
@pytest.mark.parametrize("asking", ASKING, ids=["step", "effect", "saga"])
def test_what_no_checkpoint_could_give_back_is_no_name(
    name: object, asking: Callable[[Context, Any], Awaitable[object]]
) -> None:
    """A checkpoint with such a name would be written, and read by no recovery."""

    async def body(notes: Notes, turn: int, ctx: Context) -> None:
        await asking(ctx, name)

    (error,) = errors(run(body))
    assert "is named by a text, this one by" in error


class Idle(snapline.Agent):
    state: Notes


SAYING: list[Callable[[Context, Any], object]] = [
    lambda ctx, name: ctx.send(name, Go(1)),
    lambda ctx, name: ctx.set_timer(name, 1, Go(1)),
    lambda ctx, name: ctx.spawn(name, Idle(Notes())),
    lambda ctx, name: ctx.emit(name, Go(1)),
    lambda ctx, name: ctx.rollback(name),
    lambda ctx, name: ctx.rollback("so", to=name),
]


@pytest.mark.parametrize("name", ODD, ids=["number", "none", "bytes", "object", "surrogate"])
@pytest.mark.parametrize("saying", SAYING, ids=["send", "timer", "spawn", "emit", "reason", "snapshot"])
def test_what_no_message_could_say_is_refused_where_it_is_said(
    name: object, saying: Callable[[Context, Any], object]
) -> None:
    """A checkpoint with it could not be written, and would take its host along."""

    async def body(notes: Notes, turn: int, ctx: Context) -> None:
        saying(ctx, name)

    (error,) = errors(run(body))
    assert "UsageError: " in error


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_names_of_effects_are_short(name: str) -> None:
    async def body(notes: Notes, turn: int, ctx: Context) -> None:
        await ctx.effect(name, do, "it")

    (error,) = errors(run(body))
    assert "is named by a text of 1 to 256 characters" in error


def test_what_a_compensation_is_given_is_small() -> None:
    """It is in checkpoints, and in the ledger, where an output has its limit."""

    async def body(notes: Notes, turn: int, ctx: Context) -> None:
        await ctx.effect("one", do, "one", compensate=(undo, "x" * (ARGUMENTS_BYTES_MAX - 100)))
        await ctx.effect("two", do, "two", compensate=(undo, "x" * ARGUMENTS_BYTES_MAX))

    world = run(body)
    assert "the arguments of the compensation of effect 'two' take 65,5" in errors(world)[0]
    assert done(world)[0] == "one" and len(done(world)) == 2, "and the turn is undone as any other"


# ---- strangers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sender", ["@client", "b"])
def test_nobody_but_the_agent_itself_has_anything_undone(sender: str) -> None:
    """Such a message names a function to be called here."""

    class Payer(snapline.Agent):
        state: Notes

    fleet = snapline.Fleet("payers", agents={"a": Payer(Notes())})
    turns = Turns(fleet, lambda _: None, lambda _: None)
    turns.add("a", fleet.make("a"))
    payload = undo_payload([MadeEffect("k", 1, "x", f"{__name__}:undo", [b"\xa1x"])])
    ended = turns.run(ev.StartTurn("a", 1, "input", sender, payload))
    assert isinstance(ended, ev.TurnFailed) and "has no handler for messages of type '@undo'" in ended.error
