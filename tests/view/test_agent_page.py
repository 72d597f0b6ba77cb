"""What the page of one agent says of its state: live, else saved, else why not."""

from tests.view.parsed import Node, parse, value_in
from tests.view.simulated import SimulatedFleet
from tests.view.test_app import view

from snapline.errors import NotFoundError, UnknownOutcomeError, UsageError

HELD = UnknownOutcomeError("nobody told of agent 'teller-1' in time (agent teller-1 has been in one turn for 60 s)")


async def page_of(fleet: SimulatedFleet) -> Node:
    async with view(fleet) as http:
        found = await http.get("/agents/teller-1")
    assert found.status_code == 200
    return parse(found.text.removeprefix("<!DOCTYPE html>"))


def state_in(page: Node) -> Node:
    return page.find("section", id="state")[0]


async def test_its_live_state_is_there_with_all_fields_open() -> None:
    fleet = SimulatedFleet()
    fleet.held = {"lines": [{"amount": 1}]}
    state = state_in(await page_of(fleet))
    assert value_in(state) == {"balance": 90, "note": "as usual", "lines": [{"amount": 1}]}
    assert "between two turns; a recovery may undo it" in state.text and not state.find(class_="strip")
    assert all("open" in each.attributes for each in state.find("details"))


async def test_a_large_state_has_its_fields_folded_and_is_cut() -> None:
    fleet = SimulatedFleet()
    fleet.held = {"table": {str(n): ["x" * 9, n] for n in range(5_000)}}
    state = state_in(await page_of(fleet))
    assert ["open" in each.attributes for each in state.find("details")[:2]] == [True, False]
    assert "… and 4,800 more" in state.text


async def test_the_saved_state_takes_the_place_of_the_live_one_and_the_page_says_why() -> None:
    fleet = SimulatedFleet()
    fleet.state_errors[True] = HELD
    state = state_in(await page_of(fleet))
    assert value_in(state) == {"balance": 70, "note": "as usual"}
    assert "has been in one turn for 60 s" in state.text
    assert [(each.text, each.attributes["href"]) for each in state.find("a")] == [("epoch 7", "/epochs/7")]


async def test_who_may_not_see_states_sees_the_rest_of_the_page() -> None:
    fleet = SimulatedFleet()
    fleet.state_errors = {True: UsageError("a client may not"), False: UsageError("a client may not")}
    page = await page_of(fleet)
    assert "A client may not." in state_in(page).text and not state_in(page).find(class_="tree")
    assert page.find("section", id="status")


async def test_while_its_host_is_lost_its_saved_state_is_there() -> None:
    fleet = SimulatedFleet()
    fleet.describe_error = UnknownOutcomeError("nobody told of agent 'teller-1' in time (the fleet is recovering)")
    page = await page_of(fleet)
    assert value_in(state_in(page)) == {"balance": 70, "note": "as usual"} and "the fleet is recovering" in page.text
    fleet.state_errors[False] = NotFoundError("there is no snapshot yet")
    async with view(fleet) as http:
        found = await http.get("/agents/teller-1")
    assert found.status_code == 503 and "the fleet is recovering" in found.text
