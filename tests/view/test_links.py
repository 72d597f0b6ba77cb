"""Links of the view stand only where there is something: every one of them is followed, in a fleet much of which is gone."""

from urllib.parse import unquote, urldefrag, urljoin

import httpx
import pytest
from tests.view.parsed import Node, parse
from tests.view.simulated import SimulatedFleet
from tests.view.test_app import view
from tests.view.test_waiting_page import Sold, word

from snapline.errors import StoreError
from snapline.messages.effect_records import EFFECTS_TOPIC
from snapline.view.page_elements import restorable_epochs, shown_epochs

ENDED = [{"epoch": n, "status": status} for n, status in enumerate(("complete", "aborted", "forgotten", "complete"), 4)]


def thinned_fleet() -> SimulatedFleet:
    """Epoch 4 was pruned, 6 is kept by the store alone, teller-0 has stopped; the last recovery went back to epoch 3."""
    fleet = SimulatedFleet()
    fleet.history = {"protocol": "p", "epochs": ENDED, "stored": [6, 7]}
    fleet.outputs = [(6, "sales", Sold(1)), (7, EFFECTS_TOPIC, word("k1", "intent"))]
    fleet.waiting_agents = [{"agent": "teller-1", "host": "h2", "turn": "message", "inputs": 2, "dead_letters": 1}]
    fleet.line_epoch = 3
    del fleet.owners["teller-0"]
    return fleet


async def dead_links(http: httpx.AsyncClient, first: str) -> tuple[set[str], set[str]]:
    """What can be reached from a page, and links that lead to nothing."""
    pages: dict[str, tuple[int, Node]] = {}

    async def load(path: str) -> tuple[int, Node]:
        if path not in pages:
            found = await http.get(path)
            is_page = found.headers["Content-Type"].startswith("text/html")
            pages[path] = found.status_code, parse(found.text.removeprefix("<!DOCTYPE html>") if is_page else "")
        return pages[path]

    dead, left = set(), [first]
    while left:
        here = left.pop()
        for link in (await load(here))[1].find("a"):
            path, fragment = urldefrag(urljoin(here, link.attributes["href"]))
            left += [] if path in pages else [path]
            status, page = await load(path)
            if status != 200 or (fragment and not page.find(id=unquote(fragment))):
                dead.add(f"{here}: {link.attributes['href']}")
    return set(pages), dead


async def test_no_link_is_dead_where_epochs_and_agents_are_gone() -> None:
    async with view(thinned_fleet()) as http:
        reached, dead = await dead_links(http, "/")
        assert not dead
        assert {"/epochs/6", "/epochs/7", "/agents/teller-1", "/coordinators"} <= reached
        assert not {"/epochs/3", "/epochs/4", "/epochs/5", "/agents/teller-0"} & reached
        waiting, recovery = [(await http.get(path)).text for path in ("/waiting", "/recovery")]
    assert "teller-0" in waiting and ">3</td>" in recovery, "they are named all the same"


async def test_messages_lead_to_agents_that_the_search_has_found() -> None:
    async with view() as http:
        for query in ("", "?q=tokens", "?q=teller-1"):
            assert not (await dead_links(http, f"/epochs/7{query}"))[1]


async def test_without_an_answer_about_epochs_none_is_a_link() -> None:
    fleet = thinned_fleet()

    async def no_history() -> None:
        raise StoreError("away")

    fleet.epoch_history = no_history  # type: ignore[method-assign]  # it fails
    async with view(fleet) as http:
        assert "/epochs/" not in (await http.get("/recovery")).text


@pytest.mark.parametrize(
    ("stored", "shown"), [([4, 6, 7], {4, 6, 7}), ([], set()), (None, {4, 7})], ids=["some", "none", "not said"]
)
def test_epochs_that_can_be_looked_at(stored: list[int] | None, shown: set[int]) -> None:
    assert shown_epochs({"epochs": ENDED, "stored": stored}) == shown
    assert shown_epochs(None) == set()


def test_a_damaged_epoch_cannot_be_looked_at_nor_restored() -> None:
    rows = [{"epoch": 1, "status": "condemned"}, {"epoch": 2, "status": "void"}, {"epoch": 3, "status": "complete"}]
    assert shown_epochs({"epochs": rows, "stored": [1, 2, 3]}) == {2, 3}
    assert restorable_epochs({"epochs": rows}) == {3}
