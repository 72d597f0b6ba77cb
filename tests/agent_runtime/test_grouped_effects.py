"""Effects in `ctx.gather`: called at the same time after one snapshot, undone in the reverse order of their places, whatever ended first."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.effect_world import World, find, lose, pay, pay_in_time, take_back
from tests.agent_runtime.test_durable import SEED
from tests.agent_runtime.test_effect_words import People, said, saved
from tests.agent_runtime.test_effect_words import logged as logged_input
from tests.agent_runtime.test_effects import BROKEN, DIGEST, GO, PAID, intent, release, runs, stages

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import DONE, EffectIntent, Pause
from snapline.agent_runtime.effect_ledger import UNDO, read_undo
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_effects import AgentEffects
from snapline.agent_runtime.host.host_log import StepLog
from snapline.messages import host_messages as msg
from snapline.storage.log.log_record import LoggedEntry, LoggedInput
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry

Patch = pytest.MonkeyPatch

# ---- a world that crashes -------------------------------------------------------------------------------------------------

TRIPS = 8
STANDS, CANCELLED, FAILS, LOST = range(4)
"""What becomes of a trip, by its number: it is booked; its saga gives up behind the group; its turn fails behind it; nobody hears of its car."""


class Go(snapline.Message):
    trip: int


class Booked(msgspec.Struct):
    trips: list[str] = []


class NoTripError(Exception):
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
                await ctx.effect("fee", pay, trip, "fee", key=f"fee-{trip}", compensate=_back(trip, "fee"), retries=9)
                seat, _, hotel, _ = await ctx.gather(
                    ctx.effect(
                        "seat", pay, trip, "seat", key=f"seat-{trip}", compensate=_back(trip, "seat"), retries=9
                    ),
                    ctx.step("look", len, "abc"),
                    ctx.effect(
                        "hotel", pay_in_time, trip, "hotel", compensate=_back(trip, "hotel"), probe=find, retries=9
                    ),
                    ctx.effect(
                        "car", lose if kind == LOST else pay, trip, "car", compensate=_back(trip, "car"), retries=9
                    ),
                )
                assert (seat, hotel) == (f"receipt of {trip} seat", f"receipt of {trip} hotel")
                if kind == CANCELLED:
                    raise NoTripError
        except (NoTripError, snapline.EffectFailedError):
            self.state.trips.append(f"{trip} cancelled")
            return
        if kind == FAILS:
            raise RuntimeError("after all that")
        self.state.trips.append(f"{trip} booked")


def _back(trip: int, what: str) -> tuple[object, ...]:
    return take_back, trip, what


def world(seed: int, *, crashes: int = 25, failures: float = 0.05) -> World:
    fleet = snapline.Fleet("payers", agents={"a": Payer(Booked())})
    return World(fleet, seed, crashes=crashes, failures=failures).run()


def check(found: World) -> None:
    """All of a group is done, in any order, and undone in the order of the program backwards."""
    assert not found.problems
    agent, state = found.core.agents["a"], found.turns.object_of("a").state
    fates = {STANDS: "booked", CANCELLED: "cancelled", LOST: "cancelled"}
    assert sorted(state.trips) == [f"{n} {fates[n % 4]}" for n in range(TRIPS) if n % 4 != FAILS]
    assert agent.turn is None and not agent.stash and agent.effects is not None and not agent.effects.open
    for trip in range(TRIPS):
        does = [what.split(" ", 1)[1] for _, what in found.service.does if what.startswith(f"{trip} ")]
        group = ["seat", "hotel", "car"]
        assert does[0] == "fee" and sorted(does[1:4]) == sorted(group), (trip, does)
        undone = [f"{what} back" for what in reversed(["fee", *group])]
        assert does[4:] == undone * (trip % 4 != STANDS), (trip, does)
    assert len(found.service.done) == len(found.service.does)
    assert {x.outside_key for x in found.released if x.stage in ("done", "failed")} == set(found.service.done)
    intents = [x.outside_key for x in found.released if x.stage == "intent"]
    assert len(intents) == len(set(intents)), "and each is said once"


def test_in_a_world_that_crashes_a_group_is_done_once_and_undone_backwards() -> None:
    repeated, orders = 0, set()
    for seed in range(30):
        found = world(seed)
        try:
            check(found)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        repeated += len(found.service.calls) - len(found.service.does)
        orders |= {tuple(what for _, what in found.service.does if what in ("0 seat", "0 hotel", "0 car"))}
    assert repeated > 20 and len(orders) >= 5, "calls were repeated, and ended in all orders"


# ---- one event after the other --------------------------------------------------------------------------------------------

MEMBERS = [JournalEntry("effect", "pay", DIGEST), JournalEntry("step", "look"), JournalEntry("effect", "mail", DIGEST)]


class Host(Driver):
    """A driver whose log is open when something is to be in it."""

    appended = -1

    def append_all(self) -> list[ev.RunEffect]:
        """All that is to be in the log is. Returns the effects whose calls begin then."""
        before = len(self.said)
        if self.appended < 0:
            self.appended = 0
            self.feed(msg.LogOpened(self.plan))
        while fresh := [x for x in self.all_of(ev.AppendBatch) if x.number > self.appended]:
            self.appended = fresh[0].number
            self.feed(ev.BatchAppended(fresh[0].log, fresh[0].number))
        return runs(self.said[before:])

    def release(self, epoch: int = 1, number: int | None = None) -> list[int]:
        """The places of the effects whose calls begin when their intents are released, and their marks are in the log."""
        released = runs(release(self, epoch=epoch, number=number))
        return [run.place for run in (*released, *self.append_all())]

    def step_ends(self, place: int, outcome: str = DONE, result: bytes = PAID) -> None:
        self.feed(ev.StepEnded("a", self.core.agents["a"].incarnation, place, outcome, result, 9))
        self.append_all()

    def settle(self, payload: bytes, key: str) -> None:
        """People say what came of an effect."""
        people = People(self)
        people.say(payload, key)
        self.append_all()

    @property
    def members(self) -> list[JournalEntry]:
        turn = self.core.agents["a"].turn
        assert turn is not None
        return list(turn.members)

    @property
    def open_places(self) -> dict[int, bool]:
        """The effects that have not ended, and whether they need people."""
        effects = self.core.agents["a"].effects
        assert effects is not None
        return {place: each.needs_people for place, each in effects.open.items()}


def both(**options: Any) -> tuple[EffectIntent, EffectIntent]:
    return intent("k", undo="m:f", **options), intent("q", undo="m:g", **options)


def grouped(**options: Any) -> Host:
    """The turn of `a` waits for a group of an effect, a step and another effect."""
    driver = Host(here=("a",))
    driver.remote_sends("z", "a", GO)
    first, third = both(**options)
    pause = Pause(SEED, MEMBERS[0], None, [], True, {0: first, 2: third}, list(MEMBERS), [None] * 3)
    driver.end("a", pause=pause)
    return driver


def restarted(kept: AgentCheckpoint, *entries: LoggedEntry, inputs: Sequence[LoggedInput] = ()) -> Host:
    """A later life; the handler runs again."""
    driver = Host(checkpoints={"a": kept}, begun=1, starts=False, here=("a",))
    driver.receive_plan(2)
    driver.turns.clear()
    driver.load(2, *inputs, entries=entries)
    return driver


def ask_again(driver: Host, **options: Any) -> None:
    """The handler has run up to its group."""
    open_members = [place for place, member in enumerate(driver.members) if not member.outcome]
    intents = {place: each for place, each in zip((0, 2), both(**options), strict=True) if place in open_members}
    pause = Pause(SEED, MEMBERS[0], None, [], True, intents, driver.members, [None] * 3)
    driver.end("a", pause=pause)


def test_one_snapshot_releases_all_intents_of_a_group() -> None:
    driver = grouped()
    assert stages(driver) == ["intent k", "intent q"] and not runs(driver.said)
    assert driver.release() == [0, 2]


def test_an_effect_waits_for_its_own_intent_only() -> None:
    driver = grouped()
    assert driver.release(number=1) == [0]
    assert driver.release(2) == [2]


def test_the_turn_goes_on_when_all_have_ended_and_sees_them_in_order() -> None:
    driver = grouped()
    driver.release()
    for place in (2, 1):
        driver.step_ends(place)
        assert "a" not in driver.turns
    driver.step_ends(0, "failed", BROKEN)
    assert [(x.name, x.outcome, x.sender) for x in driver.turns["a"].group] == [
        ("pay", "failed", "k#1"),
        ("look", DONE, ""),
        ("mail", DONE, "q#1"),
    ]


@pytest.mark.parametrize("ended", [(2, 1, 0), (2,), (2, 0)])
def test_a_turn_that_fails_undoes_them_in_the_reverse_order_of_their_places(ended: tuple[int, ...]) -> None:
    driver = grouped()
    driver.release()
    for place in ended:
        driver.step_ends(place)
    if len(ended) < len(MEMBERS):  # run again after a recovery, the handler may fail before it comes to its group
        driver = restarted(saved(driver))
    driver.fail("a", is_durable=True)
    undoing = driver.turns["a"]
    assert [each.key for each in read_undo(undoing.payload[len(UNDO) :])] == ["q", "k"]


def test_a_checkpoint_in_the_middle_knows_what_has_ended_and_what_may_have_been_called() -> None:
    driver = grouped(has_probe=True)
    assert driver.release() == [0, 2]
    driver.step_ends(2)
    later = restarted(saved(driver))
    assert list(later.open_places) == [0]
    ask_again(later, has_probe=True)
    assert [(run.place, run.is_in_doubt) for run in runs(later.said)] == [(0, True)], "its intent is released already"


def test_what_the_log_knows_of_a_member_is_not_called_again() -> None:
    driver = grouped()
    driver.release()
    kept = saved(driver)
    driver.step_ends(2)
    (logged,) = driver.logged
    assert (logged.place, logged.entry.kind, logged.entry.outcome) == (2, "effect", DONE)
    later = restarted(kept, logged)
    ask_again(later)
    assert [run.place for run in runs(later.said)] == [0]
    assert [(x.name, x.outcome) for x in later.members] == [("pay", ""), ("look", ""), ("mail", DONE)]


def test_people_say_what_came_of_each_member() -> None:
    driver = grouped(is_repeatable=False)
    assert driver.release() == [0, 2]
    later = restarted(saved(driver))
    ask_again(later, is_repeatable=False)
    assert later.open_places == {0: True, 2: True}
    later.settle(said(2, key="q"), "first")
    assert later.open_places == {0: True}
    later.settle(said(1, is_done=False), "second")
    assert later.open_places == {0: False}
    assert later.release(2) == [0], "what was not done is called, once nobody can forget who said so"
    later.step_ends(1)
    later.step_ends(0)
    assert [(x.name, x.outcome) for x in later.turns["a"].group] == [("pay", DONE), ("look", DONE), ("mail", DONE)]


def test_a_resolution_consumed_again_says_nothing_of_a_call_after_it_although_another_member_ends_earlier() -> None:
    """A restore to before both resolutions. The log already has the end of the other effect, so the outputs have other numbers."""
    first = grouped(is_repeatable=False)
    assert first.release() == [0, 2]
    second = restarted(saved(first), *first.logged)
    ask_again(second, is_repeatable=False)
    kept = saved(second)
    words = said(1, is_done=False), said(2, key="q")
    for number, word in enumerate(words):
        second.settle(word, f"word {number}")
    assert second.release(2) == [0], "it is called after its resolution"
    inputs = [logged_input(word, 1 + number, f"word {number}") for number, word in enumerate(words)]
    later = restarted(kept, *first.logged, *second.logged, inputs=inputs)
    ask_again(later, is_repeatable=False)
    assert stages(later) == ["done q", "not-done k"]
    assert later.release(3) == [] and later.open_places == {0: True}
    later.settle(said(4, is_done=False), "newer")
    assert later.release(4) == [0]


# ---- mutants --------------------------------------------------------------------------------------------------------------


def in_order_of_their_ends(patch: Patch) -> None:
    patch.setattr(AgentEffects, "group_ended", lambda self, identities: None)


def group_not_saved(patch: Patch) -> None:
    """Open effects of groups are not in checkpoints."""
    patch.setattr("snapline.agent_runtime.host.host_state.LocalAgent._open_group", lambda self: [])


def one_prefix_for_all(patch: Patch) -> None:
    """Results of members are looked for as if they were alone."""
    logged_of = StepLog.logged_of
    patch.setattr(
        StepLog,
        "logged_of",
        lambda self, agent, turn, place, *rest: logged_of(self, agent, turn, len(turn.journal), *rest),
    )


@pytest.mark.parametrize(
    "mutant",
    [in_order_of_their_ends, group_not_saved, one_prefix_for_all],
    ids=lambda each: each.__name__,
)
def test_the_world_finds_mutants(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(30):
        try:
            check(world(seed))
        except AssertionError:
            return
    pytest.fail("it was not found")
