"""Manifests that a run reads again and again: the same bytes are decoded once.

Of a small fleet every step of the store's upkeep (publishing, sweeping, moving packs, deleting) reads the manifests that there are, and so
do the oracles. Decoding is a function of bytes, root, name and epoch, and a manifest is never changed: so nothing can be told from the
outside but the time. A single damaged bit makes other bytes, which are decoded by themselves, and what raises is not kept.
"""

import contextlib
from typing import Protocol

from snapline.sim.world.patches import patched
from snapline.storage.store import files
from snapline.storage.store.manifest import Manifest, decode_manifest

MANIFESTS_KEPT = 256
"""More than a small fleet's store holds; and so large ones are held in one's memory no more often than they lie in the store."""


class ManifestDecoder(Protocol):
    """`decode_manifest`, or what stands for it."""

    def __call__(self, data: bytes, *, root: str, path: str, epoch: int | None) -> Manifest: ...


def remembering() -> contextlib.AbstractContextManager[None]:
    """Cache decoded manifests during one run: the store decodes each once."""
    return patched([(files, "decode_manifest", remembered(decode_manifest))])


def remembered(decode: ManifestDecoder) -> ManifestDecoder:
    """The same function, which knows the values that it has returned."""
    known: dict[tuple[bytes, str, str, int | None], Manifest] = {}

    def decoded(data: bytes, *, root: str, path: str, epoch: int | None) -> Manifest:
        key = data, root, path, epoch
        found = known.get(key)
        if found is None:
            if len(known) >= MANIFESTS_KEPT:
                known.clear()
            found = known[key] = decode(data, root=root, path=path, epoch=epoch)
        return found

    return decoded
