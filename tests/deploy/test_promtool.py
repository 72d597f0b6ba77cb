"""What Prometheus makes of the alerts: each fires when it should, after its time, with its words; and not otherwise."""

import json
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.deploy.alert_cases import CASES, STEP_S, STEPS, Case, Series
from tests.deploy.observed import ALERTS, ROOT, Rule, rules

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: `make test-prometheus` brings it"),
]

LIMIT_S = 60.0

RULES = {rule.alert: rule for rule in rules()}


def run_promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, arguments)], check=False, capture_output=True, text=True, timeout=LIMIT_S
    )


def played(folder: Path, *tests: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    file = folder / "played.yaml"  # JSON is YAML
    file.write_text(
        json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": f"{STEP_S}s", "tests": list(tests)})
    )
    return run_promtool("test", "rules", file)


def world(series: Series, looks: list[dict[str, Any]]) -> dict[str, Any]:
    given = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": f"{STEP_S}s", "input_series": given, "alert_rule_test": looks}


def looked(rule: Rule, at_s: int, case: Case | None = None) -> dict[str, Any]:
    """At this time it fires as the case says; None: it does not."""
    alert = case and {
        "exp_labels": {**rule.labels, **case.labels},
        "exp_annotations": {**rule.annotations, "summary": case.summary},
    }
    return {"alertname": rule.alert, "eval_time": f"{at_s}s", "exp_alerts": [alert] if alert else []}


def test_the_rules_are_taken() -> None:
    done = run_promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_after_its_time_and_not_before(name: str, tmp_path: Path) -> None:
    rule, case = RULES[name], CASES[name]
    due_s = case.true_s + rule.for_s
    looks = [looked(rule, due_s, case)] + ([looked(rule, due_s - STEP_S)] if due_s else [])
    done = played(tmp_path, world(case.fires, looks))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_an_alert_is_silent_otherwise(name: str, tmp_path: Path) -> None:
    rule, case = RULES[name], CASES[name]
    looks = [looked(rule, at_s) for at_s in range(0, STEP_S * STEPS, STEP_S)]
    done = played(tmp_path, *(world(series, looks) for series in case.quiet))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", ["metrics.md", "runbook.md", "deploy-kubernetes.md"])
def test_configurations_in_the_docs_are_taken(page: str, tmp_path: Path) -> None:
    block = (ROOT / "docs" / page).read_text().partition("```yaml\n")[2].partition("```")[0]
    file = tmp_path / "prometheus.yaml"
    told = msgspec.yaml.decode(textwrap.dedent(block), type=dict[str, Any])
    for job in told["scrape_configs"]:
        job.pop("kubernetes_sd_configs", None)  # Debian's Prometheus is built without it
    file.write_text(json.dumps(told))
    done = run_promtool("check", "config", "--syntax-only", file)
    assert done.returncode == 0, done.stdout + done.stderr
