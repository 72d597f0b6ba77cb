"""What the screen *Coordinators* says of the coordinator's replicas."""

from msgspec.structs import replace
from tests.view.parsed import Node, parse
from tests.view.simulated import SimulatedFleet
from tests.view.test_app import view

from snapline.messages.status import AskedReplica
from snapline.view.fleet_page import coordinators_body


def page_of(replicas: list[AskedReplica]) -> Node:
    return parse(f"<main>{coordinators_body(replicas)}</main>")


def rows_of(page: Node) -> list[list[str]]:
    """The text of each cell."""
    return [[each.text for each in row.child("th") + row.child("td")] for row in page.find("tbody")[0].child("tr")]


async def test_each_replica_has_its_role_its_place_in_the_log_and_its_connections() -> None:
    async with view() as http:
        assert 'href="/coordinators"' in (await http.get("/")).text
        page = parse((await http.get("/coordinators")).text.removeprefix("<!DOCTYPE html>"))
    assert rows_of(page) == [
        ["c1", "10.0.0.1:4000", "leader", "c2", "4", "90", "88", "1 to 91, 2.0 KiB"],
        ["c2", "10.0.0.2:4000", "follower", "c1", "4", "90", "88", "1 to 91, 2.0 KiB"],
        ["c3", "10.0.0.3:4000", "silent", "nobody answers there; the leader is not connected to it"],
    ]
    assert "2 of 3 replicas answered; c1 leads, term 4" in page.text


async def test_a_learner_and_a_lost_majority_are_said() -> None:
    leader, second, third = await SimulatedFleet().replicas()
    assert leader.status is not None and second.status is not None
    alone = replace(
        leader.status, standing=replace(leader.status.standing, is_leader=False, leader=""), has_quorum=False
    )
    learner = replace(second.status, is_learner=True, standing=alone.standing)
    page = page_of([replace(leader, status=alone), replace(second, status=learner), third])
    first, learns, silent = rows_of(page)
    assert first[2:4] == ["follower", "c2; no majority"] and learns[2].startswith("learner lost its log")
    assert silent[3] == "nobody answers there" and "none of them leads" in page.text
