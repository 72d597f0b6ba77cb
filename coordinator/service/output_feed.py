"""Feed of released outputs: the leader serves stored outputs to readers, and passes on new outputs as they are released.

A reader sends its cursor, and receives a page of outputs that were released after the cursor. If no outputs follow the cursor, the
reader's call waits for the next release. The leader keeps no state about readers between their calls. A reader may therefore continue
with a later leader, and a slow reader does not delay other readers.

The epochs that have outputs are listed once per leadership. After the listing, the store reports each new release.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from snapline.coordinator.leader.events import OutputReadersChanged
from snapline.coordinator.service.leadership import LeaderRunner, Leadership
from snapline.errors import CoordinatorUnavailableError, NotFoundError
from snapline.messages.answers import (
    Consumer,
    ReadConsumersReply,
    ReadOutputsReply,
    ReleasedOutput,
    ReleasedOutputs,
    UndoneOutputs,
)
from snapline.storage.outputs.output_files import OutputBatch
from snapline.storage.outputs.output_record import EmittedOutput, matches_topic
from snapline.storage.store.store import Store

PAGE_BYTES = 2**20
"""Size of a page, 1 MiB. The last output in a page may exceed it."""

PAGE_OUTPUTS_MAX = 5000
"""Largest number of outputs in a page, whatever their size."""

SCANNED_MAX = 100_000
"""Largest number of outputs scanned for a page. With this limit, the cursor advances even if few outputs have the requested topic."""

WAIT_S_MAX = 20.0
"""Longest time, in seconds, that a call waits. A reader that is still interested calls again."""

LOOK_S = 0.25
"""How often, in seconds, a waiting call checks whether this replica still leads."""

STAY_S = 5.0
"""Time, in seconds, for which a reader still counts as following after its call has ended, because the reader may be processing the
page."""

PAGES_AT_ONCE = 4
"""Number of pages that may be read at the same time. Reading a page uses a thread and keeps one part of a release in memory, about ten
MiB."""


class OutputFeed:
    """The output feed of one replica. `has_ended` tells whether the fleet has ended, and `leader_hint` returns text that names the
    leader."""

    def __init__(
        self, store: Store, leadership: Leadership, *, has_ended: Callable[[], bool], leader_hint: Callable[[], str]
    ) -> None:
        self._has_ended = has_ended
        self._store = store
        self._leadership = leadership
        self._who_leads = leader_hint
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop; None before the first read."""
        self._changed = asyncio.Event()
        """An event that is set at each release and then replaced by a new event."""
        self._epochs: list[int] | None = None
        """The epochs that have outputs, ascending; None if they must be listed. Releases that are reported during the listing are added."""
        self._listed_by: LeaderRunner | None = None
        """Runner of the leadership during which the epochs were listed."""
        self._listing = asyncio.Lock()
        self._released_while_listing: list[int] = []
        """Epochs that are released while epochs are being listed."""
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)
        self._waiting = self._waits = 0
        """Number of calls that are currently waiting, and number of calls that have waited so far."""
        self._watched: LeaderRunner | None = None
        """The leader whose hosts were notified that a reader follows the outputs; None if no hosts were."""
        store.watch_outputs(self._on_released)

    async def read(self, after: str, topic: str, wait_s: float) -> ReadOutputsReply:
        """Return a page of outputs after the cursor, as soon as there are any. If there are no outputs when the wait ends, return an
        empty page. This method also raises the errors of `Store.read_outputs`.

        Raises:
            CoordinatorUnavailableError: this replica does not lead, or has stopped leading.
        """
        loop = self._loop = asyncio.get_running_loop()
        runner, deadline_s = self._runner(), loop.time() + min(wait_s, WAIT_S_MAX)
        while True:
            changed, is_over = self._changed, self._is_over(runner)
            page = await self._page(after, topic, runner)
            if page.releases or loop.time() >= deadline_s:
                return page
            if page.cursor == after:
                if is_over:
                    return ReadOutputsReply((), after, is_over=True)
                async with self._watching(runner):
                    await self._wait(changed, runner, deadline_s)
            after = page.cursor

    async def consumers(self) -> ReadConsumersReply:
        """Return all named consumers."""
        self._runner()
        positions = await asyncio.to_thread(self._store.output_consumers)
        return ReadConsumersReply(
            tuple([Consumer(name, place.cursor, place.acknowledged_ns) for name, place in positions.items()])
        )

    async def move(self, name: str, cursor: str) -> str:
        """Move a consumer's cursor, and return the new cursor. This method also raises the errors of `Store.acknowledge_outputs`."""
        self._runner()
        now_ns = time.time_ns()
        return (await asyncio.to_thread(self._store.acknowledge_outputs, name, cursor, now_ns=now_ns)).cursor

    async def forget(self, name: str) -> None:
        """Remove a consumer.

        Raises:
            NotFoundError: no consumer has this name.
        """
        self._runner()
        if not await asyncio.to_thread(self._store.forget_consumer, name):
            raise NotFoundError(f"no consumer {name!r} of outputs: `snapline output consumers list` shows them")

    async def _page(self, after: str, topic: str, runner: LeaderRunner) -> ReadOutputsReply:
        async with self._pages:
            epochs = await self._list(runner)
            return await asyncio.to_thread(read_page, self._store, after, topic, epochs)

    async def _list(self, runner: LeaderRunner) -> list[int]:
        """Return the epochs that have outputs.

        A new leadership lists the epochs again, because this replica is not notified of releases by other leaders.
        """
        async with self._listing:
            if self._epochs is None or self._listed_by is not runner:
                self._released_while_listing = []
                stored_epochs = await asyncio.to_thread(self._store.output_epochs)
                self._epochs, self._listed_by = sorted({*stored_epochs, *self._released_while_listing}), runner
            return self._epochs

    @contextlib.asynccontextmanager
    async def _watching(self, runner: LeaderRunner) -> AsyncIterator[None]:
        """Notify hosts that a reader follows the outputs, so that hosts request epochs for their pending outputs."""
        self._waiting += 1
        if self._watched is not runner:
            self._watched = runner
            runner.feed(OutputReadersChanged(is_watched=True))
        try:
            yield
        finally:
            self._waiting -= 1
            self._waits += 1
            asyncio.get_running_loop().call_later(STAY_S, self._leave, self._waits)

    def _leave(self, wait: int) -> None:
        """Notify hosts that no reader follows the outputs, if none has waited during the last STAY_S."""
        if self._waiting or wait != self._waits or self._watched is None:
            return
        watched, self._watched = self._watched, None
        if watched is self._leadership.runner:
            watched.feed(OutputReadersChanged(is_watched=False))

    async def _wait(self, changed: asyncio.Event, runner: LeaderRunner, deadline_s: float) -> None:
        """Wait for the next release, the end of the fleet, or the end of this leadership."""
        loop = asyncio.get_running_loop()
        while not changed.is_set() and loop.time() < deadline_s:
            if self._is_over(runner):
                return
            if self._runner() is not runner:
                raise CoordinatorUnavailableError(self._who_leads())
            left_s = deadline_s - loop.time()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), max(0.0, min(LOOK_S, left_s)))

    def _runner(self) -> LeaderRunner:
        runner = self._leadership.runner
        if runner is None or (self._leadership.ended.is_set() and not self._has_ended()):
            raise CoordinatorUnavailableError(self._who_leads())
        return runner

    def _is_over(self, runner: LeaderRunner) -> bool:
        """Return whether the fleet has ended and all outputs have been released."""
        return self._has_ended() and (self._leadership.ended.is_set() or runner.standing().is_released)

    def _on_released(self, epoch: int) -> None:
        """Handle a release. The store may call this method on any thread, even after the event loop has ended."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._note, epoch)

    def _note(self, epoch: int) -> None:
        if not epoch:
            self._epochs = None
        elif self._epochs is None or self._listing.locked():
            self._released_while_listing.append(epoch)
        if epoch and self._epochs is not None and epoch not in self._epochs[-1:]:
            self._epochs = sorted({*self._epochs, epoch})
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def read_page(store: Store, after: str, topic: str, epochs: Sequence[int]) -> ReadOutputsReply:
    """Read one page of outputs. The call blocks."""
    page = _Page(after, topic)
    for batch in store.read_outputs(after, epochs=epochs):
        if page.is_full:
            break
        page.take(batch)
    return ReadOutputsReply(tuple(page.releases), page.cursor)


class _Page:
    """A page of outputs that is being filled."""

    def __init__(self, after: str, topic: str) -> None:
        self.cursor = after
        self.releases: list[ReleasedOutputs] = []
        self._topic = topic
        self._bytes = self._outputs = self._scanned = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= PAGE_BYTES or self._outputs >= PAGE_OUTPUTS_MAX or self._scanned >= SCANNED_MAX

    def take(self, batch: OutputBatch) -> None:
        """Add outputs from the batch until the page is full."""
        outputs: list[ReleasedOutput] = []
        taken = 0
        while taken < len(batch.outputs) and not self.is_full:
            output = batch.outputs[taken]
            taken, self._scanned = taken + 1, self._scanned + 1
            if matches_topic(output.topic, self._topic):
                outputs.append(_released(output, str(batch.cursor(taken))))
                self._bytes, self._outputs = self._bytes + len(output.payload), self._outputs + 1
        self.cursor = str(batch.cursor(taken))
        if outputs or batch.undone is not None:
            self.releases.append(ReleasedOutputs(batch.epoch, _undone(batch), tuple(outputs)))


def _released(output: EmittedOutput, cursor: str) -> ReleasedOutput:
    return ReleasedOutput(output.agent, output.number, output.topic, output.payload, output.emitted_ns, cursor)


def _undone(batch: OutputBatch) -> UndoneOutputs | None:
    if batch.undone is None:
        return None
    return UndoneOutputs(batch.undone.after, batch.undone.epochs, str(batch.cursor(0)))
