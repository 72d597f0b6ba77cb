"""Status of a leader, for `snapline status`: nothing is decided from it."""

import msgspec

from snapline.coordinator.leader.epochs.store_watch import StoreCondition
from snapline.messages.concerns import Concern
from snapline.messages.host_messages import Heartbeat


class LeaderStatus(msgspec.Struct, frozen=True):
    """Status of the fleet, as far as the log does not hold it.

    Attributes:
        triggers_skipped: since this leader's start.
        stored_log_bytes: of sender logs in the store, above the newest epoch.
        stored_packs: of checkpoints that agents have taken on their own, and that a line might need.
        concerns: what the fleet waits for, or lacks: which process does not reach or answer which, since when.
        heartbeats: host → its last one, for hosts that have a stream.
        is_released: the outputs of all complete epochs are.
    """

    triggers_skipped: int
    stored_log_bytes: int
    store: StoreCondition
    concerns: tuple[Concern, ...]
    heartbeats: dict[str, Heartbeat]
    is_released: bool = True
    stored_packs: int = 0
