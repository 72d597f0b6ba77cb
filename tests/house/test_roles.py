"""docs/security.md shows the tables as they are, and what operators do is written down."""

from tests.house.roles_page import PAGE, renewed

from snapline.security.rpc_authorization import RPC_RULES


def test_the_page_shows_the_table_as_it_is() -> None:
    page = PAGE.read_text()
    assert renewed(page) == page, "run `python -m tests.house.roles_page`"


NO_ACTS = {"Ask", "MoveConsumer"}
"""For operators and not for viewers, and yet they only hear and read."""


def test_what_operators_may_do_and_viewers_may_not_is_written_down() -> None:
    for rpc, door in RPC_RULES.items():
        is_act = bool({"operator", "admin"} & set(door.roles)) and "viewer" not in door.roles
        is_reading = door.roles == ("admin",) and rpc.rpartition("/")[2].startswith("Read")
        assert door.changes_state == (is_act and not is_reading and rpc.rpartition("/")[2] not in NO_ACTS), rpc
