"""What the screen *Fleet* says of documents, and what of it is sent again."""

import re

import msgspec
from tests.view.parsed import parse
from tests.view.simulated import SimulatedFleet

from snapline.messages.status import FleetStatus
from snapline.view.fleet_page import NOTICES_OPEN, ROWS_MAX, AgentSearch, FleetScreen
from snapline.view.page_elements import ViewerState
from snapline.view.watch import COURSE_MAX, FleetWatch, LatestStatus, TurnRates

ALL = AgentSearch()


async def standing(fleet: SimulatedFleet) -> LatestStatus:
    return LatestStatus(await fleet.status(), 1.0, agents=tuple(await fleet.agents()))


async def test_it_has_every_host_and_agent() -> None:
    body = FleetScreen().body(await standing(SimulatedFleet()), ALL)
    assert re.findall(r'<tr id="host-(\w+)">', body) == ["h1", "h2", "h3"]
    assert re.findall(r'href="/agents/([\w-]+)"', body) == [f"teller-{n}" for n in range(6)]
    assert '<span class="pill good">running</span>' in body and "chandy-lamport (coordinated) · plan 1" in body


async def test_what_is_wrong_is_said() -> None:
    fleet = SimulatedFleet()
    fleet.states["h2"] = "lost"
    fleet.figures["h1"] = {"busy": [{"agent": "teller-3", "elapsed_ns": 3 * 10**9}], "dead_letters": 2}
    fleet.more = {
        "store": {"location": "s", "state": "degraded", "since_ns": 3_000_000_000, "reason": "disk full"},
        "concerns": [
            {
                "kind": "cut",
                "hosts": ["h1", "h2"],
                "since_ns": 5_000_000_000,
                "text": "h1 does not reach h2",
                "remedy": "look",
            }
        ],
    }
    body = FleetScreen().body(await standing(fleet), ALL)
    assert "disk full" in body and "H1 does not reach h2." in body
    assert " For 5.00 s. To do: look." in body
    assert '<span class="pill bad">lost</span>' in body and '<dd class="warn">2</dd>' in body
    assert re.search(r'<section id="busy".*teller-3.*3\.00 s', body)


async def headline(fleet: SimulatedFleet, trouble: str = "") -> tuple[str, str]:
    """Its class and its text: the first thing on the page."""
    body = FleetScreen().body(msgspec.structs.replace(await standing(fleet), trouble=trouble), ALL)
    notices = parse(f"<main>{body}</main>").find("main")[0].child("div")[0]
    first = notices.child("p")[0]
    return first.attributes["class"].split()[1], first.text


async def test_the_headline_says_that_all_is_well() -> None:
    assert await headline(SimulatedFleet()) == ("good", "All is well: 6 agents on 3 hosts.")


async def test_the_headline_is_the_worst_concern() -> None:
    fleet = SimulatedFleet()
    fleet.more["concerns"] = [
        {"kind": "drained", "hosts": ["h1"], "since_ns": 900_000_000_000, "text": "host h1 has no agents"},
        {
            "kind": "turn",
            "hosts": [],
            "agents": ["a"],
            "since_ns": 3_000_000_000,
            "text": "agent a stands",
            "remedy": "look",
        },
        {
            "kind": "turn",
            "hosts": [],
            "agents": ["b"],
            "since_ns": 7_000_000_000,
            "text": "agent b stands",
            "remedy": "look",
        },
    ]
    assert await headline(fleet) == ("bad", "Something is wrong: agent b stands. For 7.00 s. To do: look.")
    del fleet.more["concerns"][1:]
    assert await headline(fleet) == ("warn", "Worth a look: host h1 has no agents. For 15 min.")


