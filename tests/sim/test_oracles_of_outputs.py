"""The oracle of outputs, on histories and files that are written down by hand."""

import pytest

from snapline.sim.oracles.ground_truth_records import AgentHistory, Branch, Captured, CutPlace, CutRecord
from snapline.sim.oracles.input_output_oracles import OutputOracle
from snapline.storage.outputs.output_record import EmittedOutput, Release


class Fleet:
    """Agents a and b under plan 1; an output of an agent is called by its turn."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.oracle = OutputOracle(lambda oracle, guarantee, t_ns, text: self.found.append(text))
        self.branches: dict[int, Branch] = {}
        self.plan(1, 0)
        self.now = 1

    def plan(self, number: int, line: int, **turns: int) -> None:
        """`turns`: of each agent in the line; what came later is undone."""
        histories = {}
        for agent in ("a", "b"):
            made = histories[agent] = AgentHistory(agent, {}, {}, [], [], [])
            if number > 1:
                before = self.branches[self.now].histories[agent]
                made.turns = turns[agent]
                made.outputs = [each for each in before.outputs if each[0] <= turns[agent]]
        self.branches[number] = Branch(number, histories, {}, {})
        self.now = number
        self.oracle.on_plan(number, line)

    def turn(self, agent: str, *, emits: bool = True) -> None:
        history = self.branches[self.now].histories[agent]
        history.turns += 1
        if emits:
            self.oracle.on_emitted(history, f"t {agent}{history.turns}.{self.now}".encode())

    def release(self, epoch: int, after: int, *files: str, plan: int = 0, **turns: int) -> None:
        """`files`: agent, number and turn.plan of each output, such as "a 1 1.1"; none: there is no file."""
        plan = plan or self.now
        self.oracle.on_complete(epoch, plan)
        release = Release(epoch, after, "root", 0, [_output(each) for each in files]) if files else None
        self.oracle.on_released(0, epoch, release, _cut(epoch, plan, turns), self.branches[plan])


def _output(text: str) -> EmittedOutput:
    agent, number, name = text.split()
    return EmittedOutput(agent, int(number), "t", f"{agent}{name}".encode(), 0)


def _cut(epoch: int, plan: int, turns: dict[str, int]) -> CutRecord:
    captured = Captured(plan, "a", 1, 0, "basic", 0, 0, 0, {}, b"")
    return CutRecord(epoch, plan, {agent: CutPlace(count, 0, {}, captured) for agent, count in turns.items()}, {})


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet()
    for agent in ("a", "a", "b"):
        made.turn(agent)
    return made


def test_releases_that_hold_what_is_new_in_each_cut_are_right(fleet: Fleet) -> None:
    fleet.release(1, 0, "a 1 1.1", a=1, b=0)
    fleet.release(2, 1, "a 2 2.1", "b 1 1.1", a=2, b=1)
    fleet.release(3, 2, a=2, b=1)
    fleet.release(2, 1, "a 2 2.1", "b 1 1.1", a=2, b=1)
    assert fleet.found == [] and len(fleet.oracle.had) == 2


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (["a 1 1.1", "a 2 2.1"], "not in the history of that cut"),
        (["a 1 9.1"], "not in the history of that cut"),
        ([], "was not released"),
        (["a 2 1.1"], "follows 0"),
        (["a 1 1.1", "a 2 1.1"], "twice, or in another order"),
    ],
)
def test_release_with_other_outputs_than_those_of_its_cut_is_found(fleet: Fleet, files: list[str], text: str) -> None:
    fleet.release(1, 0, *files, a=1, b=0)
    assert text in fleet.found[0]


def test_order_of_outputs_counts(fleet: Fleet) -> None:
    fleet.release(1, 0, "a 1 2.1", "a 2 1.1", a=2, b=0)
    assert "in another order" in fleet.found[0]


def test_epoch_that_was_never_complete_is_found(fleet: Fleet) -> None:
    fleet.oracle.on_released(0, 1, None, None, fleet.branches[1])
    assert "never complete" in fleet.found[0]


def test_lower_epoch_that_comes_later_is_found(fleet: Fleet) -> None:
    fleet.oracle.on_complete(1, 1)
    fleet.release(2, 1, "a 1 1.1", a=1, b=0)
    fleet.release(1, 0, "a 1 1.1", a=1, b=0)
    assert "never sees it" in fleet.found[-1]


def test_another_file_the_second_time_is_found(fleet: Fleet) -> None:
    fleet.release(1, 0, "a 1 1.1", a=1, b=0)
    fleet.release(1, 0, "a 1 1.1", "b 1 1.1", a=1, b=1)
    assert "twice, with other outputs" in fleet.found[0]


def test_fall_back_takes_back_and_says_so(fleet: Fleet) -> None:
    fleet.release(1, 0, "a 1 1.1", a=1, b=0)
    fleet.release(2, 1, "a 2 2.1", a=2, b=0)
    fleet.plan(2, 1, a=1, b=0)
    fleet.turn("a")
    fleet.release(3, 1, "a 2 2.2", a=2, b=0)
    assert fleet.found == [] and fleet.oracle.undone == 1


def test_fall_back_that_is_not_said_is_found(fleet: Fleet) -> None:
    fleet.release(1, 0, "a 1 1.1", a=1, b=0)
    fleet.release(2, 1, "a 2 2.1", a=2, b=0)
    fleet.plan(2, 1, a=1, b=0)
    fleet.release(3, 1, a=1, b=0)
    assert "not in the history" in fleet.found[0]
    fleet.turn("a")
    fleet.release(4, 2, "a 3 2.2", a=2, b=0)
    assert "not after 3" in fleet.found[1]


def test_agent_that_leaves_has_said_all(fleet: Fleet) -> None:
    history = fleet.branches[1].histories["a"]
    fleet.release(1, 0, "a 1 1.1", a=1, b=0)
    fleet.oracle.on_left(0, history)
    assert "has left with 2 outputs, and 1 of them are released" in fleet.found[0]
    fleet.release(2, 1, "a 2 2.1", a=2, b=0)
    fleet.oracle.on_left(0, history)
    assert len(fleet.found) == 1


def test_what_is_gone_or_was_never_released_is_found_at_the_end(fleet: Fleet) -> None:
    fleet.release(1, 0, "a 1 1.1", a=1, b=0)
    fleet.oracle.check_files(0, {})
    assert "not there any more" in fleet.found[0]
    fleet.oracle.check_end(0, 2, _cut(2, 1, {"a": 2, "b": 0}), fleet.branches[1])
    assert "was not released" in fleet.found[1]
    fleet.oracle.check_end(0, 1, _cut(1, 1, {"a": 1, "b": 0}), fleet.branches[1])
    assert len(fleet.found) == 2
