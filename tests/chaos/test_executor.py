"""The executor of faults on real processes, without any: what it says is what a simulated world is told, and in the end all is whole."""

import msgspec
import pytest
from tests.sim.fake_executor import FakeExecutor

from snapline.chaos import executor as cm
from snapline.chaos.capabilities import EVERYTHING, drawn
from snapline.chaos.executor import ChaosExecutor
from snapline.sim.choices import RandomChoices
from snapline.sim.faults.faults import schedule
from snapline.sim.scenario import Scenario, host_names, joining_hosts, parse_scenario

STEP_NS = 10_000_000
SEEDS = range(60)


class Machine:
    """Processes as commands leave them: what is down, stands still, cut or broken. Written apart from the executor's own books."""

    def __init__(self, scenario: Scenario) -> None:
        self.down = set(joining_hosts(scenario))
        self.speeds: dict[str, int] = {}
        self.paths: dict[tuple[str, str], cm.SetPath] = {}
        self.disks: dict[str, tuple[str, ...]] = {}
        self.hanging: dict[tuple[str, str], bool] = {}
        self.clocks: dict[str, tuple[int, int]] = {}
        self.armed: set[int] = set()
        self.unknown = 0

    def do(self, command: cm.Command) -> None:
        match command:
            case cm.KillNode(node) | cm.EndNode(node) | cm.CutPower(node):
                self.down.add(node)
                self.speeds.pop(node, None)
            case cm.StartNode(node):
                assert node in self.down, f"{node} runs"
                self.down.discard(node)
            case cm.SetSpeed():
                self.speeds[command.node] = command.percent
            case cm.SetPath():
                self.paths[command.sender, command.receiver] = command
            case cm.SetDisk():
                self.disks[command.node] = command.modes
            case cm.SetHanging():
                self.hanging[command.node, command.what] = command.is_on
            case cm.SetClock():
                self.clocks[command.node] = (command.skew_ns, command.drift_ppm)
            case cm.ArmFailpoint():
                self.armed.add(command.number)
            case cm.DisarmFailpoints():
                self.armed.clear()
            case cm.SetUnknown():
                self.unknown = command.per_mille
            case _:
                pass

    def problems(self) -> list[object]:
        return [
            *sorted(self.down),
            *((node, percent) for node, percent in self.speeds.items() if percent != 100),
            *(path for pair, path in self.paths.items() if path != cm.SetPath(*pair)),
            *((node, modes) for node, modes in self.disks.items() if modes),
            *(key for key, is_on in self.hanging.items() if is_on),
            *((node, clock) for node, clock in self.clocks.items() if clock != (0, 0)),
            *sorted(self.armed),
            *([self.unknown] if self.unknown else []),
        ]


def carried_out(scenario: Scenario, seed: int, *passing: tuple[int, str]) -> tuple[ChaosExecutor, Machine]:
    """All faults, in steps of time. `passing`: (at, node): who gets to the first armed point then."""
    executor, machine = ChaosExecutor(scenario, RandomChoices(seed)), Machine(scenario)
    executor.handle(0, cm.FleetObserved("c1", {"a0": "h1"}, ("packs/one",)))
    for command in executor.begin():
        machine.do(command)
    events: list[tuple[int, cm.Event]] = [(at_ns, cm.TimePassed()) for at_ns in range(0, executor.over_ns, STEP_NS)]
    for at_ns, node in passing:
        number = min(machine.armed) if machine.armed else 0
        events.append((at_ns, cm.FailpointHit(number, node)))
    for at_ns, event in sorted(events, key=lambda each: each[0]):
        for command in executor.handle(at_ns, event):
            machine.do(command)
    return executor, machine


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_drawn_all_is_whole_after_heal(seed: int) -> None:
    scenario = drawn(EVERYTHING, seed)
    executor, machine = carried_out(scenario, seed)
    for command in executor.heal():
        machine.do(command)
    assert machine.problems() == []


def test_a_machine_that_is_not_healed_is_not_whole() -> None:
    """The check above can fail."""
    found = [carried_out(drawn(EVERYTHING, seed), seed)[1].problems() for seed in SEEDS]
    assert sum(bool(problems) for problems in found) > len(SEEDS) // 10


class Seen(FakeExecutor):
    """Sees the same fleet as above, for ever."""

    def leader(self) -> str:
        return "c1"

    def host_of(self, agent: str) -> str:
        return "h1"


def unspecific(kind: str, text: str) -> tuple[str, str]:
    return kind, "a bit flips" if "bit" in text else text


