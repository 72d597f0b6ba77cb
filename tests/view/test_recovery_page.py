"""The screen of recoveries: who would go back if these fail, whoever fails, and the recoveries that there were."""

import re

import msgspec
from tests.view.simulated import SimulatedFleet
from tests.view.test_app import view

from snapline.view.recovery_page import CELLS_MAX, FailureFacts, LineFacts, LinesFacts, heat_map, line_result

COORDINATED = {
    "failed": [],
    "epoch": 9,
    "root": "ab",
    "recovery_line": {"a": 9, "b": 9},
    "rolled_back": 2,
    "messages_delivered_again": 3,
}


def test_where_one_epoch_answers_for_all_failures_everybody_goes_back_to_it() -> None:
    told = line_result(msgspec.convert(COORDINATED, LineFacts))
    assert "2 of 2 agents go back if all fail." in told and "They go back to epoch 9. 3 messages" in told
    assert "<table" not in told


async def test_who_goes_back_is_listed_with_what_it_loses_the_most_first() -> None:
    line = msgspec.convert(await SimulatedFleet(agents=12).line_of(["teller-10"]), LineFacts)
    told = line_result(line)
    assert "2 of 12 agents go back if teller-10 fails." in told and "4 messages would be delivered again" in told
    assert re.findall(r'href="/agents/(.*?)"', told) == ["teller-10", "teller-1"]


def test_before_the_first_epoch_the_fleet_would_start_again() -> None:
    assert "They start again: no epoch is complete yet." in line_result(LineFacts())
    assert "They start again" not in line_result(LineFacts(rollback={})), "each goes back to a checkpoint of its own"


async def test_the_heat_map_has_a_cell_for_each_agent_that_goes_back() -> None:
    lines = msgspec.convert(await SimulatedFleet().lines_of_each(), LinesFacts)
    drawn = str(heat_map(lines))
    assert drawn.count("<rect") == sum(len(each.rolled_back) for each in lines.lines)
    assert "host h1 fails: teller-1 goes back, 18 turns undone" in drawn


def test_of_too_many_failures_the_dearest_are_listed() -> None:
    agents = tuple(f"a{number}" for number in range(CELLS_MAX // 100 + 1))
    lines = tuple(FailureFacts(f"f{number}", agents[: number % 7 + 1]) for number in range(1000))
    told = str(heat_map(LinesFacts(3, (*lines, FailureFacts("worst", agents)))))
    assert "<svg" not in told and told.index("worst") < told.index("f6") and "and 901 more, which cost less" in told


async def test_a_question_is_answered_without_a_page_around_it() -> None:
    fleet = SimulatedFleet()
    async with view(fleet) as http:
        page = (await http.get("/recovery?failed=host:h1&failed=teller-4&others=teller-0, ,teller-2")).text
        assert "line host:h1,teller-4,teller-0,teller-2" in fleet.asked
        assert re.findall(r'value="([^"]*)" checked', page) == ["host:h1", "teller-0", "teller-2", "teller-4"]
        assert 'href="/epochs/6"' in page and "h1 is lost: as usual" in page and "0.40 s" in page
        part = (await http.get("/recovery", params={"part": "line", "failed": "host:h1"})).text
        assert part.startswith('<div id="line">')


async def test_many_agents_are_named_in_a_field() -> None:
    async with view(SimulatedFleet(agents=500)) as http:
        page = (await http.get("/recovery?others=teller-77")).text
        assert page.count('type="checkbox"') == 3 and 'name="others" value="teller-77"' in page
