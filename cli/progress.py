"""How a local fleet is doing, on stderr: one line that is drawn again on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import TYPE_CHECKING

from snapline.cli.output import Printer, count

if TYPE_CHECKING:
    from snapline.deploy.local import FleetState

PERIOD_S = 1.0
"""Shortest time between two lines that differ in their numbers only: a log stays readable."""


class FleetProgress:
    """Shows a fleet's phase, epochs, turns and hosts."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._is_terminal = sys.stderr.isatty() and not printer.is_quiet
        self._has_line = False
        self._shown: tuple[object, ...] = ()
        self._text = ""
        self._shown_s = 0.0

    def status(self, status: "FleetState") -> None:
        """Show a status, unless nothing has changed since the last one."""
        states = tuple((host.host, host.state) for host in status.hosts)
        important = (status.phase, states)
        text = describe(status)
        is_due = time.monotonic() - self._shown_s >= PERIOD_S and text != self._text
        if not (self._is_terminal or is_due or important != self._shown):
            return
        self._shown, self._text, self._shown_s = important, text, time.monotonic()
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._has_line = True
        else:
            self._printer.progress(text)

    def note(self, text: str) -> None:
        """Say something that stays."""
        self.end()
        self._printer.progress(text)

    def end(self) -> None:
        """Leave the line that was being drawn."""
        if self._has_line:
            sys.stderr.write("\n")
            self._has_line = False


def describe(status: "FleetState") -> str:
    """`running, epoch 12 complete, 34,567 turns, h1 alive, h2 lost`."""
    turns = sum(host.turns for host in status.hosts)
    hosts = [f"{host.host} {host.state}" for host in status.hosts]
    epoch = f"epoch {status.last_complete_epoch} complete" if status.last_complete_epoch else "no epoch complete yet"
    worked = [count(turns, "turn")] if turns else []  # hosts that have left tell no turns any more
    return ", ".join([status.phase, epoch, *worked, *(hosts or ["no hosts yet"])])
