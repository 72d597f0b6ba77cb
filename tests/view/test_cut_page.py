"""The screen of one snapshot: what was in transit, agents, and what differs from another one."""

import re

import pytest
from tests.view.simulated import SimulatedFleet
from tests.view.test_app import view

from snapline.view.epoch_pages import (
    CIRCLE_AGENTS_MAX,
    ROWS_MAX,
    CutFacts,
    CutSearch,
    cut_body,
    cut_of,
    cut_picture,
    cut_results,
)


async def cut(epoch: int = 7, agents: int = 6) -> CutFacts:
    return cut_of(await SimulatedFleet(agents=agents).snapshot_at(str(epoch)))


def test_no_document_is_no_cut() -> None:
    with pytest.raises(ValueError):
        cut_of({"kind": "Snapshot"})


async def test_what_was_in_transit_is_there_with_its_content() -> None:
    page = cut_body(await cut(), CutSearch())
    rows = re.findall(r'<tr><th scope="row"><a href="#agent-teller-0">teller-0</a>.*?</tr>', page)
    (row,) = rows
    assert "Tokens" in row and ">7<" in row
    assert '<path d="M' in page and "1 message in transit in 1 channel" in page


async def test_what_most_agents_do_not_have_is_named_at_the_agent() -> None:
    page = cut_body(await cut(), CutSearch())
    card = re.findall(r'<details class="card" id="agent-teller-1".*?</dl></details>', page)[0]
    assert "durable turn" in card and "timers: 1" in card and "step look" in card


@pytest.mark.parametrize(
    ("text", "agents", "messages"), [("teller-4", 1, 0), ("TOKENS", 0, 1), ("due", 1, 0), ("nowhere", 0, 0), ("", 6, 1)]
)
async def test_a_search_looks_into_names_states_and_messages(text: str, agents: int, messages: int) -> None:
    page = cut_results(await cut(), CutSearch(text))
    assert page.count('<details class="card"') == agents
    assert page.count('<tr><th scope="row">') == messages


async def test_the_difference_names_every_place_that_changed_and_no_other() -> None:
    page = cut_results(await cut(), CutSearch(to="6"), await cut(6))
    changed = re.findall(r'<th scope="row"><code>(.*?)</code>', page)
    assert changed == ["teller-0.state.balance", "teller-0 → teller-1, message 6", "teller-0 → teller-1, message 7"]
    assert "They are the same" in cut_results(await cut(), CutSearch(), await cut())


async def test_ten_thousand_agents_make_no_larger_page_than_a_hundred() -> None:
    many = cut_results(await cut(agents=10_000), CutSearch())
    assert many.count('<details class="card"') == ROWS_MAX
    assert "10,000 agents, the first 100 are shown" in many
    assert 'id="agent-teller-9876"' in cut_results(await cut(agents=10_000), CutSearch("teller-9876"))


def test_a_picture_has_an_arrow_for_each_channel_and_none_for_a_crowd() -> None:
    ring = {(f"a{number}", f"a{(number + 1) % 5}"): number + 1 for number in range(5)}
    drawn = cut_picture(ring)
    assert drawn is not None and drawn.count('class="arrow') == 5 and "a4 → a0: 5 messages" in drawn
    crowd = {(f"a{number}", "b"): 1 for number in range(CIRCLE_AGENTS_MAX)}
    assert cut_picture(crowd) is None and cut_picture({}) is None


async def test_a_page_of_an_epoch_and_of_none() -> None:
    fleet = SimulatedFleet()
    fleet.note = "<script>alert(1)</script>"
    async with view(fleet) as http:
        page = (await http.get("/epochs/7", params={"to": "6", "q": "<b>"})).text
        assert "<script>alert" not in page and "<b>" not in page.replace("<b>teller", "")
        missing = await http.get("/epochs/99")
        assert missing.status_code == 404 and "There is no snapshot &#x27;99&#x27;" in missing.text.replace(
            "'", "&#x27;"
        )
        found = await http.get("/epochs/7", params={"part": "found", "q": "teller-5"})
        assert found.text.startswith('<div id="found">')


async def test_an_epoch_is_read_once_while_somebody_types_and_a_tag_each_time() -> None:
    fleet = SimulatedFleet()
    async with view(fleet) as http:
        for text in ("t", "te", "tel"):
            await http.get("/epochs/7", params={"part": "found", "q": text})
        assert fleet.asked.count("snapshot 7") == 1
        for _ in range(2):
            await http.get("/epochs/latest")
        assert fleet.asked.count("snapshot latest") == 2
