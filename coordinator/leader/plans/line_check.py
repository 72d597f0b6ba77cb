"""Can the line of the next plan be read? Ref, manifest and pack indexes of its epoch are, before the plan is committed.

Of an epoch that the fleet is to go back to on purpose, every byte is: later epochs become void with the plan, and hosts that found the damage
afterwards would leave none of them.
"""

import msgspec

from snapline.coordinator.leader.desk import SECOND_NS, Desk
from snapline.coordinator.leader.events import CheckLine, LineChecked
from snapline.coordinator.state import operations as op

CHECK_RETRY_NS = 1 * SECOND_NS
CHECK_TRIES_MAX = 60
"""A store that cannot be read (not damaged: unreachable) is tried for a minute."""


class Unread(msgspec.Struct, frozen=True):
    """Nothing is known; it may be read from then on."""

    not_before_ns: int = 0


class Reading(msgspec.Struct, frozen=True):
    """The epoch is being read; `is_whole`: every byte."""

    epoch: int
    is_whole: bool = False


class Readable(msgspec.Struct, frozen=True):
    """The epoch was read, so far."""

    epoch: int
    is_whole: bool = False


class LineCheck:
    """One line at a time. Volatile."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._stage: Unread | Reading | Readable = Unread()
        self._tries = 0

    def is_readable(self, line: int, *, is_whole: bool = False) -> bool:
        """Whether it is; if that is not known, it will be."""
        stage = self._stage
        if stage == Readable(line, is_whole):
            return True
        is_waiting = isinstance(stage, Reading) or (isinstance(stage, Unread) and self._desk.now < stage.not_before_ns)
        if not is_waiting:
            self._stage = Reading(line, is_whole)
            self._desk.out.append(CheckLine(line, self._desk.state.image.epochs[line].root, is_whole))
        return False

    def on_checked(self, event: LineChecked) -> None:
        """The line can be read, or cannot."""
        stage = self._stage
        if not isinstance(stage, Reading) or stage.epoch != event.epoch:
            return
        self._stage = Unread()
        if event.damaged_path:
            self._desk.condemn(event.epoch, event.damaged_path, event.error)
        elif event.error:
            self._tries += 1
            self._stage = Unread(self._desk.now + CHECK_RETRY_NS)
            self._desk.note("error", f"epoch {event.epoch} cannot be read now: {event.error}")
            if self._tries >= CHECK_TRIES_MAX:
                self._desk.end(0, "failed", op.clip(f"the store cannot be read: {event.error}"))
        else:
            self._stage, self._tries = Readable(event.epoch, stage.is_whole), 0

    def on_plan_ended(self) -> None:
        """CommitPlan came back: the line is read again for the next one."""
        if isinstance(self._stage, Readable):
            self._stage = Unread()
