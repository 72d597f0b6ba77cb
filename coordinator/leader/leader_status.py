"""Status of a leader for `snapline status`. Nothing is decided from it."""

import msgspec

from snapline.coordinator.leader.epochs.store_watch import StoreCondition
from snapline.messages.concerns import Concern
from snapline.messages.host_messages import Heartbeat


class LeaderStatus(msgspec.Struct, frozen=True):
    """Status of the fleet that is not in the log.

    Attributes:
        triggers_skipped: number of triggers skipped since this leader's start.
        stored_log_bytes: size of sender logs in the store, since the newest epoch.
        stored_packs: number of packs with agents' own checkpoints that a recovery line may need.
        concerns: what the fleet waits for or lacks, for example a process that does not answer another, and since when.
        heartbeats: host → its last heartbeat, for hosts that have a stream.
        is_released: the outputs of all complete epochs are released.
    """

    triggers_skipped: int
    stored_log_bytes: int
    store: StoreCondition
    concerns: tuple[Concern, ...]
    heartbeats: dict[str, Heartbeat]
    is_released: bool = True
    stored_packs: int = 0
