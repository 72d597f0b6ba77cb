"""Events and commands of a fleet's keeper: those of `deploy/supervisor.py`."""

from typing import Literal

import msgspec

from snapline.deploy.launching import Exit
from snapline.messages.turn_deaths import TurnDeath

Outcome = Literal["stopped", "failed"]


class Ending(msgspec.Struct, frozen=True):
    """End of the fleet.

    Attributes:
        outcome: `stopped` (its predicate held) or `failed`.
        reason: in the coordinator's words, or the launcher's when it gave up.
        epoch: last complete epoch, 0 if there is none.
    """

    outcome: Outcome
    reason: str
    epoch: int


class KeepingBegan(msgspec.Struct, frozen=True, gc=False):
    """The place is ours: everything may start."""


class ProcessStarted(msgspec.Struct, frozen=True, gc=False):
    """A process runs."""

    name: str


class ProcessEnded(msgspec.Struct, frozen=True, gc=False):
    """A process has ended, or could not be started: then `instance` is empty."""

    name: str
    instance: str
    exit: Exit


class ExitReported(msgspec.Struct, frozen=True, gc=False):
    """A host's end was reported to the coordinator, or could not be, and the fleet's status was read."""

    name: str


class PauseEnded(msgspec.Struct, frozen=True, gc=False):
    """The pause of this number before a restart is over."""

    name: str
    number: int


class FleetSeen(msgspec.Struct, frozen=True, gc=False):
    """The coordinator has answered how the fleet is."""

    phase: str
    reason: str
    epoch: int


class CoordinatorMissed(msgspec.Struct, frozen=True, gc=False):
    """The coordinator was asked, and did not answer."""


class KillAsked(msgspec.Struct, frozen=True, gc=False):
    """A request to kill a process, and perhaps to keep it down until its restart is requested."""

    name: str
    is_kept_down: bool


class RestartAsked(msgspec.Struct, frozen=True, gc=False):
    """A request to start a dead process again, now."""

    name: str


class HostsWanted(msgspec.Struct, frozen=True, gc=False):
    """A request to run these hosts from now on, and no others."""

    names: tuple[str, ...]


KeeperEvent = (
    KeepingBegan
    | ProcessStarted
    | ProcessEnded
    | ExitReported
    | PauseEnded
    | FleetSeen
    | CoordinatorMissed
    | KillAsked
    | RestartAsked
    | HostsWanted
)


class StartProcess(msgspec.Struct, frozen=True, gc=False):
    """Start a process; `ProcessStarted` or `ProcessEnded` answers."""

    name: str


class KillProcess(msgspec.Struct, frozen=True, gc=False):
    """Kill a process; `ProcessEnded` answers."""

    name: str


class StopProcess(msgspec.Struct, frozen=True, gc=False):
    """Ask a process to end, and end it if it does not; `ProcessEnded` answers."""

    name: str


class ReportExit(msgspec.Struct, frozen=True, gc=False):
    """Tell the coordinator of the end of this run of a host, then ask it how the fleet is; `ExitReported` answers."""

    name: str
    instance: str
    reason: str
    died_in: tuple[TurnDeath, ...] = ()


class SetPause(msgspec.Struct, frozen=True, gc=False):
    """Say `PauseEnded` with this number after so many seconds."""

    name: str
    number: int
    pause_s: float


class Say(msgspec.Struct, frozen=True, gc=False):
    """A sentence for the user."""

    sentence: str


class EndKeeping(msgspec.Struct, frozen=True, gc=False):
    """The fleet is over."""

    ending: Ending


class GiveUp(msgspec.Struct, frozen=True, gc=False):
    """The fleet cannot be kept: end with this exit code and sentence."""

    exit_code: int
    sentence: str


KeeperCommand = StartProcess | KillProcess | StopProcess | ReportExit | SetPause | Say | EndKeeping | GiveUp
