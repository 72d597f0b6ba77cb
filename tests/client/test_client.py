"""`snapline.Client` over real gRPC, against hosts and a coordinator that are made up: what programs get, and when."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from tests.client.fake_fleet import FakeCoordinator, FakeFleet, fleet_and_client
from tests.client.fake_host import Paid, Taken, until
from tests.security.certificates import Authority

from snapline.agent_runtime.message_encoding import encode_message
from snapline.client import core, queues, sends_and_asks
from snapline.client.client import Certificates, Client
from snapline.client.sends_and_asks import Receipt, Reply
from snapline.client.sync_client import SyncClient
from snapline.errors import (
    AgentMissingError,
    CoordinatorUnavailableError,
    EncodingError,
    FleetEndedError,
    InputRefusedError,
    InputRejectedError,
    InputsError,
    InputUnknownError,
    MessageTooLargeError,
    UsageError,
)
from snapline.messages.client_requests import InputOutcome
from snapline.protos.v1 import coordinator_pb2_grpc


async def test_a_send_has_a_receipt_and_the_same_key_again_the_same_number() -> None:
    async with fleet_and_client() as (fleet, client):
        first = await client.send("a", Paid(1))
        assert (first.agent, first.number, first.is_repeated, len(first.key)) == ("a", 1, False, 32)
        assert await client.send("a", Paid(2), "order-7") == Receipt("a", 2, "order-7", False)
        assert await client.send("a", ("Paid", {"note": "", "amount": 2}), "order-7") == Receipt(
            "a", 2, "order-7", True
        )
        assert await client.send("c", Paid(1), "order-7") == Receipt("c", 1, "order-7", False)
        assert fleet.books.taken["a"]["order-7"] == (2, encode_message(Paid(2)))
        assert fleet.coordinator.asked == 3, "once for each agent, once to connect"


async def test_many_are_given_in_order_and_together() -> None:
    async with fleet_and_client() as (fleet, client):
        inputs: list[Any] = [("abc"[number % 3], Paid(number), f"k{number}") for number in range(1500)]
        receipts = await client.send_many(inputs)
        assert [x.agent for x in receipts] == [x[0] for x in inputs] and [x.key for x in receipts] == [
            x[2] for x in inputs
        ]
        assert [x.number for x in receipts] == [1 + number // 3 for number in range(1500)]
        assert len(fleet.hosts["h1"].offered) <= 3 and len(fleet.hosts["h2"].offered) <= 2
        assert await client.send_many([]) == []


async def test_calls_at_the_same_time_keep_their_order() -> None:
    async with fleet_and_client() as (fleet, client):
        receipts = await asyncio.gather(*[client.send("a", Paid(number)) for number in range(500)])
        assert [x.number for x in receipts] == list(range(1, 501))
        payloads = [payload for _, payload in fleet.books.taken["a"].values()]
        assert payloads == [encode_message(Paid(number)) for number in range(500)]
        assert len(fleet.hosts["h1"].offered) < 100, "what gathers goes together"


async def test_an_agent_that_moved_is_followed() -> None:
    async with fleet_and_client() as (fleet, client):
        await client.send("a", Paid(1))
        fleet.move("a", "h2")
        assert (await client.send("a", Paid(2))).number == 2, "the coordinator is asked again"
        asked = fleet.coordinator.asked
        fleet.move("a", "h1")
        fleet.hosts["h2"].places["a"] = ("h1", fleet.hosts["h1"].address)
        assert (await client.send("a", Paid(3))).number == 3
        assert fleet.coordinator.asked == asked, "the host says where it lives"


async def test_a_host_that_dies_with_inputs_in_its_hands_costs_nothing_but_time() -> None:
    async with fleet_and_client() as (fleet, client):
        dying = fleet.hosts["h1"]
        dying.hold = []
        sending = asyncio.create_task(client.send_many([("a", Paid(number), f"k{number}") for number in range(5)]))
        await until(lambda: dying.hold)
        await dying.stop()
        fleet.move("a", "h2")
        receipts = await sending
        assert [(x.number, x.is_repeated) for x in receipts] == [(number, True) for number in range(1, 6)]


async def test_a_leader_that_changes_is_followed() -> None:
    fleet = await FakeFleet().start()
    other = FakeCoordinator(fleet)
    address = await fleet.serve(other)
    other.leader = fleet.address
    async with await Client.connect(f"{address},{fleet.address}") as client:
        assert (await client.send("a", Paid(1))).number == 1
        other.leader, fleet.coordinator.leader = None, address
        assert (await client.send("b", Paid(1))).number == 1
    await fleet.stop()


async def test_what_was_not_taken_in_time_is_known_not_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WAIT_LEAST_NS", 10**12)
    monkeypatch.setattr(queues, "WAIT_MOST_NS", 10**12)
    async with fleet_and_client() as (fleet, client):
        fleet.hosts["h1"].answers = lambda offered: InputOutcome("retry", 0, "agent a is new")
        with pytest.raises(InputRejectedError) as caught:
            await client.send("a", Paid(1), "k", timeout_s=3)
        assert str(caught.value) == "the input with key k for agent a was not taken in time: agent a is new"
        assert (caught.value.agent, caught.value.key, caught.value.exit_code) == ("a", "k", 14)


async def test_without_an_answer_it_is_unknown_and_the_key_tells() -> None:
    async with fleet_and_client() as (fleet, client):
        fleet.hosts["h1"].hold = []
        with pytest.raises(InputUnknownError, match="may have been taken, or may be yet") as caught:
            await client.send("a", Paid(1), timeout_s=2)
        assert caught.value.exit_code == 9 and f"key {caught.value.key} for agent a" in str(caught.value)
        fleet.hosts["h1"].hold = None
        again = await client.send("a", Paid(1), caught.value.key)
        assert (again.number, again.is_repeated) == (1, True)


async def test_an_attempt_without_an_answer_is_made_again_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "ATTEMPT_NS", 300_000_000)
    async with fleet_and_client() as (fleet, client):
        fleet.hosts["h1"].hold = []
        sending = asyncio.create_task(client.send("a", Paid(1), "k"))
        await until(lambda: len(fleet.hosts["h1"].offered) >= 2)
        fleet.hosts["h1"].hold = None
        assert await sending == Receipt("a", 1, "k", True)


async def test_what_will_never_be_taken_is_told_at_once() -> None:
    async with fleet_and_client() as (fleet, client):
        with pytest.raises(
            InputRefusedError, match="no handler for messages of type 'Payed'; those it has are for: Closed, Paid"
        ):
            await client.send("a", ("Payed", {}))
        with pytest.raises(InputRefusedError, match=r"Expected `int`, got `str` - at `\$.amount`") as refused:
            await client.send("a", ("Paid", {"amount": "x"}), "k")
        assert (refused.value.agent, refused.value.key) == ("a", "k")
        with pytest.raises(AgentMissingError, match="agent 'nobody' is not in this fleet") as missing:
            await client.send("nobody", Paid(1))
        assert missing.value.exit_code == 4
        fleet.left.append("b")
        with pytest.raises(AgentMissingError, match="agent 'b' has stopped"):
            await client.send("b", Paid(1))
        await client.send("a", Paid(1), "order-7")
        with pytest.raises(InputRefusedError, match="used"):
            await client.send("a", Paid(2), "order-7")
        fleet.phase, fleet.reason = "finished", "stop_when holds"
        with pytest.raises(FleetEndedError, match="the fleet has ended: stop_when holds") as ended:
            await client.send("c", Paid(1))
        assert ended.value.exit_code == 13


async def test_some_of_many_may_fail_and_each_says_why() -> None:
    async with fleet_and_client() as (_, client):
        with pytest.raises(
            InputsError, match="2 of 4 inputs have no receipt; the first: agent 'nobody' is not"
        ) as caught:
            await client.send_many(
                [("a", Paid(1), "k1"), ("nobody", Paid(1)), ("a", ("Payed", {})), ("a", Paid(2), "k2")]
            )
        first, missing, refused, last = caught.value.outcomes
        assert first == Receipt("a", 1, "k1") and last == Receipt("a", 2, "k2")
        assert isinstance(missing, AgentMissingError) and isinstance(refused, InputRefusedError)


@pytest.mark.parametrize(
    ("agent", "message", "key", "error", "words"),
    [
        ("no id", Paid(1), None, UsageError, "no valid agent id"),
        ("a", Paid(1), "", UsageError, "is no key"),
        ("a", Paid(1), "k" * 129, UsageError, "is no key"),
        ("a", Paid(1), 7, UsageError, "7 is no key"),
        ("a", Paid(1, object()), None, EncodingError, "field 'note'"),  # type: ignore[arg-type]  # the wrong one
        ("a", Paid(1, "x" * 2**24), None, MessageTooLargeError, "16,777,216"),
        ("a", ("Paid", {"note": object()}), None, EncodingError, "cannot be written as JSON"),
        ("a", ("Paid", {"note": "x" * 2**24}), None, MessageTooLargeError, "16,777,216"),
    ],
)
async def test_what_cannot_be_sent_is_refused_here(
    agent: str, message: object, key: Any, error: type[Exception], words: str
) -> None:
    async with fleet_and_client() as (fleet, client):
        with pytest.raises(error, match=words):
            await client.send(agent, message, key)
        with pytest.raises(error, match=words):
            await client.send_many([("a", Paid(1)), (agent, message, key)])
        assert not fleet.hosts["h1"].offered
        with pytest.raises(UsageError, match="timeout_s must be above 0, and a day at most"):
            await client.send("a", Paid(1), timeout_s=0)


async def test_large_inputs_arrive_and_do_not_keep_others_waiting_for_ever() -> None:
    async with fleet_and_client() as (_, client):
        large = [("a", Paid(number, "x" * 6_000_000)) for number in range(4)]
        receipts = await client.send_many([*large, ("b", Paid(1))])
        assert [x.number for x in receipts] == [1, 2, 3, 4, 1]


async def test_beyond_its_room_a_client_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sends_and_asks, "SENDS_MAX", 10)
    async with fleet_and_client() as (fleet, client):
        most = 0
        take = fleet.books.take

        def counting(agent: str, key: str, payload: bytes) -> InputOutcome:
            nonlocal most
            most = max(most, len(client._sends.waiting))
            return take(agent, key, payload)

        fleet.books.take = counting  # type: ignore[method-assign]  # it looks on
        receipts = await client.send_many([("a", Paid(number)) for number in range(95)])
        assert [x.number for x in receipts] == list(range(1, 96)) and most == 10
        fleet.hosts["h1"].hold = []
        sending = asyncio.create_task(client.send_many([("a", Paid(number)) for number in range(10)]))
        await until(lambda: fleet.hosts["h1"].hold)
        with pytest.raises(InputRejectedError, match="this client has too many under way") as caught:
            await client.send("c", Paid(1), "k", timeout_s=0.5)
        assert caught.value.key == "k"
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert client._sends._bytes == 0 and not client._sends.waiting


async def test_who_does_not_wait_any_more_is_forgotten() -> None:
    async with fleet_and_client() as (fleet, client):
        await client.send("a", Paid(0), "k0")  # it is found
        fleet.hosts["h1"].hold = []
        first, second = (asyncio.create_task(client.send("a", Paid(number), f"k{number}")) for number in (1, 2))
        await until(lambda: fleet.hosts["h1"].hold)
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        held, fleet.hosts["h1"].hold = fleet.hosts["h1"].hold, None
        for answer in held:
            answer()
        assert (await client.send("a", Paid(3), "k3")).number == 3
        assert list(fleet.books.taken["a"]) == ["k0", "k1", "k3"], "the second had not left"
        assert client._sends._bytes == 0 and not client._sends.waiting


async def test_a_closed_client_ends_what_is_under_way_and_takes_nothing() -> None:
    async with fleet_and_client() as (fleet, client):
        fleet.hosts["h1"].hold = []
        sending = asyncio.create_task(client.send("a", Paid(1)))
        await until(lambda: fleet.hosts["h1"].hold)
        await client.close()
        with pytest.raises(InputUnknownError, match="the client was closed"):
            await sending
        with pytest.raises(InputRejectedError, match="the client was closed"):
            await client.send("a", Paid(1))


def broken(_now_ns: int, _event: object) -> None:
    raise ZeroDivisionError


async def test_an_error_of_ours_lets_nobody_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet_and_client() as (fleet, client):
        fleet.hosts["h1"].hold = []
        sending = asyncio.create_task(client.send("a", Paid(1)))
        await until(lambda: fleet.hosts["h1"].hold)
        with monkeypatch.context() as patch:
            patch.setattr(client._core, "handle", broken)
            with pytest.raises(ZeroDivisionError):
                await client.send("b", Paid(1))
        with pytest.raises(ZeroDivisionError):
            await sending


async def test_status_and_agents_are_read() -> None:
    async with fleet_and_client() as (_, client):
        assert [(x.agent, x.state, x.host) for x in await client.agents()] == [
            ("a", "alive", "h1"),
            ("b", "alive", "h1"),
            ("c", "alive", "h2"),
        ]
        status = await client.status()
        assert (status.fleet, status.phase) == ("shop", "running")


async def test_a_coordinator_that_answers_in_a_moment_is_waited_for() -> None:
    """A busy machine's takes a connection and says nothing for a tenth of a second, which is gRPC's limit here: that is no dead one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = grpc.aio.server()
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(FakeFleet().coordinator, server)  # type: ignore[no-untyped-call]
    connected = asyncio.create_task(Client.connect(f"127.0.0.1:{port}"))
    await asyncio.sleep(0.3)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        await (await connected).close()
    finally:
        await server.stop(None)


