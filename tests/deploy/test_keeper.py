"""The keeper alone: events in, commands out."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snapline.deploy.supervisor import (
    HEALTHY_S,
    RESTARTS_MAX,
    SILENCE_S,
    EmitNote,
    Ending,
    EndSupervision,
    Exit,
    ExitReported,
    FleetStatusRead,
    FleetStatusUnavailable,
    GiveUp,
    HostsRequested,
    KillProcess,
    KillRequested,
    OnFailure,
    PauseEnded,
    ProcessEnded,
    ProcessStarted,
    ReportExit,
    RestartRequested,
    SetPause,
    StartProcess,
    StopProcess,
    SupervisionStarted,
    Supervisor,
    SupervisorCommand,
    SupervisorEvent,
    restart_pause_s,
)
from snapline.messages.host_messages import STOP_WHEN, TurnDeath

KILLED = Exit(-9, "SIGKILL", log="h.log")
CRASHED = Exit(1, "exit code 1", "no disk left", "h.log")
POISONED = Exit(1, "exit code 1", died_in=(TurnDeath("a", "message", "b", "Poison", b""),))
ASKED = Exit(1, "exit code 1", died_in=(TurnDeath("", STOP_WHEN, "", "", b""),))
MISUSED = Exit(2, "exit code 2", "snapline: there is no module nowhere")
DAMAGED = Exit(6, "exit code 6", "snapline: a pack is damaged")
LEFT = Exit(0, "exit code 0")
GONE = Exit(None, "its node died", log="node.log")


class Driver:
    """A keeper with two hosts and, unless told otherwise, one coordinator; plays its launcher."""

    def __init__(self, on_failure: OnFailure = "restart", coordinators: Sequence[str] = ("coordinator",)) -> None:
        self.keeper = Supervisor(hosts=("h1", "h2"), coordinators=coordinators, on_failure=on_failure)
        self.now_ns = 0

    def feed(self, event: SupervisorEvent, after_s: float = 0.0) -> list[SupervisorCommand]:
        self.now_ns += int(after_s * 1e9)
        commands = self.keeper.handle(self.now_ns, event)
        self.keeper.validate()
        return commands

    def all_up(self) -> "Driver":
        for command in self.feed(SupervisionStarted()):
            assert isinstance(command, StartProcess)
            assert self.feed(ProcessStarted(command.name)) == []
        return self

    def die(self, name: str, ended: Exit = KILLED, after_s: float = 1.0) -> list[SupervisorCommand]:
        """An end, and of a host that it was reported."""
        commands = self.feed(ProcessEnded(name, "run", ended), after_s)
        if any(isinstance(command, ReportExit) for command in commands):
            commands += self.feed(ExitReported(name))
        return commands

    def come_back(self, name: str, number: int) -> None:
        assert self.feed(PauseEnded(name, number)) == [StartProcess(name)]
        assert self.feed(ProcessStarted(name)) == []


def test_everything_is_started_coordinators_first() -> None:
    started = Driver(coordinators=("c1", "c2", "c3")).feed(SupervisionStarted())
    assert started == [StartProcess(name) for name in ("c1", "c2", "c3", "h1", "h2")]


@pytest.mark.parametrize("ended", [KILLED, CRASHED, GONE, LEFT])
def test_a_dead_host_is_reported_before_anything_is_decided(ended: Exit) -> None:
    fleet = Driver().all_up()
    assert fleet.feed(ProcessEnded("h1", "run-7", ended)) == [ReportExit("h1", "run-7", ended.text)]
    said, pause = fleet.feed(ExitReported("h1"))
    assert said == EmitNote(f"h1 ended ({ended.text}), starting it again in 0.1 s")
    assert pause == SetPause("h1", 1, 0.1)
    fleet.come_back("h1", 1)


def test_a_host_of_a_fleet_that_has_failed_stays_away() -> None:
    fleet = Driver().all_up()
    fleet.feed(ProcessEnded("h1", "run", CRASHED))
    ending = fleet.feed(FleetStatusRead("failed", "because", 7))
    assert ending == [EndSupervision(Ending("failed", "because", 7))]
    assert fleet.feed(ExitReported("h1")) == []
    assert fleet.die("h2", CRASHED)[1:] == []


def test_a_pause_that_was_cut_short_starts_nothing_later() -> None:
    """The host was asked back, and has ended again since: the end of the first pause must not shorten the second."""
    fleet = Driver().all_up()
    fleet.die("h1")
    assert fleet.feed(RestartRequested("h1")) == [StartProcess("h1")]
    fleet.feed(ProcessStarted("h1"))
    assert fleet.feed(PauseEnded("h1", 1)) == []
    assert fleet.die("h1")[-1] == SetPause("h1", 2, restart_pause_s(1))
    assert fleet.feed(PauseEnded("h1", 1)) == []
    fleet.come_back("h1", 2)


def test_who_is_to_be_killed_before_it_runs_is_killed_then() -> None:
    fleet = Driver()
    fleet.feed(SupervisionStarted())
    assert fleet.feed(KillRequested("h2", is_kept_down=True)) == []
    assert fleet.feed(ProcessStarted("h2")) == [KillProcess("h2")]
    assert fleet.die("h2")[1:] == [EmitNote("h2 ended (SIGKILL)")]
    assert fleet.feed(RestartRequested("h2")) == [StartProcess("h2")]


def test_who_is_asked_back_while_its_end_is_reported_comes_at_once() -> None:
    fleet = Driver(on_failure="move").all_up()
    fleet.feed(ProcessEnded("h1", "run", KILLED))
    assert fleet.feed(RestartRequested("h1")) == []
    assert StartProcess("h1") in fleet.feed(ExitReported("h1"))


def test_failures_in_a_row_are_bounded_and_pauses_grow() -> None:
    fleet = Driver().all_up()
    for failures in range(1, RESTARTS_MAX + 1):
        assert fleet.die("h1", CRASHED)[-1] == SetPause("h1", failures, restart_pause_s(failures))
        fleet.come_back("h1", failures)
    (given_up,) = fleet.die("h1", CRASHED)[1:]
    assert given_up == GiveUp(1, "h1 ended 11 times in a row, the last time with exit code 1: no disk left")
    assert fleet.keeper.is_over


def test_messages_that_kill_do_not_use_up_its_patience() -> None:
    """Each is set aside after three; there may be many."""
    fleet = Driver().all_up()
    for failures in range(1, 3 * RESTARTS_MAX):
        assert fleet.die("h1", POISONED)[-1] == SetPause("h1", failures, restart_pause_s(failures))
        fleet.come_back("h1", failures)
    for more in range(RESTARTS_MAX):
        fleet.die("h1", ASKED)
        fleet.come_back("h1", 3 * RESTARTS_MAX + more)
    assert isinstance(fleet.die("h1", ASKED)[-1], GiveUp), "the fleet's own predicate kills for ever"


def test_a_life_long_enough_forgives_all_failures() -> None:
    fleet = Driver().all_up()
    for failures in range(1, RESTARTS_MAX + 1):
        fleet.die("h1", CRASHED)
        fleet.come_back("h1", failures)
    assert fleet.die("h1", CRASHED, after_s=HEALTHY_S)[-1] == SetPause("h1", RESTARTS_MAX + 1, restart_pause_s(1))


def test_a_process_that_cannot_be_started_counts_as_one_that_ended() -> None:
    fleet = Driver()
    fleet.feed(SupervisionStarted())
    refused = Exit(None, "not started: no node is free")
    assert fleet.feed(ProcessEnded("h1", "", refused)) == [ReportExit("h1", "", refused.text)]
    assert fleet.feed(ExitReported("h1"))[-1] == SetPause("h1", 1, restart_pause_s(1))


def test_a_final_error_is_not_tried_again() -> None:
    fleet = Driver().all_up()
    fleet.feed(FleetStatusRead("running", "", 1))
    fleet.feed(FleetStatusRead("starting", "", 1), after_s=HEALTHY_S)
    assert fleet.die("h2", MISUSED)[1:] == [GiveUp(2, "there is no module nowhere")]
    assert fleet.keeper.final_error() == GiveUp(2, "there is no module nowhere")


@pytest.mark.parametrize("name", ["h2", "coordinator"])
def test_software_that_stops_to_fit_while_the_fleet_runs_is_tried_again(name: str) -> None:
    """While an installer replaces the package, a process that starts may miss modules; after a second they are there."""
    fleet = Driver().all_up()
    fleet.feed(FleetStatusRead("running", "", 1), after_s=HEALTHY_S)
    for failures in range(1, RESTARTS_MAX + 1):
        assert fleet.die(name, MISUSED)[-1] == SetPause(name, failures, restart_pause_s(failures))
        assert fleet.keeper.final_error() is None
        fleet.come_back(name, failures)
    (given_up,) = [each for each in fleet.die(name, MISUSED) if isinstance(each, GiveUp)]
    assert given_up.sentence.endswith("11 times in a row, the last time with exit code 2: there is no module nowhere")


def test_damaged_data_is_final_at_any_time() -> None:
    fleet = Driver().all_up()
    fleet.feed(FleetStatusRead("running", "", 1), after_s=HEALTHY_S)
    assert isinstance(fleet.die("h2", DAMAGED)[-1], GiveUp)


def test_a_majority_goes_on_without_a_replica() -> None:
    fleet = Driver(coordinators=("c1", "c2", "c3")).all_up()
    assert fleet.die("c1", MISUSED) == [
        EmitNote("c1 is given up, the other replicas go on: there is no module nowhere"),
    ]
    assert not fleet.keeper.is_over
    assert fleet.die("c2", MISUSED) == [GiveUp(2, "there is no module nowhere")]


def test_with_move_the_last_host_s_end_is_the_fleet_s() -> None:
    fleet = Driver(on_failure="move").all_up()
    assert fleet.die("h1")[1:] == [EmitNote("h1 ended (SIGKILL)")]
    assert fleet.die("h2")[-1] == EndSupervision(Ending("failed", "every host has died", 0))


def test_silence_is_told_once_and_so_is_its_end() -> None:
    fleet = Driver(coordinators=("c1", "c2", "c3")).all_up()
    fleet.die("c1")
    assert fleet.feed(FleetStatusUnavailable()) == []
    assert fleet.feed(FleetStatusUnavailable(), after_s=SILENCE_S / 2) == []
    (told,) = fleet.feed(FleetStatusUnavailable(), after_s=SILENCE_S / 2)
    assert isinstance(told, EmitNote) and "1 of its 3 replicas are down (c1), and it takes 2" in told.sentence
    assert fleet.feed(FleetStatusUnavailable(), after_s=SILENCE_S) == []
    assert fleet.feed(FleetStatusRead("running", "", 3)) == [EmitNote("the coordinator answers again")]
    assert fleet.feed(FleetStatusRead("running", "", 3)) == []


NAMES = ("c1", "c2", "c3", "h1", "h2")


def steps() -> st.SearchStrategy[list[tuple[str, str, int]]]:
    what = st.sampled_from(
        ["launcher", "launcher", "launcher", "end", "kill", "keep down", "restart", "seen", "missed", "over", "scale"]
    )
    return st.lists(st.tuples(what, st.sampled_from(NAMES), st.integers(0, 40)), max_size=120)


class World:
    """A launcher that does what it is told, in any order; knows what must hold of every command."""

    def __init__(self, on_failure: OnFailure) -> None:
        self.driver = Driver(on_failure, ("c1", "c2", "c3"))
        self.due: list[SupervisorCommand] = []
        self.running: set[str] = set()
        self.starting: set[str] = set()
        self.kept_down: set[str] = set()
        self.given_up: set[str] = set()
        self.endings = 0
        self.wanted: tuple[str, ...] = ("h1", "h2")

    def feed(self, event: SupervisorEvent, after_s: float = 0.0) -> None:
        was_over = self.driver.keeper.is_over
        for command in self.driver.feed(event, after_s):
            match command:
                case StartProcess():
                    assert command.name not in self.running | self.starting, "one process of a name at a time"
                    assert isinstance(event, HostsRequested) or command.name not in self.kept_down, (
                        "who is kept down comes back when told"
                    )
                    assert command.name[:1] == "c" or command.name in self.wanted, "nobody wants it"
                    assert not was_over or isinstance(event, (RestartRequested, ExitReported)), (
                        "nothing starts in an ended fleet"
                    )
                    self.starting.add(command.name)
                case KillProcess():
                    assert command.name in self.running
                case StopProcess():
                    assert command.name in self.running and command.name not in self.wanted
                case EndSupervision() | GiveUp():
                    self.endings += 1
                    assert self.endings == 1, "a fleet ends once"
                case EmitNote():
                    if " is given up" in command.sentence:
                        self.given_up.add(command.sentence.split()[0])
                    continue
            self.due.append(command)

    def play(self, what: str, name: str, number: int) -> None:
        match what:
            case "launcher" if self.due:
                self.answer(self.due.pop(number % len(self.due)))
            case "end" if name in self.running:
                self.running.discard(name)
                ended = (KILLED, CRASHED, LEFT, GONE)[number % 4]
                self.feed(ProcessEnded(name, "run", ended), after_s=number)
            case "kill" | "keep down":
                if what == "keep down":
                    self.kept_down.add(name)
                elif name in self.running | self.starting:
                    self.kept_down.discard(name)
                self.feed(KillRequested(name, is_kept_down=what == "keep down"))
            case "restart":
                self.kept_down.discard(name)
                self.given_up.discard(name)
                self.feed(RestartRequested(name))
            case "seen":
                self.feed(FleetStatusRead("running", "", number))
            case "over" if number == 0:
                self.feed(FleetStatusRead("finished", "", number))
            case "scale":
                before, self.wanted = self.wanted, ("h1", "h2", "h3")[: 1 + number % 3]
                self.kept_down -= set(self.wanted) - set(before)
                self.feed(HostsRequested(self.wanted))
            case "missed":
                self.feed(FleetStatusUnavailable(), after_s=number)

    def answer(self, command: SupervisorCommand) -> None:
        match command:
            case StartProcess():
                self.starting.discard(command.name)
                self.running.add(command.name)
                self.feed(ProcessStarted(command.name))
            case KillProcess() | StopProcess() if command.name in self.running:
                self.running.discard(command.name)
                self.feed(ProcessEnded(command.name, "run", KILLED))
            case ReportExit():
                self.feed(ExitReported(command.name))
            case SetPause():
                self.feed(PauseEnded(command.name, command.number), after_s=command.pause_s)


@example("restart", [("over", "c1", 0), ("scale", "c1", 2)])
@example("restart", [("scale", "c1", 0), ("kill", "h2", 0)])
@example("restart", [*[("launcher", "c1", 0)] * 5, ("scale", "c1", 0), ("restart", "h2", 0)])
@given(st.sampled_from(["restart", "move"]), steps())
def test_whatever_happens(on_failure: OnFailure, plan: list[tuple[str, str, int]]) -> None:
    """One process of a name, one end of the fleet, nobody back who is kept down; and all are back once nothing more happens."""
    world = World(on_failure)
    world.feed(SupervisionStarted())
    for what, name, number in plan:
        world.play(what, name, number)
    while world.due:
        world.answer(world.due.pop(0))
    if not world.driver.keeper.is_over:
        back = world.running | world.kept_down | world.given_up
        assert back >= {"c1", "c2", "c3"}, "coordinators always come back"
        assert on_failure == "move" or back >= set(world.wanted), "hosts come back"
