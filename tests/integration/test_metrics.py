"""Metrics of a fleet of real processes, while a host is killed: they say what the coordinator says, and the files say where."""

import asyncio
import contextlib
import json
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from tests.integration.processes import LIMIT_S
from tests.integration.running import LOOK_S, running

from snapline.deploy.data_directory import METRICS_FOLDER

pytestmark = pytest.mark.timeout(120)

Samples = dict[tuple[str, ...], float]


async def scraped(data_dir: Path, http: httpx.AsyncClient) -> dict[str, Samples]:
    """What every process that has a file says: its name → the name and labels' values of a sample → its value."""
    found = {}
    for file in sorted((data_dir / METRICS_FOLDER).glob("*.json")):
        with contextlib.suppress(httpx.TransportError):  # the file of one that was killed
            (target,) = json.loads(file.read_text())
            text = (await http.get(f"http://{target['targets'][0]}/metrics")).text
            samples = [sample for family in parse(text) for sample in family.samples]
            found[target["labels"]["instance"]] = {(x.name, *x.labels.values()): x.value for x in samples}
    return found


async def test_metrics_follow_a_fleet_whose_host_is_killed(data_dir: Path) -> None:
    stop = data_dir.with_name("stop")
    async with (
        running(data_dir, "paced_bank:fleet", {"stop": str(stop)}, metrics="127.0.0.1:0") as fleet,
        httpx.AsyncClient(timeout=LIMIT_S) as http,
    ):
        await fleet.until_epochs(2)
        await fleet.recovered_from("h2")
        await fleet.until_more_epochs()
        async with asyncio.timeout(LIMIT_S):
            found = await scraped(data_dir, http)
            while len(found) < 4:  # h2 is on its way
                await asyncio.sleep(LOOK_S)
                found = await scraped(data_dir, http)
        status = await fleet.until(lambda now: True)
        stop.touch()
        await fleet.end()
    assert set(found) == {"c1", "h1", "h2", "h3"}
    leader = found["c1"]
    assert leader["snapline_hosts", "alive"] == leader["snapline_hosts_expected",] == 3
    assert leader["snapline_fleet_phase", "running"] == 1 and leader["snapline_fleet_phase", "recovering"] == 0
    assert 3 <= leader["snapline_checkpoints_total", "complete", "chandy-lamport"] <= status.epochs_completed
    assert leader["snapline_recoveries_total",] == 1 and leader["snapline_rollback_agents",] == 9
    assert 0 < leader["snapline_lost_work_seconds",] < LIMIT_S
    assert 0 < leader["snapline_recovery_line_age_seconds",] < LIMIT_S
    assert leader["snapline_last_checkpoint_full_bytes",] > 0 and leader["snapline_raft_is_leader",] == 1
    assert (status.loss.failures, [x.is_failure for x in status.loss.recoveries]) == (1, [True])
    assert status.loss.recoveries[0].load_ns > 0 and status.loss.recoveries[0].rolled_back == 9
    assert status.interval.epochs > 0 and status.interval.duration_ns <= status.interval.duration_max_ns
    assert status.interval.capture_ns is not None and status.interval.pause_ns is not None
    assert 0 < status.interval.pause_ns <= status.interval.capture_ns and status.interval.new_bytes
    hosts = [found[name] for name in ("h1", "h2", "h3")]
    assert sum(host["snapline_host_agents",] for host in hosts) == leader["snapline_agents",] == 9
    assert sum(host["snapline_turns_total",] for host in hosts) > 0
    for host in hosts:
        assert host["snapline_plan",] == 2 and host["snapline_dead_letters_total",] == 0
        for timed in ("agent_capture", "agent_start_delay", "agent_recording", "checkpoint_store", "marker_latency"):
            assert host[f"snapline_{timed}_seconds_count",] > 0, timed
    assert not list((data_dir / METRICS_FOLDER).glob("*.json")), "processes that end take their files with them"
