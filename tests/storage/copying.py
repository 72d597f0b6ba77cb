"""Snapshots with parts, whose packs share chunks with earlier epochs; and what they must be read back as.

The oracle of an epoch is each agent's checkpoint and the plain bytes of its part. It knows nothing of packs and places.
"""

import random
from collections.abc import Mapping, Sequence

import msgspec

from snapline.storage.packs.checkpoint import AgentCheckpoint, StatePart, decode_checkpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.packs.pack import KIND_CHUNK, PackBlob, PackNeeds
from snapline.storage.store.store import Store

Contents = Mapping[str, Sequence[int]]
"""Agent -> what its part consists of: a seed for each chunk."""

Oracle = dict[str, tuple[bytes, bytes]]
"""Agent -> its encoded checkpoint, the bytes of its part."""


def chunk_of(seed: int) -> bytes:
    """Some are text, some noise; their lengths differ."""
    if seed % 3 == 0:
        return f"text of chunk {seed} ".encode() * (10 + seed % 7)
    return random.Random(seed).randbytes(100 + seed % 5 * 50)


class Writer:
    """Writes epochs of agents on one host each; every epoch reuses the chunks of the one before."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.oracles: dict[int, Oracle] = {}
        self._base = 0
        self._known: dict[bytes, None] = {}

    def write(self, epoch: int, contents: Contents, *, cluster: str = "") -> str:
        """Write and publish an epoch; return its root."""
        oracle: Oracle = {}
        references, now = [], dict[bytes, None]()
        for agent, seeds in contents.items():
            pieces = [chunk_of(seed) for seed in seeds]
            digests = [self.store.digest(piece) for piece in pieces]
            encoded = encode_checkpoint(_checkpoint(agent, epoch, pieces, digests))
            oracle[agent] = encoded, b"".join(pieces)
            fresh = {d: p for d, p in zip(digests, pieces, strict=True) if d not in self._known and d not in now}
            reused = list(dict.fromkeys(digest for digest in digests if digest in self._known))
            now |= dict.fromkeys(digests)
            references.append(
                self.store.write_pack(
                    writer=f"host-of-{agent}.1",
                    epoch=epoch,
                    blobs=[(agent, encoded)],
                    chunks=[PackBlob("", KIND_CHUNK, piece, digest) for digest, piece in fresh.items()],
                    needs=PackNeeds(self._base, reused) if reused else None,
                )
            )
        bases = {number: self.store.read_ref(number) for number in self.oracles}
        gathered = self.store.gather(references, epoch=epoch, bases=bases)
        lines = [
            agent_line(entry, pack=number, kind="tests:Agent", host=f"host-of-{agent}", incarnation=1)
            for number, entries in enumerate(gathered.checkpoints)
            for agent, entry in entries.items()
        ]
        about = Metadata(epoch=epoch, created="2025-01-01T00:00:00Z", fleet="tests", cluster=cluster)
        root = self.store.write_manifest(Manifest(about, lines, gathered.packs, gathered.chunks))
        self.store.publish(epoch, root)
        self._base, self._known, self.oracles[epoch] = epoch, now, oracle
        return root

    def check(self, store: Store, epoch: int) -> None:
        """Assert that `store` has exactly this epoch."""
        check_oracle(store, epoch, self.oracles[epoch])
        assert store.read_ref(epoch) == self.store.read_ref(epoch)


def check_oracle(store: Store, epoch: int, oracle: Oracle) -> None:
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    assert [line.agent for line in manifest.agents] == sorted(oracle)
    reader = store.part_reader(manifest)
    for checkpoint in store.read_checkpoints(manifest):
        encoded, content = oracle[checkpoint.agent]
        assert checkpoint == decode_checkpoint(encoded)
        assert b"".join(reader.read(checkpoint.agent, checkpoint.parts)) == content


def _checkpoint(agent: str, epoch: int, pieces: list[bytes], digests: list[bytes]) -> AgentCheckpoint:
    sizes = [len(piece) for piece in pieces]
    part = StatePart(3, b"", sum(sizes), 0, sizes, b"".join(digests))
    return AgentCheckpoint(
        agent=agent,
        kind="tests:Agent",
        epoch=epoch,
        number=epoch,
        state=msgspec.msgpack.encode([msgspec.msgpack.Ext(2, msgspec.msgpack.encode(0)), f"{agent} in {epoch}"]),
        parts=[part],
    )
