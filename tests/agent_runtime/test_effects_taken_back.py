"""A fleet that is taken back on purpose, past effects that were done and undone since: what its agents then hold for done is done outside."""

import msgspec
import pytest
from tests.agent_runtime import effect_world
from tests.agent_runtime.effect_world import World

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.message_encoding import encode_message
from snapline.storage.packs.checkpoint import decode_checkpoint


class Go(snapline.Message):
    pass


class Before(snapline.Message):
    pass


class Notes(msgspec.Struct):
    seen: list[str] = []


class Code:
    """What is changed before the fleet is taken back: it is why."""

    is_mended = False


def do(what: str, *, key: str) -> str:
    return effect_world.service.do(what, key)


def look(*, key: str) -> None:
    pass


def undo(what: str, *, key: str) -> None:
    effect_world.service.do(f"{what} back", key)


class Payer(snapline.Agent):
    state: Notes

    async def on_start(self, ctx: Context) -> None:
        ctx.send(ctx.agent, Before())
        ctx.send(ctx.agent, Go())

    @snapline.handler(durable=True)
    async def on_before(self, message: Before, ctx: Context) -> None:
        """Another turn ends before the one that comes again: what is known of made-up keys is not forgotten with it."""
        await ctx.effect("look", look)

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        await ctx.effect("order", do, "order", key="order", compensate=(undo, "order"))
        await ctx.effect("seat", do, "seat", compensate=(undo, "seat"))
        if not Code.is_mended:
            raise RuntimeError("wrong prices")
        self.state.seen.append("ordered")


@pytest.fixture(autouse=True)
def code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Code, "is_mended", False)


def run(seed: int, *, crashes: int = 0) -> World:
    return World(snapline.Fleet("payers", agents={"a": Payer(Notes())}), seed, crashes=crashes).run()


def take_back(world: World, line: bytes, *, crashes: int = 0) -> list[str]:
    """To this snapshot, by code that is mended; logs are kept. Returns what is done outside from there on."""
    Code.is_mended = True
    world.line, world.crashes = line, crashes
    world.released_number = decode_checkpoint(line).outputs.number if line else 0
    before = len(world.service.does)
    world._boot()
    world.run()
    assert not world.problems and world.turns.object_of("a").state.seen == ["ordered"]
    open_keys = {record.outside_key for record in world.released if record.stage == "intent"}
    assert open_keys == {record.outside_key for record in world.released if record.stage in ("done", "failed")}
    return [what for _, what in world.service.does[before:]]


def lines_by_entries(seed: int) -> dict[int, bytes]:
    """Of snapshots in the middle of the turn, before anything was undone: how many entries it had, and that it stood at the next."""
    found = {}
    for line in run(seed).lines:
        turn = decode_checkpoint(line).turn
        if turn is not None and turn.payload == GO and turn.waits is not None:
            found[len(turn.journal)] = line
    return found


GO = encode_message(Go())
ORDER_AND_BACK = ["order", "seat", "seat back", "order back"]


@pytest.mark.parametrize("seed", range(10))
def test_what_was_undone_since_is_done_anew_if_its_turn_comes_again(seed: int) -> None:
    """Neither the host log nor the service, which knows its keys, may say that it is done."""
    world = run(seed, crashes=seed % 3)
    assert [what for _, what in world.service.does] == ORDER_AND_BACK
    assert take_back(world, b"", crashes=seed % 4) == ["order", "seat"], "and only that"
    assert all(key.endswith("#2") for key, _ in world.service.does[4:])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("entries", "anew"), [(0, ["order", "seat"]), (1, ["seat"])])
def test_what_stood_open_in_the_snapshot_and_was_undone_since_is_done_anew(
    entries: int, anew: list[str], seed: int
) -> None:
    """What had ended in the snapshot is in the turn's past, and stays as it was."""
    line = lines_by_entries(seed)[entries]
    world = run(seed)
    assert take_back(world, line, crashes=seed % 4) == anew


@pytest.mark.parametrize("seed", range(10))
def test_what_was_done_since_and_stands_is_not_done_anew(seed: int) -> None:
    Code.is_mended = True
    world = run(seed)
    assert [what for _, what in world.service.does] == ["order", "seat"]
    assert take_back(world, b"", crashes=seed % 4) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_fleet_that_is_taken_back_twice_goes_on_counting(seed: int) -> None:
    world = run(seed)
    take_back(world, b"")
    Code.is_mended = False
    world.line, world.released_number = b"", 0
    world._boot()
    world.run()
    assert [what for _, what in world.service.does[6:]] == ["seat back", "order back"]
    assert take_back(world, b"") == ["order", "seat"]
    assert all(key.endswith("#3") for key, _ in world.service.does[8:])


@pytest.mark.parametrize("seed", range(10))
def test_what_was_undone_since_is_not_undone_again(seed: int) -> None:
    """Though the snapshot has it as done, and the turn that did it fails again; and the service knows no keys."""
    line = lines_by_entries(seed)[1]
    world = run(seed)
    world.service.honours = False
    world.line, world.released_number = line, decode_checkpoint(line).outputs.number
    world._boot()
    world.run()
    assert not world.problems
    assert [what for _, what in world.service.does[4:]] == ["seat", "seat back"]
