"""Whether a process tells spans to OpenTelemetry, and how many requests it follows.

Nothing here imports OpenTelemetry: what does (`span_export.py` and who uses it) is imported when a process is told to. Where spans go, and under
which name of a service, is said by OpenTelemetry's own environment variables.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from snapline.errors import UsageError
from snapline.telemetry.metrics import COUNTER, Family, Readings

if TYPE_CHECKING:
    from snapline.telemetry.span_export import SpanExport


SPANS = (
    Family("spans_exported_total", COUNTER, "spans that the collector of `--otel` has taken; silent without that"),
    Family("spans_dropped_total", COUNTER, "spans that found the queue full, or that it did not take"),
)
"""What every process says of them in its metrics."""


class SpanOptions(msgspec.Struct, frozen=True):
    """What a process is told by `--otel`.

    Attributes:
        share: of requests that come without a trace of their own, so many begin one; None: there are no spans at all.
    """

    share: float | None = None

    def check(self) -> None:
        """Raise UsageError if there are to be spans, and OpenTelemetry is not installed."""
        try:
            is_missing = self.share is not None and find_spec("opentelemetry.sdk") is None
        except ModuleNotFoundError:
            is_missing = True
        if is_missing:
            raise UsageError("--otel needs OpenTelemetry, which is not installed: pip install 'snapline[otel]'")


def open_spans(options: SpanOptions, *, role: str, name: str) -> "SpanExport | None":
    """What takes this process's spans, if there are to be any; to be closed at its end.

    Raises:
        UsageError: OpenTelemetry is not installed, or has no such exporter.
    """
    if options.share is None:
        return None
    options.check()
    from snapline.telemetry.span_export import SpanExport

    return SpanExport(options.share, role=role, name=name)


def read_spans(export: "SpanExport | None") -> Readings:
    """Of `SPANS`, now."""
    if export is None:
        return {}
    return {"spans_exported_total": export.queue.exported, "spans_dropped_total": export.queue.dropped}
