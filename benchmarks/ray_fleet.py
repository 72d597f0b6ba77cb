"""PageRank on three Ray nodes, one of them killed in each run: exact or not, and how long it took, beside a plain Ray actor.

    python benchmarks/ray_fleet.py --runs 20

In each run the raylet of a node with agents gets SIGKILL while they talk, and with it all that runs there. A plain actor with
`max_restarts=-1` sits on the same node: how long until Ray has it up elsewhere, empty? The times of the fleet are those in the
coordinator's history of recoveries, from the kill on: *suspected*, and *recovered* (all agents back at one cut, and the plan done).
A run is exact if no unit of PageRank's mass is lost or doubled in any cut that is in the store at its end, and if its result is that of
the sequential computation. All runs share one cluster; after each a fresh node takes the place of the killed.
"""

import argparse
import asyncio
import contextlib
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from snapline.agent_runtime.fleet import load_fleet
from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.cli.demo import time_ns_of
from snapline.deploy.conformance.local_ray import NORMAL_PRIORITY, QUICK, RayBench, Raylets, raylets
from snapline.deploy.running_fleet import LaunchedFleet
from snapline.errors import SnaplineError
from snapline.examples import pagerank
from snapline.examples.import_graph import read_tree, write_graph
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.storage.store.store import Store

FLEET = "snapline.examples.pagerank:fleet"
HOSTS, SPARES = 3, 1
VICTIM = "h2"

LIMIT_S = 400.0


class Run(msgspec.Struct):
    """One run; times in seconds from the kill, but for the last two.

    Attributes:
        by: reason for the suspicion of the host, without figures.
        up_s: time from the start of the processes to three complete epochs.
        whole_s: duration of the run.
    """

    is_exact: bool
    suspected_s: float
    recovered_s: float
    actor_s: float
    by: str
    in_transit: int
    up_s: float
    whole_s: float


class Plain:
    """A plain Ray actor without snapline: it restarts empty."""

    def where(self) -> str:
        return str(import_module("ray").get_runtime_context().get_node_id())


async def plain_actor(node: str) -> Any:
    """Create a plain actor on this node; Ray restarts it anywhere. Ray may overlook a new node: then try again."""
    ray, strategies = import_module("ray"), import_module("ray.util.scheduling_strategies")
    here = strategies.NodeAffinitySchedulingStrategy(node, soft=True)
    options = {"max_restarts": -1, "max_task_retries": 0, "num_cpus": 0, "scheduling_strategy": here}
    while True:
        actor = ray.remote(Plain).options(**options).remote()
        if await asyncio.wrap_future(actor.where.remote().future()) == node:
            return actor
        ray.kill(actor)
        await asyncio.sleep(0.2)


async def restarted(actor: Any, node: str, killed_s: float) -> float:
    """Return the seconds until the actor answers from another node; the old one may answer for a while."""
    errors = import_module("ray.exceptions")
    while True:
        with contextlib.suppress(errors.RayError, TimeoutError):
            async with asyncio.timeout(5.0):
                if await asyncio.wrap_future(actor.where.remote().future()) != node:
                    return time.monotonic() - killed_s
        await asyncio.sleep(0.05)


async def recovery(client: CoordinatorClient) -> dict[str, object]:
    while True:
        with contextlib.suppress(SnaplineError):
            recoveries = (await client.recovery_history())["recoveries"]
            assert isinstance(recoveries, list)
            for entry in recoveries:
                if VICTIM in entry["lost_hosts"] and entry["done"] is not None:
                    return dict(entry)
            phase = (await client.status()).phase
            assert phase != "finished", "PageRank had ended before the kill: give more --seconds"
        await asyncio.sleep(0.05)


async def until_at_work(client: CoordinatorClient) -> None:
    while True:
        with contextlib.suppress(SnaplineError):
            now = await client.status()
            if now.phase == "running" and now.epochs_completed >= 3 and len(now.hosts) == HOSTS:
                return
        await asyncio.sleep(0.1)


def is_exact(store: Store, arguments: dict[str, str], last: int) -> bool:
    fleet = load_fleet(FLEET, arguments)
    cuts = {epoch: load_cut(store, epoch, fleet) for epoch in store.epochs()}
    graph = pagerank.load_graph(graph=arguments["graph"])
    return (
        all(pagerank.account(cut).is_exact for cut in cuts.values()) and pagerank.compare(cuts[last], graph).is_within
    )


