"""Requests to a bucket one after the other, and side by side, where each takes its time.

    python benchmarks/buckets.py [--rounds 5] [--latency-ms 30] [--mib-s 80] [--mib 128] [--agents 200]

The bucket is in memory; each request waits for the latency, and its bytes for a connection's rate. Both ways take turns in one run.
Printed are seconds, and the ratio of each round's pair. What a real bucket adds, throttling and a shared line, is not in it.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
from obstore.store import MemoryStore

from snapline.agent_runtime.host.epoch_files import CHUNK_PACK_BYTES, THREADS
from snapline.storage.capture.image import PART_BLOB
from snapline.storage.disk.local_disk import parallel_map
from snapline.storage.disk.object_disk import REQUESTS_AT_ONCE, ObjectDisk
from snapline.storage.packs.checkpoint import AgentCheckpoint, StatePart, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.packs.pack import KIND_CHUNK, PackBlob, PackNeeds, PackReference, group_blobs
from snapline.storage.store.store import Store

MIB = 2**20
CHUNK_BYTES = MIB


class SlowDisk(ObjectDisk):
    """A bucket with the latency and rate of a remote one."""

    def __init__(self, latency_s: float, bytes_s: float) -> None:
        super().__init__(MemoryStore(), "memory")
        self.latency_s = latency_s
        self.bytes_s = bytes_s

    def read(self, path: str, offset: int, length: int) -> bytes:
        data = super().read(path, offset, length)
        self.wait(len(data))
        return data

    def link(self, handle: int, path: str) -> None:
        self.wait(self._file(handle).size_bytes)
        super().link(handle, path)

    def wait(self, size_bytes: int) -> None:
        time.sleep(self.latency_s + size_bytes / self.bytes_s)


class Bench:
    """One epoch of many small agents, one of which has a large state."""

    def __init__(self, disk: SlowDisk, size_bytes: int, agents: int) -> None:
        self.disk = disk
        self.store = Store.create("", disk=disk)
        data = np.random.default_rng(1).bytes(size_bytes)
        pieces = [data[i : i + CHUNK_BYTES] for i in range(0, size_bytes, CHUNK_BYTES)]
        self.chunks = [PackBlob("", KIND_CHUNK, piece, self.store.digest(piece), False) for piece in pieces]
        digests = b"".join([chunk.digest for chunk in self.chunks])
        self.parts = [StatePart(PART_BLOB, b"", size_bytes, CHUNK_BYTES, [], digests)]
        made = AgentCheckpoint(agent="a0", kind="k", epoch=1, state=bytes(100), parts=self.parts)
        small = [msgspec.structs.replace(made, agent=f"a{number}", parts=[]) for number in range(1, agents)]
        self.blobs = [(each.agent, encode_checkpoint(each)) for each in [made, *small]]
        self.epoch = 0
        self.manifest = self.commit(self.put(REQUESTS_AT_ONCE))

    def put(self, at_once: int) -> list[PackReference]:
        """As a host does."""
        self.epoch += 1
        write = partial(_write, self.store, self.epoch)
        return list(parallel_map(write, list(group_blobs(self.chunks, CHUNK_PACK_BYTES)), at_once))

    def commit(self, packs: list[PackReference]) -> Manifest:
        reference = self.store.write_pack(writer="h", epoch=self.epoch, blobs=self.blobs, needs=PackNeeds(others=packs))
        gathered = self.store.gather([reference], epoch=self.epoch, bases={})
        lines = [agent_line(x, pack=0, kind="k", host="h", incarnation=1) for x in gathered.checkpoints[0].values()]
        return Manifest(Metadata(epoch=self.epoch), lines, gathered.packs, gathered.chunks)

    def read_state(self, at_once: int) -> None:
        self.disk.requests_at_once = at_once
        self.store.part_reader(self.manifest).read("a0", self.parts)

    def read_agents(self, at_once: int) -> None:
        self.disk.requests_at_once = at_once
        assert len(list(self.store.read_checkpoints(self.manifest))) == len(self.blobs)


def _write(store: Store, epoch: int, chunks: list[PackBlob]) -> PackReference:
    return store.write_chunks(writer="h", epoch=epoch, chunks=chunks)


def compare(what: str, call: Callable[[int], object], before: int, rounds: int) -> None:
    """Print a row: `before` concurrent requests against the current number."""
    found: dict[int, list[float]] = {before: [], REQUESTS_AT_ONCE: []}
    for number in range(rounds):
        for at_once in sorted(found, reverse=bool(number % 2)):
            began = time.perf_counter()
            call(at_once)
            found[at_once].append(time.perf_counter() - began)
    ratios = [now / then for then, now in zip(found[before], found[REQUESTS_AT_ONCE], strict=True)]
    low, high = min(ratios), max(ratios)
    medians = [statistics.median(each) for each in found.values()]
    print(
        f"{what:28} {before} at a time {medians[0]:7.3f} s   {REQUESTS_AT_ONCE} at a time {medians[1]:7.3f} s   "
        f"ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency-ms", type=float, default=30)
    parser.add_argument("--mib-s", type=float, default=80)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--agents", type=int, default=200)
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}; {options.latency_ms:g} ms and {options.mib_s:g} MiB/s a request"
    )
    bench = Bench(SlowDisk(options.latency_ms / 1e3, options.mib_s * MIB), options.mib * MIB, options.agents)
    compare(f"put {options.mib} MiB", bench.put, THREADS, options.rounds)
    compare(f"read {options.mib} MiB, verified", bench.read_state, THREADS, options.rounds)
    compare(f"read {options.agents} agents", bench.read_agents, 1, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
