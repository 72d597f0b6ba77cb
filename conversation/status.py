"""How a fleet stands, as the coordinator tells tools; names are those of `coordinator.proto`."""

import msgspec

from snapline.conversation.messages import OpenTurn


class HostStatus(msgspec.Struct, frozen=True):
    """One host; `state` is "alive", "lost" or "left".

    Attributes:
        inputs_waiting: from outside, that no turn has consumed.
        outputs_waiting, output_bytes_waiting: that are not known to be released.
        agents_full: take nothing from outside, and no turns that they give themselves, until some of these are released.
        is_drained: an operator wants it without agents.
    """

    host: str
    address: str
    host_start: int
    state: str
    agents: int
    turns: int = 0
    dead_letters: int = 0
    parked: int = 0
    busy: tuple[OpenTurn, ...] = ()
    log_messages: int = 0
    log_bytes: int = 0
    checkpoints: int = 0
    forced: int = 0
    piggyback_bytes: int = 0
    piggybacked: int = 0
    inputs_waiting: int = 0
    outputs_waiting: int = 0
    output_bytes_waiting: int = 0
    agents_full: int = 0
    is_drained: bool = False


class StoreStatus(msgspec.Struct, frozen=True):
    """Where the store is, and how it stands.

    Attributes:
        state: "ok"; "degraded": epochs, or checkpoints of agents, cannot be stored; "": only the leader knows.
        since_ns: how long it has been degraded.
        reason: the latest failure; "" if it is not degraded.
        next_try_ns: until the next regular epoch; 0: now, or there are none.
        skipped: triggers and basic checkpoints that were put off because of the store.
    """

    location: str
    state: str = ""
    since_ns: int = 0
    reason: str = ""
    next_try_ns: int = 0
    skipped: int = 0


class Concern(msgspec.Struct, frozen=True):
    """What the fleet waits for, or goes without.

    Attributes:
        kind: "cut": two hosts do not reach each other; "plan": a host has not applied the plan; "stop": a host has not said
            whether the fleet may stop; "spare": a host gets no agents for now; "drained": an operator wants that; "memory": a host's agents stand still;
            "restore": the fleet is to go back on purpose; "rollback": an agent has asked for that, stands, and people are to look.
        hosts: whom it is about.
        since_ns: for how long.
        text: a sentence without its full stop.
    """

    kind: str
    hosts: tuple[str, ...]
    since_ns: int
    text: str


class ForkedFrom(msgspec.Struct, frozen=True):
    """What a fork was made of.

    Attributes:
        name: its own.
        parent, parent_name: cluster of the other fleet, and what that is called.
        epoch: of the snapshot, in both.
        is_live: it may do effects.
    """

    name: str
    parent: str
    parent_name: str
    epoch: int
    is_live: bool


class FleetStatus(msgspec.Struct, frozen=True):
    """The fleet; `phase` is "forming", "running", "recovering", "finished" or "failed"."""

    fleet: str
    phase: str
    protocol: str
    plan: int
    line_epoch: int
    hosts: tuple[HostStatus, ...]
    hosts_expected: int
    agents: int
    epochs_begun: int
    epochs_completed: int
    epochs_aborted: int
    epochs_open: int
    triggers_skipped: int
    last_complete_epoch: int
    reason: str
    store: StoreStatus
    mode: str
    log_messages: int
    log_bytes: int
    checkpoints: int
    forced: int
    piggyback_bytes: int
    piggybacked: int
    stored_log_bytes: int
    leader: str
    term: int
    replicas: tuple[str, ...]
    concerns: tuple[Concern, ...]
    fork: ForkedFrom | None = None


class SnapshotOutcome(msgspec.Struct, frozen=True):
    """How an epoch ended that was asked for by hand; epoch 0: it did not even begin.

    A `reason` beside `is_complete`: the epoch is not new, since the recovery line has not advanced.
    """

    epoch: int
    is_complete: bool
    reason: str
    root: str
    elapsed_ns: int