@pytest.mark.parametrize("seed", SEEDS)
def test_a_file_and_a_seed_mean_the_same_to_processes_and_to_a_simulated_world(seed: int) -> None:
    """Which faults, on whom: word for word, in the same order."""
    scenario = msgspec.structs.replace(drawn(EVERYTHING, seed))
    world = Seen(scenario, RandomChoices(seed))
    world.agents = ("a0",)
    schedule(scenario, world)
    world.run_until()
    executor, _ = carried_out(scenario, seed)
    said = [unspecific(fault.kind, fault.text) for fault in executor.faults]
    assert said == [unspecific(fault.kind, fault.text) for fault in world.notes][: len(said)]
    missed = world.notes[len(said) :]
    assert all(fault.at_ns >= executor.over_ns - STEP_NS for fault in missed), missed


def scenario_of(faults: str) -> Scenario:
    return parse_scenario(f"[fleet]\nhosts = 3\ncoordinators = 3\nagents = 4\n{faults}", source="a test")


def test_who_dies_at_a_failpoint_stays_down_as_long_as_the_file_says() -> None:
    scenario = scenario_of('[[fault]]\ncrash = { failpoint = "store.ref.linked", restart_after = "1s" }')
    executor = ChaosExecutor(scenario, RandomChoices(0))
    (armed,) = [each for each in executor.begin() if isinstance(each, cm.ArmFailpoint)]
    assert (armed.name, armed.hit, armed.action) == ("store.ref.linked", 1, "crash")
    said = executor.handle(2 * 10**9, cm.FailpointHit(armed.number, "c2"))
    assert [each for each in said if not isinstance(each, cm.Note)] == [cm.KillNode("c2")]
    assert executor.handle(3 * 10**9 - 1, cm.TimePassed()) == []
    assert executor.handle(3 * 10**9, cm.TimePassed()) == [cm.StartNode("c2")]
    assert executor.handle(3 * 10**9, cm.FailpointHit(armed.number, "c3")) == [], "it acts once"


def test_a_process_stands_still_while_anybody_wants_it_to() -> None:
    scenario = scenario_of(
        '[[fault]]\npause = { host = "h1", at = "1s", for = "3s" }\n'
        '[[fault]]\npause = { failpoint = "store.ref.linked", at = "0s", for = "1s" }\n'
        '[[fault]]\nslow = { host = "h1", at = "2s", for = "4s", percent = 10 }'
    )
    executor = ChaosExecutor(scenario, RandomChoices(0))
    (armed,) = [each for each in executor.begin() if isinstance(each, cm.ArmFailpoint)]
    speeds: dict[int, list[int]] = {}
    events: list[tuple[float, cm.Event]] = [(second, cm.TimePassed()) for second in (1, 2, 4, 4.5, 6)]
    events.insert(2, (3.5, cm.FailpointHit(armed.number, "h1")))
    for second, event in events:
        said = executor.handle(int(second * 1e9), event)
        speeds[int(second * 10)] = [each.percent for each in said if isinstance(each, cm.SetSpeed)]
    assert speeds == {10: [0], 20: [0], 35: [0], 40: [0], 45: [10], 60: [100]}


def test_an_end_of_one_nodes_disk_does_not_mend_everybodys() -> None:
    scenario = scenario_of(
        '[[fault]]\ndisk = { host = "*", mode = "eio", at = "1s", for = "3s" }\n'
        '[[fault]]\ndisk = { host = "h2", mode = "eio", at = "2s", for = "1s" }\n'
        '[[fault]]\ndisk = { host = "h2", mode = "slow", at = "2s", for = "1s" }'
    )
    executor, machine = ChaosExecutor(scenario, RandomChoices(0)), Machine(scenario)
    executor.begin()
    seen = []
    for second in (1, 2, 3, 4):
        for command in executor.handle(second * 10**9, cm.TimePassed()):
            machine.do(command)
        seen.append(set(machine.disks["h2"]))
    assert seen == [{"eio"}, {"eio", "slow"}, {"eio"}, set()]


def test_names_are_those_of_the_scenario() -> None:
    scenario = scenario_of('[[fault]]\nmembership = { kind = "join" }')
    executor = ChaosExecutor(scenario, RandomChoices(0))
    assert executor.hosts == host_names(scenario) == ("h1", "h2", "h3", "h4")
    executor.begin()
    assert cm.StartNode("h4") in executor.handle(10**9, cm.TimePassed())
