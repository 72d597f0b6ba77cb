"""Effects, sagas and compensations as handlers write them, in a world that crashes at every point: what happens outside is what the history that stands says."""

from collections.abc import Callable

import msgspec
import pytest
from tests.agent_runtime.effect_world import World, find, lose, pay, pay_in_time, take_back

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.host.agent_effects import AgentEffects, AwaitedEffect
from snapline.agent_runtime.host.host_effects import Effects
from snapline.agent_runtime.host.host_log import StepLog, mark_of
from snapline.agent_runtime.sagas import Saga

Patch = pytest.MonkeyPatch

TRIPS, LOST = 8, 5
STANDS, CANCELLED, FAILS, SHARED = range(4)
"""What becomes of a trip, by its number: it is booked; its saga gives up, and the handler goes on; its turn fails; its taxi is that of others. The car of trip LOST, which is
cancelled then, is paid, and nobody hears of it."""


class Go(snapline.Message):
    trip: int


class Booked(msgspec.Struct):
    trips: list[str] = []


class NoCarError(Exception):
    pass


class Payer(snapline.Agent):
    state: Booked

    async def on_start(self, ctx: Context) -> None:
        for trip in range(TRIPS):
            ctx.send(ctx.agent, Go(trip))

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        trip, kind = message.trip, message.trip % 4
        try:
            async with ctx.saga("trip"):
                await self._book(ctx, trip, kind)
        except (NoCarError, snapline.EffectFailedError):
            self.state.trips.append(f"{trip} cancelled")
            return
        if kind == FAILS:
            raise RuntimeError("after all that")
        self.state.trips.append(f"{trip} booked")

    async def _book(self, ctx: Context, trip: int, kind: int) -> None:
        await ctx.effect("fee", pay, trip, "fee", key=f"fee-{trip}", retries=9)
        back = (take_back, trip, "seat")
        seat = await ctx.effect("seat", pay, trip, "seat", key=f"seat-{trip}", compensate=back, probe=find, retries=9)
        assert seat == f"receipt of {trip} seat"
        async with ctx.saga("inner"):
            await ctx.effect("hotel", pay_in_time, trip, "hotel", compensate=(take_back, trip, "hotel"), retries=9)
        if kind == SHARED:
            await ctx.effect("taxi", pay, 99, "taxi", key="taxi", compensate=(take_back, 99, "taxi"), retries=9)
        if trip == LOST:
            await ctx.effect("car", lose, trip, "car", compensate=(take_back, trip, "car"), retries=9)
        if kind == CANCELLED:
            raise NoCarError


def world(seed: int, *, crashes: int = 25, failures: float = 0.1) -> World:
    return World(
        snapline.Fleet("payers", agents={"a": Payer(Booked())}), seed, crashes=crashes, failures=failures
    ).run()


def check(found: World) -> None:
    """What was done outside, in order, is what the trips say."""
    assert not found.problems
    agent = found.core.agents["a"]
    state = found.turns.object_of("a").state
    assert sorted(state.trips) == sorted(
        [f"{n} {'cancelled' if n % 4 == CANCELLED else 'booked'}" for n in range(TRIPS) if n % 4 != FAILS]
    )
    assert agent.turn is None and not agent.stash
    assert [letter.payload[-1] for letter in agent.dead_letters] == [n for n in range(TRIPS) if n % 4 == FAILS]
    for trip in range(TRIPS):
        does = [what for _, what in found.service.does if what.startswith(f"{trip} ")]
        booked = [f"{trip} {what}" for what in ("fee", "seat", "hotel")]
        undone = [f"{trip} hotel back", f"{trip} seat back"]
        if trip == LOST:
            booked, undone = [*booked, "5 car"], ["5 car back", *undone]
        assert does == booked + undone * (trip % 4 in (CANCELLED, FAILS)), trip
    assert [what for _, what in found.service.does if "taxi" in what] == ["99 taxi"]
    assert len(found.service.done) == len(found.service.does)
    told = {record.outside_key for record in found.released if record.stage in ("done", "failed")}
    assert told == set(found.service.done), "the ledger is what was done"
    intents = [record.outside_key for record in found.released if record.stage == "intent"]
    assert len(intents) == len(set(intents)), "and each is said once"


