"""Define the metrics of a process for monitoring systems: families, and distributions of durations.

Theory of operation. Cores do not know about metrics. They keep the counts that they need themselves, and adapters see events, so a process
has the values anyway. `metrics_server.py` reads them on request; they cost nothing on the path of a message. Each kind of
process declares its families in a table (`coordinator/service/coordinator_metrics.py`, `agent_runtime/host/host_metrics.py`); docs/metrics.md shows these
tables, and a test compares them.

No family has a label with an agent or a channel: a fleet may have 20,000 of them, and a monitoring system keeps a series for each
for weeks. Each family has a few fixed label values.
"""

from bisect import bisect_left
from collections.abc import Mapping

import msgspec

PREFIX = "snapline_"
"""Prefix of every metric name: a monitoring system has metrics of many programs."""

COUNTER, GAUGE, HISTOGRAM, SUMMARY = "counter", "gauge", "histogram", "summary"

SECONDS = (0.0001, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Histogram bounds for durations from less than a millisecond to some minutes."""


class Distribution:
    """Histogram of values: `counts[i]` is the number of values above `bounds[i - 1]` and at most `bounds[i]`; the last count has no upper bound.

    Attributes:
        sum: sum of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def cumulative_counts(self) -> list[tuple[float, int]]:
        """Return each bound with the number of values not above it; the last bound is infinite."""
        cumulative, so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            cumulative.append((bound, so_far))
        return cumulative


class Family(msgspec.Struct, frozen=True):
    """Values of one meaning, each with its labels.

    Attributes:
        name: the name without `PREFIX`; the unit comes last.
        kind: "counter", "gauge", "histogram", or "summary": a count and a sum.
        text: the meaning of a value, as a sentence.
        flink: the name in Apache Flink; "": Flink has no equivalent.
        labels: names of the labels.
    """

    name: str
    kind: str
    text: str
    flink: str = ""
    labels: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """Text of the line HELP."""
        return f"{self.text} (Flink: {self.flink})" if self.flink else self.text


class Total(msgspec.Struct, frozen=True):
    """Value of a summary: count and sum."""

    count: float
    sum: float


Value = float | Distribution | Total

Readings = Mapping[str, Value | Mapping[tuple[str, ...], Value]]
"""Values by family name: one value, or values by labels. A family without an entry has no value at the moment."""

PROCESS_INFO = Family(
    "process_info",
    GAUGE,
    "1; its labels say what runs here, and which release of snapline",
    "",
    ("role", "id", "version"),
)
"""Metric of every process."""
