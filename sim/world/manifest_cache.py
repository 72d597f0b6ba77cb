"""Cache of decoded manifests, which a run reads repeatedly.

Every maintenance step of the store (publishing, sweeping, moving packs, deleting) and the oracles read all manifests of a small fleet.
Decoding depends only on bytes, root, name and epoch, and a manifest never changes, so the cache has no effect but the saved time. Damaged
bytes have another key, and errors are not cached.
"""

import contextlib
from typing import Protocol

from snapline.sim.world.patches import patched
from snapline.storage.store import files
from snapline.storage.store.manifest import Manifest, decode_manifest

MANIFESTS_KEPT = 256
"""Number of cached manifests: more than a small fleet's store holds, and bounded for large ones."""


class ManifestDecoder(Protocol):
    """`decode_manifest`, or a replacement of it."""

    def __call__(self, data: bytes, *, root: str, path: str, epoch: int | None) -> Manifest: ...


def manifests_cached() -> contextlib.AbstractContextManager[None]:
    """Cache decoded manifests during one run, so that the store decodes each once."""
    return patched([(files, "decode_manifest", remembered(decode_manifest))])


def remembered(decode: ManifestDecoder) -> ManifestDecoder:
    """Return the function with a cache of its results."""
    known: dict[tuple[bytes, str, str, int | None], Manifest] = {}

    def decoded(data: bytes, *, root: str, path: str, epoch: int | None) -> Manifest:
        key = data, root, path, epoch
        manifest = known.get(key)
        if manifest is None:
            if len(known) >= MANIFESTS_KEPT:
                known.clear()
            manifest = known[key] = decode(data, root=root, path=path, epoch=epoch)
        return manifest

    return decoded
