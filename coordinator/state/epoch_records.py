"""Ends of epochs and their time accounts: figures for display. Nothing is decided from them."""

import msgspec

ENDS_KEPT = 256
"""Number of newest epochs whose end is kept: four minutes at one epoch per second, ten days at one per hour. With the longest ids and
reasons they take some hundred KiB of the image."""

REASON_CHARACTERS_MAX = 300
"""Largest length of a reason here; recent outcomes have it in full."""


class PartTimes(msgspec.Struct, frozen=True, gc=False):
    """Durations of one host's part of an epoch.

    All but `after_ns` are consecutive durations by the host's own clock, for its agent that was last to record its state. A host of an
    older release reports none of them, and no agent.

    Attributes:
        agent: the last agent of the host to record its state; "": none had to.
        after_ns: from the epoch's begin until the report arrived, by the leader's clock. A new leader counts from when it took over.
        start_delay_ns: from the host's first notice of the epoch until the agent could be recorded, between two turns.
        capture_ns: time to take the agent's image.
        alignment_ns: until no message of the epoch could arrive at the host any more.
        store_ns: until the part was durable.
    """

    host: str
    agent: str = ""
    after_ns: int = 0
    start_delay_ns: int = 0
    capture_ns: int = 0
    alignment_ns: int = 0
    store_ns: int = 0

    @property
    def recorded_ns(self) -> int:
        """Time from the host's first notice of the epoch until its last agent was recorded."""
        return self.start_delay_ns + self.capture_ns


class EpochAccount(msgspec.Struct, frozen=True, gc=False):
    """Summary of an epoch's reports, for the log.

    Attributes:
        reports: number of hosts that have reported.
        new_bytes: bytes that these hosts have written for the epoch.
        last: the host that reported last.
        late: the host with the agent that was recorded last. Other hosts wait for it, and may report later.
    """

    reports: int = 0
    new_bytes: int = 0
    last: PartTimes | None = None
    late: PartTimes | None = None


class EpochEnd(msgspec.Struct, frozen=True, gc=False):
    """End of an epoch.

    Attributes:
        begun_ns, ended_ns: wall clock of the leader that proposed the operation.
        reason: why the epoch was aborted.
        account: summary of the reports; None: hosts do not report such epochs, or a plan or the fleet's end aborted it.
    """

    epoch: int
    plan: int
    trigger: str
    begun_ns: int
    ended_ns: int
    is_complete: bool
    reason: str = ""
    state_bytes: int = 0
    channel_state_bytes: int = 0
    channel_state_messages: int = 0
    account: EpochAccount | None = None
