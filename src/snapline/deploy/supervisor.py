"""Supervisor core, which decides which processes to start and restart, and when the fleet has ended. All launchers use this core, which
makes no decisions about agents.

The supervisor restarts dead processes after increasing delays, and gives up after too many consecutive failures:

- A dead *coordinator* is restarted and continues from its log. With three or five replicas, the fleet keeps running as long as a majority
  runs, even if one replica fails permanently.
- A dead *host* is restarted as a new instance (`on_failure="restart"`), or stays down while its agents move to other hosts
  (`on_failure="move"`). Before the restart, the host's exit is reported to the coordinator, and the fleet's status is read. If the fleet
  has ended, the hosts exit too and are not restarted.

The caller's duties:

1. Execute the commands in the given order.
2. Reply to every `StartProcess` with `ProcessStarted` and later, at the exit, with `ProcessEnded`. If the start fails, reply with
   `ProcessEnded` alone.
3. Reply to every `ReportExit` with `ExitReported`, whether or not the report reached the coordinator.
4. Reply to every `SetPause` with `PauseEnded`, even if it is late. The supervisor ignores a `PauseEnded` whose number is outdated.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, assert_never

import msgspec

from snapline.errors import DamagedDataError, ExternalFailureError, UsageError
from snapline.messages.host_messages import CAPTURE, STOP_WHEN, TurnDeath

Outcome = Literal["stopped", "failed"]


class Exit(msgspec.Struct, frozen=True):
    """The exit of a process.

    Attributes:
        code: the exit code, or the negative signal number if a signal killed the process. `code` is None if the exit was not observed, for
            example because the machine failed.
        text: description of the exit, such as `exit code 3` or `its node died`.
        last_words: the last line of the process's output, or `""` if it is unknown. By convention this line gives the reason for the exit.
        log: path or location of the process's log.
        died_in: the turns that the host was running when it died. `died_in` is empty if the launcher does not know these turns.
    """

    code: int | None
    text: str
    last_words: str = ""
    log: str = ""
    died_in: tuple[TurnDeath, ...] = ()


class Ending(msgspec.Struct, frozen=True):
    """Report that the fleet has ended.

    Attributes:
        outcome: `stopped` if the fleet met its stop condition, otherwise `failed`.
        reason: the reason reported by the coordinator or determined by the supervisor.
        epoch: the last complete epoch, or 0 if there is none.
    """

    outcome: Outcome
    reason: str
    epoch: int


class SupervisionStarted(msgspec.Struct, frozen=True, gc=False):
    """Event: the launcher has reserved the place, so all processes may start."""


class ProcessStarted(msgspec.Struct, frozen=True, gc=False):
    """Event: a process was started and is running."""

    name: str


class ProcessEnded(msgspec.Struct, frozen=True, gc=False):
    """Event: a process has exited or could not be started. `instance` is empty if the process could not be started."""

    name: str
    instance: str
    exit: Exit


class ExitReported(msgspec.Struct, frozen=True, gc=False):
    """Event: the driver has tried to report a host's exit to the coordinator, and has read the fleet's status."""

    name: str


class PauseEnded(msgspec.Struct, frozen=True, gc=False):
    """Event: the pause with this number has ended, so the process may be restarted."""

    name: str
    number: int


class FleetStatusRead(msgspec.Struct, frozen=True, gc=False):
    """Event: the coordinator has replied to a status request."""

    phase: str
    reason: str
    epoch: int


class FleetStatusUnavailable(msgspec.Struct, frozen=True, gc=False):
    """Event: no coordinator has replied to a status request."""


class KillRequested(msgspec.Struct, frozen=True, gc=False):
    """Event: a request to kill a process. If `is_kept_down` is set, the process stays down until a restart is requested."""

    name: str
    is_kept_down: bool


class RestartRequested(msgspec.Struct, frozen=True, gc=False):
    """Event: a request to restart a dead process immediately."""

    name: str


class HostsRequested(msgspec.Struct, frozen=True, gc=False):
    """Event: a request to run exactly these hosts from now on."""

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
    """Start a process. The driver replies with `ProcessStarted` or `ProcessEnded`."""

    name: str


class KillProcess(msgspec.Struct, frozen=True, gc=False):
    """Kill a process. The driver replies with `ProcessEnded`."""

    name: str


class StopProcess(msgspec.Struct, frozen=True, gc=False):
    """Send SIGTERM to a process, and SIGKILL if the process does not exit. The driver replies with `ProcessEnded`."""

    name: str


class ReportExit(msgspec.Struct, frozen=True, gc=False):
    """Report the exit of this run of a host to the coordinator, then read the fleet's status.

    The driver replies with `ExitReported`.
    """

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
    """Show a sentence to the user."""

    sentence: str


class EndSupervision(msgspec.Struct, frozen=True, gc=False):
    """End the supervision because the fleet has ended."""

    ending: Ending


class GiveUp(msgspec.Struct, frozen=True, gc=False):
    """Give up supervising the fleet, with this exit code and message, because the fleet cannot be kept running."""

    exit_code: int
    sentence: str


SupervisorCommand = (
    StartProcess | KillProcess | StopProcess | ReportExit | SetPause | EmitNote | EndSupervision | GiveUp
)


RESTARTS_MAX = 10
"""Number of consecutive failures that the supervisor tolerates before it gives up on a process. With the pauses below, this takes about
half a minute."""

RESTART_PAUSE_S, RESTART_PAUSE_S_MAX = 0.1, 5.0
"""Pause in seconds before the first restart, and the maximum. The pause doubles with each consecutive failure."""

HEALTHY_S = 30.0
"""Run time in seconds after which a process counts as healthy, so that its failure count is reset to zero."""

SILENCE_S = 5.0
"""Time in seconds without a reply from the coordinator after which the supervisor reports this. An election or a restart takes only a
second or two."""

FINAL_CODES = (UsageError.exit_code, DamagedDataError.exit_code)
"""Exit codes after which a restart would not help, because the child's arguments are invalid or the store's data is damaged.

