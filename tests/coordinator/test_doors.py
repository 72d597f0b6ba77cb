"""The guard in front of a real coordinator: who may not is not read, what is too large is not parsed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.coordinator.grpc_host import GrpcHost
from tests.coordinator.test_server import Running
from tests.security.certificates import Authority

from snapline.agent_runtime.host.coordinator_session import CoordinatorUsers, Session
from snapline.channels.servers import client_options
from snapline.coordinator.service import servicer
from snapline.errors import NotFoundError, UsageError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.host_messages import Directive, TurnedAway
from snapline.messages.wire import decode_host_message
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.security import rpc_authorization
from snapline.security import rpc_authorization as under_way
from snapline.security.rpc_authorization import FIRST_BYTES_MAX, REQUEST_BYTES_MAX, Caller, RpcGuard
from snapline.security.tokens import digest_of, new_token
from snapline.security.transport import Identity, Security, server_name

COORDINATOR = "/snapline.protos.v1.Coordinator"
MIB = 1024 * 1024


class Protected:
    """A coordinator with certificates, and callers that say bytes to it."""

    def __init__(self, running: Running, folder: Path) -> None:
        self.running = running
        self.authority = Authority(folder)
        self.address = ""

    async def start(self) -> None:
        leaf = self.authority.issue("coordinator", role="coordinator")
        self.address = await self.running.start(security=leaf.security())

    def security(self, role: str, name: str) -> Security:
        return self.authority.issue(name, role=role).security()

    def channel(self, role: str, name: str) -> grpc.aio.Channel:
        leaf = self.authority.issue(name, role=role)
        credentials = grpc.ssl_channel_credentials(
            leaf.authority.read_bytes(), leaf.key.read_bytes(), leaf.certificate.read_bytes()
        )
        options = client_options(server_name("coordinator", "coordinator"))
        return grpc.aio.secure_channel(self.address, credentials, options=options)

    async def code(self, rpc: str, data: bytes, *, role: str = "viewer", name: str = "v") -> grpc.StatusCode:
        """How a unary call with these bytes ends."""
        async with self.channel(role, name) as channel:
            try:
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(rpc)
                await call(data, timeout=10)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK


@pytest.fixture
async def protected(tmp_path: Path) -> AsyncIterator[Protected]:
    made = Protected(Running(tmp_path), tmp_path)
    await made.start()
    yield made
    await made.running.stop()


def join(host: str) -> bytes:
    joined = pb.Join(host=host, instance="i", address="127.0.0.1:1", fleet="f", definition_digest=b"d")
    return pb.HostMessage(join=joined).SerializeToString()


async def first_answer(channel: grpc.aio.Channel, data: bytes) -> pb.Directive:
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"{COORDINATOR}/Attend")(
        wait_for_ready=True  # a busy machine may give up a handshake
    )
    await call.write(data)
    found = await asyncio.wait_for(call.read(), 20)
    assert isinstance(found, bytes)
    call.cancel()
    return pb.Directive.FromString(found)


class Listening:
    """Counts what is parsed, by the deserialisers that the guard calls."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.parsed: list[int] = []
        parse = rpc_authorization._Call._parsed

        async def counting(call: rpc_authorization._Call, data: bytes, context: rpc_authorization.Context) -> object:
            self.parsed.append(len(data))
            return await parse(call, data, context)

        patch.setattr(rpc_authorization._Call, "_parsed", counting)


