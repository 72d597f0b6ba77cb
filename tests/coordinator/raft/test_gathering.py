"""Proposals that wait become entries together: one message per follower, one sync, one wake-up."""

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pysyncobj.config import FAIL_REASON  # type: ignore[import-untyped]  # the library has no types
from tests.coordinator.raft.sim import Replica, World

from snapline.coordinator.raft.pysyncobj_adapter import WakeUp


def led(world: World) -> Replica:
    assert world.run(20, lambda: world.leader is not None)
    world.run(1)
    assert world.leader is not None
    return world.leader


def test_proposals_of_one_tick_leave_in_one_message_and_are_durable_with_it() -> None:
    with World(3) as world:
        leader = led(world)
        sent: list[tuple[str, dict[str, Any]]] = []
        post = world.post

        def noted(source: str, target: str, message: dict[str, Any]) -> None:
            if source == leader.name and message.get("entries"):
                sent.append((target, message))
            post(source, target, message)

        world.post = noted  # type: ignore[method-assign]
        journal = leader.node._SyncObj__raftLog
        outcomes = [world.write(leader, b"%d" % number) for number in range(64)]
        before = journal.commits
        world.tick(leader)
        assert sorted(target for target, _ in sent) == sorted(set(world.replicas) - {leader.name})
        assert [len(message["entries"]) for _, message in sent] == [64, 64]
        assert journal.commits == before + 1 and not journal._is_changed, "not durable while the followers write"
        assert world.run(5, lambda: all(outcomes))
        assert [outcome[0][1] for outcome in outcomes] == [FAIL_REASON.SUCCESS] * 64


def test_the_leader_writes_while_its_followers_do() -> None:
    """It sends first; were it to wait for its own disk, every commit would wait for two."""
    with World(4) as world:
        leader = led(world)
        order: list[str] = []
        post, sync = world.post, leader.node.sync_journal

        def noted(source: str, target: str, message: dict[str, Any]) -> None:
            if source == leader.name and message.get("entries"):
                order.append("sent")
            post(source, target, message)

        def synced() -> None:
            if leader.node._SyncObj__raftLog._is_changed:
                order.append("synced")
            sync()

        world.post, leader.node.sync_journal = noted, synced  # type: ignore[method-assign]
        world.write(leader, b"x")
        world.tick(leader)
        assert order == ["sent", "sent", "synced"]


class Pipe:
    """Counts its bytes; full after two."""

    def __init__(self) -> None:
        self.count = 0

    def notify(self) -> None:
        if self.count == 2:
            raise BlockingIOError
        self.count += 1


def test_one_wake_up_stands_for_all_until_it_is_heard() -> None:
    pipe = Pipe()
    wake_up = WakeUp(pipe)
    for heard in range(4):
        for _ in range(3):
            wake_up.notify()
        assert pipe.count == min(heard + 1, 2), "a full pipe wakes as well"
        wake_up.is_woken = False


def test_a_proposer_wakes_the_tick_once_it_has_proposed_all() -> None:
    """Else the tick takes the first of many, and syncs it alone."""
    pipe, later = Pipe(), list[Callable[[], None]]()
    wake_up = WakeUp(pipe)
    wake_up.later = later.append

    def propose() -> None:
        for _ in range(3):
            wake_up.notify()

    proposer = threading.Thread(target=propose)
    proposer.start()
    proposer.join()
    assert pipe.count == 0 and len(later) == 1
    later[0]()
    assert pipe.count == 1
    wake_up.is_woken = False
    wake_up.notify()
    assert pipe.count == 2 and len(later) == 1, "the tick waits for nobody to wake itself"


def test_a_wake_up_that_comes_after_the_end_is_dropped() -> None:
    read, write = os.pipe()
    pipe = Pipe()
    pipe._PipeNotifier__pipeR, pipe._PipeNotifier__pipeW = read, write  # type: ignore[attr-defined]
    wake_up = WakeUp(pipe)
    wake_up.close(SimpleNamespace(unsubscribe=lambda _: None))
    wake_up.notify()
    assert pipe.count == 0
