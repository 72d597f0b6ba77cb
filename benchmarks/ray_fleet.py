"""PageRank on three Ray nodes, one of them killed in each run: exact or not, and how long it took, beside a plain Ray actor.

    python benchmarks/ray_fleet.py --runs 20

In each run the raylet of a node with agents gets SIGKILL while they talk. A plain actor with `max_restarts=-1` sits on the same node: how
long until Ray has it up elsewhere, empty? The times of the fleet are those in the coordinator's history of recoveries, from the kill on:
*suspected*, and *recovered* (all agents back at one cut, and the plan done). *By* says whose word came first.
"""

import argparse
import asyncio
import contextlib
import re
import statistics
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from snapline.agent_runtime.fleet import load_fleet
from snapline.agent_runtime.snapshots.cut import load_cut
from snapline.cli.demo_picture import time_ns_of
from snapline.conversation.coordinator_client import CoordinatorClient
from snapline.deploy.conformance.raylets import RayBench, Raylets, raylets
from snapline.deploy.launched import LaunchedFleet
from snapline.errors import SnaplineError
from snapline.examples import pagerank
from snapline.examples.import_graph import read_tree, write_graph
from snapline.storage.store.store import Store

FLEET = "snapline.examples.pagerank:fleet"
HOSTS, SPARES = 3, 1
VICTIM = "h2"
PLAIN = "plain"
"""What a node has one of, so that the plain actors are spread over all."""

LIMIT_S = 400.0


class Run(msgspec.Struct):
    """One run; times in seconds from the kill."""

    is_exact: bool
    suspected_s: float
    recovered_s: float
    actor_s: float
    by: str
    in_transit: int


class Plain:
    """An actor as one has it without snapline: it comes back empty."""

    def where(self) -> str:
        return str(import_module("ray").get_runtime_context().get_node_id())


async def plain_actor(node: str) -> Any:
    """One that Ray has put on this node, and may put on any other: several are spread, the others end."""
    ray = import_module("ray")
    options = {"max_restarts": -1, "max_task_retries": 0, "num_cpus": 0, "resources": {PLAIN: 1}}
    made = [ray.remote(Plain).options(**options, scheduling_strategy="SPREAD").remote() for _ in range(HOSTS + SPARES)]
    nodes = [await asyncio.wrap_future(actor.where.remote().future()) for actor in made]
    assert node in nodes, f"no plain actor on {node}: {nodes}"
    for actor, found in zip(made, nodes, strict=True):
        if found != node:
            ray.kill(actor)
    return made[nodes.index(node)]


async def restarted(actor: Any, node: str, killed_s: float) -> float:
    """Seconds until it answers from another node; the old one may answer for a while."""
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
            found = (await client.recovery_history())["recoveries"]
            if isinstance(found, list) and found and found[-1]["done"] is not None:
                return dict(found[-1])
        await asyncio.sleep(0.05)


async def until_at_work(client: CoordinatorClient) -> None:
    while True:
        with contextlib.suppress(SnaplineError):
            now = await client.status()
            if now.phase == "running" and now.epochs_completed >= 3 and len(now.hosts) == HOSTS:
                return
        await asyncio.sleep(0.1)


async def run(cluster: Raylets, folder: Path, graph: Path, seconds: float) -> Run:
    bench = RayBench(folder, cluster.address, HOSTS)
    arguments = {
        "graph": str(graph),
        "seconds": f"{seconds:g}",
        "shards": "12",
        "seeds": "16",
        "batch": "8",
        "period": "1",
    }
    fleet = LaunchedFleet(bench.launcher(), bench.commands(FLEET, HOSTS, arguments), hosts=HOSTS, coordinators=3)
    async with asyncio.timeout(LIMIT_S), fleet:
        client = CoordinatorClient(fleet.address)
        await until_at_work(client)
        victim = fleet.handle(VICTIM)
        assert victim is not None
        actor = await plain_actor(victim.where)
        killed_s, killed_ns = time.monotonic(), time.time_ns()
        await asyncio.to_thread(cluster.kill, victim.where)
        actor_up = asyncio.create_task(restarted(actor, victim.where, killed_s))
        found = await recovery(client)
        line = load_cut(Store.open(bench.store), int(str(found["line_epoch"])), load_fleet(FLEET, arguments))
        account = pagerank.account(line)
        actor_s = await actor_up
        ending = await fleet.wait()
        await client.close()
        import_module("ray").kill(actor)
    cut = load_cut(Store.open(bench.store), ending.epoch, load_fleet(FLEET, arguments))
    is_near = pagerank.compare(cut, pagerank.load_graph(graph=str(graph))).is_within
    return Run(
        is_exact=account.is_exact and pagerank.account(cut).is_exact and is_near and ending.outcome == "stopped",
        suspected_s=(time_ns_of(found["suspected"]) - killed_ns) / 1e9,
        recovered_s=(time_ns_of(found["done"]) - killed_ns) / 1e9,
        actor_s=actor_s,
        by=re.sub(r"\d+(\.\d+)?", "N", str(found.get("reason", ""))),
        in_transit=account.messages,
    )


def spread(name: str, values: list[float]) -> str:
    return f"{name}: median {statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0, help="shortest time of one PageRank")
    options = parser.parse_args()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="snapline-ray-") as scratch:
        graph = Path(scratch) / "graph.json"
        write_graph(read_tree(None), graph)
        with raylets(HOSTS + SPARES, more={PLAIN: 1.0}) as cluster:
            for number in range(options.runs):
                folder = Path(scratch) / f"run-{number}"
                folder.mkdir()
                runs.append(asyncio.run(run(cluster, folder, graph, options.seconds)))
                cluster.add()
                print(number + 1, runs[-1], flush=True)
    print(f"exact: {sum(each.is_exact for each in runs)} of {len(runs)}")
    print(spread("suspected", [each.suspected_s for each in runs]))
    print(spread("recovered", [each.recovered_s for each in runs]))
    print(spread("plain actor up elsewhere, empty", [each.actor_s for each in runs]))


if __name__ == "__main__":
    main()