async def test_who_may_not_is_not_read(protected: Protected, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = Listening(monkeypatch)
    names = b"\x0a\x00" * (8 * MIB - 1024)
    for role, rpc in (("passer-by", "RecoveryLine"), ("host", "RecoveryLine"), ("viewer", "Backup")):
        assert await protected.code(f"{COORDINATOR}/{rpc}", names, role=role) is grpc.StatusCode.PERMISSION_DENIED
    assert listening.parsed == []
    assert await protected.code(f"{COORDINATOR}/RecoveryHistory", b"") is grpc.StatusCode.OK
    assert listening.parsed == [0]


async def test_requests_are_bounded_and_have_a_status_of_their_own(protected: Protected) -> None:
    line = f"{COORDINATOR}/RecoveryLine"
    assert await protected.code(line, b"\x0a\x00" * REQUEST_BYTES_MAX) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await protected.code(line, b"\x0a\x05abc") is grpc.StatusCode.INVALID_ARGUMENT
    assert await protected.code(f"{COORDINATOR}/Unheard", b"", role="admin") is grpc.StatusCode.UNIMPLEMENTED


async def test_the_sentence_says_which_roles_may(protected: Protected) -> None:
    client = CoordinatorClient(protected.address, protected.security("viewer", "victor"))
    with pytest.raises(
        UsageError, match="taking a snapshot needs the role operator or admin, and this one is for viewer victor"
    ):
        await client.create_snapshot(10)
    await client.close()


async def test_whoever_asks_how_the_fleet_stands_hears_what_they_are_to_it(protected: Protected) -> None:
    for role in ("viewer", "approver", "operator"):
        client = CoordinatorClient(protected.address, protected.security(role, "somebody"))
        assert (await client.status()).caller_role == role
        await client.close()


async def test_a_host_speaks_for_itself_alone(protected: Protected) -> None:
    async with protected.channel("host", "h1") as channel:
        answer = await first_answer(channel, join("h2"))
        assert answer.turned_away.is_final and "says host h1, the caller says host h2" in answer.turned_away.reason
    client = CoordinatorClient(protected.address, protected.security("host", "h1"))
    assert await client.report_host_exit("h1", "i", "gone") is False
    with pytest.raises(UsageError, match="it says host h1, and the call is about h2"):
        await client.report_host_exit("h2", "i", "gone")
    await client.close()
    launcher = CoordinatorClient(protected.address, protected.security("launcher", "l"))
    assert await launcher.report_host_exit("h2", "i", "gone") is False
    await launcher.close()


async def test_a_host_with_another_roles_certificate_is_turned_away_for_good(protected: Protected) -> None:
    """It would not help to try again: the host's process ends."""
    told: list[Directive] = []
    hello = decode_host_message(join("h1"))
    session = Session(
        protected.address, protected.security("viewer", "h1"), lambda: hello, told.append, lambda text: None
    )
    attending = asyncio.create_task(session.run())
    async with asyncio.timeout(20):
        while not told:
            await asyncio.sleep(0.01)
    attending.cancel()
    await asyncio.gather(attending, return_exceptions=True)
    (away,) = told
    assert isinstance(away, TurnedAway)
    assert away.is_final and "the call Attend needs the role host, and this one is for viewer h1" in away.reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a\x00" * FIRST_BYTES_MAX, "a first message of 131072 bytes; 65536 are allowed"),
        (pb.HostMessage(leave=pb.Leave()).SerializeToString(), "the first message of a stream is Join"),
        (b"\x0a\x05abc", "no HostMessage"),
    ],
    ids=["large", "another", "garbage"],
)
async def test_a_stream_that_begins_wrongly_is_turned_away(protected: Protected, data: bytes, reason: str) -> None:
    async with protected.channel("host", "h1") as channel:
        answer = await first_answer(channel, data)
    assert answer.turned_away.is_final and reason in answer.turned_away.reason
    driver = protected.running.task
    assert driver is not None and not driver.done()


async def test_one_stream_of_a_caller_waits_for_its_first_message(protected: Protected) -> None:
    """The others are not read meanwhile, and other callers do not wait."""
    async with protected.channel("host", "h1") as channel, protected.channel("host", "h2") as other:
        silent: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"{COORDINATOR}/Attend")()
        await silent.wait_for_connection()
        while not _is_awaited(protected):
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(first_answer(channel, join("h1")))
        assert (await first_answer(other, join("h2"))).HasField("read_probe")
        await asyncio.sleep(0.1)
        assert not waiting.done()
        silent.cancel()
        assert (await waiting).HasField("read_probe")