def test_what_was_done_outside_is_what_the_standing_history_says() -> None:
    """The worlds crash in the middle of effects and sagas: some calls are repeated."""
    repeated = 0
    for seed in range(20):
        found = world(seed)
        try:
            check(found)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        repeated += len(found.service.calls) - len(found.service.does)
    assert repeated > 20


def test_without_crashes_each_is_called_once() -> None:
    found = world(0, crashes=0, failures=0.0)
    check(found)
    lost = ["c/a/" + record.key for record in found.released if record.stage == "failed"]
    assert len([key for key in found.service.calls if key not in lost]) == len(found.service.does) - 1


# ---- what may not be repeated ---------------------------------------------------------------------------------------------


class Careful(snapline.Agent):
    """Pays a few things, at a service that knows no keys."""

    state: Booked

    async def on_start(self, ctx: Context) -> None:
        ctx.send(ctx.agent, Go(0))

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        for number in range(6):
            self.state.trips.append(await ctx.effect("pay", pay, number, "it", key=f"it-{number}", repeatable=False))


def careful(seed: int) -> tuple[World, bool]:
    """A run, and whether it ended where people have to say what came of an effect. Each that they are asked of was about to be called."""
    made = World(snapline.Fleet("careful", agents={"a": Careful(Booked())}), seed, crashes=8)
    made.service.honours = False
    found = made.run()
    does = [what for _, what in found.service.does]
    assert not found.problems and len(set(does)) == len(does), "nothing is done twice"
    effects = found.core.agents["a"].effects
    stands = effects is not None and any(each.needs_people for each in effects.open.values())
    assert stands or found.turns.object_of("a").state.trips == [f"receipt of {number} it" for number in range(6)]
    return found, stands


def test_what_may_not_be_repeated_is_never_called_twice_and_often_goes_on_by_itself() -> None:
    runs = [careful(seed) for seed in range(40)]
    crashed = [found for found, stands in runs if found.plan > 1]
    assert len(crashed) > 20 and 0 < sum([stands for _, stands in runs]) < len(crashed)
    doubtless = [found for found, stands in runs if not stands and found.plan > 1 and found.service.does]
    assert doubtless, "crashes that no call was caught in"


def test_calls_that_no_mark_comes_before_are_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        StepLog, "mark", lambda log, agent, turn, place, opened: log._effects.marked(agent, turn, mark_of(opened))
    )
    with pytest.raises(AssertionError, match="twice"):
        for seed in range(40):
            careful(seed)


# ---- a service that ignores keys -----------------------------------------------------------------------------------------


class Asker(snapline.Agent):
    state: Booked

    async def on_start(self, ctx: Context) -> None:
        for trip in range(TRIPS):
            ctx.send(ctx.agent, Go(trip))

    @snapline.handler(durable=True)
    async def on_go(self, message: Go, ctx: Context) -> None:
        for what in ("seat", "hotel"):
            receipt = await ctx.effect(what, pay, message.trip, what, probe=find, retries=9)
            self.state.trips.append(receipt)


def asked(seed: int, *, failures: float = 0.1) -> World:
    made = World(snapline.Fleet("askers", agents={"a": Asker(Booked())}), seed, crashes=25, failures=failures)
    made.service.honours = False
    return made.run()


def check_asked(found: World) -> None:
    """Each is done once, though the service would do it again for the same key."""
    wanted = [f"{trip} {what}" for trip in range(TRIPS) for what in ("seat", "hotel")]
    assert not found.problems and [what for _, what in found.service.does] == wanted
    assert found.turns.object_of("a").state.trips == [f"receipt of {what}" for what in wanted]


@pytest.mark.parametrize("seed", range(20))
def test_with_a_probe_a_service_that_ignores_keys_is_asked_first(seed: int) -> None:
    check_asked(asked(seed))


def test_the_world_finds_calls_without_a_probe(monkeypatch: Patch) -> None:
    monkeypatch.setattr(AwaitedEffect, "is_in_doubt", property(lambda self: False, lambda self, value: None))
    with pytest.raises(AssertionError):
        for seed in range(30):
            check_asked(asked(seed, failures=0.0))


# ---- mutants -----------------------------------------------------------------------------------------------------------


