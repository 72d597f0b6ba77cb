"""Sweeps on a Ray cluster, with the same seeds, worker code and summary as a local sweep.

Ray is an optional dependency (`pip install 'snapline[ray]'`), and only this module imports it, when a sweep starts. The template is sent as
TOML and the results as MessagePack, so the driver and the workers only need to run the same version of snapline.

Each Ray task runs a group of seeds (a *chunk*). Only `AHEAD` chunks per processor are submitted at a time, so that the sweep adapts quickly
when nodes join or leave the cluster. If a node dies, Ray reruns its chunk on another node (`RETRIES`). If a chunk's process dies in every
retry, the chunk's seeds are run individually. If the process of an individual seed dies again, the seed gets the verdict "broken". So every
seed gets exactly one result, as in a local pool.
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from snapline.errors import UsageError
from snapline.sim.result import Result
from snapline.sim.scenario import Scenario
from snapline.sim.search.pool import SEED_TIMEOUT_S, make_setup
from snapline.sim.search.sweep import Collector, SweepSummary, check_determinism_of_sweep
from snapline.sim.search.worker import Runner, Setup, Task, Worker, broken, garbage_kept, perform_all

RETRIES = 2
"""Number of retries for a chunk whose node or process has died."""

CONNECT_TIMEOUT_S = 10.0

AHEAD = 2
"""Number of chunks submitted per processor: one that runs and one that waits."""

CHUNK_SEEDS = 50
"""Number of seeds per chunk. A chunk takes about a second, which is much longer than a task's overhead of milliseconds."""


def perform_chunk(setup: bytes, seeds: Sequence[int]) -> bytes:
    """Run the given seeds, and return the encoded results. Ray calls this function on its workers."""
    worker = _worker(setup)
    with garbage_kept():
        return msgspec.msgpack.encode(list(perform_all(worker, [Task(seed) for seed in seeds])))


@lru_cache(maxsize=4)  # a process gets many chunks, but they belong to few sweeps
def _worker(setup: bytes) -> Worker:
    return Worker(msgspec.msgpack.decode(setup, type=Setup))


def sweep_on_ray(
    template: Scenario,
    seeds: Sequence[int],
    *,
    address: str = "auto",
    runner: Runner | None = None,
    on_result: Callable[[Result], None] | None = None,
    stop_after: int | None = None,
    is_determinism_checked: bool = True,
    seed_timeout_s: float = SEED_TIMEOUT_S,
    chunk_seeds: int = CHUNK_SEEDS,
    catalogue: Iterable[str] = (),
    metrics_csv: Path | None = None,
) -> SweepSummary:
    """Run a sweep on a Ray cluster. For most arguments, see the function `sweep`. The determinism check runs locally, in new interpreters.

    Args:
        address: address of a running Ray cluster. "auto" means the cluster on this machine or at RAY_ADDRESS, and "local" starts a new
            cluster on this machine.

    Raises:
        UsageError: If Ray is not installed, or if no cluster answers at `address`.
    """
    ray = _ray()
    setup = msgspec.structs.replace(make_setup([template], runner=runner, seed_timeout_s=seed_timeout_s), paths=[])
    collector = Collector(template.name, catalogue=catalogue, template=template)
    is_ours = _connect(ray, address)
    started_s = time.monotonic()
    try:
        is_stopped = _collect(Cluster(ray, setup), collector, seeds, chunk_seeds, on_result, stop_after)
    finally:
        if is_ours:
            ray.shutdown()
    summary = collector.summary(elapsed_s=time.monotonic() - started_s, is_stopped=is_stopped)
    if is_determinism_checked:
        check_determinism_of_sweep(template, collector, summary, jobs=1, runner=runner, seed_timeout_s=seed_timeout_s)
    if metrics_csv is not None:
        metrics_csv.write_text(collector.table.to_csv())
    return summary


def _collect(
    cluster: "Cluster",
    collector: Collector,
    seeds: Sequence[int],
    chunk_seeds: int,
    on_result: Callable[[Result], None] | None,
    stop_after: int | None,
) -> bool:
    """Run all seeds and collect the results. Return whether the sweep was stopped early."""
    cluster.queue(seeds, chunk_seeds)
    try:
        while cluster.is_busy:
            for result in cluster.next_results():
                collector.add(result)
                if on_result is not None:
                    on_result(result)
                if stop_after is not None and collector.failures >= stop_after:
                    return collector.runs < len(seeds)
    except KeyboardInterrupt:
        return True
    finally:
        cluster.cancel()
    return False


def _ray() -> Any:  # Ray's types exist only where Ray is installed
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise UsageError("Ray is not installed: pip install 'snapline[ray]', or sweep with --jobs") from error
    return ray


def _connect(ray: Any, address: str) -> bool:  # Any: see `_ray`
    """Connect to a Ray cluster, unless this process is already connected to one. Return whether the caller must disconnect afterwards."""
    if ray.is_initialized():
        return False
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except ConnectionError as error:
        raise UsageError(f"no Ray cluster answers at {address}: `ray start --head`, or use address local") from error
    return True


def _check_reachable(address: str) -> None:
    """Check that the address accepts connections. Without this check, Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise UsageError(f"no Ray cluster answers at {address}: `ray start --head`, or use address local") from error


class Cluster:
    """Runs chunks of seeds on a Ray cluster."""

    def __init__(self, ray: Any, setup: Setup) -> None:  # Any: see `_ray`
        self._ray = ray
        self._name = setup.names[0]
        self._setup = ray.put(msgspec.msgpack.encode(setup))
        self._perform = ray.remote(max_retries=RETRIES)(perform_chunk)
        self._perform_once = ray.remote(max_retries=0)(perform_chunk)
        self._waiting: deque[list[int]] = deque()
        self._running: dict[Any, list[int]] = {}  # Any: Ray's reference

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting or self._running)

    def queue(self, seeds: Sequence[int], chunk_seeds: int) -> None:
        """Divide seeds into chunks, and queue the chunks."""
        starts = range(0, len(seeds), max(1, chunk_seeds))
        self._waiting.extend(list(seeds[start : start + max(1, chunk_seeds)]) for start in starts)

    def next_results(self) -> list[Result]:
        """Wait until a chunk is completed, and return its results."""
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        while self._waiting and len(self._running) < AHEAD * max(1, processors):
            chunk = self._waiting.popleft()
            perform = self._perform if len(chunk) > 1 else self._perform_once
            self._running[perform.remote(self._setup, chunk)] = chunk
        done, _ = self._ray.wait(list(self._running), num_returns=1)
        chunk = self._running.pop(done[0])
        try:
            return msgspec.msgpack.decode(self._ray.get(done[0]), type=list[Result])
        except self._ray.exceptions.RayTaskError as error:
            raise UsageError(f"the workers cannot run it, is the same snapline there? {error.cause!r}") from error
        except self._ray.exceptions.RayError as error:
            return self._split_chunk(chunk, error)

    def _split_chunk(self, chunk: list[int], error: Exception) -> list[Result]:
        """Queue the chunk's seeds individually if a chunk's process has died in every retry. If the chunk consists of one seed, return a
        result with the verdict "broken" instead."""
        if len(chunk) == 1:
            return [broken(self._name, chunk[0], f"the process that ran it died: {type(error).__name__}")]
        self._waiting.extendleft([seed] for seed in reversed(chunk))
        return []

    def cancel(self) -> None:
        """Cancel all running and queued chunks."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._waiting.clear()