async def run(cluster: Raylets, folder: Path, graph: Path, seconds: float, plain: dict[str, Any]) -> Run:
    """`plain`: node → the plain actor there, kept from run to run."""
    began_s = time.monotonic()
    plain |= {node: await plain_actor(node) for node in cluster.nodes() if node not in plain}
    bench = RayBench(folder, cluster.address, HOSTS)
    arguments = {
        "graph": str(graph),
        "seconds": f"{seconds:g}",
        "shards": "12",
        "seeds": "16",
        "batch": "8",
        "period": "0.5",
    }
    fleet = LaunchedFleet(bench.launcher(), bench.commands(FLEET, HOSTS, arguments), hosts=HOSTS, coordinators=3)
    started_s = time.monotonic()
    async with asyncio.timeout(LIMIT_S), fleet:
        client = CoordinatorClient(fleet.address)
        await until_at_work(client)
        up_s = time.monotonic() - started_s
        victim = fleet.handle(VICTIM)
        assert victim is not None
        killed_s, killed_ns = time.monotonic(), time.time_ns()
        killing = asyncio.create_task(asyncio.to_thread(cluster.kill, victim.where))
        actor_up = asyncio.create_task(restarted(plain[victim.where], victim.where, killed_s))
        recovered = await recovery(client)
        actor_s = await actor_up
        await killing
        ending = await fleet.wait()
        await client.close()
    import_module("ray").kill(plain.pop(victim.where))
    return Run(
        is_exact=ending.outcome == "stopped" and is_exact(Store.open(bench.store), arguments, ending.epoch),
        suspected_s=(time_ns_of(recovered["suspected"]) - killed_ns) / 1e9,
        recovered_s=(time_ns_of(recovered["done"]) - killed_ns) / 1e9,
        actor_s=actor_s,
        by=re.sub(r"\d+(\.\d+)?", "N", str(recovered.get("reason", ""))),
        in_transit=int(str(recovered["messages_delivered_again"])),
        up_s=up_s,
        whole_s=time.monotonic() - began_s,
    )


def spread(name: str, values: list[float], unit: str = " s") -> str:
    quarters = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return (
        f"{name}: median {quarters[1]:.2f}{unit}, quartiles {quarters[0]:.2f} and {quarters[2]:.2f}, "
        f"{min(values):.2f} to {max(values):.2f}"
    )


def report(runs: list[Run]) -> None:
    print(f"exact: {sum(each.is_exact for each in runs)} of {len(runs)}")
    print(f"messages delivered again from the cuts gone back to: {sum(each.in_transit for each in runs)}")
    for reason, count in Counter(each.by for each in runs).most_common():
        print(f"suspected because: {reason}: {count}")
    print(spread("suspected", [each.suspected_s for each in runs]))
    print(spread("recovered", [each.recovered_s for each in runs]))
    print(spread("plain actor up elsewhere, empty", [each.actor_s for each in runs]))
    print(spread("recovered / plain actor up", [each.recovered_s / each.actor_s for each in runs], ""))
    print(spread("up, to three epochs", [each.up_s for each in runs]))
    print(spread("whole run", [each.whole_s for each in runs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=12.0, help="shortest time of one PageRank")
    parser.add_argument("--ray-times", action="store_true", help="let Ray take its own time to give a node up")
    options = parser.parse_args()
    runs: list[Run] = []
    plain: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="snapline-ray-") as scratch:
        graph = Path(scratch) / "graph.json"
        write_graph(read_tree(None), graph)
        here = str(Path(__file__).resolve().parent)  # workers import `Plain` from this file
        with raylets(HOSTS + SPARES, [here], NORMAL_PRIORITY if options.ray_times else QUICK) as cluster:
            import_module("ray").init(address=cluster.address, log_to_driver=False, configure_logging=False)
            for number in range(options.runs):
                if number:
                    cluster.add()
                folder = Path(scratch) / f"run-{number}"
                folder.mkdir()
                runs.append(asyncio.run(run(cluster, folder, graph, options.seconds, plain)))
                print(number + 1, runs[-1], f"load {os.getloadavg()[0]:.1f}", flush=True)
    report(runs)


if __name__ == "__main__":
    main()
