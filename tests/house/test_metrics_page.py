"""docs/metrics.md shows the metrics that there are, and their names follow the rules of those who read them."""

import re

from tests.house.metrics_page import BEGIN, END, PAGE, TABLES, renewed

from snapline.telemetry.metrics import COUNTER, GAUGE, HISTOGRAM, SUMMARY

FAMILIES = [family for families in TABLES.values() for family in families]

WORDS = {
    "agent": "of an SDK, as code names it: with models at most 128 pairs",
    "id": "of the process itself: one for each",
    "kind": "of concerns",
    "model": "as agents of SDKs request it",
    "outcome": "of epochs, of effects",
    "phase": "of the fleet, of a recovery",
    "protocol": "one for a fleet",
    "role": "two",
    "state": "of hosts",
    "type": "of tokens: input, output",
    "version": "of snapline",
}
"""Labels, and why there are few values: none names an agent of the fleet or a channel."""


def test_the_page_shows_the_tables_as_they_are() -> None:
    page = PAGE.read_text()
    assert BEGIN in page and END in page
    assert renewed(page) == page, "run `python -m tests.house.metrics_page`"


def test_names_say_kind_and_unit() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        assert family.kind in (COUNTER, GAUGE, HISTOGRAM, SUMMARY)
        assert (family.kind == COUNTER) == family.name.endswith("_total"), family.name
        assert family.kind not in (HISTOGRAM, SUMMARY) or family.name.endswith("_seconds"), family.name
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_s", "_ns", "_ms")), family.name


def test_labels_have_few_values() -> None:
    assert {label for family in FAMILIES for label in family.labels} == set(WORDS)
