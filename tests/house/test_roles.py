"""Every call that is served has a door, and docs/security.md shows the table as it is."""

from tests.house.roles_page import BEGIN, END, PAGE, renewed

from snapline.channels.doors import DOORS, ROLES
from snapline.protos.v1 import agents_pb2, coordinator_pb2, inputs_pb2, link_pb2, raft_pb2


def test_the_page_shows_the_table_as_it_is() -> None:
    page = PAGE.read_text()
    assert BEGIN in page and END in page
    assert renewed(page) == page, "run `python -m tests.house.roles_page`"


def test_every_call_of_ours_has_a_door() -> None:
    described = [each.DESCRIPTOR for each in (coordinator_pb2, raft_pb2, link_pb2, inputs_pb2, agents_pb2)]
    services = [service for file in described for service in file.services_by_name.values()]
    calls = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert calls == {rpc for rpc in DOORS if rpc.startswith("/snapline.")}


def test_doors_are_for_roles_that_exist() -> None:
    assert all(door.roles and set(door.roles) <= set(ROLES) for door in DOORS.values())


NO_ACTS = {"Ask", "MoveConsumer"}
"""For operators and not for viewers, and yet they only hear and read."""


def test_what_operators_may_do_and_viewers_may_not_is_written_down() -> None:
    for rpc, door in DOORS.items():
        is_act = bool({"operator", "admin"} & set(door.roles)) and "viewer" not in door.roles
        is_reading = door.roles == ("admin",) and rpc.rpartition("/")[2].startswith("Read")
        assert door.acts == (is_act and not is_reading and rpc.rpartition("/")[2] not in NO_ACTS), rpc
