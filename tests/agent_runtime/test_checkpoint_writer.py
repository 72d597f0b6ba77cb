"""Which checkpoints share a pack, what is said of them, and what becomes of those that cannot be written."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent_runtime.test_checkpoint_files import KNOWN, Account, Teller, log_of, reference_of, taken

from snapline.agent_runtime.fleet import encode_unchecked
from snapline.agent_runtime.host import checkpoint_writer as module
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.checkpoint_writer import CHANNEL_BYTES, CheckpointWriter, TakenCheckpoint
from snapline.agent_runtime.host.logged_agent import Backlog, LoggedAgent
from snapline.errors import StoreError
from snapline.messages.host_messages import AgentsFrozen, CheckpointsStored, HostMessage
from snapline.protocols.policy import Manual, PolicyClock
from snapline.storage.capture.image import StateImage
from snapline.storage.store.store import Store

Names = list[tuple[str, int]]


class World:
    """A writer whose worker does its jobs when it is told to.

    Attributes:
        said: to the coordinator.
        fed: to the host core.
    """

    def __init__(self, path: Path) -> None:
        self.store = Store.create(path)
        self.said: list[HostMessage] = []
        self.fed: list[ev.Event] = []
        self.jobs: list[Callable[[], None]] = []
        self.problem = ""
        self.writer = CheckpointWriter(self._open, self._in_worker, self.said.append, self.fed.append)
        self.writer.repeat()  # the first Welcome
        self.writer.begin("h1-1", 1, 1)

    def _open(self) -> Store:
        if self.problem:
            raise StoreError(self.problem)
        return self.store

    def _in_worker(self, function: Callable[[], object], *, then: Callable[..., None]) -> None:
        self.jobs.append(lambda: then(function()))

    def add(self, *checkpoints: TakenCheckpoint) -> None:
        for checkpoint in checkpoints:
            self.writer.add(checkpoint)

    async def work(self) -> None:
        """Until nothing is left to do."""
        self.writer._write()
        while self.jobs:
            self.jobs.pop(0)()
            await asyncio.sleep(0.001)

    @property
    def reports(self) -> list[CheckpointsStored]:
        return [message for message in self.said if isinstance(message, CheckpointsStored)]

    @property
    def packs(self) -> list[Names]:
        """What each reported pack holds, and was said to hold."""
        packs = []
        for report in self.reports:
            told = [(report.names[x], number) for x, number in zip(report.agents, report.numbers, strict=True)]
            found = self.store.read_checkpoint_pack(reference_of(report))
            assert [(x.agent, x.number) for x in found] == told
            assert {x.round for x in found} == {report.epoch}
            packs.append(told)
        return packs


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def spoilt(agent: str, number: int) -> TakenCheckpoint:
    made = taken(agent, number)
    made.image = StateImage(encode_unchecked(agent, Teller(Account("no number")), KNOWN))  # type: ignore[arg-type]  # on purpose
    return made


async def test_what_is_taken_while_a_pack_is_written_goes_into_the_next(world: World) -> None:
    world.add(taken("a", 1))
    world.writer._write()
    world.add(taken("a", 2), taken("b", 1), taken("a", 3))
    assert len(world.jobs) == 1, "one pack at a time"
    await world.work()
    assert world.packs == [[("a", 1)], [("a", 2), ("b", 1), ("a", 3)]]
    assert [report.sequence for report in world.reports] == [1, 2]


async def test_rounds_do_not_share_packs_and_order_is_kept(world: World) -> None:
    """A round that is aborted takes its packs along; the next one uses the same numbers again."""
    rounds = [0, 0, 4, 4, 5, 0]
    for place, (agent, number) in enumerate([("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 1), ("b", 2)]):
        world.add(taken(agent, number, round=rounds[place], basis="tentative" if rounds[place] else "initial"))
    await world.work()
    assert world.packs == [[("a", 0), ("b", 0)], [("a", 1), ("b", 1)], [("a", 1)], [("b", 2)]]


async def test_same_checkpoint_twice_does_not_block_the_others(world: World) -> None:
    world.add(taken("a", 1), taken("b", 1), taken("a", 1), taken("b", 2))
    await world.work()
    assert world.packs == [[("a", 1), ("b", 1)], [("a", 1), ("b", 2)]]


async def test_packs_are_bounded_in_bytes_but_hold_one_checkpoint_at_least(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [taken("a", 1), taken("a", 2), taken("b", 1)]
    state = small[0].size_bytes
    log = {"b": log_of(1, b"x" * state, b"y" * state)}
    large = taken("c", 1, log=log, sent={"b": 2}, received={"a": 1})
    assert large.size_bytes == 3 * state + 4 + 2 * CHANNEL_BYTES
    monkeypatch.setattr(module, "PACK_BYTES_MAX", 2 * state)
    world.add(*small, large, taken("b", 2))
    await world.work()
    assert world.packs == [[("a", 1), ("a", 2)], [("b", 1)], [("c", 1)], [("b", 2)]]


async def test_pack_that_cannot_be_written_is_tried_again_in_the_same_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0)
    world.problem = "the disk is full"
    world.add(taken("a", 1), taken("a", 2))
    world.writer._write()
    world.add(taken("a", 3), taken("b", 1))
    world.jobs.pop()()
    world.problem = ""
    await world.work()
    assert world.packs == [[("a", 1), ("a", 2), ("a", 3), ("b", 1)]]
    assert not [x for x in world.fed if isinstance(x, ev.CheckpointFailed)]


async def test_agent_whose_state_cannot_be_saved_keeps_what_came_before_and_loses_what_came_after(world: World) -> None:
    """What came after builds on a log that is lost; it would be a gap that the coordinator waits for."""
    world.add(taken("a", 1), taken("b", 1), spoilt("a", 2), taken("b", 2), taken("a", 3))
    world.writer._write()
    world.add(taken("a", 4), taken("b", 3))
    await world.work()
    assert world.packs == [[("a", 1), ("b", 1), ("b", 2), ("b", 3)]]
    (failed,) = world.fed
    assert isinstance(failed, ev.CheckpointFailed) and (failed.agent, failed.incarnation) == ("a", 2)
    assert "does not come back as declared" in failed.reason


async def test_number_beyond_64_bits_fails_its_agent_instead_of_being_tried_for_ever(world: World) -> None:
    world.add(taken("a", 1, sent={"b": 2**64}), taken("b", 1))
    await world.work()
    assert world.packs == [[("b", 1)]]
    assert [x.agent for x in world.fed if isinstance(x, ev.CheckpointFailed)] == ["a"]


async def test_frozen_is_said_when_the_last_of_several_packs_is_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PACK_CHECKPOINTS_MAX", 2)
    world.add(*[taken("a", n) for n in range(5)])
    world.writer.report_frozen(ev.ReportFrozen(1, 7, ("x",)), 1)
    await world.work()
    assert [isinstance(x, AgentsFrozen) for x in world.said] == [False, False, False, True] and len(world.packs) == 3


async def test_new_plan_voids_what_waits(world: World) -> None:
    world.add(taken("a", 1))
    world.writer._write()
    world.add(taken("a", 2))
    world.writer.begin("h1-1", 1, 2)
    world.add(taken("a", 1), taken("a", 2))
    await world.work()
    assert world.packs == [[("a", 1), ("a", 2)]] and world.reports[0].plan == 2


async def test_reports_are_repeated_until_they_are_known(world: World) -> None:
    world.add(taken("a", 1))
    await world.work()
    world.writer.repeat()
    assert world.said[0] == world.said[1]
    world.writer.known(1)
    world.writer.repeat()
    assert len(world.said) == 2


async def test_nothing_newer_is_said_on_a_stream_before_what_was_lost_is_said_again(world: World) -> None:
    """A report is acknowledged with all before it: one that a broken stream lost would be taken for known."""
    world.add(taken("a", 1))
    await world.work()
    world.writer.stream_opened()
    world.add(taken("a", 2))
    world.writer.report_frozen(ev.ReportFrozen(1, 7, ()), 1)
    await world.work()
    assert len(world.said) == len(world.reports) == 1
    world.writer.repeat()
    assert [report.sequence for report in world.reports[1:]] == [1, 2]
    assert isinstance(world.said[-1], AgentsFrozen) and len(world.said) == 4


async def test_a_writer_that_does_not_wait_for_the_welcome_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointWriter, "stream_opened", lambda self: None)
    with pytest.raises(AssertionError):
        await test_nothing_newer_is_said_on_a_stream_before_what_was_lost_is_said_again(world)


def watched(world: World) -> list[tuple[bool, str]]:
    """What the host core was told of the store: is it busy, and what is wrong."""
    return [(x.is_busy, x.problem) for x in world.fed if isinstance(x, ev.StoreStatusChanged)]


async def test_dead_store_makes_busy_above_the_limit_and_free_again_at_half_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0)
    monkeypatch.setattr(module, "WAITING_CHECKPOINTS_MAX", 6)
    monkeypatch.setattr(module, "PACK_CHECKPOINTS_MAX", 2)
    world.problem = "the disk is full"
    world.add(*[taken("a", n) for n in range(6)])
    assert watched(world) == [], "six may wait"
    world.writer._write()
    world.add(taken("a", 6))
    assert watched(world) == [(True, "")], "two are being written and five wait"
    world.jobs.pop()()
    assert watched(world)[1:] == [(True, "the disk is full")]
    world.problem = ""
    seen = []
    world.writer._write()
    while world.jobs:
        world.jobs.pop(0)()
        seen.append((len(world.packs), watched(world)[-1]))
        await asyncio.sleep(0.001)
    assert seen == [(1, (True, "")), (2, (False, "")), (3, (False, "")), (4, (False, ""))]
    assert [x for pack in world.packs for x in pack] == [("a", n) for n in range(7)]
    assert world.writer.size_bytes == 0


async def test_dead_store_makes_full_above_twice_the_limit_until_it_is_free_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_CHECKPOINTS_MAX", 3)
    monkeypatch.setattr(module, "PACK_CHECKPOINTS_MAX", 2)
    world.add(*[taken("a", n) for n in range(6)])
    world.add(taken("a", 6))
    await world.work()
    told = [(x.is_busy, x.is_full) for x in world.fed if isinstance(x, ev.StoreStatusChanged)]
    assert told == [(True, False), (True, True), (False, False)]


async def test_bytes_make_busy_as_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = taken("a", 1), taken("a", 2)
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", first.size_bytes + second.size_bytes)
    world.add(first, second)
    assert world.writer.size_bytes == module.WAITING_BYTES_MAX and watched(world) == []
    world.add(taken("b", 1))
    assert watched(world) == [(True, "")]
    await world.work()
    assert watched(world) == [(True, ""), (False, "")] and world.writer.size_bytes == 0


def pending(agent: str, number: int, **changed: Any) -> TakenCheckpoint:
    """A forked capture: the other process encodes the skeleton while the checkpoint waits."""
    made = taken(agent, number, **changed)
    skeleton, made.image.skeleton = made.image.skeleton, b""
    made.image.pending = lambda: skeleton
    return msgspec.structs.replace(made)


async def test_a_skeleton_that_comes_late_leaves_no_bytes_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0)
    world.add(pending("a", 1), pending("b", 1, round=4, basis="tentative"))
    world.problem = "the disk is full"
    world.writer._write()
    world.jobs.pop(0)()
    for checkpoint in world.writer._waiting:
        checkpoint.image.resolve()
    world.writer.drop_round(4)
    world.problem = ""
    await world.work()
    assert world.packs == [[("a", 1)]] and world.writer.size_bytes == 0


async def test_a_receiver_forgotten_while_a_checkpoint_waits_leaves_no_bytes_behind(world: World) -> None:
    """The agent's table of what it sent was the very one of the command: the queue counted it in, and less of it out."""
    agent = LoggedAgent(Backlog(), PolicyClock(Manual(), "a"), None, None)
    sent = {"b": 1, "gone": 2}
    waiting = taken("a", 1, sent=sent)
    agent.settle(sent, {})
    world.add(waiting)
    agent.forget("gone")
    assert agent.sent == {"b": 1} and waiting.command.sent == {"b": 1, "gone": 2}
    await world.work()
    assert world.writer.size_bytes == 0