async def test_nobody_there_is_told_when_it_connects(tmp_path: Path) -> None:
    with pytest.raises(CoordinatorUnavailableError):
        await Client.connect("127.0.0.1:9")
    for arguments, words in (
        ({}, "which fleet"),
        ({"address": " , "}, "which fleet"),
        ({"address": "127.0.0.1:9", "data_dir": tmp_path}, "give one of them"),
        ({"data_dir": tmp_path}, "names no coordinator"),
        ({"address": "127.0.0.1:9", "name": "no id"}, "no valid client id"),
        ({"address": "127.0.0.1:9", "insecure": True, "tls": Certificates("c", "k", "a")}, "contradicts"),
        ({"address": "192.0.2.1:9"}, "plaintext"),
    ):
        with pytest.raises(UsageError, match=words):
            await Client.connect(**arguments)


async def test_the_folder_of_a_local_fleet_says_where_it_is(tmp_path: Path) -> None:
    async with fleet_and_client() as (fleet, _):
        (tmp_path / "coordinator.json").write_text(json.dumps({"address": fleet.address}))
        async with await Client.connect(data_dir=tmp_path, name="shop") as client:
            await client.send("a", Paid(1))
        assert fleet.hosts["h1"].offered[0][0] == "shop"


# ---- without an event loop ----------------------------------------------------------------------------------------------


