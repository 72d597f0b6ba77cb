"""The driver over a node that does what the test says: outcomes, deadlines, limits, shared barriers, failures."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, NoReturn

import pytest
from pysyncobj.config import FAIL_REASON  # type: ignore[import-untyped]  # the library has no types
from tests.coordinator.raft.peers_of import until

from snapline.coordinator.raft import durability
from snapline.coordinator.raft import raft_driver as driver_module
from snapline.coordinator.raft.pysyncobj_adapter import RaftNode
from snapline.coordinator.raft.raft_driver import FAILURES_MAX, IN_FLIGHT_MAX, Committed, RaftDriver, Rejected, Unknown
from snapline.coordinator.raft.raft_streams import Inbox
from snapline.errors import CoordinatorUnavailableError, LogError, UsageError
from snapline.messages.status import Standing

SUCCESS = FAIL_REASON.SUCCESS
Callback = Callable[[object, Any], None]


class ScriptedNode:
    """Keeps callbacks until the test answers them, on the tick thread."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.proposed: list[tuple[bytes, Callback]] = []
        self.barriers: list[Callback] = []
        self.ticks = 0
        self.on_tick: Callable[[], None] = lambda: None
        self.on_propose: Callable[[Callback], None] = lambda callback: None
        self.on_applied: Callable[[], None] = lambda: None
        self.thread: threading.Thread | None = None
        self.is_destroyed = False
        self.raftCurrentTerm = 0
        self.is_leader = False
        self.leader: RaftNode | None = None
        self.selfNode = RaftNode("c1", "")
        self.otherNodes = {RaftNode("c2", "")}
        self.transfer_code = SUCCESS
        self.transfers = 0

    def doTick(self, timeout_s: float) -> None:
        self.thread = threading.current_thread()
        self.ticks += 1
        self.on_tick()
        for item in self._inbox.take():
            item()
        time.sleep(0.001)

    def propose(self, entry: bytes, callback: Callback) -> None:
        if not entry:
            raise UsageError("empty")
        self.proposed.append((entry, callback))
        self.on_propose(callback)

    def set_wake_scheduler(self, later: Callable[[Callable[[], None]], object]) -> None:
        """It ticks all the time."""

    def barrier(self, callback: Callback) -> None:
        self.barriers.append(callback)

    def _getLeader(self) -> RaftNode | None:
        return self.leader

    def transferLeadership(self, target: RaftNode | None, callback: Callback) -> None:
        self.transfers += 1
        callback(None, self.transfer_code)

    def destroy(self) -> None:
        self.is_destroyed = True


class Driven:
    def __init__(self) -> None:
        self.inbox = Inbox()
        self.node = ScriptedNode(self.inbox)
        self.standings: list[Standing] = []
        made: Any = lambda: self.node  # any: it is no SafeSyncObj
        self.driver = RaftDriver(made, self.inbox, on_standing=self.standings.append)

    async def on_tick_thread(self, call: Callable[[], object]) -> None:
        done = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def run() -> None:
            call()
            loop.call_soon_threadsafe(done.set_result, None)

        self.inbox.put(run)
        await done


@pytest.fixture
async def driven() -> AsyncIterator[Driven]:
    made = Driven()
    await made.driver.start()
    yield made
    await made.driver.stop()
    assert made.node.is_destroyed
    made.inbox.close()


# ---- proposals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (SUCCESS, Committed),
        (FAIL_REASON.QUEUE_FULL, Rejected),
        (FAIL_REASON.MISSING_LEADER, Rejected),
        (FAIL_REASON.DISCARDED, Rejected),
        (FAIL_REASON.NOT_LEADER, Rejected),
        (FAIL_REASON.LEADER_CHANGED, Unknown),
        (FAIL_REASON.REQUEST_DENIED, Rejected),
        (FAIL_REASON.UNKNOWN_OUTCOME, Unknown),
        (8, Unknown),
        (None, Unknown),
    ],
)
async def test_every_code_has_its_outcome(driven: Driven, code: int | None, kind: type) -> None:
    """Section 7 of the design. Only what is surely not in the log is rejected."""
    asking = asyncio.create_task(driven.driver.propose(b"x"))
    await until(lambda: bool(driven.node.proposed))
    await driven.on_tick_thread(lambda: driven.node.proposed[0][1]("result", code))
    outcome = await asking
    assert isinstance(outcome, kind)
    assert not isinstance(outcome, Committed) or outcome.result == "result"


