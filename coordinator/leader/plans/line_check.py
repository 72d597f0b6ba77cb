"""Can the line of the next plan be read? Ref, manifest and pack indexes of its epoch are, before the plan is committed."""

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
    """The epoch is being read."""

    epoch: int


class Readable(msgspec.Struct, frozen=True):
    """The epoch was read, and is whole."""

    epoch: int


class LineCheck:
    """One line at a time. Volatile."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._stage: Unread | Reading | Readable = Unread()
        self._tries = 0

    def is_readable(self, line: int) -> bool:
        """Whether it is; if that is not known, it will be."""
        stage = self._stage
        if stage == Readable(line):
            return True
        is_waiting = isinstance(stage, Reading) or (isinstance(stage, Unread) and self._desk.now < stage.not_before_ns)
        if not is_waiting:
            self._stage = Reading(line)
            self._desk.out.append(CheckLine(line, self._desk.state.image.epochs[line].root))
        return False

    def on_checked(self, event: LineChecked) -> None:
        """The line can be read, or cannot."""
        if self._stage != Reading(event.epoch):
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
            self._stage, self._tries = Readable(event.epoch), 0

    def on_plan_ended(self) -> None:
        """CommitPlan came back: the line is read again for the next one."""
        if isinstance(self._stage, Readable):
            self._stage = Unread()
