"""Events and commands of the fleet's supervisor (`deploy/supervisor.py`)."""

from typing import Literal

import msgspec

from snapline.deploy.launching import Exit
from snapline.messages.turn_deaths import TurnDeath

Outcome = Literal["stopped", "failed"]


class Ending(msgspec.Struct, frozen=True):
    """End of the fleet.

    Attributes:
        outcome: `stopped` (its predicate held) or `failed`.
        reason: the coordinator's reason, or the supervisor's if it gave up.
        epoch: last complete epoch, 0 if there is none.
    """

    outcome: Outcome
    reason: str
    epoch: int


class SupervisionStarted(msgspec.Struct, frozen=True, gc=False):
    """The place is open: all processes may start."""


class ProcessStarted(msgspec.Struct, frozen=True, gc=False):
    """A process runs."""

    name: str


class ProcessEnded(msgspec.Struct, frozen=True, gc=False):
    """A process has ended, or could not be started; then `instance` is empty."""

    name: str
    instance: str
    exit: Exit


class ExitReported(msgspec.Struct, frozen=True, gc=False):
    """The driver has tried to report a host's exit to the coordinator, and has read the fleet's status."""

    name: str


class PauseEnded(msgspec.Struct, frozen=True, gc=False):
    """The pause of this number before a restart is over."""

    name: str
    number: int


class FleetStatusRead(msgspec.Struct, frozen=True, gc=False):
    """The coordinator has answered a status request."""

    phase: str
    reason: str
    epoch: int


class FleetStatusUnavailable(msgspec.Struct, frozen=True, gc=False):
    """The coordinator has not answered a status request."""


class KillRequested(msgspec.Struct, frozen=True, gc=False):
    """A request to kill a process; `is_kept_down`: until a restart is requested."""

    name: str
    is_kept_down: bool


class RestartRequested(msgspec.Struct, frozen=True, gc=False):
    """A request to restart a dead process now."""

    name: str


class HostsRequested(msgspec.Struct, frozen=True, gc=False):
    """A request to run these hosts from now on, and no others."""

    names: tuple[str, ...]


SupervisorEvent = (
    SupervisionStarted
    | ProcessStarted
    | ProcessEnded
    | ExitReported
    | PauseEnded
    | FleetStatusRead
    | FleetStatusUnavailable
    | KillRequested
    | RestartRequested
    | HostsRequested
)


class StartProcess(msgspec.Struct, frozen=True, gc=False):
    """Start a process; answered by `ProcessStarted` or `ProcessEnded`."""

    name: str


class KillProcess(msgspec.Struct, frozen=True, gc=False):
    """Kill a process; answered by `ProcessEnded`."""

    name: str


class StopProcess(msgspec.Struct, frozen=True, gc=False):
    """Send SIGTERM to a process, and SIGKILL if it does not end; answered by `ProcessEnded`."""

    name: str


class ReportExit(msgspec.Struct, frozen=True, gc=False):
    """Report the exit of this run of a host to the coordinator, then read the fleet's status; answered by `ExitReported`."""

    name: str
    instance: str
    reason: str
    died_in: tuple[TurnDeath, ...] = ()


class SetPause(msgspec.Struct, frozen=True, gc=False):
    """Send `PauseEnded` with this number after `pause_s` seconds."""

    name: str
    number: int
    pause_s: float


class EmitNote(msgspec.Struct, frozen=True, gc=False):
    """A sentence for the user."""

    sentence: str


class EndSupervision(msgspec.Struct, frozen=True, gc=False):
    """The fleet is over."""

    ending: Ending


class GiveUp(msgspec.Struct, frozen=True, gc=False):
    """The fleet cannot be kept running: end with this exit code and sentence."""

    exit_code: int
    sentence: str


SupervisorCommand = (
    StartProcess | KillProcess | StopProcess | ReportExit | SetPause | EmitNote | EndSupervision | GiveUp
)
