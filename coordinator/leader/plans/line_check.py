"""Check that the line of the next plan can be read: ref, manifest and pack indexes of its epoch, before the plan is committed.

For a restore every byte of the epoch is read: its plan makes later epochs void, so damage found afterwards could cost all of them.
"""

import msgspec

from snapline.coordinator.leader.events import CheckLine, LineChecked
from snapline.coordinator.leader.leader_state import SECOND_NS, LeaderState
from snapline.coordinator.state import operations as op
from snapline.messages.concerns import Concern

CHECK_RETRY_NS = 1 * SECOND_NS
CHECK_LOG_TRIES = 30
"""Number of tries between two log lines about an unreadable (unreachable, not damaged) store; reads are retried without limit."""


class LineUnread(msgspec.Struct, frozen=True):
    """Nothing is known; a read may start at `not_before_ns`."""

    not_before_ns: int = 0


class Reading(msgspec.Struct, frozen=True):
    """The epoch is being read; `is_whole`: every byte."""

    epoch: int
    is_whole: bool = False


class Readable(msgspec.Struct, frozen=True):
    """The epoch was read; `is_whole`: every byte."""

    epoch: int
    is_whole: bool = False


class LineCheck:
    """Check of one line at a time. Volatile."""

    def __init__(self, shared: LeaderState) -> None:
        self._shared = shared
        self._stage: LineUnread | Reading | Readable = LineUnread()
        self._tries = 0
        self._since_ns = 0
        self._reason = ""

    def is_readable(self, line: int, *, is_whole: bool = False) -> bool:
        """Return whether the line is known to be readable; start a read if needed."""
        stage = self._stage
        if stage == Readable(line, is_whole):
            return True
        is_waiting = isinstance(stage, Reading) or (
            isinstance(stage, LineUnread) and self._shared.now < stage.not_before_ns
        )
        if not is_waiting:
            self._stage = Reading(line, is_whole)
            self._shared.out.append(CheckLine(line, self._shared.state.image.epochs[line].root, is_whole))
        return False

    def on_checked(self, event: LineChecked) -> None:
        """Take the result of the read."""
        stage = self._stage
        if not isinstance(stage, Reading) or stage.epoch != event.epoch:
            return
        self._stage = LineUnread()
        if event.damaged_path:
            self._shared.condemn(event.epoch, event.damaged_path, event.error)
        elif event.error:
            if not self._tries:
                self._since_ns = self._shared.now
            if self._tries % CHECK_LOG_TRIES == 0:
                self._shared.note("error", f"the recovery waits: epoch {event.epoch} cannot be read now: {event.error}")
            self._tries, self._reason = self._tries + 1, op.clip(event.error)
            self._stage = LineUnread(self._shared.now + CHECK_RETRY_NS)
        else:
            self._stage, self._tries = Readable(event.epoch, stage.is_whole), 0

    def concerns(self) -> list[Concern]:
        """Return a concern if the recovery waits for the store."""
        if not self._tries:
            return []
        text = f"the recovery waits for the store: {self._reason}"
        return [Concern("store", (), self._shared.now - self._since_ns, text)]

    def on_plan_ended(self) -> None:
        """Forget the result after CommitPlan: the next plan's line is read again."""
        if isinstance(self._stage, Readable):
            self._stage = LineUnread()
