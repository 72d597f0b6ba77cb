"""What capture, store and restore cost, against probes of the same run: memcpy, and the disk's own write and sync.

    python benchmarks/state.py [--gib 1.0] [--rounds 7] [--folder DIR] [part ...]

Parts: full, tracked, restore, chat, agents, inputs, torch, dcp; all of them if left out. Probes and what is measured take turns, and
medians of ratios within one round count: neighbours move absolute figures up to tenfold, ratios little. `--folder` is where
the store lies (default: a new one beside this file's project, since /tmp may be memory).

    full     a state of one array: the pause of a whole capture, against a warm memcpy; then made durable
    tracked  the same in write-tracked memory, 1 % of it changed in one run: pause, new bytes, until durable
    restore  read from the page cache with every digest checked, CPU seconds against memcpy's; the digests alone and the reads alone
    chat     10,000 messages, ten of them new; and an edit of an old one
    agents   1,000 small agents: syncs of one epoch, and its commit (pack, manifest, ref) against atomic writes of 4 KiB
    inputs   batches of 32 inputs, appended to a host log one after the other, against one write of 4 KiB with fdatasync; the seal; stores with keys
    torch    a model of layers of 16 MiB: DCP async_save, alone and with its stager kept, torch.save, and ours; where torch is
             installed
    dcp      the same model saved whole, and again with one layer changed, through DCP's own FileSystemWriter and through ours: seconds
             and bytes; then loaded
"""

import argparse
import functools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from snapline.agent_runtime.host.epoch_files import CHUNK_PACK_BYTES
from snapline.storage.capture import decoder
from snapline.storage.capture.chunking import ChunkedState, chunk_image
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.history import History
from snapline.storage.capture.image import ArenaPool, ChunkTable, StateImage, map_memory
from snapline.storage.capture.torch_state import TorchState
from snapline.storage.capture.tracked_arrays import tracked_array
from snapline.storage.disk.local_disk import LocalDisk, write_once
from snapline.storage.disk.record import digest_of
from snapline.storage.keys.key_files import Keys, make_signing_key, make_wrapping_key
from snapline.storage.log.log_record import LogBatch, LoggedInput, LogName
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.packs.pack import KIND_CHUNK, PackBlob, PackNeeds, PackReference
from snapline.storage.store.store import Store

MIB = 2**20
Array = np.ndarray[Any, Any]


class Model(msgspec.Struct):
    weights: Array


class Line(msgspec.Struct, frozen=True):
    role: str
    text: str
    number: int


class Chat(msgspec.Struct):
    lines: History[Line]


