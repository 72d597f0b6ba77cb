"""Alerts and dashboards ask for metrics that there are, and each alert fires when it should and has its paragraph in the runbook.

What Prometheus itself makes of them is in test_promtool.py.
"""

import re
from pathlib import Path

import pytest
from tests.deploy.alert_cases import CASES
from tests.deploy.observed import (
    DASHBOARDS,
    FAMILIES,
    RUNBOOK,
    Rule,
    asked,
    dashboard,
    offences,
    panels,
    rules,
    selectors,
)

from snapline.messages.status import KINDS, URGENT
from snapline.telemetry.metrics import PREFIX

CLI_PAGE = RUNBOOK.with_name("cli.md")
RULES = {rule.alert: rule for rule in rules()}


def named(exprs: list[str]) -> set[str]:
    """Our metrics in these."""
    return {name for expr in exprs for name, _ in selectors(expr) if name.startswith(PREFIX)}


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_an_alert_asks_for_what_there_is_and_says_what_to_do(rule: Rule) -> None:
    assert re.fullmatch(r"Snapline([A-Z][a-z]+)+", rule.alert)
    assert offences(rule.expr) == []
    assert rule.labels.keys() == {"severity"} and rule.labels["severity"] in ("critical", "warning")
    assert rule.annotations.keys() == {"summary", "runbook"}
    assert rule.annotations["runbook"] == f"docs/runbook.md#{rule.alert.lower()}"


def test_every_alert_has_its_paragraph_and_there_is_no_other() -> None:
    sections = re.split(r"^### ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    found = {section.partition("\n")[0]: section for section in sections}
    assert sorted(found) == sorted(RULES)
    for name, section in found.items():
        rule = RULES[name]
        when = f"after {rule.lasts.replace('m', ' m').replace('s', ' s')}" if rule.for_s else "at once"
        assert f"\n\n*{rule.labels['severity']}, {when}.* " in section, name
        assert "At risk: " in section and "To do: " in section, name


def test_every_alert_has_its_cases() -> None:
    assert sorted(CASES) == sorted(RULES) and all(case.quiet for case in CASES.values())
    assert len(RULES) == len(rules()), "each name once"


def test_every_kind_of_concern_has_an_alert_and_is_described_in_the_page() -> None:
    found = {
        kind
        for rule in RULES.values()
        for name, matchers in selectors(rule.expr)
        if name == f"{PREFIX}concerns"
        for kind in matchers["kind"][1].split("|")
    }
    assert found == set(KINDS)
    about = CLI_PAGE.read_text().partition("\nKinds:\n")[2].partition("\n#")[0]
    assert sorted(re.findall(r"^- `([a-z_]+)`: ", about, flags=re.MULTILINE)) == sorted(KINDS)


def test_concerns_whose_alert_is_critical_are_urgent() -> None:
    """And effects in doubt, since some wait for people alone: SnaplineEffectsNeedPeople."""
    critical = {
        kind
        for rule in RULES.values()
        for name, matchers in selectors(rule.expr)
        if name == f"{PREFIX}concerns" and rule.labels["severity"] == "critical"
        for kind in matchers["kind"][1].split("|")
    }
    assert critical | {"in_doubt"} == URGENT


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_for_what_there_is(path: Path) -> None:
    board = dashboard(path)
    for expr in asked(board):
        assert offences(expr) == [], expr
        assert all(matchers.get("fleet") == ("=~", ".*") for _, matchers in selectors(expr)), f"of all fleets: {expr}"
    (variable,) = [one for one in board["templating"]["list"] if one["name"] == "fleet"]
    assert variable["query"]["query"] == "label_values(snapline_process_info, fleet)"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_fits_any_grafana(path: Path) -> None:
    """Its address is its own, its data source is chosen by who looks at it, and panels of Grafana's own suffice."""
    board = dashboard(path)
    assert board["uid"] == f"snapline-{path.stem}" and board["title"].startswith("snapline: ")
    (source,) = [one for one in board["templating"]["list"] if one["type"] == "datasource"]
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) and "id" not in board
    for panel in panels(board):
        assert panel["type"] in ("stat", "timeseries", "table"), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["title"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(set(refs)) == len(refs)
    boxes = [panel["gridPos"] for panel in board["panels"]]
    cells = [(x, y) for box in boxes for x in range(box["x"], box["x"] + box["w"]) for y in _rows(box)]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24, "panels lie on each other"


def _rows(box: dict[str, int]) -> range:
    return range(box["y"], box["y"] + box["h"])


def test_no_family_is_forgotten() -> None:
    """Who adds one decides where it is looked at."""
    shown = named([expr for path in DASHBOARDS for expr in asked(dashboard(path))])
    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert set(FAMILIES) - (bare | shown) == set()


@pytest.mark.parametrize(
    ("expr", "offence"),
    [
        ("snapline_agents_alive", "no metric snapline_agents_alive"),
        ("rate(snapline_turns[5m])", "no metric snapline_turns"),
        ("sum by (fleet) (snapline_marker_latency_seconds)", "no metric snapline_marker_latency_seconds"),
        ('snapline_hosts{status="lost"}', "snapline_hosts has no label status"),
        ('snapline_hosts{state=~"lost|dead"} > 0', "snapline_hosts has no state lost|dead"),
        ("a_b_c unless on (fleet) up", "no metric a_b_c"),
    ],
)
def test_what_nobody_says_would_be_found(expr: str, offence: str) -> None:
    assert offences(expr) == [offence]


@pytest.mark.parametrize(
    "expr",
    [
        "histogram_quantile(0.95, sum by (le) (rate(snapline_checkpoint_duration_seconds_bucket[5m])))",
        'label_replace(up{job=~"snapline.*"}, "a", "$1", "b", "c") == bool 1 and time() > 0',
        'snapline_recovery_duration_seconds_sum{phase="load", fleet="x"} offset 5m',
    ],
)
def test_what_there_is_may_be_asked_for(expr: str) -> None:
    assert offences(expr) == []
