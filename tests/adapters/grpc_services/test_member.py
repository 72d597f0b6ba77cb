"""The member between two histories, without a fleet."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import snapline
from snapline.adapters.grpc import Member, ServiceAgent, ThreadedMember
from snapline.adapters.grpc.ledger import CallStamp
from snapline.errors import UsageError


class Silent:
    def capture(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass

    def on_cut(self, epoch: int) -> None:
        pass

    def ready(self) -> bool:
        return True


class Slow(Silent):
    """Something of before a recovery goes on in it until `over` is called."""

    def when_work_ended(self, then: Callable[[], None]) -> None:
        self.over = then


@pytest.mark.timeout(20)
async def test_a_line_is_loaded_when_nothing_of_before_goes_on(tmp_path: Path) -> None:
    """The plan is confirmed behind the loading, and the service goes on behind that."""
    fleet, service = snapline.Fleet("slow", agents={"a": ServiceAgent()}), Slow()
    member = Member(service, agent="a", fleet=fleet, coordinator="127.0.0.1:1", store=str(tmp_path))
    loaded: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    member._host.in_worker("line {}".format, 7, then=loaded.set_result)
    await asyncio.sleep(0.05)
    assert not loaded.done()
    service.over()
    assert await loaded == "line 7"


def test_services_are_refused_where_their_answers_would_have_to_wait_for_commits(tmp_path: Path) -> None:
    fleet = snapline.Fleet("silent", agents={"a": ServiceAgent()}, recovery="local")
    for kind in (Member, ThreadedMember):
        with pytest.raises(
            UsageError, match="fleet 'silent' has recovery=\"local\", in which services cannot take part"
        ):
            kind(Silent(), agent="a", fleet=fleet, coordinator="127.0.0.1:1", store=str(tmp_path))


def test_an_agent_that_is_none_for_a_service_is_refused(tmp_path: Path) -> None:
    fleet = snapline.Fleet("silent", agents={"a": ServiceAgent()})
    for kind in (Member, ThreadedMember):
        with pytest.raises(UsageError, match="agent 'b' of fleet 'silent' is no ServiceAgent"):
            kind(Silent(), agent="b", fleet=fleet, coordinator="127.0.0.1:1", store=str(tmp_path))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("stamp", [None, CallStamp(0, 0, "b:1")])
async def test_a_request_that_comes_while_the_fleet_goes_back_waits_and_lets_all_else_go_on(
    stamp: CallStamp | None, tmp_path: Path
) -> None:
    """It asked again and again without a pause, and the process was taken for lost."""
    fleet = snapline.Fleet("silent", agents={"a": ServiceAgent()})
    member = Member(Silent(), agent="a", fleet=fleet, coordinator="127.0.0.1:1", store=str(tmp_path))
    member._move_to(1)
    member.going_back()
    admitted = asyncio.create_task(member.admit(stamp))
    await asyncio.sleep(0.05)
    assert not admitted.done()
    member._move_to(1)
    assert await admitted
