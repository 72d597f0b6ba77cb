"""`--otel` where OpenTelemetry is not installed: one sentence says what to install, and without the option nobody looks for it."""

import sys

import pytest

from snapline.errors import UsageError
from snapline.telemetry.spans import SpanOptions, open_spans


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk"])
def test_a_process_that_cannot_says_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.sdk", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=r"pip install 'snapline\[otel\]'"):
        open_spans(SpanOptions(0.0), role="host", name="h1")
    assert open_spans(SpanOptions(), role="host", name="h1") is None