Once the fleet runs and the supervisor is `HEALTHY_S` old, the arguments are known to be valid. If they become invalid, the software is
being replaced, or was replaced by software that does not fit. So a process is then restarted as often as after any other failure.
"""

OnFailure = Literal["restart", "move"]

Stage = Literal["down", "starting", "up", "reporting"]
"""Stage of a process. `reporting` means that a host has exited and its exit is being reported to the coordinator."""


class Supervisor:
    """Supervisor of the processes of one fleet.

    Attributes:
        is_over: whether the fleet has ended or the supervisor has given up. Afterwards, a process is started only on request.
    """

    def __init__(self, *, hosts: Sequence[str], coordinators: Sequence[str], on_failure: OnFailure) -> None:
        self.is_over = False
        self._on_failure = on_failure
        self._hosts = {name: _Place(name, is_host=True) for name in hosts}
        self._coordinators = {name: _Place(name, is_host=False) for name in coordinators}
        self._last_epoch = 0
        self._started_ns = 0
        self._are_arguments_valid = False  # known to be
        self._silent_ns: int | None = None  # time of the first unanswered status request
        self._is_silence_reported = False
        self._commands: list[SupervisorCommand] = []

    def handle(self, now_ns: int, event: SupervisorEvent) -> list[SupervisorCommand]:
        """Handle one event. Return the commands that the driver must execute, in order."""
        match event:
            case SupervisionStarted():
                self._started_ns = now_ns
                for place in self._all_processes():
                    self._start(place)
            case ProcessStarted():
                self._on_process_started(now_ns, self._process(event.name))
            case ProcessEnded():
                self._on_process_ended(now_ns, self._process(event.name), event)
            case ExitReported():
                self._on_exit_reported(self._process(event.name))
            case PauseEnded():
                self._on_pause_ended(self._process(event.name), event.number)
            case FleetStatusRead():
                self._on_fleet_status_read(now_ns, event)
            case FleetStatusUnavailable():
                self._on_fleet_status_unavailable(now_ns)
            case KillRequested():
                self._on_kill_requested(self._process(event.name), is_kept_down=event.is_kept_down)
            case RestartRequested():
                if not self._process(event.name).is_scaled_away:
                    self._on_restart_requested(self._process(event.name))
            case HostsRequested():
                self._on_hosts_requested(event.names)
            case _:
                assert_never(event)
        commands, self._commands = self._commands, []
        return commands

    def validate(self) -> None:
        """Check the invariants of each process's state."""
        for place in self._all_processes():
            assert place.stage != "reporting" or place.is_host, f"{place.name}: only hosts' ends are reported"
            assert not (place.is_kept_down and place.is_restart_pending), f"{place.name} is told to start and kept down"
            assert place.is_kill_pending <= (place.stage == "starting"), f"{place.name}: who runs is killed at once"
            assert place.exit is not None or not place.pauses, f"{place.name} rests and has never ended"

    def final_error(self) -> GiveUp | None:
        """Return the error of the first host whose exit code rules out a restart, or None if there is no such host. An example is a host
        that was started for a different fleet than the one in the folder."""
        errors = (self._final(place) for place in self._hosts.values())
        return next((error for error in errors if error is not None), None)

    # -- processes ------------------------------------------------------------------------------------------------------

    def _start(self, place: "_Place") -> None:
        place.stage, place.is_restart_pending, place.started_ns = "starting", False, None
        self._commands.append(StartProcess(place.name))

    def _on_process_started(self, now_ns: int, place: "_Place") -> None:
        assert place.stage == "starting", f"{place.name} was {place.stage}"
        place.stage, place.started_ns = "up", now_ns
        if place.is_kill_pending:
            place.is_kill_pending = False
            self._commands.append(KillProcess(place.name))

    def _on_process_ended(self, now_ns: int, place: "_Place", event: ProcessEnded) -> None:
        assert place.stage in ("starting", "up"), f"{place.name} was {place.stage}"
        lived_s = 0.0 if place.started_ns is None else (now_ns - place.started_ns) / 1e9
        if lived_s >= HEALTHY_S:
            place.failures = place.message_deaths = 0
        place.failures += 1
        place.message_deaths += is_message_death(event.exit)
        place.exit, place.is_kill_pending = event.exit, False
        if not place.is_host:
            place.stage = "down"
            self._stay_down(place, None if self.is_over else self._coordinator_pause(place))
        else:
            place.stage = "reporting"
            self._commands.append(ReportExit(place.name, event.instance, event.exit.text, event.exit.died_in))

    def _on_exit_reported(self, place: "_Place") -> None:
        assert place.stage == "reporting", f"{place.name} was {place.stage}"
        place.stage = "down"
        if self.is_over:
            self._stay_down(place, None)
            return
        pause_s = self._restart_pause(place, must_return=self._on_failure == "restart")
        if isinstance(pause_s, GiveUp):
            self._give_up(pause_s)
            return
        self._fail_if_no_host_left()
        self._stay_down(place, pause_s)

    def _stay_down(self, place: "_Place", pause_s: float | None) -> None:
        """Keep the process down for `pause_s` seconds. If `pause_s` is None, keep it down until `RestartRequested`."""
        place.pauses += 1
        if place.is_restart_pending:
            self._start(place)
        elif pause_s is not None:
            self._commands.append(SetPause(place.name, place.pauses, pause_s))

    def _on_pause_ended(self, place: "_Place", number: int) -> None:
        if number == place.pauses and place.stage == "down" and not (place.is_kept_down or self.is_over):
            self._start(place)

    def _on_kill_requested(self, place: "_Place", *, is_kept_down: bool) -> None:
        place.is_kept_down = is_kept_down or place.is_scaled_away or (place.is_kept_down and not place.is_running)
        place.is_restart_pending = False
        if place.stage == "up":
            self._commands.append(KillProcess(place.name))
        place.is_kill_pending = place.stage == "starting"

    def _on_restart_requested(self, place: "_Place") -> None:
        place.is_kept_down = place.is_given_up = place.is_kill_pending = False
        place.failures = place.message_deaths = 0
        if place.stage == "down":
            self._start(place)
        place.is_restart_pending = place.stage == "reporting"

    def _on_hosts_requested(self, names: Sequence[str]) -> None:
        """Start the hosts in `names` that are not running, and gracefully stop all other hosts.

        Stopped hosts stay down until they are requested again.
        """
        if self.is_over:
            return
        for name in names:
            host = self._hosts.setdefault(name, _Place(name, is_host=True))
            if host.is_scaled_away or (host.exit is None and host.stage == "down"):
                host.is_scaled_away = False
                self._on_restart_requested(host)
        for name, place in self._hosts.items():
            if name not in names and not place.is_scaled_away:
                place.is_scaled_away = place.is_kept_down = True
                place.is_restart_pending, place.is_kill_pending = False, place.stage == "starting"
                if place.stage == "up":
                    self._commands.append(StopProcess(name))

    # -- reaction to an exit ----------------------------------------------------------------------------------------------

    def _coordinator_pause(self, place: "_Place") -> float | None:
        """Return the delay in seconds before a coordinator is restarted, or None if it is not restarted.

        If the supervisor gives up on a replica, the fleet ends only if no majority of replicas is left.
        """
        pause_s = self._restart_pause(place, must_return=True)
        if not isinstance(pause_s, GiveUp):
            return pause_s
        place.is_given_up = True
        left = sum(not other.is_given_up for other in self._coordinators.values())
        if 2 * left <= len(self._coordinators):
            self._give_up(pause_s)
        else:
            self._emit_note(f"{place.name} is given up, the other replicas go on: {pause_s.sentence}")
        return None

    def _restart_pause(self, place: "_Place", *, must_return: bool) -> float | GiveUp | None:
        """Return the delay in seconds before a dead process is restarted, or None if it is restarted only on request.

        Return `GiveUp` if a restart would not help or the process has failed too often.
        """
        assert place.exit is not None
        final = self._final(place)
        if final is not None:
            return final
        if place.is_kept_down or not must_return:
            self._emit_note(f"{place.name} ended ({place.exit.text})")
            return None
        if place.failures - place.message_deaths > RESTARTS_MAX:
            sentence = (
                f"{place.name} ended {place.failures} times in a row, the last time with {describe_end(place.exit)}"
            )
            return GiveUp(ExternalFailureError.exit_code, sentence)
        pause_s = restart_pause_s(place.failures)
        self._emit_note(f"{place.name} ended ({place.exit.text}), starting it again in {pause_s:g} s")
        return pause_s

    def _final(self, place: "_Place") -> GiveUp | None:
        """Return the process's error if its exit code shows that a restart would not help, otherwise None."""
        code = None if place.exit is None or place.stage not in ("down", "reporting") else place.exit.code
        if place.exit is None or code is None or code not in FINAL_CODES:
            return None
        if self._are_arguments_valid and code == UsageError.exit_code:
            return None
        return GiveUp(code, place.exit.last_words.removeprefix("snapline: ") or describe_end(place.exit))

    def _fail_if_no_host_left(self) -> None:
        """If `on_failure` is "move" and the last host has died, fail the fleet, because no host can take over the agents."""
        hosts = self._hosts.values()
        if self._on_failure != "move" or any(host.is_running or host.is_kept_down for host in hosts):
            return
        self._end(Ending(outcome="failed", reason="every host has died", epoch=self._last_epoch))

    # -- the fleet ------------------------------------------------------------------------------------------------------

    def _on_fleet_status_read(self, now_ns: int, seen: FleetStatusRead) -> None:
        if self._is_silence_reported:
            self._emit_note("the coordinator answers again")
        self._silent_ns, self._is_silence_reported = None, False
        self._last_epoch = seen.epoch
        self._are_arguments_valid |= seen.phase == "running" and now_ns - self._started_ns >= HEALTHY_S * 1e9
        if seen.phase in ("finished", "failed"):
            outcome: Literal["stopped", "failed"] = "stopped" if seen.phase == "finished" else "failed"
            self._end(Ending(outcome=outcome, reason=seen.reason, epoch=seen.epoch))

    def _on_fleet_status_unavailable(self, now_ns: int) -> None:
        """Report that no coordinator replies, at most once until a coordinator replies again."""
        if self._silent_ns is None:
            self._silent_ns = now_ns
        elif not self._is_silence_reported and now_ns - self._silent_ns >= SILENCE_S * 1e9:
            self._is_silence_reported = True
            self._emit_note(self._describe_silence())

    def _describe_silence(self) -> str:
        down = [name for name, place in self._coordinators.items() if not place.is_running]
        count = len(self._coordinators)
        if count == 1 or not down:
            return "the coordinator does not answer: nothing is decided, and no checkpoint completes, until it does"
        return (
            f"the coordinator does not answer: {len(down)} of its {count} replicas are down "
            f"({', '.join(down)}), and it takes {count // 2 + 1} to decide"
        )

    def _end(self, ending: Ending) -> None:
        if not self.is_over:
            self.is_over = True
            self._commands.append(EndSupervision(ending))

    def _give_up(self, word: GiveUp) -> None:
        if not self.is_over:
            self.is_over = True
            self._commands.append(word)

    def _emit_note(self, sentence: str) -> None:
        self._commands.append(EmitNote(sentence))

    def _process(self, name: str) -> "_Place":
        return self._hosts[name] if name in self._hosts else self._coordinators[name]

    def _all_processes(self) -> Iterable["_Place"]:
        return (*self._coordinators.values(), *self._hosts.values())


