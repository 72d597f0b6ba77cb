"""The alerts and dashboards of deploy/, as they lie there, and which metrics their expressions name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from tests.house.metrics_page import TABLES

from snapline.coordinator.state.fleet_records import (
    ALIVE,
    FAILED,
    FINISHED,
    FORMING,
    LEFT,
    LOST,
    RECOVERING,
    RUNNING,
)
from snapline.messages.status import KINDS
from snapline.telemetry.metrics import COUNTER, HISTOGRAM, PREFIX, SUMMARY, Family

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "src" / "snapline" / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARDS = sorted((ROOT / "src" / "snapline" / "deploy" / "grafana").glob("*.json"))
RUNBOOK = ROOT / "docs" / "runbook.md"

FAMILIES = {PREFIX + family.name: family for families in TABLES.values() for family in families}

OF_PROMETHEUS = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate", "severity"}}
"""What it makes itself → labels."""

WHERE = {"job", "instance", "fleet"}
"""Labels that a scrape adds; docs/runbook.md says how `fleet` comes."""

VALUES = {
    ("snapline_fleet_phase", "phase"): {FORMING, RUNNING, RECOVERING, FINISHED, FAILED},
    ("snapline_recovery_duration_seconds", "phase"): {"plan", "load"},
    ("snapline_hosts", "state"): {ALIVE, LOST, LEFT},
    ("snapline_concerns", "kind"): set(KINDS),
    ("snapline_checkpoints_total", "outcome"): {"complete", "aborted"},
    ("snapline_process_info", "role"): {"coordinator", "host"},
}
"""Of labels whose values are words of ours."""

KEYWORDS = {"by", "without", "on", "ignoring", "unless", "and", "or", "bool", "offset", "group_left", "group_right"}
_STRING = r'"(?:[^"\\]|\\.)*"'
_NAMED = re.compile(r"\b([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?(\s*\()?")
_MATCHER = re.compile(rf"(\w+)\s*(=~|!~|!=|=)\s*({_STRING})")


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"lasts": "for"}):
    """One alert, as Prometheus reads it."""

    alert: str
    expr: str
    labels: dict[str, str]
    annotations: dict[str, str]
    lasts: str = "0s"

    @property
    def for_s(self) -> int:
        """How long its expression must hold."""
        return int(self.lasts[:-1]) * {"s": 1, "m": 60}[self.lasts[-1]]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules that are looked at together."""

    name: str
    interval: str
    rules: list[Rule]


class RuleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    groups: list[Group]


def rules() -> list[Rule]:
    """All alerts."""
    found = msgspec.yaml.decode(ALERTS.read_text(), type=RuleFile)
    return [rule for group in found.groups for rule in group.rules]


def dashboard(path: Path) -> dict[str, Any]:
    """Any: whatever JSON holds."""
    found: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return found


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that ask for something: all but the rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def asked(board: dict[str, Any]) -> list[str]:
    """Expressions of a dashboard, with its variables filled in."""
    exprs = [target["expr"] for panel in panels(board) for target in panel["targets"]]
    return [expr.replace("$fleet", ".*").replace("$__rate_interval", "1m") for expr in exprs]


def selectors(expr: str) -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """Each metric that an expression names, with its matchers: label → operator and text."""
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)|\[[^\]]*\]", " ", expr)
    for name, matchers, call in _NAMED.findall(_without_strings_outside(bare)):
        if not call and name not in KEYWORDS:
            yield name, {label: (how, text[1:-1]) for label, how, text in _MATCHER.findall(matchers)}


def _without_strings_outside(expr: str) -> str:
    """Strings that are arguments, not matchers, name no metric."""
    return "".join(
        part if part.startswith("{") else re.sub(_STRING, " ", part) for part in re.split(r"(\{[^}]*\})", expr)
    )


def samples(family: Family) -> set[str]:
    """Names of a family's samples, as Prometheus keeps them."""
    name = PREFIX + family.name
    if family.kind == HISTOGRAM:
        return {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return {f"{name}_sum", f"{name}_count"} if family.kind == SUMMARY else {name}


def _of_processes() -> set[str]:
    found = ProcessCollector(registry=CollectorRegistry()).collect()
    return {family.name + ("_total" if family.type == COUNTER else "") for family in found}


KNOWN: dict[str, tuple[str, set[str]]] = {
    **{name: ("", labels) for name, labels in OF_PROMETHEUS.items()},
    **{name: ("", set()) for name in _of_processes()},
    **{
        sample: (name, {*family.labels, *({"le"} if sample.endswith("_bucket") else set())})
        for name, family in FAMILIES.items()
        for sample in samples(family)
    },
}
"""Sample → its family, and the labels that it may have beside those of the scrape."""


def offences(expr: str) -> list[str]:
    """What an expression asks for and nobody says."""
    found = []
    for metric, matchers in selectors(expr):
        family, labels = KNOWN.get(metric, ("", set()))
        if metric not in KNOWN:
            found.append(f"no metric {metric}")
            continue
        for label, (how, text) in matchers.items():
            words = VALUES.get((family, label))
            if label not in labels | WHERE:
                found.append(f"{metric} has no label {label}")
            elif words is not None and "=" in how and not set(text.split("|")) <= words:
                found.append(f"{metric} has no {label} {text}")
    return found
