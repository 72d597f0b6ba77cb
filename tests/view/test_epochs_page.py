"""The Epochs screen: what is told, what is not known, and what an aborted one looks like."""

from typing import Any

import pytest
from tests.view.simulated import SimulatedFleet
from tests.view.test_app import view

from snapline.errors import UsageError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.view.epoch_pages import epochs_body
from snapline.view.fleet_queries import FleetQueries

SLOW = {
    "host": "h2",
    "agent": "b",
    "after_s": 0.5,
    "start_delay_s": 0.4,
    "capture_s": 0.01,
    "alignment_s": 0.02,
    "store_s": 0.05,
}


def ended(epoch: int, status: str = "complete", **more: Any) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "status": status,
        "trigger": "period",
        "begun_s": 1.0,
        "took_s": 0.6,
        "last": SLOW,
        "late": SLOW,
        **more,
    }


async def test_the_newest_stands_first_and_leads_to_its_cut() -> None:
    fleet = SimulatedFleet()
    fleet.history = {"epochs": [ended(6, new_bytes=2048), ended(7), ended(8, "aborted", reason="no report of h3")]}
    async with view(fleet) as http:
        page = (await http.get("/epochs")).text
    assert page.index("no report of h3.") < page.index('href="/epochs/7"') < page.index('href="/epochs/6"')
    assert 'href="/epochs/8"' not in page, "nothing of it is kept"
    assert "3 epochs, 1 aborted" in page and "2.0 KiB" in page and 'class="aborted"' in page
    assert "h2 reported last, 500.0 ms after the begin: b waited for a turn to end for 400.0 ms." in page


def test_whoever_recorded_latest_elsewhere_is_named() -> None:
    early = {**SLOW, "host": "h1", "agent": "a", "start_delay_s": 0.0, "alignment_s": 0.45}
    page = epochs_body({"epochs": [ended(1, last=early)]})
    assert (
        "a waited for what other agents had sent before for 450.0 ms. Recorded latest: b on h2, after 410.0 ms." in page
    )


def test_what_nobody_knows_is_said() -> None:
    assert "phases are not known" in epochs_body({"epochs": [ended(1, last=None, late=None)]})
    assert "its release does not say why" in epochs_body({"epochs": [ended(1, last={"host": "h1"}, late=None)]})
    assert "No epoch has ended yet" in epochs_body({"epochs": []})


@pytest.mark.parametrize("took_s", [0.0, 1e-9, 3e5])
def test_bars_stay_inside_the_chart(took_s: float) -> None:
    page = epochs_body({"epochs": [ended(1, took_s=took_s), ended(2, "aborted", took_s=1e6)]})
    assert 'y="-' not in page and 'height="-' not in page


async def test_of_an_older_coordinator_the_screen_says_so() -> None:
    fleet = SimulatedFleet()
    fleet.history = None
    async with view(fleet) as http:
        found = await http.get("/epochs")
    assert found.status_code == 200 and "of an older release" in found.text


async def test_what_an_older_coordinator_answers_is_no_history() -> None:
    class Refusing(CoordinatorClient):
        def __init__(self, sentence: str) -> None:
            self.sentence = sentence

        async def read_snapshots(self, *_: object, **__: object) -> dict[str, object]:
            raise UsageError(self.sentence)

    def asking(sentence: str) -> FleetQueries:
        return FleetQueries(None, Refusing(sentence), None)  # type: ignore[arg-type]  # a history is asked of the coordinator

    assert await asking("'history' is no way to read snapshots: use list, show or verify").epoch_history() is None
    with pytest.raises(UsageError, match="viewer"):
        await asking("this certificate is of no viewer").epoch_history()
