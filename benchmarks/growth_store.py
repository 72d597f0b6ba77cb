"""How the store's costs grow: chunks of one epoch, epochs of one store, entries of a history, bytes of a state.

    python benchmarks/growth_store.py [--largest N] [--folder DIR] [part ...]

Parts: chunks, epochs, histories, states; all of them if left out. Each runs its operations at sizes that grow tenfold, and prints the processor's
milliseconds, and between two sizes the exponent k of size^k. What grew by more than `SLACK` times n log n, and takes more than `NOTABLE_S`,
is marked `!`, and the run then ends with 1. The disk syncs nothing here: what flushes cost is in state.py.

    chunks     one epoch of so many chunks of 64 bytes: written, gathered and made a manifest, read back, and the next one, which reuses all but ten
    epochs     a store of so many epochs, which share a pack: listed, the newest read, its catalog made and refreshed, one deleted, swept, verified
    histories  so many entries: first capture, ten more, restored
    states     an array of so many bytes: captured, made durable (but for the syncs), restored with every digest checked
"""

import argparse
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from snapline.storage.capture.chunking import ChunkedState, chunk_image
from snapline.storage.capture.decoder import decode_state
from snapline.storage.capture.encoder import StateEncoder
from snapline.storage.capture.history import History
from snapline.storage.capture.image import PART_BLOB, ArenaPool, ChunkTable, StateImage
from snapline.storage.disk import layout
from snapline.storage.disk.local_disk import LocalDisk
from snapline.storage.disk.record import digest_of
from snapline.storage.packs.checkpoint import AgentCheckpoint, StatePart, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line, encode_manifest, encode_ref
from snapline.storage.packs.pack import KIND_CHUNK, PackBlob, PackNeeds
from snapline.storage.store.catalog import Catalog
from snapline.storage.store.store import Store

NOTABLE_S = 0.05
"""Shorter operations may be noise."""

SLACK = 2.0
"""Allowed factor over n log n between two sizes: caches overflow, and the machine is shared."""


READ_WHOLE_MAX = 100_000
"""Largest number of chunks that are verified and compacted: a million would take a minute."""


