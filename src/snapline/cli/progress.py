"""Shows the progress of a local fleet or of many runs on stderr. On a terminal, a single line is redrawn. On other outputs, a line is
printed from time to time."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from snapline.cli.output import Printer, count
from snapline.security.printable import printable

if TYPE_CHECKING:
    from snapline.messages.status import FleetStatus


DEGRADED = "degraded"
"""The coordinator's name for the state of a store that accepts no epochs."""

PERIOD_S = 1.0
"""Shortest time in seconds between two lines that differ only in numbers, so that a log stays readable."""


CONCERN_NS = 3 * 10**9
"""Duration in nanoseconds from which a concern is reported. So restarts of hosts, and plans that take a second or two, are not reported."""


class FleetProgress:
    """Shows a fleet's phase, epochs, turns and hosts on stderr."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._is_terminal = sys.stderr.isatty() and not printer.is_quiet
        self._has_line = False
        self._shown: tuple[object, ...] = ()
        self._text = ""
        self._shown_s = 0.0
        self._problem = ""
        self._has_dead_letters = False
        self._concerns: dict[tuple[object, ...], str] = {}
        """Texts of the concerns that were reported and still hold."""

    def status(self, status: "FleetStatus") -> None:
        """Show a status, unless nothing relevant has changed since the last line was printed."""
        self._warn(status)
        states = tuple((host.host, host.state) for host in status.hosts)
        important = (status.phase, states)
        text = describe(status)
        is_due = time.monotonic() - self._shown_s >= PERIOD_S and text != self._text
        if not (self._is_terminal or is_due or important != self._shown):
            return
        self._shown, self._text, self._shown_s = important, text, time.monotonic()
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{printable(text)}")
            sys.stderr.flush()
            self._has_line = True
        else:
            self._printer.progress(text)

    def _warn(self, status: "FleetStatus") -> None:
        """Warn once about each problem that could go unnoticed for hours, such as a failing store or dead-lettered messages."""
        self._report_concerns(status)
        problem = status.store.reason if status.store.state == DEGRADED else ""
        if problem and not self._problem:
            self.warn(f"no checkpoint completes, and the agents go on without: {problem}")
        elif self._problem and not problem and status.phase == "running":
            self.note("checkpoints complete again")
        self._problem = problem
        if not self._has_dead_letters and any(host.dead_letters for host in status.hosts):
            self._has_dead_letters = True
            self.warn("a message could not be handled: `snapline agent dead-letters list` shows it, and the error")

    def _report_concerns(self, status: "FleetStatus") -> None:
        """Report each concern once when it has lasted for a while, and once more when it no longer applies."""
        lasting = [concern for concern in status.concerns if concern.since_ns >= CONCERN_NS]
        current = {(concern.kind, concern.hosts, concern.agents): concern for concern in lasting}
        for key in [key for key in self._concerns if key not in current]:
            self.warn(f"over: {self._concerns.pop(key)}")
        for key, concern in current.items():
            if key not in self._concerns:
                self._concerns[key] = concern.text
                self.warn(f"{concern.text}. To do: {concern.remedy}")

    def warn(self, text: str) -> None:
        """Print a line that is not redrawn, even if progress display is turned off."""
        self.end()
        self._printer.warning(text)

    def note(self, text: str) -> None:
        """Print a line that is not redrawn, unless progress display is turned off."""
        self.end()
        self._printer.progress(text)

    def end(self) -> None:
        """End the line that is being redrawn."""
        if self._has_line:
            sys.stderr.write("\n")
            self._has_line = False


def describe(status: "FleetStatus") -> str:
    """Describe a status as text, for example `running, epoch 12 complete, 34,567 turns, h1 alive, h2 lost`."""
    turns = sum(host.turns for host in status.hosts)
    hosts = [f"{host.host} {host.state}" for host in status.hosts]
    epoch = f"epoch {status.last_complete_epoch} complete" if status.last_complete_epoch else "no epoch complete yet"
    work = [count(turns, "turn")] if turns else []  # after hosts have left, they no longer report turns
    dead_letter_count = sum(host.dead_letters for host in status.hosts)
    dead_letters = [count(dead_letter_count, "dead letter")] if dead_letter_count else []
    return ", ".join([status.phase, epoch, *work, *dead_letters, *(hosts or ["no hosts yet"])])


REDRAW_S, LINE_S = 0.1, 5.0
"""Shortest times in seconds between two redraws on a terminal, and between two lines elsewhere."""

BAR_WIDTH = 24

RATE_S = 10.0
"""Period in seconds over which the rate of runs is averaged, because seeds and the machine's load vary."""


class RunProgress:
    """Shows the progress of a sweep or a comparison.

    Attributes:
        done: number of runs that have finished.
        verdicts: number of runs by verdict.
    """

    def __init__(self, printer: Printer, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._printer = printer
        self._total = total
        self._clock = clock
        self._is_terminal = sys.stderr.isatty() and not printer.is_quiet
        self._started_s = self._shown_s = self._rated_s = clock()
        self._rated_done = 0
        self._rate = 0.0
        self._has_line = False
        self.done = 0
        self.verdicts: dict[str, int] = {}

    def ended(self, verdict: str) -> None:
        """Count one finished run with this verdict."""
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        self.reached(self.done + 1)

    def reached(self, done: int) -> None:
        """Set the number of runs that have finished."""
        self.done = done
        now_s = self._clock()
        if now_s - self._shown_s < (REDRAW_S if self._is_terminal else LINE_S):
            return
        self._shown_s = now_s
        self._measure(now_s)
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{printable(self.text())}")
            sys.stderr.flush()
            self._has_line = True
        else:
            self._printer.progress(self.text())

    def end(self) -> None:
        """Remove the progress bar."""
        if self._has_line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_line = False

    def text(self) -> str:
        """Return the progress bar, such as `[######      ] 1,234 of 10,000 runs, 345/s, 25 s left, 2 violation`."""
        filled = BAR_WIDTH * self.done // max(1, self._total)
        parts = [f"[{'#' * filled:<{BAR_WIDTH}}] {self.done:,} of {count(self._total, 'run')}"]
        if self._rate:
            parts += [f"{self._rate:,.1f}/s", f"{(self._total - self.done) / self._rate:,.0f} s left"]
        parts += [f"{number:,} {verdict}" for verdict, number in self.verdicts.items() if verdict != "pass"]
        return ", ".join(parts)

    def _measure(self, now_s: float) -> None:
        elapsed_s = now_s - self._rated_s
        if elapsed_s <= 0:
            return
        if elapsed_s >= RATE_S or not self._rate or self._rated_s == self._started_s:
            self._rate = (self.done - self._rated_done) / elapsed_s
        if elapsed_s >= RATE_S:
            self._rated_s, self._rated_done = now_s, self.done
