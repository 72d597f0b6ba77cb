"""Table of requests: a repeated (client, sequence, digest of the kind) gives the earlier result.

The table is part of the replicated state, so a new leader and every replica give the same answer. A client has at most `RESULTS_KEPT`
unresolved requests. A request older than its last `RESULTS_KEPT` results is refused, since it is unknown whether it was done.
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
    """Return the result of a repeated, conflicting or too old request; None: the request is new."""
    client, sequence = operation.client, operation.sequence
    results = image.requests.get(client, [])
    for remembered in reversed(results):
        if remembered.sequence == sequence:
            if remembered.digest != digest:
                return OperationResult(REFUSED, f"request {sequence} of {client} was another one before")
            return remembered.result
    if len(results) == RESULTS_KEPT and sequence < results[0].sequence:
        return OperationResult(REFUSED, f"request {sequence} of {client} is too old to be known")
    return None


def remember(image: FleetImage, operation: Operation, digest: bytes, result: OperationResult) -> None:
    """Keep the result of a request that was just applied or refused."""
    results = image.requests.pop(operation.client, [])
    results.append(RememberedResult(operation.sequence, digest, result))
    results.sort(key=lambda x: x.sequence)
    del results[:-RESULTS_KEPT]
    image.requests[operation.client] = results
    while len(image.requests) > CLIENTS_MAX:
        del image.requests[next(iter(image.requests))]
