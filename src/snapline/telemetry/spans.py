"""Options for exporting spans to OpenTelemetry, including the fraction of requests to trace.

This module does not import OpenTelemetry. Modules that import OpenTelemetry (`span_export.py` and its users) are imported only with the
option `--otel`. OpenTelemetry's own environment variables determine the service name and where spans are sent.
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
"""Metrics of spans in every process."""


class SpanOptions(msgspec.Struct, frozen=True):
    """Options given by `--otel`.

    Attributes:
        share: fraction of requests without a trace for which a new trace is started, or None if spans are disabled.
    """

    share: float | None = None

    def check(self) -> None:
        """Raise UsageError if spans are enabled and OpenTelemetry is not installed."""
        try:
            is_missing = self.share is not None and find_spec("opentelemetry.sdk") is None
        except ModuleNotFoundError:
            is_missing = True
        if is_missing:
            raise UsageError("--otel needs OpenTelemetry, which is not installed: pip install 'snapline[otel]'")


def open_spans(options: SpanOptions, *, role: str, name: str) -> "SpanExport | None":
    """Return the exporter for this process's spans, or None if spans are disabled. The caller must close the exporter when the process
    ends.

    Raises:
        UsageError: If OpenTelemetry or the exporter selected by the environment is not installed.
    """
    if options.share is None:
        return None
    options.check()
    from snapline.telemetry.span_export import SpanExport

    return SpanExport(options.share, role=role, name=name)


def read_spans(export: "SpanExport | None") -> Readings:
    """Return the current values of `SPANS`."""
    if export is None:
        return {}
    return {"spans_exported_total": export.queue.exported, "spans_dropped_total": export.queue.dropped}
