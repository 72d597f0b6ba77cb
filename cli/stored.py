"""Documents about snapshots that lie in a store, read at rest: no coordinator is asked, no class of the fleet is loaded.

They are made by what the coordinator makes its own with, so both have the same fields.
"""

from snapline.errors import DamagedDataError


def list_snapshots(location: str) -> dict[str, object]:
    """All snapshots, oldest first; one that cannot be read has the reason under `damage`."""
    from snapline.coordinator.documents import list_document
    from snapline.storage.store import Store

    return list_document(Store.open(location))


def show_snapshot(location: str, snapshot: str, agent: str | None) -> dict[str, object]:
    """One snapshot with every agent's state and every channel's in-transit messages, or those of one agent.

    Raises:
        NotFoundError: no such snapshot or agent.
        DamagedDataError: something in it is not what was written.
    """
    from snapline.agent_runtime.cut import describe_payload, describe_state
    from snapline.coordinator.documents import show_document
    from snapline.storage.store import Store

    return show_document(
        Store.open(location), snapshot, agent, describe_state=describe_state, describe_payload=describe_payload
    )


def verify_snapshots(location: str, snapshot: str | None) -> dict[str, object]:
    """Every byte of the store, or of one snapshot, compared with its digest."""
    from snapline.coordinator.documents import verification_document, verify_document
    from snapline.storage.store import Store
    from snapline.storage.verify import verify_location

    try:
        store = Store.open(location)
    except DamagedDataError:  # its identity file: nothing can be opened, everything can be looked at
        return verification_document(location, None, verify_location(location))
    return verify_document(store, snapshot)