def before_release(patch: Patch) -> None:
    """It is called as soon as it is asked for."""
    patch.setattr("snapline.agent_runtime.host.agent_io.AgentOutputs.holds", lambda self, number: False)


def another_key(patch: Patch) -> None:
    """The key follows from the life of the agent."""
    intended = Effects._call_if_released

    def mutant(self, agent, turn, effects, opened):  # type: ignore[no-untyped-def]  # as the method
        cluster, self._shared.cluster = self._shared.cluster, f"c{agent.incarnation}"
        intended(self, agent, turn, effects, opened)
        self._shared.cluster = cluster

    patch.setattr(Effects, "_call_if_released", mutant)


def window_lost(patch: Patch) -> None:
    """The window of keys is not in the checkpoint."""
    saved = AgentEffects.saved

    def mutant(self, *, is_grouped):  # type: ignore[no-untyped-def]  # as the method
        found = saved(self, is_grouped=is_grouped)
        return None if found is None else msgspec.structs.replace(found, keys=[])

    patch.setattr(AgentEffects, "saved", mutant)


def made_lost(patch: Patch) -> None:
    """What the turn has made is not in the checkpoint."""
    saved = AgentEffects.saved

    def mutant(self, *, is_grouped):  # type: ignore[no-untyped-def]  # as the method
        found = saved(self, is_grouped=is_grouped)
        return None if found is None else msgspec.structs.replace(found, made=[])

    patch.setattr(AgentEffects, "saved", mutant)


def open_lost(patch: Patch) -> None:
    """The open effect is not in the checkpoint: it is said again."""
    saved = AgentEffects.saved

    def mutant(self, *, is_grouped):  # type: ignore[no-untyped-def]  # as the method
        found = saved(self, is_grouped=is_grouped)
        return None if found is None else msgspec.structs.replace(found, open=None)

    patch.setattr(AgentEffects, "saved", mutant)


def oldest_first(patch: Patch) -> None:
    """A failed turn is undone in the order in which it was done."""
    ended = AgentEffects.turn_ended
    patch.setattr(AgentEffects, "turn_ended", lambda self, dead_letter=0: ended(self, dead_letter)[::-1])


def saga_oldest_first(patch: Patch) -> None:
    """A saga is undone in the order in which it was done."""
    undo = Saga._undo_all

    async def mutant(self, error):  # type: ignore[no-untyped-def]  # as the method
        self._made.reverse()
        await undo(self, error)

    patch.setattr(Saga, "_undo_all", mutant)


def saga_forgets_failed(patch: Patch) -> None:
    """A saga undoes only what has come back as done."""
    undo = Context.undo_effect

    async def mutant(self, made, *, saga=""):  # type: ignore[no-untyped-def]  # as the method
        if made.name != "car":
            await undo(self, made, saga=saga)

    patch.setattr(Context, "undo_effect", mutant)


def compensates_what_stands(patch: Patch) -> None:
    """What was made is not forgotten when its turn ends well."""
    ended = AgentEffects.turn_ended

    def mutant(self, dead_letter=0):  # type: ignore[no-untyped-def]  # as the method
        made = ended(self, dead_letter)
        if not dead_letter:
            self.made = made
        return made

    patch.setattr(AgentEffects, "turn_ended", mutant)


def adopts_nothing(patch: Patch) -> None:
    """A key that is known is done again: under another key, as after a compensation."""
    patch.setattr(AgentEffects, "settled", lambda self, intent, digest, name: None)
    identity = AgentEffects.identity

    def mutant(self, intent):  # type: ignore[no-untyped-def]  # as the method
        key, generation = identity(self, intent)
        return key, generation + (key in self.keys)

    patch.setattr(AgentEffects, "identity", mutant)


def log_forgotten(patch: Patch) -> None:
    """What the host log knows of an effect is not looked for."""
    patch.setattr("snapline.agent_runtime.host.host_log.StepLog.logged_of", lambda *rest: None)


MUTANTS = [
    log_forgotten,
    before_release,
    another_key,
    window_lost,
    made_lost,
    open_lost,
    oldest_first,
    saga_oldest_first,
    saga_forgets_failed,
    compensates_what_stands,
    adopts_nothing,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_the_world_finds_mutants(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(30):
        try:
            check(world(seed))
        except AssertionError:
            return
    pytest.fail("it was not found")
