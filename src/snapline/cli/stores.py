"""Documents about the snapshots of a store, read without a coordinator and without the fleet's classes.

The coordinator uses the same code for its documents, so both have the same fields.
"""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.errors import DamagedDataError

if TYPE_CHECKING:
    from snapline.storage.store.store import Store

CATALOG_EPOCHS_MIN = 64
"""Smallest number of epochs for which a catalog is used; fewer manifests are read quickly."""

CATALOGS_MAX = 100
"""Largest number of catalogs of a user; the least recently used one is removed. A catalog is a cache of about 100 KiB."""


def list_snapshots(location: str) -> dict[str, object]:
    """List all snapshots, oldest first; an unreadable snapshot has the reason under `damage`."""
    from snapline.coordinator.service import documents
    from snapline.messages.documents import document_of
    from snapline.storage.store.store import Store

    store = Store.open(location)
    catalog = catalog_path(store) if len(store.epochs()) >= CATALOG_EPOCHS_MIN else None
    return document_of(documents.list_snapshots(store, catalog))


def catalog_path(store: "Store") -> Path | None:
    """Return the path of this user's catalog, `$XDG_CACHE_HOME/snapline/<store id>.sqlite`; None if there is no home folder."""
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
    """Show one snapshot: states of all agents and in-transit messages of all channels, or those of one agent.

    Raises:
        NotFoundError: there is no such snapshot or agent.
        DamagedDataError: the snapshot is damaged.
    """
    from snapline.agent_runtime.snapshots.cut import describe_state
    from snapline.coordinator.service.documents import show_document
    from snapline.messages.payloads import describe_payload
    from snapline.storage.store.store import Store

    return show_document(
        Store.open(location), snapshot, agent, describe_state=describe_state, describe_message=describe_payload
    )


def verify_snapshots(location: str, snapshot: str | None) -> dict[str, object]:
    """Compare every byte of the store, or of one snapshot, with its digest."""
    from snapline.coordinator.service.documents import verification, verify
    from snapline.messages.documents import document_of
    from snapline.storage.store.store import Store
    from snapline.storage.store.verify import verify_location

    try:
        store = Store.open(location)
    except DamagedDataError:  # the identity file is damaged: the store cannot be opened, but its files can be verified
        return document_of(verification(location, None, verify_location(location)))
    return document_of(verify(store, snapshot))
