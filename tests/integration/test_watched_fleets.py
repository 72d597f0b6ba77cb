"""A real Prometheus watches two real fleets with the alerts and dashboards of deploy/, while a host of one of them is killed."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.deploy.observed import DASHBOARDS, asked, dashboard, rules, selectors
from tests.deploy.test_alerts import RULES
from tests.integration.processes import LIMIT_S, ended, snapline, start
from tests.integration.running import running
from tests.integration.watching import PROGRAM, Watch, configuration, shown, watching
from tests.kit.collector import Collector, collecting

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no prometheus: `make test-prometheus` brings it"),
    pytest.mark.timeout(400),
]

SLACK_S = 30.0
"""Beyond an alert's `for`: until Prometheus has looked, twice, on a busy machine."""

EMPTY = ('snapline_raft_is_learner{fleet=~".*"} == 1',)
"""Expressions that rightly come to nothing here: no replica has lost its log."""

FLEETS = ("bank", "ledger")
"""Labels of the fleets: the first takes epochs together, in the second agents checkpoint on their own."""


def named() -> set[str]:
    """Every metric of alerts and dashboards."""
    exprs = [rule.expr for rule in rules()] + [expr for path in DASHBOARDS for expr in asked(dashboard(path))]
    return {name for expr in exprs for name, _ in selectors(expr)}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


async def test_two_fleets_are_seen_and_the_alerts_of_a_killed_host_fire(tmp_path: Path, collector: Collector) -> None:
    folders = {name: tmp_path / name for name in FLEETS}
    stop = tmp_path / "stop"
    arguments = {"stop": str(stop), "period": "1", "rpo": "600", "rto": "600"}
    async with (
        running(
            folders["bank"],
            "paced_bank:fleet",
            arguments,
            on_failure="move",
            coordinators=3,
            metrics="127.0.0.1:0",
            log=("--otel", "0"),
            environment={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint},
        ) as bank,
        running(
            folders["ledger"], "paced_bank:fleet", {**arguments, "protocol": "hmnr"}, hosts=2, metrics="127.0.0.1:0"
        ) as ledger,
        watching(tmp_path / "prometheus", configuration(folders)) as watch,
    ):
        await bank.until_epochs(1)
        await ledger.until_epochs(1)
        processes = {("bank", name) for name in ("c1", "c2", "c3", "h1", "h2", "h3")}
        processes |= {("ledger", name) for name in ("c1", "h1", "h2")}
        up = dict.fromkeys(processes, "up")
        await watch.until(watch.targets, lambda found: found == up)
        loaded = [rule["name"] for group in (await watch.ask("rules"))["groups"] for rule in group["rules"]]
        assert sorted(loaded) == sorted(RULES)
        await watch.until(watch.firing, lambda found: not found)

        await bank.recovered_from("h2")
        await ledger.recovered_from("h2")  # is started again
        await bank.until_more_epochs()
        for name in ("SnaplineHostLost", "SnaplineProcessDown"):
            await fires(watch, name, "bank")
        expected = {("bank", "SnaplineHostLost"), ("bank", "SnaplineProcessDown")}
        await watch.until(watch.firing, lambda found: found == expected)
        await watch.until(watch.targets, lambda found: found == {**up, ("bank", "h2"): "down"})
        await everything_is_said(watch)
        stop.touch()
        await asyncio.gather(bank.end(), ledger.end())


async def fires(watch: Watch, name: str, fleet: str) -> None:
    """Within its `for`."""
    await watch.until(watch.firing, lambda found: (fleet, name) in found, RULES[name].for_s + SLACK_S)


async def everything_is_said(watch: Watch) -> None:
    """Each metric that is named is there, and each expression of a dashboard comes to something."""
    await watch.until(lambda: silent(watch), lambda found: not found)
    for path in DASHBOARDS:
        for expr in asked(dashboard(path)):
            found = await watch.series(expr)
            assert found or expr in EMPTY, f"{path.stem}: {expr}"


async def silent(watch: Watch) -> set[str]:
    """Metrics that nobody says."""
    present = set(await watch.ask("label/__name__/values"))
    return named() - present


async def test_a_process_with_certificates_tells_prometheus_if_that_shows_one(tmp_path: Path) -> None:
    """With its name looked at, as docs/metrics.md says; and without, as docs/deploy-kubernetes.md says of pods."""
    keys, store = tmp_path / "keys", tmp_path / "store"
    assert (await snapline("auth", "init", keys)).code == 0
    trust = [f"--tls-cert={keys}/coordinator-c1.crt", f"--tls-key={keys}/coordinator-c1.key", f"--tls-ca={keys}/ca.crt"]
    place = ["--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", f"--metrics-file={tmp_path / 'c1.json'}"]
    where = [f"--data-dir={tmp_path / 'c1'}", f"--store={store}", "--hosts=1"]
    own = {"cert_file": str(keys / "viewer-viewer.crt"), "key_file": str(keys / "viewer-viewer.key")}
    looks: dict[str, dict[str, object]] = {
        "named": {**own, "ca_file": str(keys / "ca.crt"), "server_name": "c1.coordinator.snapline"},
        "misnamed": {**own, "ca_file": str(keys / "ca.crt"), "server_name": "h1.host.snapline"},
        "unnamed": {**own, "insecure_skip_verify": True},
        "nobody": {"insecure_skip_verify": True},
    }
    (pods,) = shown("deploy-kubernetes.md")["scrape_configs"]
    assert pods["tls_config"] == {**looks["unnamed"], "cert_file": "viewer-viewer.crt", "key_file": "viewer-viewer.key"}
    jobs = [
        {
            **{key: pods[key] for key in ("scheme", "scrape_interval")},
            "job_name": name,
            "tls_config": look,
            "file_sd_configs": [{"files": [str(tmp_path / "c1.json")], "refresh_interval": "1s"}],
            "relabel_configs": [{"target_label": "fleet", "replacement": name}],
        }
        for name, look in looks.items()
    ]
    process = await start("coordinator", "run", *place, *where, *trust)
    try:
        async with watching(tmp_path / "prometheus", {"scrape_configs": jobs}) as watch:
            wanted = {"named": "up", "misnamed": "down", "unnamed": "up", "nobody": "down"}
            await watch.until(watch.targets, lambda found: found == {(name, "c1"): up for name, up in wanted.items()})
            series = await watch.series("snapline_raft_is_leader")
            assert {one["metric"]["fleet"] for one in series} == {"named", "unnamed"}
    finally:
        process.terminate()
        await ended(process)  # how is not asked: it says its metrics before it is ready to be stopped


async def test_what_processes_say_follows_prometheus_rules(data_dir: Path) -> None:
    """`promtool check metrics` reads it as Prometheus does, and knows what names should look like."""
    stop = data_dir.with_name("stop")
    async with (
        running(data_dir, "paced_bank:fleet", {"stop": str(stop)}, hosts=1, metrics="127.0.0.1:0") as fleet,
        httpx.AsyncClient(timeout=LIMIT_S) as http,
    ):
        await fleet.until_epochs(1)
        for file in sorted((data_dir / "metrics").glob("*.json")):
            address = re.findall(r"127\.0\.0\.1:\d+", file.read_text())[0]
            text = (await http.get(f"http://{address}/metrics")).text
            checked = await asyncio.create_subprocess_exec(
                *("promtool", "check", "metrics"), stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            _, err = await checked.communicate(text.encode())
            words = [line for line in err.decode().splitlines() if line.startswith("snapline_")]
            assert (checked.returncode in (0, 3), words) == (True, []), err.decode()
        stop.touch()
        await fleet.end()
