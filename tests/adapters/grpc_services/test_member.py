"""The member between two histories, without a fleet."""

import asyncio
from pathlib import Path

import pytest

import snapline
from snapline.adapters.grpc import Member, ServiceAgent
from snapline.adapters.grpc.stamps import CallStamp


class Silent:
    def capture(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass

    def on_cut(self, epoch: int) -> None:
        pass

    def ready(self) -> bool:
        return True


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
