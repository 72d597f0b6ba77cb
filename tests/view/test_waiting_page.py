"""The screen of what waits: turns, inputs, outputs, effects, dead letters; and what it costs to know."""

import json
import re
from typing import Any

import msgspec
import pytest
from tests.view.simulated import SimulatedFleet
from tests.view.test_app import view

import snapline
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.view import pending_work_page
from snapline.view.page_elements import STREAMS_MAX, Streams
from snapline.view.pending_work_page import (
    EffectLedger,
    NewestOutputs,
    PendingWorkReader,
    WaitingFacts,
    newest_outputs,
    pending_work_body,
)
from snapline.view.view_app import View
from snapline.view.watch import FleetWatch


class Sold(snapline.Message):
    price: int
    note: str = ""


def word(key: str, stage: str) -> EffectRecord:
    return EffectRecord(stage, key, 1, "pay", "outside", "[5]", "receipt" if stage == "done" else "")


@pytest.fixture
def fleet() -> SimulatedFleet:
    made = SimulatedFleet()
    made.waiting_agents = [
        {
            "agent": "teller-1",
            "host": "h2",
            "turn": "message",
            "sender": "teller-0",
            "steps": 3,
            "waits_for": "step look",
            "waits_s": 7.5,
        },
        {
            "agent": "teller-2",
            "host": "h3",
            "turn": "input",
            "sender": "@shop",
            "problem": "no step of this name",
            "put_off": 2,
        },
        {"agent": "teller-3", "host": "h1", "inputs": 12, "dead_letters": 4},
    ]
    made.standing = [{"agent": "teller-0", "key": "k2", "generation": 1, "stands": "needs people"}]
    made.outputs = [
        (5, "sales", Sold(1)),
        (6, EFFECTS_TOPIC, word("k1", "intent")),
        (6, EFFECTS_TOPIC, word("k2", "intent")),
        (7, EFFECTS_TOPIC, word("k1", "done")),
        (7, "sales", Sold(2)),
        (7, "refunds", Sold(3, "<script>alert(1)</script>")),
    ]
    return made


async def waiting(fleet: SimulatedFleet) -> str:
    async with view(fleet) as http:
        found = await http.get("/waiting")
        assert found.status_code == 200, found.text
        return found.text


def part(page: str, name: str) -> str:
    return page[page.index(f'id="{name}"') :].partition("</section>")[0]


async def test_turns_say_what_they_wait_for_and_those_that_stand_come_first(fleet: SimulatedFleet) -> None:
    turns = part(await waiting(fleet), "turns")
    assert re.findall(r"/agents/(teller-.)", turns) == ["teller-2", "teller-1"]
    assert (
        "no step of this name" in turns and "step look" in turns and "7.50 s" in turns and "input from @shop" in turns
    )


async def test_inputs_and_dead_letters_name_their_agents(fleet: SimulatedFleet) -> None:
    page = await waiting(fleet)
    assert "teller-3" in part(page, "inputs") and ">12<" in part(page, "inputs")
    assert ">4<" in part(page, "letters") and "teller-1" not in part(page, "letters")


async def test_effects_that_need_people_come_first(fleet: SimulatedFleet) -> None:
    effects = part(await waiting(fleet), "effects")
    assert effects.index("k2") < effects.index("k1") and "needs people: 1" in effects and "done: 1" in effects
    assert "receipt" in effects


async def test_outputs_are_shown_by_topic_the_newest_first_with_who_reads_them(fleet: SimulatedFleet) -> None:
    outputs = part(await waiting(fleet), "outputs")
    assert "refunds: 1, sales: 2" in outputs and "&lt;script&gt;" in outputs and "<script>" not in outputs
    assert outputs.index("7.6") < outputs.index("7.5") < outputs.index("5.1") < outputs.index("books")
    assert re.search(r"books.*6\.1.*>2<", outputs, re.DOTALL), "what it has not had"


