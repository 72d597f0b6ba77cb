"""Requests that come again: (client, sequence, digest of the kind) seen before gives the result it had.

The table is part of the replicated state, so a new leader, and a replica, give the same answer. A client keeps at most
`RESULTS_KEPT` requests unresolved; what is older than its last `RESULTS_KEPT` results is refused, since nobody can know any
more whether it was done.
"""

from snapline.coordinator.state.fleet_records import (
    CLIENTS_MAX,
    REFUSED,
    RESULTS_KEPT,
    FleetImage,
    OperationResult,
    RememberedResult,
)
from snapline.coordinator.state.operations import Operation


def find(image: FleetImage, operation: Operation, digest: bytes) -> OperationResult | None:
    """Return the answer to a request that must not be done now; None for a fresh one."""
    client, sequence = operation.client, operation.sequence
    known = image.requests.get(client, [])
    for remembered in reversed(known):
        if remembered.sequence == sequence:
            if remembered.digest != digest:
                return OperationResult(REFUSED, f"request {sequence} of {client} was another one before")
            return remembered.result
    if len(known) == RESULTS_KEPT and sequence < known[0].sequence:
        return OperationResult(REFUSED, f"request {sequence} of {client} is too old to be known")
    return None


def remember(image: FleetImage, operation: Operation, digest: bytes, result: OperationResult) -> None:
    """Keep the result of a request that was done, or refused, just now."""
    results = image.requests.pop(operation.client, [])
    results.append(RememberedResult(operation.sequence, digest, result))
    results.sort(key=lambda x: x.sequence)
    del results[:-RESULTS_KEPT]
    image.requests[operation.client] = results
    while len(image.requests) > CLIENTS_MAX:
        del image.requests[next(iter(image.requests))]
