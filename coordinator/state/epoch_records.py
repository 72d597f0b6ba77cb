"""Ends of epochs, and what took their time: figures that are shown, and that nothing is decided from."""

import msgspec

ENDS_KEPT = 256
"""Number of newest epochs whose end is kept: four minutes of one a second, ten days of one an hour. With the longest ids and reasons they
are some hundred KiB of the image."""

REASON_CHARACTERS_MAX = 300
"""Largest length of a reason here; the outcome of a young epoch has it in full."""


class PartTimes(msgspec.Struct, frozen=True, gc=False):
    """Durations of one host's part of an epoch.

    All but `after_ns` are durations by the host's own clock, one after another: they belong to the agent that was the last there to
    record its state. A host of an older release reports none of them, and no agent.

    Attributes:
        agent: the last one there to record; "": none had to.
        after_ns: from the epoch's begin until the report was there, by the clock of the leader. One that took the epoch over counts
            from then.
        start_delay_ns: from the host's first word of the epoch until the agent could be recorded, between two turns.
        capture_ns: its image was taken.
        alignment_ns: until nothing of the epoch could arrive at the host any more.
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
        """Time from the host's first word of the epoch until the last agent there was recorded."""
        return self.start_delay_ns + self.capture_ns


class EpochAccount(msgspec.Struct, frozen=True, gc=False):
    """Summary of an epoch's reports, for the log.

    Attributes:
        reports: hosts that have reported.
        new_bytes: written for it by these hosts.
        last: the host that reported last.
        late: the host one of whose agents was recorded latest: the others wait for it, and may report after it.
    """

    reports: int = 0
    new_bytes: int = 0
    last: PartTimes | None = None
    late: PartTimes | None = None


class EpochEnd(msgspec.Struct, frozen=True, gc=False):
    """End of an epoch.

    Attributes:
        ended_ns: wall clock of the leader that proposed it, as `begun_ns`.
        reason: why it was aborted.
        account: None: no host reports such epochs, or the log alone ended it.
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