async def test_where_nothing_waits_it_says_so() -> None:
    page = await waiting(SimulatedFleet())
    for told in ("No durable turn", "No input waits", "done nothing outside", "given nothing", "There are none."):
        assert told in page


def test_what_hosts_have_not_told_is_said() -> None:
    told = pending_work_body(msgspec.convert({"agents": {"more": 3, "silent_hosts": ["h9"]}}, WaitingFacts))
    assert "Not heard in time: h9." in told and "left out 3 agents" in told


async def test_all_viewers_together_ask_once_in_a_while(fleet: SimulatedFleet) -> None:
    screen = PendingWorkReader(fleet, FleetWatch(fleet))
    first = await screen.facts()
    asked = list(fleet.asked)
    assert await screen.facts() is first and fleet.asked == asked


async def test_a_stream_sends_what_has_changed_and_says_when_the_fleet_is_gone(fleet: SimulatedFleet) -> None:
    made = View(fleet)
    response: Any = await made._waiting_events(None)  # type: ignore[arg-type]  # it asks nothing of the request
    first = dict(json.loads((await anext(response.body_iterator)).removeprefix("data: ")))
    assert {"notices", "turns", "outputs"} <= set(first)
    await response.body_iterator.aclose()
    streams = Streams(0.0)
    open_streams = [streams.events(made._waiting.facts) for _ in range(STREAMS_MAX)]  # type: ignore[arg-type]
    fleet.error = snapline.errors.CoordinatorUnavailableError("no coordinator answers at x")
    made._waiting._asked_s = float("-inf")
    for each in open_streams:
        assert "No coordinator answers at x." in await anext(each)
    assert "refused" in await anext(streams.events(made._waiting.facts))  # type: ignore[arg-type]
    for each in open_streams:
        await each.aclose()


async def test_a_long_ledger_is_read_in_parts(fleet: SimulatedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_work_page, "PAGES_MAX", 1)
    fleet.page = 1
    found = EffectLedger()
    fates = []
    while not found.is_whole:
        await found.catch_up(fleet)
        fates.append([effect.fate for effect in found.effects()])
    assert fates == [["open"], ["open", "open"], ["done", "open"], ["done", "open"]]
    assert [x.key for x in found.open_at([6])[6]] == ["k1", "k2"]
    asked = len(fleet.asked)
    await found.catch_up(fleet)
    assert len(fleet.asked) == asked + 1, "only what is new"


async def test_of_the_ledger_the_newest_words_are_kept(fleet: SimulatedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_work_page, "LEDGER_RECORDS_MAX", 2)
    found = EffectLedger()
    await found.catch_up(fleet)
    assert [(effect.key, effect.fate) for effect in found.effects()] == [("k2", "open"), ("k1", "done")]


async def test_outputs_are_looked_for_further_back_until_there_are_some(fleet: SimulatedFleet) -> None:
    found = await newest_outputs(fleet, 5000)
    assert found.since == 0 and found.counts == {"sales": 2, "refunds": 1}
    fleet.outputs = []
    assert await newest_outputs(fleet, 5000) == NewestOutputs(since=0)


async def test_of_too_many_outputs_those_of_the_last_epochs_are_shown(
    fleet: SimulatedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_work_page, "PAGES_MAX", 2)
    fleet.page = 4
    fleet.outputs = [(epoch, "sales", Sold(epoch)) for epoch in range(1, 101)]
    found = await newest_outputs(fleet, 100)
    assert found.since == 98 and not found.is_cut and found.topics["sales"][-1].epoch == 100


async def test_the_recovery_screen_tells_what_became_of_effects_that_were_open(fleet: SimulatedFleet) -> None:
    async with view(fleet) as http:
        told = part((await http.get("/recovery")).text, "effects")
    assert "Plan 2: 2 effects open in epoch 6" in told and "receipt" in told
    assert re.findall(r'pill[^>]*">([a-z ]+)<', told) == ["done", "open"]