async def test_log_is_told_once_that_the_store_fails_and_once_that_it_works(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="snapline.host")
    monkeypatch.setattr(module, "RETRY_S", 0)
    world.problem = "the disk is full"
    world.add(taken("a", 1))
    world.writer._write()
    for _ in range(20):
        world.jobs.pop(0)()
        await asyncio.sleep(0.001)
    world.problem = ""
    await world.work()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert watched(world) == [(False, "the disk is full"), (False, "")]


class Later:
    """A timer that the test fires."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self.calls: list[Callable[[], None]] = []

    def __call__(self, delay_s: float, function: Callable[[], None]) -> "Later":
        self.delays_s.append(delay_s)
        self.calls.append(function)
        return self

    def cancel(self) -> None:
        """Fired by hand only."""


def test_tries_come_more_and_more_seldom(tmp_path: Path) -> None:
    world, later = World(tmp_path / "store"), Later()
    world.writer = CheckpointWriter(
        world._open, world._in_worker, world.said.append, world.fed.append, call_later=later
    )
    world.writer.repeat()
    world.writer.begin("h1-1", 1, 1)
    world.problem = "the disk is full"
    world.add(taken("a", 1))
    for _ in range(6):
        later.calls.pop()()
        world.jobs.pop()()
    assert later.delays_s == [module.GATHER_S, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    world.problem = ""
    world.writer.report_frozen(ev.ReportFrozen(1, 7, ()), 1)
    assert len(world.jobs) == 1, "a recovery does not wait for the next try"
    world.jobs.pop()()
    assert [type(x) for x in world.said] == [CheckpointsStored, AgentsFrozen]
    world.problem = "again"
    world.add(taken("a", 2))
    later.calls.pop()()
    world.jobs.pop()()
    assert later.delays_s[-1] == 1.0, "it begins anew"


async def test_aborted_round_takes_what_waits_for_it_along(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a dead store each round would add its tentative checkpoints for ever; and a problem without work is none."""
    monkeypatch.setattr(module, "RETRY_S", 0)
    world.problem = "the disk is full"
    world.add(taken("a", 0), taken("a", 1, round=4, basis="tentative"), taken("b", 1, round=4, basis="tentative"))
    world.writer._write()
    world.jobs.pop()()
    world.writer.drop_round(3)
    assert watched(world) == [(False, "the disk is full")]
    world.writer.drop_round(4)
    world.problem = ""
    await world.work()
    assert world.packs == [[("a", 0)]] and world.writer.size_bytes == 0
    world.problem = "the disk is full"
    world.add(taken("a", 1, round=5, basis="tentative"))
    world.writer._write()
    world.jobs.pop()()
    world.writer.drop_round(5)
    assert watched(world)[-1] == (False, "") and world.writer.size_bytes == 0