class Bench:
    """One run: where it writes, and its rows."""

    def __init__(self, folder: Path, size_bytes: int, rounds: int) -> None:
        self.folder = folder
        self.size_bytes = size_bytes
        self.rounds = rounds
        self.missed = 0

    def row(self, what: str, value: float, unit: str, bar: str = "", *, is_met: bool = True) -> None:
        """Print one figure, with its bar."""
        verdict = "" if not bar else f"   {bar}: {'met' if is_met else 'MISSED'}"
        self.missed += bool(bar) and not is_met
        print(f"{what:58} {value:12,.3f} {unit}{verdict}", flush=True)

    def store(self, name: str) -> Store:
        """A fresh store."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return Store.create(self.folder / name)


class Epochs:
    """Commits epochs of one agent, as host and coordinator do."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.epoch = 0
        self.table: ChunkTable | None = None
        self.roots: dict[int, str] = {}

    def write(self, image: StateImage) -> tuple[ChunkedState, PackReference]:
        """What the host does in its worker: durable when this returns."""
        from concurrent.futures import ThreadPoolExecutor

        self.epoch += 1
        chunked = chunk_image(image, self.table, digest=self.store.digest)
        chunks = [PackBlob("", KIND_CHUNK, x.data, x.digest, x.compresses) for x in chunked.new]
        per_pack = max(1, CHUNK_PACK_BYTES // max(1, len(chunks[0].data))) if chunks else 1
        groups = [chunks[i : i + per_pack] for i in range(0, len(chunks), per_pack)]
        earlier_packs: list[PackReference] = []
        if len(groups) > 1:
            with ThreadPoolExecutor(2) as threads:
                earlier_packs = list(
                    threads.map(lambda g: self.store.write_chunks(writer="h", epoch=self.epoch, chunks=g), groups)
                )
            chunks = []
        checkpoint = AgentCheckpoint(agent="a", kind="k", epoch=self.epoch, state=image.skeleton, parts=chunked.parts)
        reused = [chunk.digest for chunk in chunked.reused]
        needs = PackNeeds(self.epoch - 1 if reused else 0, reused, earlier_packs)
        blobs = [("a", encode_checkpoint(checkpoint))]
        return chunked, self.store.write_pack(writer="h", epoch=self.epoch, blobs=blobs, chunks=chunks, needs=needs)

    def commit(self, found: ChunkedState, reference: PackReference) -> Manifest:
        """What the coordinator does."""
        gathered = self.store.gather([reference], epoch=self.epoch, bases=self.roots)
        lines = [agent_line(x, pack=0, kind="k", host="h", incarnation=1) for x in gathered.checkpoints[0].values()]
        manifest = Manifest(Metadata(epoch=self.epoch), lines, gathered.packs, gathered.chunks)
        root = self.roots[self.epoch] = self.store.write_manifest(manifest)
        self.store.publish(self.epoch, root)
        self.table = found.table
        return manifest


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call(*arguments)
    return time.perf_counter() - start, result


def cpu_timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the processor's and the elapsed seconds of a call, of all threads together."""
    cpu = time.process_time()
    elapsed, _ = timed(call)
    return time.process_time() - cpu, elapsed


def median(values: list[float]) -> float:
    return statistics.median(values)


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Memcpy:
    """A warm copy of as many bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._source = np.random.default_rng(0).integers(0, 2**63, size_bytes // 8, dtype=np.int64)
        self._target = np.empty_like(self._source)
        self()

    def __call__(self) -> float:
        return timed(lambda: np.copyto(self._target, self._source))[0]


def write_and_sync(folder: Path, data: memoryview) -> float:
    """The disk's own time for these bytes."""
    path = folder / "probe"

    def write() -> None:
        handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            view = data
            while len(view):
                view = view[os.write(handle, view[: 8 * MIB]) :]
            os.fdatasync(handle)
        finally:
            os.close(handle)

    elapsed, _ = timed(write)
    path.unlink()
    return elapsed


# ---- parts ----------------------------------------------------------------------------------------------------------


def full(bench: Bench) -> None:
    memcpy = Memcpy(bench.size_bytes)
    state = Model(np.random.default_rng(1).random(bench.size_bytes // 8))
    pool = ArenaPool()
    encoder = StateEncoder(pool)
    for size in encoder.buffer_sizes(state):
        pool.reserve(size)
    pauses, ratios, durable, rates = [], [], [], []
    for _ in range(bench.rounds):
        copy = memcpy()
        pause, image = timed(lambda: encoder.encode(state))
        pauses.append(pause)
        ratios.append(pause / copy)
        disk = write_and_sync(bench.folder, state.weights.data.cast("B"))
        store = bench.store("full")
        duration, _ = timed(Epochs(store).write, image)
        image.release()
        durable.append(copy / duration)
        rates.append(disk / duration)
    bench.row("full: pause", median(pauses) * 1e3, "ms")
    bench.row("full: pause : warm memcpy", median(ratios), "x", "<= 1.15", is_met=median(ratios) <= 1.15)
    is_met = median(durable) >= 0.16 or median(rates) >= 0.6
    bar = ">= 0.16 (0.08 a core), or 0.6 of the disk"
    bench.row("full: memcpy : until durable", median(durable), "x", bar, is_met=is_met)
    bench.row("full: disk's own write and sync : until durable", median(rates), "x")


def tracked(bench: Bench) -> None:
    state = Model(tracked_array((bench.size_bytes // 8,), np.float64))
    state.weights[:] = np.random.default_rng(2).random(bench.size_bytes // 8)
    encoder = StateEncoder(ArenaPool())
    epochs = Epochs(bench.store("tracked"))
    image = encoder.encode(state)
    epochs.commit(*epochs.write(image))
    image.release()
    dirty = len(state.weights) // 100
    pauses, durable, sizes, rates = [], [], [], []
    for number in range(bench.rounds + 2):
        start = (number * 7919 * dirty) % (len(state.weights) - dirty)
        state.weights[start : start + dirty] += 1.0
        before = bytes_in(bench.folder / "tracked")
        disk = write_and_sync(bench.folder, state.weights[start : start + dirty].data.cast("B"))
        pause, image = timed(lambda: encoder.encode(state, epochs.table))
        duration, written = timed(epochs.write, image)
        epochs.commit(*written)
        image.release()
        if number >= 2:  # the arena is warm
            pauses.append(pause)
            durable.append(duration)
            rates.append(disk / duration)
            sizes.append((bytes_in(bench.folder / "tracked") - before) / (dirty * 8))
    bench.row("1 % dirty, tracked: pause", median(pauses) * 1e3, "ms", "<= 5", is_met=median(pauses) <= 0.005)
    bench.row("1 % dirty, tracked: new bytes : dirty", median(sizes), "x", "<= 1.2", is_met=median(sizes) <= 1.2)
    is_met = median(durable) <= 0.2 or median(rates) >= 0.6
    bench.row("1 % dirty, tracked: until durable", median(durable), "s", "<= 0.2, or 0.6 of the disk", is_met=is_met)


def restore(bench: Bench) -> None:
    """Into warm memory, as memcpy; and into fresh memory, as a host does, where the kernel clears each page at its first touch.

    Every byte is hashed and copied once, so a digest alone and a read alone are bounds: their sum is what no reader can do without.
    """
    memcpy = Memcpy(bench.size_bytes)
    state = Model(np.random.default_rng(3).random(bench.size_bytes // 8))
    epochs = Epochs(bench.store("restore"))
    image = StateEncoder(ArenaPool()).encode(state)
    manifest = epochs.commit(*epochs.write(image))
    image.release()
    checkpoint = epochs.store.read_checkpoint(manifest, "a")
    warm = memoryview(map_memory(bench.size_bytes))[: bench.size_bytes]
    usual = vars(decoder)["buffer_for"]
    memory = {"warm": lambda part: warm, "fresh": usual}

    def read(kind: str) -> None:
        vars(decoder)["buffer_for"] = memory[kind]
        contents = epochs.store.part_reader(manifest).read("a", checkpoint.parts)
        assert contents[0][-64:] == state.weights.data.cast("B")[-64:]

    chunk_bytes, data = checkpoint.parts[0].chunk_bytes, state.weights.data.cast("B")
    calls: dict[str, Callable[[], object]] = {
        "digest": lambda: [digest_of(data[i : i + chunk_bytes]) for i in range(0, len(data), chunk_bytes)],
        "read": functools.partial(read_packs, bench.folder / "restore", warm),
        "warm": functools.partial(read, "warm"),
        "fresh": functools.partial(read, "fresh"),
    }
    times: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in calls}
    for _ in range(bench.rounds):
        copy = cpu_timed(memcpy)
        for name, call in calls.items():
            times[name].append((*copy, *cpu_timed(call)))
    vars(decoder)["buffer_for"] = usual
    restore_rows(bench, times)


def restore_rows(bench: Bench, found: dict[str, list[tuple[float, float, float, float]]]) -> None:
    """`found`: what → of each round CPU and elapsed seconds of memcpy, and CPU and elapsed seconds of it."""

    def ratio(name: str, at: int = 0) -> float:
        return median([each[at] / each[at + 2] for each in found[name]])

    bench.row("restore, bound: memcpy : CPU of the digests alone", ratio("digest"), "x")
    bench.row("restore, bound: memcpy : CPU of the reads alone", ratio("read"), "x")
    is_met = ratio("warm") >= 0.25
    bench.row("restore, verified, into warm memory: memcpy : CPU", ratio("warm"), "x", ">= 0.25", is_met=is_met)
    pairs = zip(found["digest"], found["read"], found["warm"], strict=True)
    share = median([(digest[2] + read[2]) / whole[2] for digest, read, whole in pairs])
    bench.row("restore: digests and reads alone : restore, CPU", share, "x")
    bench.row("restore, verified, into fresh memory: memcpy : CPU", ratio("fresh"), "x")
    bench.row("restore, verified, two threads, warm: memcpy : elapsed", ratio("warm", 1), "x")
    bench.row("restore, verified, two threads, fresh: memcpy : elapsed", ratio("fresh", 1), "x")


def read_packs(folder: Path, into: memoryview) -> None:
    """All packs, from the page cache, one behind the other, without looking at them; what is beyond the end goes to the end."""
    step = min(len(into), MIB)
    filled = 0
    for path in sorted(folder.glob("packs/*/*")):
        handle, offset = os.open(path, os.O_RDONLY), 0
        while count := os.preadv(handle, [into[min(filled, len(into) - step) :][:step]], offset):
            offset += count
            filled += count
        os.close(handle)


def chat(bench: Bench) -> None:
    vocabulary = ["alpha", "beta", "gamma", "delta", "omega"]
    lines = [Line("user", " ".join(vocabulary[(i + j) % 5] for j in range(185)), i) for i in range(10_000)]
    firsts, bounds = [], []
    for _ in range(bench.rounds + 1):  # the first one includes one-time work
        firsts.append(cpu_timed(functools.partial(StateEncoder(ArenaPool()).encode, Chat(History(lines)))))
        bounds.append(cpu_timed(lambda: msgspec.msgpack.encode(lines)))
    whole_s = median([cpu for cpu, _ in firsts[1:]])
    bench.row("chat, 10,000 messages: first capture, CPU", whole_s * 1e3, "ms", "<= 10", is_met=whole_s <= 0.010)
    bench.row("chat, 10,000 messages: first capture, elapsed", median([took for _, took in firsts[1:]]) * 1e3, "ms")
    bench.row("chat, 10,000 messages: first one of the process, CPU", firsts[0][0] * 1e3, "ms")
    share = median([one[0] / all_at_once[0] for one, all_at_once in zip(firsts[1:], bounds[1:], strict=True)])
    bench.row("chat: first capture : msgspec's encoding of all, CPU", share, "x")
    state = Chat(History(lines))
    encoder = StateEncoder(ArenaPool())
    epochs = Epochs(bench.store("chat"))
    image = encoder.encode(state)
    epochs.commit(*epochs.write(image))
    pauses, sizes = [], []
    for number in range(bench.rounds * 3):
        new = [msgspec.structs.replace(lines[i], number=10_000 + number * 10 + i) for i in range(10)]
        state.lines.extend(new)
        before = bytes_in(bench.folder / "chat")
        pause, image = timed(lambda: encoder.encode(state, epochs.table))
        epochs.commit(*epochs.write(image))
        pauses.append(pause)
        sizes.append((bytes_in(bench.folder / "chat") - before) / len(msgspec.msgpack.encode(new)))
    bench.row("chat, ten new: capture", median(pauses) * 1e3, "ms", "<= 1", is_met=median(pauses) <= 0.001)
    bench.row(
        "chat, ten new: all new bytes of the store : the encoded ten",
        median(sizes),
        "x",
        "<= 2",
        is_met=median(sizes) <= 2,
    )
    state.lines[5] = msgspec.structs.replace(lines[5], text="edited")
    del state.lines[7:9]
    image = encoder.encode(state, epochs.table)
    chunked, _ = epochs.write(image)
    size = sum(len(chunk.data) for chunk in chunked.new)
    bench.row("chat, one edited and two dropped: new bytes", size, "B", "<= 4,096", is_met=size <= 4096)


class CountingDisk(LocalDisk):
    """Disk that counts syncs."""

    syncs = 0

    def sync_data(self, handle: int) -> None:
        self.syncs += 1
        super().sync_data(handle)

    def sync_directory(self, path: str) -> None:
        self.syncs += 1
        super().sync_directory(path)


def agents(bench: Bench) -> None:
    folder = bench.folder / "agents"
    shutil.rmtree(folder, ignore_errors=True)
    disk = CountingDisk(folder)
    store = Store.create("", disk=disk)
    disk.make_directory("probe")
    checkpoints = [AgentCheckpoint(agent=f"a{i}", kind="k", epoch=1, state=b"state" * 20) for i in range(1000)]
    syncs, packs, commits = [], [], []
    for epoch in range(1, bench.rounds * 3 + 2):
        blobs = [(x.agent, encode_checkpoint(msgspec.structs.replace(x, epoch=epoch))) for x in checkpoints]
        before = disk.syncs
        duration, _ = timed(functools.partial(store.write_pack, writer="h", epoch=epoch, blobs=blobs))
        syncs.append(disk.syncs - before)
        small = [("a", blobs[0][1])]
        probe, _ = timed(
            lambda e=epoch: write_once(disk, f"probe/{e}", [bytes(4096)], temporary_name="", point="probe")
        )

        def commit(epoch: int = epoch, small: list[tuple[str, bytes]] = small) -> None:
            pack = store.write_pack(writer="h2", epoch=epoch, blobs=small)
            gathered = store.gather([pack], epoch=epoch, bases={})
            lines = [agent_line(x, pack=0, kind="k", host="h", incarnation=1) for x in gathered.checkpoints[0].values()]
            store.publish(epoch, store.write_manifest(Manifest(Metadata(epoch=epoch), lines, gathered.packs)))

        small_took, _ = timed(commit)
        if epoch > 1:
            packs.append(duration)
            commits.append(small_took / probe)
    bench.row("1,000 agents: syncs of a host in one epoch", max(syncs[1:]), "", "<= 3", is_met=max(syncs[1:]) <= 3)
    bench.row("1,000 agents: pack durable", median(packs) * 1e3, "ms")
    bench.row("small commit : one atomic 4 KiB write", median(commits), "x", "<= 2.5", is_met=median(commits) <= 2.5)


def inputs(bench: Bench) -> None:
    folder = bench.folder / "inputs"
    shutil.rmtree(folder, ignore_errors=True)
    disk = LocalDisk(folder)
    store = Store.create("", disk=disk)
    disk.make_directory("probe")
    probe = os.open(folder / "probe" / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def sync_alone() -> None:
        os.write(probe, bytes(4096))
        os.fdatasync(probe)

    log = LogName(1, "h1", 1)
    syncs: list[float] = []
    atomic: list[float] = []
    appends: list[float] = []
    for number in range(1, 30 * bench.rounds + 11):
        syncs.append(timed(sync_alone)[0])
        path = f"probe/{number}"
        atomic.append(
            timed(functools.partial(write_once, disk, path, [bytes(4096)], temporary_name="", point="probe"))[0]
        )
        batch = LogBatch(
            [LoggedInput(f"a{i}", number, "client", f"key-{number}-{i}", bytes(200), 0) for i in range(32)]
        )
        duration, is_taken = timed(lambda n=number, b=batch: store.append_batch(store.prepare_batch(log, n, b)))
        assert is_taken
        appends.append(duration)
    sealing, _ = timed(lambda: store.seal_log(log))
    reading, count = timed(lambda: sum(store.read_batch(log, n) is not None for n in store.read_logs()[log]))
    ratio = median(appends[10:]) / median(syncs[10:])
    bench.row("append of a batch : one write and fdatasync", ratio, "x", "<= 3", is_met=ratio <= 3)
    bench.row("append of a batch : one atomic 4 KiB write", median(appends[10:]) / median(atomic[10:]), "x")
    bench.row("one write and fdatasync", median(syncs[10:]) * 1e3, "ms")
    bench.row("append of a batch", median(appends[10:]) * 1e3, "ms")
    bench.row("appended", 32 / median(appends[10:]), "inputs/s")
    bench.row("seal : one atomic 4 KiB write", sealing / median(atomic[10:]), "x")
    bench.row("read", count / reading, "batches/s")
    os.close(probe)
    guarded_inputs(bench)


def guarded_inputs(bench: Bench) -> None:
    """What keys cost a host log: stores of each kind take turns."""
    signer, wrapping = make_signing_key(b"s" * 32), make_wrapping_key(b"w" * 32)
    kinds = {"plain": Keys(), "encrypted": Keys((wrapping,)), "signed": Keys(signing=signer)}
    stores: dict[str, Store] = {}
    for kind, keys in kinds.items():
        folder = bench.folder / f"inputs-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        stores[kind] = Store.create("", disk=LocalDisk(folder), keys=keys)
    log = LogName(1, "h1", 1)
    prepared: dict[str, list[float]] = {kind: [] for kind in kinds}
    appended: dict[str, list[float]] = {kind: [] for kind in kinds}
    count = 30 * bench.rounds + 10
    for number in range(1, count + 1):
        batch = LogBatch(
            [LoggedInput(f"a{i}", number, "client", f"key-{number}-{i}", bytes(200), 0) for i in range(32)]
        )
        for kind, store in stores.items():
            start = time.perf_counter()
            prepared_batch = store.prepare_batch(log, number, batch)
            prepared[kind].append(time.perf_counter() - start)
            assert store.append_batch(prepared_batch)
            appended[kind].append(time.perf_counter() - start)
    for kind, store in stores.items():
        bench.row(f"append of a batch, {kind}", median(appended[kind][10:]) * 1e3, "ms")
        bench.row(f"append of a batch, {kind}, without the disk", median(prepared[kind][10:]) * 1e6, "µs")
        reading = timed(lambda s=store: [s.read_batch(log, n) for n in s.read_logs()[log]])[0]
        bench.row(f"read of a batch, {kind}", reading / count * 1e6, "µs")
        half = [(log, number) for number in range(1, count // 2)]
        bench.row(
            f"deletion of {len(half)} batches, {kind}",
            timed(lambda s=store, h=half: s.delete_batches(h))[0] * 1e3,
            "ms",
        )


TORCH_LAYER = 2048
"""Width of the layers: 16 MiB of float32 each, as in a medium-sized model."""


def dcp_savers() -> dict[str, Callable[[Any, str], Any]]:
    """DCP's ways that run on a CPU, each as `save(model, path)`, which returns a future when the model may be changed.

    All write with `sync_files`, their default. Not among them: process-based saving, whose pause copies to shared memory and
    cannot be shorter; pinned or asynchronous staging, which need a GPU.
    """
    from torch.distributed.checkpoint import staging  # type: ignore[import-not-found,unused-ignore]  # optional
    from torch.distributed.checkpoint.state_dict_saver import (  # type: ignore[import-not-found,unused-ignore]  # optional
        async_save,
    )

    kept = staging.DefaultStager(staging.StagingOptions(False, False, False, False))

    def default(model: Any, path: str) -> Any:
        return async_save(model.state_dict(), checkpoint_id=path, no_dist=True)

    def reusing(model: Any, path: str) -> Any:
        return async_save(model.state_dict(), checkpoint_id=path, no_dist=True, async_stager=kept)

    return {"async_save": default, "async_save, stager kept": reusing}


def torch(bench: Bench) -> None:
    try:
        import torch as library  # type: ignore[import-not-found,unused-ignore]  # optional
        import torch.distributed.checkpoint
    except ImportError:
        print("torch is not installed: pip install 'snapline[torch]' to run beside torch.save and DCP")
        return
    memcpy = Memcpy(bench.size_bytes)
    count = max(1, bench.size_bytes // (TORCH_LAYER * TORCH_LAYER * 4))
    model = library.nn.Sequential(
        *[library.nn.Linear(TORCH_LAYER, TORCH_LAYER, bias=False) for _ in range(count)]
    ).requires_grad_(False)
    savers = dcp_savers()
    state, encoder = {"training": TorchState.of(model)}, StateEncoder(ArenaPool())
    pauses: dict[str, list[float]] = {}
    wholes: dict[str, list[float]] = {}

    def note(name: str, pause: float, whole: float) -> None:
        pauses.setdefault(name, []).append(pause)
        wholes.setdefault(name, []).append(whole)

    for number in range(bench.rounds + 1):
        copy = memcpy()
        if number == 1:  # all are warm
            pauses.clear()
            wholes.clear()
        for name, save in savers.items():
            path = bench.folder / "dcp"
            os.sync()  # flush the writes of the one before
            start = time.perf_counter()
            pause, future = timed(functools.partial(save, model, str(path)))
            future.result()
            note(name, pause / copy, (time.perf_counter() - start) / copy)
            shutil.rmtree(path)
        os.sync()
        saved, _ = timed(lambda: library.save(model.state_dict(), bench.folder / "torch.pt"))
        note("torch.save", saved / copy, saved / copy)
        epochs = Epochs(bench.store("torch"))
        os.sync()
        pause, image = timed(lambda: encoder.encode(state))
        written, _ = timed(functools.partial(epochs.write, image))
        image.release()
        note("ours", pause / copy, (pause + written) / copy)
    torch_rows(bench, pauses, wholes)


def torch_rows(bench: Bench, pauses: dict[str, list[float]], wholes: dict[str, list[float]]) -> None:
    for name, ratios in pauses.items():
        synced = "not synced" if name == "torch.save" else "synced"
        bench.row(f"{name}: pause : memcpy", median(ratios), f"x   ({min(ratios):.2f} to {max(ratios):.2f})")
        bench.row(f"{name}: whole, {synced} : memcpy", median(wholes[name]), "x")

    def ratio(name: str) -> float:
        return median([theirs / ours for theirs, ours in zip(pauses[name], pauses["ours"], strict=True)])

    bench.row("DCP's pause : ours", ratio("async_save"), "x", ">= 3", is_met=ratio("async_save") >= 3)
    bench.row("DCP's pause, stager kept : ours", ratio("async_save, stager kept"), "x")


def dcp(bench: Bench) -> None:
    try:
        import torch as library  # type: ignore[import-not-found,unused-ignore]  # optional
        from torch.distributed import checkpoint

        from snapline.adapters.torch_checkpoint import SnaplineReader, SnaplineWriter
    except ImportError:
        print("torch is not installed: pip install 'snapline[torch]' to run beside DCP's own files")
        return
    memcpy = Memcpy(bench.size_bytes)
    count = max(2, bench.size_bytes // (TORCH_LAYER * TORCH_LAYER * 4))
    state = {f"layer{number}": library.randn(TORCH_LAYER, TORCH_LAYER) for number in range(count)}
    found: dict[str, list[float]] = {}

    def note(what: str, copy: float, folder: Path, call: Callable[..., Any], **arguments: Any) -> None:
        os.sync()
        before = bytes_in(folder)
        duration, _ = timed(functools.partial(call, state, **arguments))
        found.setdefault(f"{what}: seconds : memcpy", []).append(duration / copy)
        found.setdefault(f"{what}: bytes : the model's", []).append((bytes_in(folder) - before) / bench.size_bytes)

    for _ in range(bench.rounds):
        copy, ours, theirs = memcpy(), bench.folder / "ours", bench.folder / "theirs"
        for folder in (ours, theirs):
            shutil.rmtree(folder, ignore_errors=True)
        with SnaplineWriter.open(ours) as writer:
            for number, what in enumerate(("whole", "one layer changed")):
                state["layer1"].add_(number)
                files = checkpoint.FileSystemWriter(theirs / f"{number}")
                note(f"FileSystemWriter, {what}", copy, theirs, checkpoint.save, storage_writer=files)
                note(f"ours, {what}", copy, ours, checkpoint.save, storage_writer=writer)
        read = checkpoint.FileSystemReader(theirs / "1")
        note("FileSystemReader", copy, theirs, checkpoint.load, storage_reader=read)
        note("our reader, verified", copy, ours, checkpoint.load, storage_reader=SnaplineReader.open(ours))
    for what, values in found.items():
        if "read" not in what.lower() or "seconds" in what:
            bench.row(what, median(values), f"x   ({min(values):.2f} to {max(values):.2f})")


PARTS: dict[str, Callable[[Bench], None]] = {
    "full": full,
    "tracked": tracked,
    "restore": restore,
    "chat": chat,
    "agents": agents,
    "inputs": inputs,
    "torch": torch,
    "dcp": dcp,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-state-", dir=options.folder) as folder:
        bench = Bench(Path(folder), int(options.gib * 2**30) // 8192 * 8192, options.rounds)
        for name in options.parts or PARTS:
            PARTS[name](bench)
    return 1 if bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