async def test_an_answer_on_the_proposer_s_own_thread_counts(driven: Driven) -> None:
    driven.node.on_propose = lambda callback: callback(None, FAIL_REASON.QUEUE_FULL)
    assert isinstance(await driven.driver.propose(b"x"), Rejected)


async def test_no_answer_is_an_outcome_and_a_late_one_does_no_harm(driven: Driven) -> None:
    assert isinstance(await driven.driver.propose(b"x", timeout_s=0.05), Unknown)
    await driven.on_tick_thread(lambda: driven.node.proposed[0][1]("late", SUCCESS))
    await asyncio.sleep(0.02)
    assert driven.driver.counters.unknown == 1 and driven.driver.counters.committed == 0


async def test_each_waits_for_as_long_as_it_said(driven: Driven) -> None:
    async def propose(timeout_s: float) -> None:
        began_s = time.monotonic()
        outcome = await driven.driver.propose(b"x", timeout_s=timeout_s)
        assert outcome == Unknown(f"no answer within {timeout_s} s") and time.monotonic() - began_s >= timeout_s

    await asyncio.gather(*[propose(timeout_s) for timeout_s in (0.3, 0.1, 0.2)])
    await propose(0.05)


async def test_the_loop_hears_of_all_that_a_tick_has_applied_at_once(driven: Driven) -> None:
    heard: list[str] = []

    def apply() -> None:
        driven.driver.call_on_loop(lambda: heard.append("first"))
        time.sleep(0.05)  # without the interpreter: the loop could run
        assert heard == []
        driven.driver.call_on_loop(lambda: heard.append("second"))
        driven.node.on_applied()
        while heard != ["first", "second"]:
            time.sleep(0.001)  # it hears while the tick goes on

    await driven.on_tick_thread(apply)


async def test_an_exception_from_proposing_leaves_it_unknown(driven: Driven) -> None:
    """The library's pipe may be full although the command was queued."""

    def fail(_: Callback) -> NoReturn:
        raise BlockingIOError("pipe")

    driven.node.on_propose = fail
    assert isinstance(await driven.driver.propose(b"x"), Unknown)


async def test_misuse_is_raised(driven: Driven) -> None:
    with pytest.raises(UsageError):
        await driven.driver.propose(b"")


async def test_a_flood_is_bounded_and_rejected_at_once(driven: Driven) -> None:
    """Ten times what may be under way (test 15)."""
    tasks = [asyncio.create_task(driven.driver.propose(b"x", timeout_s=2.0)) for _ in range(10 * IN_FLIGHT_MAX)]
    await until(lambda: len(driven.node.proposed) == IN_FLIGHT_MAX)
    await asyncio.sleep(0.05)
    assert len(driven.node.proposed) == IN_FLIGHT_MAX
    done = [task.result() for task in tasks if task.done()]
    assert len(done) == 9 * IN_FLIGHT_MAX and all(isinstance(outcome, Rejected) for outcome in done)

    def answer() -> None:
        for _, callback in driven.node.proposed:
            callback(None, SUCCESS)

    await driven.on_tick_thread(answer)
    outcomes = await asyncio.gather(*tasks)
    assert sum(isinstance(outcome, Committed) for outcome in outcomes) == IN_FLIGHT_MAX
    assert len(driven.driver._pending) == 0


async def test_a_cancelled_proposer_gives_its_place_back(driven: Driven) -> None:
    task = asyncio.create_task(driven.driver.propose(b"x"))
    await until(lambda: bool(driven.node.proposed))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(driven.driver._pending) == 0