async def test_streams_are_calls_under_way_too(protected: Protected, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds some memory, also while its first message is still to come."""
    monkeypatch.setattr(under_way, "CALLS_MAX", 2)
    async with protected.channel("host", "h1") as channel:
        opened: list[grpc.aio.StreamStreamCall[bytes, bytes]] = []
        for _ in range(2):
            opened.append(channel.stream_stream(f"{COORDINATOR}/Attend")(wait_for_ready=True))
            await opened[-1].wait_for_connection()
        opened.append(channel.stream_stream(f"{COORDINATOR}/Attend")(wait_for_ready=True))  # refused, perhaps at once
        async with asyncio.timeout(10):
            assert await opened[2].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 calls of this caller are under way" in (await opened[2].details() or "")
        assert not opened[0].done() and not opened[1].done()


def _is_awaited(protected: Protected) -> bool:
    import gc

    return any("host/h1" in guard._gates for guard in gc.get_objects() if isinstance(guard, RpcGuard))


# ---- people -----------------------------------------------------------------------------------------------------------


async def test_a_token_says_who_calls_and_what_they_do_is_written_down(protected: Protected) -> None:
    admin = CoordinatorClient(protected.address, protected.security("admin", "ada"))
    bearer = protected.security("bearer", "people")
    token = new_token()
    bob = CoordinatorClient(protected.address, bearing(bearer, token))
    with pytest.raises(
        UsageError, match="this token may not do that: it was revoked, its time is over, or it never was"
    ):
        await bob.status()
    await admin.make_token("bob", "operator", digest_of(token), 3600)
    await bob.status()
    with pytest.raises(NotFoundError, match="no host 'h7'"):
        await bob.forget_host("h7")
    for _ in range(3):
        with pytest.raises(
            UsageError,
            match="this token may not do that: creating a token needs the role admin, and this one is for operator bob",
        ):
            await bob.make_token("eve", "admin", digest_of("x"), 60)
    await admin.revoke_token("bob")
    with pytest.raises(UsageError, match="it was revoked"):
        await bob.status()
    assert (await admin.read_tokens()).tokens == ()
    told = [
        (each.name, each.role, each.is_borne, each.call, each.outcome) for each in (await admin.read_audit(50)).calls
    ]
    assert told == [
        ("ada", "admin", False, "MakeToken", "allowed"),
        ("bob", "operator", True, "ForgetHost", "allowed"),
        ("bob", "operator", True, "ForgetHost", "failed"),
        ("bob", "operator", True, "MakeToken", "refused"),
        ("ada", "admin", False, "RevokeToken", "allowed"),
    ]
    found = (await admin.read_audit(4)).calls
    assert [each.number for each in found] == [2, 3, 4, 5] and "no host 'h7'" in found[1].about
    assert found[0].about == "host h7" and found[3].about == "name bob"
    assert token not in repr(await admin.backup()), "nobody learns a token from the fleet"
    await admin.close()
    await bob.close()


def bearing(security: Security, token: str) -> Security:
    """The same certificate, and a token beside it."""
    files = security._files
    assert files is not None
    return Security.tls(authority=files.authority, certificate=files.certificate, key=files.key, token=token)


async def test_a_token_counts_for_what_it_says_and_no_certificate_beside_it(protected: Protected) -> None:
    """Not even one that could do more; and a certificate of the role `bearer` can do nothing alone."""
    admin = CoordinatorClient(protected.address, protected.security("admin", "ada"))
    token = new_token()
    await admin.make_token("vera", "viewer", digest_of(token), 3600)
    for security in (
        bearing(protected.security("admin", "root"), token),
        bearing(protected.security("host", "h1"), token),
    ):
        vera = CoordinatorClient(protected.address, security)
        await vera.status()
        with pytest.raises(UsageError, match="this one is for viewer vera"):
            await vera.backup()
        await vera.close()
    bare = CoordinatorClient(protected.address, protected.security("bearer", "people"))
    with pytest.raises(UsageError, match="and this one is for bearer people"):
        await bare.status()
    nonsense = CoordinatorClient(protected.address, bearing(protected.security("admin", "root"), "x" * 500))
    with pytest.raises(UsageError, match="this token may not do that"):
        await nonsense.status()
    for client in (admin, bare, nonsense):
        await client.close()


async def test_a_host_asks_who_bears_a_token_and_says_what_was_asked_of_it(protected: Protected) -> None:
    admin = CoordinatorClient(protected.address, protected.security("admin", "ada"))
    token = new_token()
    await admin.make_token("bob", "operator", digest_of(token), 3600)
    people = CoordinatorUsers(protected.address, protected.security("host", "h1"))
    with pytest.raises(UsageError, match="host h1 is no member of this fleet"):
        await people.holder(digest_of(token))
    host = GrpcHost("h1", protected.address, protected.running.open_store())
    await host.connect(protected.channel("host", "h1"))
    await host.until(lambda directive: directive.HasField("welcome"))
    assert await people.holder(digest_of(token)) == ("operator", "bob")
    assert await people.holder(digest_of("another")) is None
    caller = Caller(Identity("operator", "bob"), digest_of(token))
    await people.record(caller, "Settle", "a: verb retry", "allowed")
    await admin.revoke_token("bob")
    assert await people.holder(digest_of(token)) == ("operator", "bob"), "it is believed for some seconds"
    with pytest.raises(UsageError, match="the token is not good, or not any more"):
        await people.record(caller, "Settle", "a: verb drop", "allowed")
    settled = [each for each in (await admin.read_audit(50)).calls if each.call == "Settle"]
    assert [(each.at, each.name, each.about) for each in settled] == [("h1", "bob", "a: verb retry")]
    await people.close()
    await admin.close()
    await host.drop()


# ---- each reverted mend is found ------------------------------------------------------------------------------------


def roles_are_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RpcGuard, "_refusal", lambda self, caller, door, method: None)


def requests_have_any_size(patch: pytest.MonkeyPatch) -> None:
    larger = {rpc: door._replace(request_bytes_max=2**30) for rpc, door in rpc_authorization.RPC_RULES.items()}
    patch.setattr(rpc_authorization, "RPC_RULES", larger)


@pytest.mark.parametrize("mutant", [roles_are_not_asked, requests_have_any_size])
async def test_a_mutant_is_found(
    protected: Protected, mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        if mutant is roles_are_not_asked:
            await test_who_may_not_is_not_read(protected, monkeypatch)
        else:
            await test_requests_are_bounded_and_have_a_status_of_their_own(protected)


def test_a_mutant_that_parses_uncounted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "check_counts", lambda *_, **__: None)
    from tests.channels.test_counts import test_a_host_cannot_say_millions_of_names

    with pytest.raises(pytest.fail.Exception):
        test_a_host_cannot_say_millions_of_names()
