"""docs/tracing.md: its fleet exports the spans that its tables name, to a collector and to stdout."""

from pathlib import Path

import pytest
from tests.kit.shown_page import shown

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'snapline[otel]'")

from tests.kit.collector import Collector, collecting

pytestmark = pytest.mark.timeout(180)

TURNS_MAX = 255
"""Of a trace after its first turn, says the page."""


def test_the_fleet_of_the_page_exports_the_spans_of_its_tables(tmp_path: Path) -> None:
    with (
        collecting() as collector,
        shown("docs/tracing.md", tmp_path, {"http://127.0.0.1:4318": collector.endpoint}) as page,
    ):
        page.run("--otel 1")
        command = page.ran[-1].partition(" #")[0]
        code, _, err = page.shell(f"OTEL_TRACES_EXPORTER=console {command} --data-dir printed")
        assert code == 0, err
        log = "".join(path.read_text() for path in (tmp_path / "printed" / "logs").glob("h*.log"))
        assert '"name": "turn Ball"' in log
    check_turns(collector)
    check_tables(collector, page.text)


def check_turns(collector: Collector) -> None:
    """The ball's thousand turns are in one trace until that ends."""
    turns = collector.named("turn Ball")
    (trace,) = {span.trace for span in turns}
    (start,) = [span for span in collector.of(trace) if span.name == "turn on_start"]
    parents = {span.span: span.parent for span in turns}
    last = set(parents) - set(parents.values())
    assert len(turns) == TURNS_MAX and len(last) == 1 and start.span in parents.values()
    assert {span.process for span in turns} == {"h1", "h2"}


def check_tables(collector: Collector, page: str) -> None:
    """The page names every span and attribute of turns and epochs."""
    for span in collector.spans:
        assert f"| `{span.name}` |" in page or span.name.startswith("turn "), span
    for span in collector.named("turn Ball"):
        assert set(span.attributes) == {f"snapline.{name}" for name in ("agent", "sender", "number", "incarnation")}
    for span in collector.named("host.checkpoint"):
        assert span.events == ["recorded", "channels closed", "stored"]
    assert {span.process for span in collector.named("checkpoint")} == {"c1"}