# ---- reads ----------------------------------------------------------------------------------------------------------


async def test_readers_share_a_barrier_but_not_one_that_is_under_way(driven: Driven) -> None:
    first = asyncio.create_task(driven.driver.read(lambda: "first"))
    await until(lambda: len(driven.node.barriers) == 1)
    later = [asyncio.create_task(driven.driver.read(partial(int, n))) for n in range(50)]
    await asyncio.sleep(0.02)
    assert len(driven.node.barriers) == 1
    await driven.on_tick_thread(lambda: driven.node.barriers[0](None, SUCCESS))
    assert await first == "first"
    await until(lambda: len(driven.node.barriers) == 2)
    assert not any(task.done() for task in later), "they came after the first barrier was proposed"
    await driven.on_tick_thread(lambda: driven.node.barriers[1](None, SUCCESS))
    assert await asyncio.gather(*later) == list(range(50))
    assert len(driven.node.barriers) == 2


async def test_the_reply_is_built_on_the_tick_thread_at_that_moment(driven: Driven) -> None:
    state = {"x": 1}
    built_by: list[threading.Thread] = []

    def build() -> int:
        built_by.append(threading.current_thread())
        return state["x"]

    reading = asyncio.create_task(driven.driver.read(build))
    await until(lambda: bool(driven.node.barriers))

    def pass_and_change() -> None:
        state["x"] = 2
        driven.node.barriers[0](None, SUCCESS)
        state["x"] = 3

    await driven.on_tick_thread(pass_and_change)
    assert await reading == 2
    assert built_by == [driven.node.thread]


async def test_a_barrier_that_fails_or_is_lost_is_tried_again(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "BARRIER_S", 0.1)
    reading = asyncio.create_task(driven.driver.read(lambda: "there"))
    await until(lambda: len(driven.node.barriers) == 1)
    await driven.on_tick_thread(lambda: driven.node.barriers[0](None, FAIL_REASON.MISSING_LEADER))
    await until(lambda: len(driven.node.barriers) == 3)  # the second one is not answered at all
    await driven.on_tick_thread(lambda: driven.node.barriers[2](None, SUCCESS))
    assert await reading == "there"
    await driven.on_tick_thread(lambda: driven.node.barriers[1](None, SUCCESS))


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6, 7, None])
async def test_no_other_code_lets_a_read_pass(driven: Driven, code: int | None) -> None:
    def answer() -> None:
        for callback in driven.node.barriers:
            callback(None, code)

    driven.node.on_tick = answer
    built: list[int] = []
    with pytest.raises(CoordinatorUnavailableError):
        await driven.driver.read(lambda: built.append(1), timeout_s=0.15)
    assert not built


async def test_what_build_raises_is_raised_to_its_reader_alone(driven: Driven) -> None:
    def fail() -> NoReturn:
        raise KeyError("gone")

    bad = asyncio.create_task(driven.driver.read(fail))
    good = asyncio.create_task(driven.driver.read(lambda: 1))
    await until(lambda: bool(driven.node.barriers))
    await driven.on_tick_thread(lambda: driven.node.barriers[0](None, SUCCESS))
    with pytest.raises(KeyError):
        await bad
    assert await good == 1


# ---- standing, transfer ---------------------------------------------------------------------------------------------


async def test_a_change_of_standing_is_told(driven: Driven) -> None:
    def elect() -> None:
        driven.node.raftCurrentTerm, driven.node.leader = 3, RaftNode("c2", "")

    await driven.on_tick_thread(elect)
    await until(lambda: driven.standings == [Standing(3, "c2", False)])
    assert driven.driver.standing == Standing(3, "c2", False)


