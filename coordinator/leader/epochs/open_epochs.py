"""Epochs that are open, and the stages through which an epoch passes.

    Collecting        the hosts send reports, and resend them on every new stream
    Asking            a Koo-Toueg round asks its agents for checkpoints
    StoringManifest   all hosts have reported; packs are read back, and the manifest is written
    StoringLine       a recovery line is being stored as an epoch
    Deciding          CompleteEpoch is proposed until it is in the log; the timeout can no longer abort the epoch
    Failing           AbortEpoch is proposed until it is in the log

All stages are volatile. A new leader can continue an epoch, because the hosts resend their reports.
"""

from collections.abc import Iterator, Mapping

import msgspec

from snapline.coordinator.leader.epochs.store_watch import StoreWatch
from snapline.coordinator.leader.events import WriteManifest
from snapline.coordinator.leader.leader_state import LeaderState
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import EpochAccount
from snapline.messages.host_messages import EpochReport

UNBORN_BYTES_MAX = 48 * 1024
"""Largest total size, in bytes, of the agent names in one CompleteEpoch. The limit keeps the operation below 64 KiB."""


Channels = Mapping[tuple[str, str], int]
"""(sender, receiver) → sequence number of the last message sent inside the cut."""


class ReportedChannels(msgspec.Struct, frozen=True, gc=False):
    """Channels of an epoch on which every host has reported in full. Later reports may contain only the differences from this epoch."""

    epoch: int
    plan: int
    members: frozenset[str]
    channels: Channels


class Collecting(msgspec.Struct):
    """Stage in which the hosts' reports are collected.

    `reported` is the base of relative reports, which contain only the differences from it. `asked_again` names hosts that were asked for a
    full report because their relative report was unusable.
    """

    reports: dict[str, EpochReport] = {}
    reported: ReportedChannels | None = None
    asked_again: set[str] = set()

    def take(self, host: str, report: EpochReport) -> bool:
        """Store a host's report. Return whether this is the host's first report for the epoch.

        A relative report is ignored if it is not based on `reported`. An ignored report was based on an epoch of another leader, or its
        host has since been asked for a full report.
        """
        if report.since and (self.reported is None or report.since != self.reported.epoch):
            return False
        is_first = host not in self.reports  # a report resent on a new stream does not change the time of the first one
        self.reports[host] = report
        self.asked_again.discard(host)
        return is_first


class Asking(msgspec.Struct, frozen=True):
    """Stage in which a Koo-Toueg round asks agents for checkpoints and records their answers."""


class StoringManifest(msgspec.Struct, frozen=True):
    """Stage in which the epoch's manifest is being written."""

    manifest: WriteManifest


class StoringLine(msgspec.Struct, frozen=True):
    """Stage in which a recovery line is being stored as an epoch."""


class Deciding(msgspec.Struct, frozen=True):
    """Stage in which `completion`, a CompleteEpoch operation, is being proposed."""

    completion: op.CompleteEpoch


class Failing(msgspec.Struct, frozen=True):
    """Stage in which AbortEpoch is being proposed, for the reason in `problem`."""

    problem: str


Stage = Collecting | Asking | StoringManifest | StoringLine | Deciding | Failing

WAITING, STORING = (Collecting, Asking), (StoringManifest, StoringLine)
"""The stages that wait for hosts or agents, and the stages that wait for the store. The stages are listed in tuples for speed, because
every event checks all open epochs."""


class OpenEpoch(msgspec.Struct):
    """One open epoch.

    Attributes:
        hosts: the hosts that take part in the epoch.
        trigger: why the epoch began.
        deadline_ns: time at which the epoch fails unless it is decided.
        opened_ns: time at which this leader opened the epoch.
        account: summary of the reports' durations; None before the first report.
    """

    epoch: int
    hosts: list[str]
    trigger: str
    deadline_ns: int
    stage: Stage
    opened_ns: int = 0
    account: EpochAccount | None = None


class OpenEpochs:
    """All open epochs of the fleet."""

    def __init__(self, shared: LeaderState, store: StoreWatch) -> None:
        self._shared = shared
        self._store = store
        self._open: dict[int, OpenEpoch] = {}

    def __iter__(self) -> Iterator[OpenEpoch]:
        return iter(list(self._open.values()))

    def get(self, epoch: int) -> OpenEpoch | None:
        """Return the epoch with this number if it is open, otherwise None."""
        return self._open.get(epoch)

    @property
    def is_storing(self) -> bool:
        """Return whether any epoch is being stored."""
        return any(isinstance(entry.stage, STORING) for entry in self._open.values())

    @property
    def is_deciding(self) -> bool:
        """Return whether the data of any open epoch may already be complete in the store, because the epoch is being stored or decided."""
        return self.is_storing or any(isinstance(entry.stage, Deciding) for entry in self._open.values())

    # ---- stage changes ----------------------------------------------------------------------------------------------

    def begin(self, entry: OpenEpoch) -> None:
        """Add an epoch whose BeginEpoch is in the log."""
        self._open[entry.epoch] = entry
        self._store.begun(entry.epoch)

    def end(self, entry: OpenEpoch) -> None:
        """Remove an epoch whose outcome is in the log."""
        del self._open[entry.epoch]

    def decide(self, entry: OpenEpoch, completion: op.CompleteEpoch) -> None:
        """Move a durable epoch to the stage Deciding, or to Failing if it has too many unborn agents."""
        if sum(len(agent) + 4 for agent in completion.unborn_agents) > UNBORN_BYTES_MAX:
            self.fail(entry, f"{len(completion.unborn_agents)} agents are unborn in it: too many at once")
        else:
            entry.stage = Deciding(msgspec.structs.replace(completion, account=entry.account))

    def fail(self, entry: OpenEpoch, problem: str) -> None:
        """Move an epoch to the stage Failing. If the epoch is already in that stage, keep its first reason."""
        if not isinstance(entry.stage, Failing):
            entry.stage = Failing(problem)

    def fail_to_store(self, entry: OpenEpoch, problem: str) -> None:
        """Fail an epoch, and count a failure of the store."""
        if not isinstance(entry.stage, Failing):
            self._store.failed(entry.epoch, problem)
        self.fail(entry, problem)
