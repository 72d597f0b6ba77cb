"""Documents about snapshots that lie in a store, read at rest: no coordinator is asked, no class of the fleet is loaded.

The coordinator uses the same code for its own, so both have the same fields.
"""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.errors import DamagedDataError

if TYPE_CHECKING:
    from snapline.storage.store.store import Store

CATALOG_EPOCHS_MIN = 64
"""Fewest epochs for a catalog: the manifests of fewer are read in a moment."""

CATALOGS_MAX = 100
"""Limit per user; the least recently used is removed. They are caches, of some 100 KiB each."""


def list_snapshots(location: str) -> dict[str, object]:
    """All snapshots, oldest first; one that cannot be read has the reason under `damage`."""
    from snapline.coordinator.service import documents
    from snapline.messages.documents import document_of
    from snapline.storage.store.store import Store

    store = Store.open(location)
    catalog = catalog_path(store) if len(store.epochs()) >= CATALOG_EPOCHS_MIN else None
    return document_of(documents.list_snapshots(store, catalog))


def catalog_path(store: "Store") -> Path | None:
    """Path of this user's catalog of the store: `$XDG_CACHE_HOME/snapline/<store id>.sqlite`; None if there is no home."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snapline"
    except RuntimeError:
        return None
    with contextlib.suppress(OSError):
        others = [path for path in folder.glob("*.sqlite") if path.stem != store.store_id]
        for path in sorted(others, key=lambda path: path.stat().st_mtime)[: len(others) - CATALOGS_MAX + 1]:
            path.unlink()
    return folder / f"{store.store_id}.sqlite"


def show_snapshot(location: str, snapshot: str, agent: str | None) -> dict[str, object]:
    """One snapshot with every agent's state and every channel's in-transit messages, or those of one agent.

    Raises:
        NotFoundError: no such snapshot or agent.
        DamagedDataError: something in it is not what was written.
    """
    from snapline.agent_runtime.snapshots.cut import describe_state
    from snapline.coordinator.service.documents import show_document
    from snapline.messages.payloads import describe_payload
    from snapline.storage.store.store import Store

    return show_document(
        Store.open(location), snapshot, agent, describe_state=describe_state, describe_message=describe_payload
    )


def verify_snapshots(location: str, snapshot: str | None) -> dict[str, object]:
    """Every byte of the store, or of one snapshot, compared with its digest."""
    from snapline.coordinator.service.documents import verification, verify
    from snapline.messages.documents import document_of
    from snapline.storage.store.store import Store
    from snapline.storage.store.verify import verify_location

    try:
        store = Store.open(location)
    except DamagedDataError:  # its identity file: nothing can be opened, everything can be looked at
        return document_of(verification(location, None, verify_location(location)))
    return document_of(verify(store, snapshot))
