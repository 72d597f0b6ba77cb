"""What a program asks of the whole fleet, over real gRPC, against a coordinator that is made up."""

import pytest
from tests.client.fake_fleet import fleet_and_client

from snapline.client.client import Client
from snapline.client.sync_client import SyncClient
from snapline.errors import SnapshotAbortedError, UnknownOutcomeError, UsageError
from snapline.protos.v1 import coordinator_pb2 as pb


async def test_a_snapshot_is_told_as_the_command_prints_it() -> None:
    async with fleet_and_client() as (fleet, client):
        told = {"epoch": 3, "is_complete": True, "reason": "", "root": "ab", "elapsed_ns": 1}
        assert await client.snapshot() == {
            "apiVersion": "snapline/v1",
            "kind": "SnapshotCreated",
            "is_new": True,
            **told,
        }
        fleet.coordinator.outcome = pb.SnapshotOutcome(epoch=3, is_complete=True, reason="nothing has moved")
        assert (await client.snapshot())["is_new"] is False


@pytest.mark.parametrize(
    ("epoch", "told"), [(4, "epoch 4 was aborted: host h2 was lost"), (0, "no snapshot was taken: host h2 was lost")]
)
async def test_a_snapshot_that_is_none_is_an_error(epoch: int, told: str) -> None:
    async with fleet_and_client() as (fleet, client):
        fleet.coordinator.outcome = pb.SnapshotOutcome(epoch=epoch, reason="host h2 was lost")
        with pytest.raises(SnapshotAbortedError, match=told) as caught:
            await client.snapshot()
        assert caught.value.exit_code == 1


async def test_without_a_word_in_time_it_is_unknown() -> None:
    async with fleet_and_client() as (fleet, client):
        fleet.coordinator.is_silent = True
        with pytest.raises(UnknownOutcomeError, match="did not answer in time; what was asked may have happened"):
            await client.snapshot(timeout_s=0.2)
        with pytest.raises(UsageError, match="timeout_s must be above 0"):
            await client.snapshot(timeout_s=0)


def test_programs_without_an_event_loop_have_the_same() -> None:
    shared = {name for name in vars(Client) if not name.startswith("_")} - {"start"}
    assert shared <= set(vars(SyncClient))