async def test_a_program_without_an_event_loop_has_the_same() -> None:
    fleet = await FakeFleet().start()

    def program() -> None:
        with SyncClient.connect(fleet.address) as client:
            assert client.send("a", Paid(1), "k") == Receipt("a", 1, "k")
            assert [x.number for x in client.send_many([("a", Paid(1)), ("b", Paid(1))])] == [2, 1]
            with pytest.raises(AgentMissingError):
                client.send("nobody", Paid(1))
            assert [x.agent for x in client.agents()] == ["a", "b", "c"] and client.status().fleet == "shop"
            asked = client.ask("b", Paid(1), "k", early=True, reply_type=Taken)
            assert asked == Reply("b", 2, Taken(2), True, "k")
        client.close()
        with pytest.raises(UsageError, match="this client is closed"):
            client.send("a", Paid(1))
        with pytest.raises(UsageError, match="which fleet"):
            SyncClient.connect()

    await asyncio.to_thread(program)
    await fleet.stop()


# ---- certificates -------------------------------------------------------------------------------------------------------


async def test_with_certificates_a_client_may_and_others_are_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    fleet = FakeFleet(authority.issue("coordinator", role="coordinator").security())
    fleet.address = await fleet.serve(fleet.coordinator)
    leaf = authority.issue("web", role="client")
    files = Certificates(leaf.certificate, leaf.key, leaf.authority)
    async with await Client.connect(fleet.address, tls=files) as client:
        with pytest.raises(AgentMissingError):
            await client.send("a", Paid(1))
    host = authority.issue("h1", role="host")
    with pytest.raises(
        UsageError,
        match="needs the role viewer or approver or operator or admin or client, and this one is for host h1",
    ):
        await Client.connect(fleet.address, tls=Certificates(host.certificate, host.key, host.authority))
    await fleet.stop()


async def test_a_new_certificate_is_presented_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapline.client.client.RELOAD_S", 0.05)
    authority = Authority(tmp_path)
    fleet = FakeFleet(authority.issue("coordinator", role="coordinator").security())
    fleet.address = await fleet.serve(fleet.coordinator)
    leaf = authority.issue("web", role="client")
    async with await Client.connect(
        fleet.address, tls=Certificates(leaf.certificate, leaf.key, leaf.authority)
    ) as client:
        before = client._coordinator
        authority.write(leaf, "web-2", role="client")
        await until(lambda: client._coordinator is not before)
        assert await client.agents() == []
    await fleet.stop()
