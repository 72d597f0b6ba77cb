"""Progress of many runs, on stderr: a redrawn bar on a terminal, occasional lines elsewhere."""

import sys
import time
from collections.abc import Callable

from snapline.cli.output import Printer, count
from snapline.security.printable import printable

REDRAW_S, LINE_S = 0.1, 5.0
"""Shortest time between two redraws on a terminal, and between two lines elsewhere."""

BAR_WIDTH = 24

RATE_S = 10.0
"""Period over which the rate of runs is measured, because seeds and the machine's load vary."""


class RunProgress:
    """Shows the progress of a sweep or a comparison.

    Attributes:
        done: number of finished runs.
        verdicts: verdict → number of runs.
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
        """Count one run."""
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        self.reached(self.done + 1)

    def reached(self, done: int) -> None:
        """Set the number done."""
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
        """Remove the bar."""
        if self._has_line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_line = False

    def text(self) -> str:
        """Return `[######      ] 1,234 of 10,000 runs, 345/s, 25 s left, 2 violation`."""
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