class UnsyncedDisk(LocalDisk):
    """A local disk whose syncs do nothing."""

    def sync_data(self, handle: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


class Line(msgspec.Struct, frozen=True):
    role: str
    text: str
    number: int


class Chat(msgspec.Struct):
    lines: History[Line]


class Model(msgspec.Struct):
    weights: np.ndarray[Any, Any]


class Curves:
    """Operation → size → seconds of the processor; of one part."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: dict[str, dict[int, float]] = {}

    def timed(self, what: str, size: int, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function once; note the CPU time."""
        began = time.process_time()
        result = call(*arguments)
        self._found.setdefault(what, {})[size] = time.process_time() - began
        return result

    def show(self) -> int:
        """Print a row for each operation; return how many grow faster than n log n."""
        sizes = sorted({size for each in self._found.values() for size in each})
        print(f"{self._name:38}" + "".join([f"{size:>14,}" for size in sizes]))
        worse = 0
        for what, found in self._found.items():
            cells, before = "", 0
            for size in sizes:
                if size not in found:
                    cells += " " * 14
                    continue
                cell = f"{found[size] * 1e3:,.1f}"
                if before:
                    is_worse = self._is_worse(found, before, size)
                    worse += is_worse
                    exponent = math.log(max(found[size], 1e-6) / max(found[before], 1e-6)) / math.log(size / before)
                    cell += f" {exponent:4.1f}{'!' if is_worse else ' '}"
                cells += f"{cell:>14}"
                before = size
            print(f"  {what:36}{cells}", flush=True)
        return worse

    def _is_worse(self, found: dict[int, float], before: int, size: int) -> bool:
        allowed = size * math.log2(size) / (before * math.log2(before))
        return found[size] > NOTABLE_S and found[size] > SLACK * allowed * max(found[before], 1e-3)


def decades(first: int, last: int) -> Iterator[int]:
    size = first
    while size <= last:
        yield size
        size *= 10


def fresh_store(folder: Path) -> Store:
    shutil.rmtree(folder, ignore_errors=True)
    return Store.create("", disk=UnsyncedDisk(folder))


# ---- parts ----------------------------------------------------------------------------------------------------------


def chunks(curves: Curves, folder: Path, largest: int) -> None:
    for count in decades(1000, min(largest, 1_000_000)):
        store = fresh_store(folder)
        data = [number.to_bytes(64, "little") for number in range(count + 10)]
        digests = [digest_of(each) for each in data]

        def checkpoint(first: int, epoch: int, named: list[bytes] = digests, size: int = count) -> bytes:
            chosen = b"".join(named[first : first + size])
            part = StatePart(PART_BLOB, b"", 64 * size, 64, [], chosen)
            return encode_checkpoint(AgentCheckpoint(agent="a", kind="k", epoch=epoch, parts=[part]))

        def blobs(first: int, last: int, data: list[bytes] = data, named: list[bytes] = digests) -> list[PackBlob]:
            return [PackBlob("", KIND_CHUNK, data[i], named[i], False) for i in range(first, last)]

        def pack(epoch: int, first: int, last: int, needs: PackNeeds, store: Store = store) -> Any:
            packed = [("a", checkpoint(epoch - 1 and 10, epoch))]
            return store.write_pack(writer="h", epoch=epoch, blobs=packed, chunks=blobs(first, last), needs=needs)

        def commit(epoch: int, reference: Any, bases: dict[int, str], store: Store = store) -> tuple[str, Manifest]:
            gathered = store.gather([reference], epoch=epoch, bases=bases)
            lines = [agent_line(x, pack=0, kind="k", host="h", incarnation=1) for x in gathered.checkpoints[0].values()]
            manifest = Manifest(Metadata(epoch=epoch), lines, gathered.packs, gathered.chunks)
            root = store.write_manifest(manifest)
            store.publish(epoch, root)
            return root, manifest

        reference = curves.timed("write the pack", count, pack, 1, 0, count, PackNeeds())
        root, _ = curves.timed("gather, write the manifest", count, commit, 1, reference, {})
        manifest = curves.timed("read the manifest", count, store.read_manifest, root)
        made = store.read_checkpoint(manifest, "a")
        curves.timed("read every chunk", count, store.part_reader(manifest).read, "a", made.parts)
        needs = PackNeeds(1, digests[10:count])
        reference = curves.timed("ten new: write the pack", count, pack, 2, count, count + 10, needs)
        curves.timed("ten new: gather, write the manifest", count, commit, 2, reference, {1: root})
        curves.timed("look for garbage", count, lambda store=store: store.delete_unreferenced(begun_below=3))
        if count <= READ_WHOLE_MAX:
            curves.timed("verify", count, store.verify)
            curves.timed("compact", count, lambda store=store: store.compact(now_s=0.0))


def epochs(curves: Curves, folder: Path, largest: int) -> None:
    for count in decades(10, min(largest, 100_000)):
        store = fresh_store(folder)
        reference = store.write_pack(
            writer="h",
            epoch=1,
            blobs=[("a", encode_checkpoint(AgentCheckpoint(agent="a", kind="k", epoch=1, state=bytes(100))))],
        )
        gathered = store.gather([reference], epoch=1, bases={})
        lines = [agent_line(x, pack=0, kind="k", host="h", incarnation=1) for x in gathered.checkpoints[0].values()]
        for epoch in range(1, count + 1):  # as the store writes them, but faster
            root, written = encode_manifest(Manifest(Metadata(epoch=epoch), lines, gathered.packs))
            (folder / layout.manifest_path(root)).write_bytes(written)
            (folder / layout.ref_path(epoch)).write_bytes(encode_ref(epoch, root, store.store_id))
        curves.timed("list", count, store.epochs)
        newest = curves.timed("find the newest", count, store.resolve, "latest")
        curves.timed("read the newest", count, lambda at=newest, store=store: store.read_manifest(store.read_ref(at)))
        path = folder.with_name("catalog")
        path.unlink(missing_ok=True)
        with Catalog(path, store.store_id) as catalog:
            curves.timed("summaries, no catalog", count, catalog.refresh, store)
            curves.timed("summaries, by the catalog", count, catalog.refresh, store)
        curves.timed("look for garbage", count, lambda store=store: store.delete_unreferenced(begun_below=2))
        curves.timed("delete one", count, store.delete_epoch, count // 2)
        curves.timed("delete ten more", count, lambda store=store: [store.delete_epoch(x) for x in range(1, 11)])
        curves.timed("verify", count, store.verify)
        curves.timed("compact", count, lambda store=store: store.compact(now_s=0.0))


class Writer:
    """Commits states of one agent."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.epoch = 0
        self.table: ChunkTable | None = None
        self._root = ""

    def commit(self, image: StateImage) -> tuple[Manifest, ChunkedState]:
        """All that host and coordinator do after the pause."""
        self.epoch += 1
        chunked = chunk_image(image, self.table)
        checkpoint = AgentCheckpoint(agent="a", kind="k", epoch=self.epoch, state=image.skeleton, parts=chunked.parts)
        reused = [chunk.digest for chunk in chunked.reused]
        reference = self.store.write_pack(
            writer="h",
            epoch=self.epoch,
            blobs=[("a", encode_checkpoint(checkpoint))],
            chunks=[PackBlob("", KIND_CHUNK, x.data, x.digest, x.compresses) for x in chunked.new],
            needs=PackNeeds(self.epoch - 1 if reused else 0, reused),
        )
        gathered = self.store.gather([reference], epoch=self.epoch, bases={self.epoch - 1: self._root})
        lines = [agent_line(x, pack=0, kind="k", host="h", incarnation=1) for x in gathered.checkpoints[0].values()]
        manifest = Manifest(Metadata(epoch=self.epoch), lines, gathered.packs, gathered.chunks)
        self._root = self.store.write_manifest(manifest)
        self.store.publish(self.epoch, self._root)
        self.table = chunked.table
        image.release()
        return manifest, chunked

    def restore(self, manifest: Manifest, kind: type) -> object:
        restored = self.store.read_checkpoint(manifest, "a")
        contents = self.store.part_reader(manifest).read("a", restored.parts)
        return decode_state(kind, restored.state, restored.parts, contents)


def histories(curves: Curves, folder: Path, largest: int) -> None:
    for count in decades(100, min(largest, 1_000_000)):
        lines = [Line("user", "alpha beta gamma", number) for number in range(count)]
        state, encoder, writer = Chat(History(lines)), StateEncoder(ArenaPool()), Writer(fresh_store(folder))
        image = curves.timed("first capture", count, encoder.encode, state)
        curves.timed("commit", count, writer.commit, image)
        state.lines.extend(lines[:10])
        image = curves.timed("ten more: capture", count, encoder.encode, state, writer.table)
        manifest, _ = curves.timed("ten more: commit", count, writer.commit, image)
        curves.timed("restore", count, writer.restore, manifest, Chat)


def states(curves: Curves, folder: Path, largest: int) -> None:
    for size in [2**power for power in (10, 14, 17, 20, 24, 27, 30) if 2**power <= max(largest, 2**20) * 1024]:
        state = Model(np.random.default_rng(1).random(size // 8))
        encoder, writer = StateEncoder(ArenaPool()), Writer(fresh_store(folder))
        image = curves.timed("capture, into fresh memory", size, encoder.encode, state)
        manifest, _ = curves.timed("commit", size, writer.commit, image)
        state.weights[:1] += 1
        image = curves.timed("one changed: capture", size, encoder.encode, state, writer.table)
        curves.timed("one changed: commit", size, writer.commit, image)
        curves.timed("restore, verified", size, writer.restore, manifest, Model)


PARTS = {"chunks": chunks, "epochs": epochs, "histories": histories, "states": states}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--largest", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1])
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}; CPU ms, and the exponent since the size before")
    worse = 0
    with tempfile.TemporaryDirectory(prefix=".bench-growth-", dir=options.folder) as folder:
        for name in options.parts or PARTS:
            curves = Curves(name)
            PARTS[name](curves, Path(folder) / name, options.largest)
            worse += curves.show()
            shutil.rmtree(Path(folder) / name)
    print(f"worse than n log n: {worse}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