async def test_new_plan_begins_with_a_good_opinion_of_the_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_CHECKPOINTS_MAX", 1)
    world.problem = "the disk is full"
    world.add(taken("a", 1), taken("a", 2))
    world.writer._write()
    world.writer.begin("h1-1", 1, 2)
    world.jobs.pop()()
    world.problem = ""
    world.add(taken("a", 1))
    await world.work()
    assert watched(world) == [(True, "")], "the core has begun anew as well, and is told nothing"
    assert world.writer.size_bytes == 0


async def test_every_image_is_released_exactly_once_when_it_is_durable_or_void(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes lie in memory that is used again: too early and another state is written, never and the arena runs dry."""
    monkeypatch.setattr(module, "RETRY_S", 0)
    released: list[str] = []

    def watch(checkpoint: TakenCheckpoint, name: str) -> TakenCheckpoint:
        checkpoint.image.on_release.append(lambda: released.append(name))
        return checkpoint

    world.add(watch(taken("a", 1), "of the plan before, in work"))
    world.writer._write()
    world.add(watch(taken("a", 2), "of the plan before"))
    world.writer.begin("h1-1", 1, 2)
    assert released == ["of the plan before"], "the worker still reads the other one"
    world.add(watch(taken("a", 1), "good"), watch(spoilt("b", 1), "spoilt"))
    world.add(watch(taken("c", 1, round=4, basis="tentative"), "of an aborted round"))
    world.writer.drop_round(4)
    world.jobs.pop()()
    assert released[1:] == ["of an aborted round", "of the plan before, in work"]
    world.problem = "the disk is full"
    world.writer._write()
    world.jobs.pop()()
    assert len(released) == 3, "it is tried again"
    world.problem = ""
    await world.work()
    assert sorted(released[3:]) == ["good", "spoilt"]
