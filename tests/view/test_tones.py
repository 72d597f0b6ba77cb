"""Which states are red: those that need people now, failures and lost hosts. Nothing else is."""

from typing import Any

import pytest
from tests.view.parsed import parse
from tests.view.simulated import SimulatedFleet

from snapline.agent_runtime.effect_ledger import Effect
from snapline.messages.status import KINDS, URGENT
from snapline.view.display_text import tone_of, worst
from snapline.view.epoch_pages import epochs_body
from snapline.view.fleet_page import AgentSearch, FleetScreen, agent_body
from snapline.view.pending_work_page import WaitingFacts, pending_work_body
from snapline.view.watch import LatestStatus


def red(page: str) -> list[str]:
    """The text of all that is red."""
    return [node.text for node in parse(f"<main>{page}</main>").find(class_="bad")]


async def fleet_page(fleet: SimulatedFleet) -> str:
    facts = await fleet.status()
    return FleetScreen().body(LatestStatus(facts, 1.0, agents=tuple(await fleet.agents())), AgentSearch())


@pytest.mark.parametrize("kind", sorted(set(KINDS) - URGENT))
async def test_a_concern_that_can_wait_is_not_red(kind: str) -> None:
    fleet = SimulatedFleet()
    fleet.more["concerns"] = [{"kind": kind, "text": "something waits"}]
    page = await fleet_page(fleet)
    assert "something waits." in page and red(page) == []


@pytest.mark.parametrize("kind", sorted(URGENT))
async def test_a_concern_that_needs_people_now_is_red(kind: str) -> None:
    fleet = SimulatedFleet()
    fleet.more["concerns"] = [{"kind": kind, "text": "something stands"}]
    assert "something stands." in red(await fleet_page(fleet))[0]


async def test_hosts_that_left_or_are_drained_and_dead_letters_are_not_red() -> None:
    fleet = SimulatedFleet(13, 26)
    fleet.states["h2"] = "left"
    fleet.figures["h1"] = {"is_drained": True, "dead_letters": 3}
    fleet.more = {"epochs_aborted": 2, "phase": "recovering", "loss": {"rto_ns": 10**9, "missed": ["rto"]}}
    assert red(await fleet_page(fleet)) == []


async def test_a_lost_host_a_failed_fleet_and_a_missed_rpo_are_red() -> None:
    fleet = SimulatedFleet()
    fleet.states["h2"] = "lost"
    fleet.more = {"phase": "failed", "loss": {"at_risk_ns": 9 * 10**9, "rpo_ns": 10**9, "missed": ["rpo"]}}
    found = red(await fleet_page(fleet))
    assert {"lost", "failed"} <= set(found) and any(text.startswith("9.00 s") for text in found)


def test_aborted_epochs_are_not_red_and_damaged_ones_are() -> None:
    rows = [{"epoch": n, "status": status} for n, status in enumerate(("complete", "aborted", "void", "condemned"), 1)]
    assert red(epochs_body({"protocol": "p", "epochs": rows})) == ["condemned"]


def test_effects_that_only_people_can_settle_are_red() -> None:
    def effect(fate: Any) -> Effect:
        return Effect("a", fate, 1, "pay", "k", fate)

    facts = WaitingFacts(effects=[effect(fate) for fate in ("in doubt", "left", "done", "open", "needs people")])
    assert {text.partition(":")[0] for text in red(pending_work_body(facts))} == {"2", "needs people"}


def test_an_agent_that_has_failed_is_red() -> None:
    assert red(agent_body({"agent": "a", "life": "failed"})) == ["failed"]
    assert red(agent_body({"agent": "a", "life": "stopping"})) == []


def test_the_worst_of_some() -> None:
    assert worst(["good", "bad", "warn"]) == "bad" and worst([]) == "plain"
    assert tone_of("host", "of another release") == "plain"