def is_message_death(end: Exit) -> bool:
    """Return whether the process died while handling a message.

    A message that repeatedly kills its host is dead-lettered, but many similar messages may follow.
    """
    return any(death.what not in (STOP_WHEN, CAPTURE) for death in end.died_in)


def restart_pause_s(failures: int) -> float:
    """Return the delay in seconds after `failures` consecutive failures. `failures` must be at least 1."""
    return min(RESTART_PAUSE_S * 2.0 ** (failures - 1), RESTART_PAUSE_S_MAX)


def describe_end(ended: Exit) -> str:
    """Describe a process's exit by its code and the last line of its output, or the path of its log if there is no output."""
    last_words = ended.last_words.removeprefix("snapline: ")
    return f"{ended.text}: {last_words}" if last_words else f"{ended.text}; see {ended.log}"


class _Place:
    """The supervisor's state of one process.

    Attributes:
        exit: the process's last exit, or None before its first exit.
        started_ns: time at which the process started, or None if it has not started yet.
        failures: number of consecutive failures.
        message_deaths: number of these failures that occurred while the process handled a message. These failures lengthen the delay, but
            do not make the supervisor give up.
        pauses: number of pauses so far. Only the end of the latest pause has an effect.
        is_kept_down: whether the process is restarted only on request.
        is_given_up: whether the process is a coordinator replica that has failed too often. The remaining replicas continue without it.
        is_restart_pending: whether the process starts as soon as its exit has been reported.
        is_kill_pending: whether the process is killed as soon as it is running.
        is_scaled_away: whether the process is a host that was stopped by scaling down.
    """

    def __init__(self, name: str, *, is_host: bool) -> None:
        self.name = name
        self.is_host = is_host
        self.stage: Stage = "down"
        self.exit: Exit | None = None
        self.started_ns: int | None = None
        self.failures = self.message_deaths = 0
        self.pauses = 0
        self.is_kept_down = False
        self.is_given_up = False
        self.is_restart_pending = False
        self.is_kill_pending = False
        self.is_scaled_away = False

    @property
    def is_running(self) -> bool:
        return self.stage in ("starting", "up")
