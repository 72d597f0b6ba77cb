"""Open epochs, and the stages through which an epoch goes.

    Collecting        the hosts report; they repeat their reports after a broken stream
    Asking            a koo-toueg round queries its agents
    StoringManifest   every host has reported and every channel is covered; packs are read back, the manifest is written
    StoringLine       a recovery line is being made into the epoch
    Deciding          CompleteEpoch is proposed until it is in the log; from now on no timeout aborts the epoch
    Failing           AbortEpoch is proposed until it is in the log

All stages are volatile. Hosts repeat their reports, so an epoch survives the leader's death.
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
"""Largest size of names in one CompleteEpoch, so that the operation stays below 64 KiB."""


Channels = Mapping[tuple[str, str], int]
"""(sender, receiver) → last number sent inside the cut."""


class ReportedChannels(msgspec.Struct, frozen=True, gc=False):
    """Channels of an epoch on which every host has reported in full. Later reports may be relative to this epoch."""

    epoch: int
    plan: int
    members: frozenset[str]
    channels: Channels


class Collecting(msgspec.Struct):
    """Stage: collecting `reports`, by host.

    `reported`: the epoch's base for relative reports. `asked_again`: hosts whose reports were incomplete.
    """

    reports: dict[str, EpochReport] = {}
    reported: ReportedChannels | None = None
    asked_again: set[str] = set()

    def take(self, host: str, report: EpochReport) -> bool:
        """Store a host's report; return whether it is the first report of this host.

        A relative report is ignored if its base is not `reported`. Such a report was relative to another leader's
        epoch, or was requested again.
        """
        if report.since and (self.reported is None or report.since != self.reported.epoch):
            return False
        is_first = host not in self.reports  # a report repeated on a new stream does not count as later
        self.reports[host] = report
        self.asked_again.discard(host)
        return is_first


class Asking(msgspec.Struct, frozen=True):
    """Stage: a round queries agents and keeps their answers."""


class StoringManifest(msgspec.Struct, frozen=True):
    """Stage: the epoch's manifest is being written."""

    manifest: WriteManifest


class StoringLine(msgspec.Struct, frozen=True):
    """Stage: a recovery line is being stored as the epoch."""


class Deciding(msgspec.Struct, frozen=True):
    """Stage: the operation `completion` is proposed."""

    completion: op.CompleteEpoch


class Failing(msgspec.Struct, frozen=True):
    """Stage: AbortEpoch is proposed, because of `problem`."""

    problem: str


Stage = Collecting | Asking | StoringManifest | StoringLine | Deciding | Failing

WAITING, STORING = (Collecting, Asking), (StoringManifest, StoringLine)
"""Stages that wait for hosts or agents, and stages that wait for the store. (Tuples for speed: every event checks all open epochs.)"""


class OpenEpoch(msgspec.Struct):
    """One open epoch.

    Attributes:
        hosts: the hosts that take part.
        trigger: why the epoch was begun.
        deadline_ns: time by which the epoch must be decided.
        opened_ns: time when this leader began to follow the epoch.
        account: time account of the reports so far.
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
        """Return the epoch if it is open."""
        return self._open.get(epoch)

    @property
    def is_storing(self) -> bool:
        """Return whether any epoch is being stored."""
        return any(isinstance(entry.stage, STORING) for entry in self._open.values())

    @property
    def is_deciding(self) -> bool:
        """Return whether any epoch may be complete in the store, or will be soon."""
        return self.is_storing or any(isinstance(entry.stage, Deciding) for entry in self._open.values())

    # ---- stage changes ----------------------------------------------------------------------------------------------

    def begin(self, entry: OpenEpoch) -> None:
        """Add an epoch that is open in the log."""
        self._open[entry.epoch] = entry
        self._store.begun(entry.epoch)

    def end(self, entry: OpenEpoch) -> None:
        """Remove an epoch whose outcome is in the log."""
        del self._open[entry.epoch]

    def decide(self, entry: OpenEpoch, completion: op.CompleteEpoch) -> None:
        """Move a durable epoch to Deciding; fail it if it has too many unborn agents."""
        if sum(len(agent) + 4 for agent in completion.unborn_agents) > UNBORN_BYTES_MAX:
            self.fail(entry, f"{len(completion.unborn_agents)} agents are unborn in it: too many at once")
        else:
            entry.stage = Deciding(msgspec.structs.replace(completion, account=entry.account))

    def fail(self, entry: OpenEpoch, problem: str) -> None:
        """Move an epoch to Failing; the first reason counts."""
        if not isinstance(entry.stage, Failing):
            entry.stage = Failing(problem)

    def fail_to_store(self, entry: OpenEpoch, problem: str) -> None:
        """Fail an epoch because of a failure of the store."""
        if not isinstance(entry.stage, Failing):
            self._store.failed(entry.epoch, problem)
        self.fail(entry, problem)