async def test_the_headline_without_a_concern_goes_by_phase_and_hosts() -> None:
    fleet = SimulatedFleet()
    fleet.more["phase"] = "recovering"
    assert await headline(fleet) == ("warn", "Worth a look: the fleet recovers.")
    fleet.states["h2"] = "lost"
    assert (await headline(fleet))[1].startswith("Something is wrong: 1 host is lost: h2. To do: ")
    fleet.more |= {"phase": "failed", "reason": "all snapshots are damaged"}
    assert await headline(fleet) == ("bad", "Something is wrong: the fleet has failed: all snapshots are damaged.")
    fleet.more |= {"phase": "finished", "reason": ""}
    assert await headline(fleet) == ("plain", "The fleet has finished.")
    assert (await headline(fleet, "nobody answers"))[1].startswith("Nobody answers. What is shown was heard")


async def test_hundreds_of_concerns_are_folded() -> None:
    fleet = SimulatedFleet()
    fleet.more["concerns"] = [{"kind": "turn", "text": f"agent a{n} stands"} for n in range(300)]
    page = parse(f"<main>{FleetScreen().body(await standing(fleet), ALL)}</main>")
    notices = page.find(id="notices")[0]
    assert len(notices.child("p")) == 1 + NOTICES_OPEN
    assert "and 295 more" in notices.text and "`snapline status` has all of them." in notices.text


async def test_before_the_first_answer_there_is_a_sentence() -> None:
    body = FleetScreen().body(LatestStatus(trouble="nobody answers"), ALL)
    assert "Waiting for the fleet" in body and "Nobody answers." in body


async def test_ten_thousand_agents_are_searched_and_counted() -> None:
    now, screen = await standing(SimulatedFleet(100, 10_000)), FleetScreen()
    body = screen.body(now, ALL)
    assert f"10,000 agents, the first {ROWS_MAX} are shown" in body and body.count('href="/agents/') == ROWS_MAX
    assert body.count('class="tile ') == 100
    found = screen.found(now, AgentSearch("TELLER-99", host="h1"))
    assert re.findall(r'href="/agents/([\w-]+)"', found) == ["teller-9900"]
    assert "1 of 10,000 agents" in found
    assert "No agent is found." in screen.found(now, AgentSearch(state="left"))


async def test_agents_stand_in_the_order_that_people_count() -> None:
    found = FleetScreen().found(await FleetWatch(SimulatedFleet(1, 12)).now(), ALL)
    assert re.findall(r'href="/agents/teller-(\d+)"', found) == [str(n) for n in range(12)]


async def test_only_what_has_changed_is_sent_again() -> None:
    fleet, screen, shown = SimulatedFleet(), FleetScreen(), ViewerState()
    first = await standing(fleet)
    assert {id for id, _ in shown.changes(screen.pieces(first, ALL))} >= {"hosts", "host-h1", "agents", "found"}
    assert shown.changes(screen.pieces(first, ALL)) == []
    fleet.figures["h2"] = {"parked": 1}
    second = msgspec.structs.replace(await standing(fleet), agents=first.agents)
    assert [id for id, _ in shown.changes(screen.pieces(second, ALL))] == ["figures", "host-h2"]
    fleet.names.append("h4")
    fleet.states["h4"], fleet.figures["h4"] = "alive", {}
    third = msgspec.structs.replace(await standing(fleet), agents=first.agents)
    changed = [id for id, _ in shown.changes(screen.pieces(third, ALL))]
    assert "hosts" in changed and "host-h4" in changed and "found" not in changed


def test_rates_are_those_of_the_last_seconds() -> None:
    def facts(**turns: int) -> FleetStatus:
        hosts = [{"host": host, "state": "alive", "turns": count} for host, count in turns.items()]
        return msgspec.convert({"hosts": hosts}, FleetStatus)

    rates = TurnRates()
    assert rates.note(0.0, facts(a=100)) == ({}, ())
    assert rates.note(1.0, facts(a=110, b=5)) == ({"a": 10.0}, (10.0,))
    assert rates.note(2.0, facts(a=3, b=25))[0] == {"a": 0.0}, "started again, or not known for long"
    for second in range(3, 200):
        found, course = rates.note(float(second), facts(a=100 * second, b=0))
    assert found["a"] == 100.0 and len(course) == COURSE_MAX
