"""The part of a host core that keeps its log: what must be durable before anything follows from it, in batches, one after the other.

An input is acknowledged, and a step's turn goes on, when the batch that holds it is durable. One batch is on its way at most; what comes
meanwhile goes into the next one. A log belongs to one plan and one run of a host. It is opened before anything is written there: the
coordinator knows of it then, and the owners of a later plan seal it before they read it, so a batch is either found by all of them or
can never be written (`storage/log/`).

Where the store is signed, the coordinator's answer brings the certificate of this host's key, which goes with every batch. Where it is signed or
encrypted, the host reports to it the number of its newest durable batch, at once, but once a second at most: a reported batch cannot be removed
unnoticed. Acknowledgements do not wait for that.
"""

from typing import Protocol

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host import log_events as le
from snapline.agent_runtime.host.agent_inputs import PendingInput
from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import DurableTurn
from snapline.messages import host_messages as msg
from snapline.storage.log.names import LogName
from snapline.storage.log.record import LoggedEntry

BATCH_ITEMS_MAX = 4096
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Largest size of payloads and results in one batch, unless one alone is larger: some tens of milliseconds for a disk."""

ASK_AGAIN_NS = 1_000_000_000

TELL_NS = 1_000_000_000
"""Time between two reports of the newest durable batch: one entry in the coordinator's log a second for each host that writes. A younger
batch could be removed unnoticed when its host dies."""


class PendingEntry:
    """An entry of a durable turn on its way to the log. `is_last`: the turn waits for it; `is_mark`: it is not finished, and waits to be called."""

    __slots__ = ("entry", "is_last", "is_mark", "turn")

    def __init__(self, entry: LoggedEntry, turn: DurableTurn, *, is_last: bool, is_mark: bool = False) -> None:
        self.entry = entry
        self.turn = turn
        self.is_last = is_last
        self.is_mark = is_mark


Pending = PendingInput | PendingEntry


class Acknowledging(Protocol):
    """Interface that the log needs of the inputs."""

    def appended(self, pending: PendingInput, *, is_present: bool) -> None:
        """Handle a durable input; `is_present`: in the log of the present plan."""

    def lost(self, pending: PendingInput) -> None:
        """Handle an input that will never be in the log."""


class Stepping(Protocol):
    """Interface that the log needs of the steps."""

    def appended(self, pending: PendingEntry) -> None:
        """Handle an entry that is durable in the log of the present plan."""


class OwnLog:
    """Log of this host under the present plan.

    Attributes:
        why_none: why the store takes no logs, or "".
        problem: why it takes longer to write, or "".
        is_sealed: a later plan has ended the log: nothing written behind its seal would be found.
        queued_bytes: size of what waits for the next batch.
    """

    _inputs: Acknowledging
    _steps: Stepping

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self._queue: list[Pending] = []
        """Items for the next batch."""
        self._batches: dict[tuple[LogName, int], list[Pending]] = {}
        """Batches on their way: one of the present log at most, and those of earlier plans whose outcome is not known."""
        self._number = 0
        """Number of the last batch of the present log."""
        self._is_open = False
        """The coordinator knows of the log: so later plans will seal it. Requested when the first item comes."""
        self._ask_ns: int | None = None
        """Time to request it, or report its newest batch, again; None: there is nothing to send."""
        self._asked_ns = 0
        """Time when that was done last."""
        self._key = self._certificate = b""
        self._is_reported = False
        """The coordinator is to know the newest batch."""
        self._durable = self._known = 0
        """Numbers of the newest batch of the present log that is durable, and of the newest one that the coordinator knows of."""
        self.queued_bytes = 0
        self.why_none = ""
        self.problem = ""
        self.is_sealed = False

    def wire(self, inputs: Acknowledging, steps: Stepping) -> None:
        """Connect the parts above."""
        self._inputs, self._steps = inputs, steps

    @property
    def name(self) -> LogName:
        """Name of the log to which batches go under the present plan."""
        return LogName(self._shared.plan, self._shared.host, self._shared.start)

    def loaded(self, event: ev.AgentsLoaded) -> None:
        """Record whether the store takes logs: the plan's agents are here."""
        self.why_none = event.why_no_log
        self._key, self._is_reported = event.log_key, event.is_authenticated

    def reset(self) -> None:
        """End the log with its plan. What is on its way will be known to be in it, or not."""
        queue, self._queue = self._queue, []
        self._lose(queue)
        self.queued_bytes = self._number = self._durable = self._known = 0
        self.problem = ""
        self._is_open = self.is_sealed = False
        self._ask_ns = None

    # ---- out ------------------------------------------------------------------------------------------------------

    def put(self, pending: Pending) -> None:
        """Queue an item for the next batch that `append` takes."""
        self._queue.append(pending)
        self.queued_bytes += _size_of(pending)

    def append(self) -> None:
        """Send the next batch, unless one is on its way."""
        if self._queue and not self._is_open:
            self._open()
            return
        log = self.name
        if not self._queue or self.is_sealed or (log, self._number) in self._batches:
            return
        batch = self._take_batch()
        self._number += 1
        self._batches[log, self._number] = batch
        inputs = [pending.input for pending in batch if isinstance(pending, PendingInput)]
        entries = [pending.entry for pending in batch if isinstance(pending, PendingEntry)]
        command = le.AppendBatch(log, self._number, tuple(inputs), tuple(entries), self._certificate)
        self._shared.out.append(command)

    def _take_batch(self) -> list[Pending]:
        size_bytes = count = 0
        for pending in self._queue[:BATCH_ITEMS_MAX]:
            size = _size_of(pending)
            if count and size_bytes + size > BATCH_BYTES_MAX:
                break
            size_bytes += size
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        self.queued_bytes -= size_bytes
        return batch

    def _open(self) -> None:
        """Ask the coordinator, again if it has not answered: its leader may have dropped the question."""
        if self._ask_ns is None or self._ask_ns <= self._shared.now:
            self._asked_ns, self._ask_ns = self._shared.now, self._shared.now + ASK_AGAIN_NS
            self._shared.out.append(
                msg.OpenLog(self._shared.plan, self._key, self._durable if self._is_reported else 0)
            )

    def wakeups_ns(self) -> list[int]:
        """Return when `clock_passed` is wanted."""
        return [] if self._ask_ns is None else [self._ask_ns]

    def clock_passed(self) -> None:
        """Ask again, if the time has come."""
        if self._ask_ns is not None:
            self._open()

    def welcomed(self) -> None:
        """Ask again what the coordinator may not have received."""
        if self._ask_ns is not None:
            self._ask_ns = self._shared.now
            self._open()

    # ---- what becomes of it -----------------------------------------------------------------------------------------

    def on_log_opened(self, event: msg.LogOpened) -> None:
        """Allow batches to be written, if it is the log of this plan."""
        if event.plan == self._shared.plan and self._shared.is_loaded:
            self._is_open, self._certificate = True, event.certificate
            self._known = max(self._known, event.newest)
            self._ask_ns = None
            self._tell()
            self.append()

    def _tell(self) -> None:
        """Report the newest durable batch, at once or when the time has come."""
        if self._is_reported and self._ask_ns is None and self._durable > self._known:
            self._ask_ns = self._asked_ns + TELL_NS
            self._open()

    def on_batch_appended(self, event: le.BatchAppended) -> None:
        """Handle a durable batch. What a log that a plan has ended holds is found there by its owners."""
        is_present = event.log == self.name and self._shared.is_loaded
        for pending in self._batches.pop((event.log, event.number)):
            if isinstance(pending, PendingInput):
                self._inputs.appended(pending, is_present=is_present)
            elif is_present:
                self._steps.appended(pending)
        if is_present:
            self.problem = ""
            self._durable = event.number
            self._tell()
            self.append()

    def on_log_sealed(self, event: le.LogSealed) -> None:
        """Handle a batch that will never be in the log."""
        self._lose(self._batches.pop((event.log, event.number)))
        if event.log == self.name:
            self.is_sealed = True

    def _lose(self, batch: list[Pending]) -> None:
        """Drop a batch of which nothing was taken. Turns that wait for their steps do so until the next plan, which ends them."""
        for pending in batch:
            if isinstance(pending, PendingInput):
                self._inputs.lost(pending)

    def on_log_watched(self, event: le.LogWatched) -> None:
        """Record why a batch takes longer. One of an earlier plan is ignored: no batch of this log would ever clear that problem."""
        if event.log == self.name:
            self.problem = event.problem


def _size_of(pending: Pending) -> int:
    return len(pending.input.payload if isinstance(pending, PendingInput) else pending.entry.entry.result)
