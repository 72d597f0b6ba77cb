"""PageRank under SIGKILL: one run, from start to end, and everything that must hold of it."""

import asyncio
import random
import time
from pathlib import Path

from tests.integration.cuts import check_consistent, store_of
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.examples import pagerank
from snapline.examples.import_graph import ImportGraph, write_graph
from snapline.storage.store.store import Store

MODULES, IMPORTS_MAX = 60, 5
SEEDS = 12
STARTED_TURNS = 100
"""By then the fleet works. An uncoordinated one may have no epoch until it is quiet: its line need not advance."""

HOSTS = 3
SHARDS_A_HOST = 3


async def pagerank_run(
    data_dir: Path,
    chosen: random.Random,
    *,
    protocol: str,
    seconds: float,
    all_hosts: bool,
    seeds: int = SEEDS,
    recovery: str = "global",
    hosts: int = HOSTS,
) -> str:
    """Kill a host (or all) at a random moment of a run of `seconds` at least; returns what was measured. With local recovery, only the agents of
    the hosts that were killed start again.

    Mass is exact in every epoch that is kept, and the result within its bound.
    """
    graph = random_graph(chosen)
    write_graph(graph, data_dir.with_name("graph.json"))
    arguments = {
        "graph": str(data_dir.with_name("graph.json")),
        "shards": f"{hosts * SHARDS_A_HOST}",
        "seeds": f"{seeds}",
    }
    arguments |= {
        "batch": "1",
        "part": "1",
        "seconds": str(seconds),
        "period": "0.2",
        "protocol": protocol,
        "recovery": recovery,
    }
    names = tuple(f"h{number}" for number in range(1, hosts + 1))
    victims = names if all_hosts else (chosen.choice(names),)
    started_s = time.monotonic()
    async with running(data_dir, "snapline.examples.pagerank:fleet", arguments, hosts=hosts) as fleet:
        await fleet.until(lambda now: sum(host.turns for host in now.hosts) > STARTED_TURNS)
        await asyncio.sleep(chosen.uniform(0.0, seconds - 1))
        for victim in victims:
            fleet.local.kill(victim)
        recovered = await fleet.until_recovered()
        await fleet.end()
    store = store_of(data_dir)
    epochs, messages = check_mass(store, arguments)
    result = load_cut(store, store.epochs()[-1], pagerank.fleet(**arguments))
    comparison = pagerank.compare(result, graph)
    assert comparison.is_within, comparison
    assert recovery == "global" or recovered["rolled_back"] == len(victims) * SHARDS_A_HOST
    return (
        f"{protocol}: {'+'.join(victims)} killed, back to epoch {recovered['line_epoch']} in {recovered['duration_s']} s, "
        f"{recovered['rolled_back']} of {recovered['agents']} agents rolled back, "
        f"{recovered['messages_delivered_again']} messages delivered again; {epochs} epochs with {messages} in transit "
        f"exact, off by {comparison.difference_max:.1e} (at most {comparison.bound:.1e}); "
        f"{time.monotonic() - started_s:.1f} s"
    )


def random_graph(chosen: random.Random) -> ImportGraph:
    """Who imports whom, at random; some import nothing."""
    imports = [
        sorted(
            {target for target in chosen.choices(range(MODULES), k=chosen.randint(0, IMPORTS_MAX)) if target != module}
        )
        for module in range(MODULES)
    ]
    return ImportGraph(modules=[f"module{index:02}" for index in range(MODULES)], imports=imports, unparsed=[])


def check_mass(store: Store, arguments: dict[str, str]) -> tuple[int, int]:
    """Every epoch is consistent and holds all mass to the last unit; returns epochs and messages in transit."""
    fleet = pagerank.fleet(**arguments)
    messages = 0
    for epoch in store.epochs():
        check_consistent(store, epoch)
        account = pagerank.account(load_cut(store, epoch, fleet))
        assert account.is_exact, f"epoch {epoch}: {account}"
        messages += account.messages
    return len(store.epochs()), messages
