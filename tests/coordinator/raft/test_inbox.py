"""No wake-up is lost, whenever somebody puts something in between; and the order that loses one is found out."""

import contextlib
import os
import select
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from snapline.coordinator.raft.raft_streams import Inbox, Item


class Interrupted(Inbox):
    """Calls `meanwhile` once, at the given step of `take`: what another thread may do there."""

    def __init__(self, step: int, meanwhile: Callable[["Interrupted"], None]) -> None:
        self._step = -1
        super().__init__()
        self._wanted, self._run_during = step, meanwhile

    def begin(self) -> None:
        self._step = 0
        self._passed()

    def _passed(self) -> None:
        if self._step == self._wanted:
            self._step = -1
            self._run_during(self)
        elif self._step >= 0:
            self._step += 1

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_is_woken" and value is False and self._step >= 0:
            self._passed()

    def step(self) -> None:
        self._passed()


class Wrong(Interrupted):
    """Takes first, then empties the pipe and clears the mark."""

    def take(self) -> list[Item]:
        items = list(self._items)
        self._items.clear()
        self.step()
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
        self.step()
        self._is_woken = False
        return items


class ClearedFirst(Interrupted):
    """Clears the mark, then empties the pipe, which may swallow the byte of whoever saw the mark cleared."""

    def take(self) -> list[Item]:
        items = list(self._items)
        self._items.clear()
        self._is_woken = False
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
        self.step()
        return items


def is_readable(inbox: Inbox) -> bool:
    return bool(select.select([inbox.descriptor], [], [], 0)[0])


def loses_one(kind: type[Interrupted], step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether something put at this step is neither taken nor announced."""
    done: list[str] = []
    inbox = kind(step, lambda it: it.put(lambda: done.append("second")))
    real = os.read

    def read(descriptor: int, count: int) -> bytes:
        if descriptor != inbox.descriptor:
            return real(descriptor, count)
        try:
            return real(descriptor, count)
        finally:
            inbox.step()

    inbox.put(lambda: done.append("first"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read)
        inbox.begin()
        for item in inbox.take():
            item()
    assert done[:1] == ["first"]
    lost = "second" not in done and not is_readable(inbox)
    inbox.close()
    return lost


@pytest.mark.parametrize("step", range(3))
def test_nothing_is_lost_at_any_step(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not loses_one(Interrupted, step, monkeypatch)


@pytest.mark.parametrize("kind", [Wrong, ClearedFirst])
def test_other_orders_lose_something(kind: type[Interrupted], monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(loses_one(kind, step, monkeypatch) for step in range(4))


def test_many_threads_put_and_one_takes_in_order() -> None:
    inbox = Inbox()
    seen: dict[int, list[int]] = {number: [] for number in range(3)}
    each = 3000

    def put(number: int) -> None:
        for count in range(each):
            inbox.put(partial(seen[number].append, count))

    threads = [threading.Thread(target=put, args=(number,)) for number in seen]
    for thread in threads:
        thread.start()
    while sum(map(len, seen.values())) < each * len(seen):
        assert select.select([inbox.descriptor], [], [], 10.0)[0], "a wake-up was lost"
        for item in inbox.take():
            item()
    for thread in threads:
        thread.join()
    assert all(found == list(range(each)) for found in seen.values())
    inbox.close()


def test_a_closed_inbox_takes_and_writes_nothing() -> None:
    inbox = Inbox()
    inbox.close()
    inbox.close()
    taken = os.open("/dev/null", os.O_RDONLY)  # has one of the closed numbers
    inbox.put(lambda: None)
    inbox.wake()
    os.close(taken)


def test_what_is_put_while_taking_waits_for_the_next_time() -> None:
    """Whoever puts without end must not keep the ticks waiting."""
    inbox = Inbox()

    def again() -> None:
        inbox.put(again)

    inbox.put(again)
    for _ in range(3):
        (item,) = inbox.take()
        item()
        assert is_readable(inbox)
    inbox.close()
