"""Define the metrics of a process for monitoring systems. Metrics are grouped into families, and durations are collected in histograms.

Theory of operation. Cores have no code for metrics. Cores keep the counts that they need anyway, and adapters observe events, so every
value already exists in the process. `metrics_server.py` reads the values only on request, so metrics add no work to message delivery. Each
kind of process declares its metric families in a table (`coordinator/service/coordinator_metrics.py`,
`agent_runtime/host/host_metrics.py`). docs/metrics.md shows these tables, and a test compares the document with them.

No metric family has a label for an agent or a channel. A fleet may have 20,000 agents or channels, and a monitoring system would keep a
time series for each of them for weeks. Each label of a metric family has only a few values: fixed ones, or a bounded number of names that
code gives, such as those of models.
"""

from bisect import bisect_left
from collections.abc import Mapping

import msgspec

PREFIX = "snapline_"
"""Prefix of every metric name. It is needed because a monitoring system has the metrics of many programs."""

COUNTER, GAUGE, HISTOGRAM, SUMMARY = "counter", "gauge", "histogram", "summary"

SECONDS = (0.0001, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Histogram bounds for durations from less than a millisecond to some minutes."""


class Distribution:
    """Histogram of values. `counts[i]` is the number of observed values that are greater than `bounds[i - 1]` and at most `bounds[i]`. The
    last count has no upper bound.

    Attributes:
        sum: sum of all observed values.
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
        """Return each bound with the number of values that do not exceed it. The last bound is infinity."""
        cumulative, so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            cumulative.append((bound, so_far))
        return cumulative


class Family(msgspec.Struct, frozen=True):
    """A metric family, whose values share a meaning and differ only in their labels.

    Attributes:
        name: metric name without `PREFIX`, ending with the unit.
        kind: "counter", "gauge", "histogram" or "summary". A summary contains a count and a sum.
        text: description of the metric, as a sentence.
        flink: name of the equivalent metric in Apache Flink, or "" if Flink has none.
        labels: label names.
    """

    name: str
    kind: str
    text: str
    flink: str = ""
    labels: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """Text of the metric's HELP line."""
        return f"{self.text} (Flink: {self.flink})" if self.flink else self.text


class Total(msgspec.Struct, frozen=True):
    """Value of a summary, which consists of a count and a sum."""

    count: float
    sum: float


Value = float | Distribution | Total

Readings = Mapping[str, Value | Mapping[tuple[str, ...], Value]]
"""The current values by family name. An entry is one value, or values by labels. A family without an entry has no value at the moment."""

PROCESS_INFO = Family(
    "process_info",
    GAUGE,
    "1; its labels say what runs here, and which release of snapline",
    "",
    ("role", "id", "version"),
)
"""Metric of every process."""