async def test_transfer_is_refused_where_it_makes_no_sense(driven: Driven) -> None:
    with pytest.raises(UsageError, match="does not lead"):
        await driven.driver.transfer_leadership()
    driven.node.is_leader = True
    with pytest.raises(UsageError, match="c7"):
        await driven.driver.transfer_leadership("c7")
    driven.node.transfer_code = FAIL_REASON.REQUEST_DENIED
    with pytest.raises(CoordinatorUnavailableError, match=r"^c2 was not up to date within 0.1 s"):
        await driven.driver.transfer_leadership("c2", timeout_s=0.1)
    with pytest.raises(CoordinatorUnavailableError, match=r"^no other replica was up to date"):
        await driven.driver.transfer_leadership(timeout_s=0.1)
    driven.node.transfer_code = SUCCESS
    with pytest.raises(CoordinatorUnavailableError, match="took over"):
        await driven.driver.transfer_leadership("c2", timeout_s=0.1)


async def test_a_replica_without_others_refuses_a_transfer_at_once(driven: Driven) -> None:
    driven.node.is_leader, driven.node.otherNodes = True, set()
    for to in (None, "c2"):
        with pytest.raises(UsageError, match="only one replica"):  # an unavailable coordinator would be asked again
            await driven.driver.transfer_leadership(to)


async def test_who_is_named_leads_or_the_call_fails(driven: Driven) -> None:
    """An answer that names another leader would be taken for success."""

    def elect() -> None:
        driven.node.raftCurrentTerm, driven.node.leader = 3, RaftNode("c3", "")

    driven.node.is_leader, driven.node.transfer_code = True, SUCCESS
    asked = asyncio.create_task(driven.driver.transfer_leadership("c2", timeout_s=10))
    await until(lambda: driven.node.transfers == 1)  # an election before would be none of its own
    await driven.on_tick_thread(elect)
    with pytest.raises(CoordinatorUnavailableError, match="c3 won the election, not c2"):
        await asked


# ---- failures -------------------------------------------------------------------------------------------------------


class EndedError(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def ended() -> Any:
    reasons: list[str] = []

    def hook(reason: str) -> NoReturn:
        reasons.append(reason)
        raise EndedError(reason)

    durability.set_fail_stop_hook(hook)
    yield reasons
    durability.set_fail_stop_hook(None)


async def test_some_failing_ticks_are_survived_and_many_in_a_row_are_not(driven: Driven, ended: list[str]) -> None:
    failing = {"left": FAILURES_MAX - 1}

    def fail() -> None:
        if failing["left"]:
            failing["left"] -= 1
            raise ValueError("tick")

    driven.node.on_tick = fail
    await until(lambda: not failing["left"])
    ticks = driven.node.ticks
    await until(lambda: driven.node.ticks > ticks + 2)
    assert not ended and driven.driver.counters.tick_errors == FAILURES_MAX - 1
    asking = asyncio.create_task(driven.driver.propose(b"x"))
    reading = asyncio.create_task(driven.driver.read(lambda: 1))
    await until(lambda: bool(driven.node.proposed and driven.node.barriers))
    failing["left"] = FAILURES_MAX
    await until(lambda: bool(ended))
    assert isinstance(await asking, Unknown)
    with pytest.raises(CoordinatorUnavailableError):
        await reading
    with pytest.raises(LogError):
        await driven.driver.propose(b"x")


async def test_stopped_it_knows_nothing_of_what_was_under_way(driven: Driven) -> None:
    asking = asyncio.create_task(driven.driver.propose(b"x"))
    await until(lambda: bool(driven.node.proposed))
    await driven.driver.stop()
    assert isinstance(await asking, Unknown)
    for call in (driven.driver.propose(b"x"), driven.driver.read(lambda: 1), driven.driver.status()):
        with pytest.raises(LogError):
            await call


async def test_a_node_that_cannot_be_made_is_told() -> None:
    def fail() -> NoReturn:
        raise LogError("damaged")

    driver = RaftDriver(fail, Inbox())
    with pytest.raises(LogError, match="damaged"):
        await driver.start()
    await driver.stop()
