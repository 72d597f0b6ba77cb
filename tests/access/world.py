"""What `served.py` serves, from outside: callers of every kind, and how their calls end."""

import asyncio
import contextlib
import datetime
import json
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import grpc.aio
import pytest
from tests.access.served import CERTIFICATES, security_of
from tests.access.table import OTHER_HOST, ROLES, USER_ROLES
from tests.integration.processes import LIMIT_S, ROOT

from snapline.channels.frame import Frame, LinkHello, Refused, decode_frame, encode_frame
from snapline.messages.approvals import ApprovalAnswer, approval_answer_payload
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.protos.v1 import agents_pb2, inputs_pb2, raft_pb2
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.security import certificates, rpc_authorization
from snapline.security.certificates import Authority
from snapline.security.tokens import digest_of, new_token
from snapline.security.transport import DEFAULT_DOMAIN, Security, server_name

SERVERS = {"coordinator": "c1", "host": "h2"}
"""Role of what serves gRPC → its name."""

OWN_CONNECTION: list[tuple[str, str | int]] = [("grpc.use_local_subchannel_pool", 1)]
"""Options of a channel that shares its connection with no other."""

PATHS = {path.rpartition(".")[2]: path for path in rpc_authorization.RPC_RULES}
"""`Service/Method` → the whole path."""


class Caller(NamedTuple):
    """What a caller shows. `pair`: key and certificate, None: no certificate; `is_plain`: it speaks no TLS at all."""

    pair: tuple[bytes, bytes] | None = None
    token: str = ""
    is_plain: bool = False


class World:
    """A process of `served.py`. `places`: name → where it is; `callers`: name → what they show."""

    def __init__(self, folder: Path, process: "subprocess.Popen[str]") -> None:
        """Waits until everything is there."""
        assert process.stdout is not None
        self.folder = folder
        self.places: dict[str, str] = json.loads(process.stdout.readline() or "{}")
        self.pid = process.pid
        self.callers: dict[str, Caller] = {"plaintext": Caller(is_plain=True)}

    def security(self, role: str) -> Security:
        """Of one of the set that `auth init` makes."""
        return security_of(self.folder, f"{role}-{'h1' if role == 'host' else role}")

    def options(self, owner: str) -> tuple[str | Path, ...]:
        """The command line's, for ROLE-NAME."""
        made = self.folder / CERTIFICATES
        return ("--tls-cert", made / f"{owner}.crt", "--tls-key", made / f"{owner}.key", "--tls-ca", made / "ca.crt")

    def channel(self, caller: Caller, server: str) -> grpc.aio.Channel:
        """To the coordinator, or to the host."""
        if caller.is_plain:
            return grpc.aio.insecure_channel(self.places[server], options=OWN_CONNECTION)
        credentials = grpc.ssl_channel_credentials(
            (self.folder / CERTIFICATES / "ca.crt").read_bytes(), *(caller.pair or (None, None))
        )
        if caller.token:
            credentials = grpc.composite_channel_credentials(
                credentials, grpc.access_token_call_credentials(caller.token)
            )
        # Not our client's options: it gives up a handshake after 50 ms and tries again, and here one try has to tell.
        options = [*OWN_CONNECTION, ("grpc.ssl_target_name_override", server_name(server, SERVERS[server]))]
        return grpc.aio.secure_channel(self.places[server], credentials, options=options)

    # ---- callers ----------------------------------------------------------------------------------------------------

    async def make_callers(self) -> None:
        """Of every kind that the table names."""
        own, found = Authority.load(self.folder / CERTIFICATES), self.callers
        found["no certificate"] = Caller()
        foreign = Authority.create(self.folder / "foreign")
        found["another authority"] = _shown(foreign.issue("admin", "a"))
        with _two_years_ago():
            found["expired"] = _shown(own.issue("admin", "old"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(certificates, "ROLES", {**rpc_authorization.ROLES, "passer-by": ""})
            found["no role"] = _shown(own.issue("passer-by", "p"))
        own.domain = "elsewhere"
        found["host of another domain"] = _shown(own.issue("host", "h1-elsewhere"))
        own.domain = DEFAULT_DOMAIN
        for role in ROLES:
            found[role] = _shown(own.issue(role, {"host": "h1", "coordinator": "c2"}.get(role, role)))
        found[OTHER_HOST] = _shown(own.issue("host", "h9"))
        await self._make_tokens(found["bearer"])

    async def _make_tokens(self, bearer: Caller) -> None:
        admin = CoordinatorClient(self.places["coordinator"], self.security("admin"))
        for name, role in {**{f"{role} by token": role for role in USER_ROLES}, "revoked token": "admin"}.items():
            token = new_token()
            self.callers[name] = bearer._replace(token=token)
            await admin.make_token(name.replace(" ", "-"), role, digest_of(token), 3600)
        await admin.revoke_token("revoked-token")
        self.callers["no token of ours"] = self.callers["admin"]._replace(token="snapline_nonsense")
        await admin.close()


def _shown(issued: certificates.Issued) -> Caller:
    return Caller((issued.key.read_bytes(), issued.certificate.read_bytes()))


@contextlib.contextmanager
def _two_years_ago() -> Iterator[None]:
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=730)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_now", lambda: then)
        yield


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[World, World]]:
    """Everything with certificates and tokens, and everything without both, until the block ends."""
    folders = folder / "secured", folder / "plain"
    for each in folders:
        each.mkdir()
    authority = Authority.create(folders[0] / CERTIFICATES)
    for role, name in (
        *((role, role) for role in (*USER_ROLES, "client")),
        ("coordinator", "c1"),
        ("host", "h1"),
        ("host", "h2"),
    ):
        authority.issue(role, name)
    with _process(folders[0]) as secured, _process(folders[1]) as plain:
        yield World(folders[0], secured), World(folders[1], plain)


@contextlib.contextmanager
def _process(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "tests.access.served", str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


# ---- what they say: it goes through the door, and does no harm behind it ---------------------------------------------


def settling(payload: bytes) -> bytes:
    """A request with this command to an agent that is not there."""
    given = inputs_pb2.GivenInput(agent="nobody", key="k", payload=payload)
    return inputs_pb2.OfferRequest(client="c", inputs=[given]).SerializeToString()


REQUESTS: dict[str, bytes] = {
    "ReadSnapshots": pb.ReadSnapshotsRequest(verb="list").SerializeToString(),
    "ReadReplica": pb.ReadReplicaRequest(verb="members").SerializeToString(),
    "TransferLeader": pb.TransferLeaderRequest(to="nobody", only_from="c2").SerializeToString(),
    "ReportHostBusy": pb.ReportHostBusyRequest(host="h1", instance="none").SerializeToString(),
    "ReportHostExit": pb.ReportHostExitRequest(host="h1", instance="none").SerializeToString(),
    "PreviewRestore": pb.PreviewRestoreRequest(snapshot="999").SerializeToString(),
    "Restore": pb.RestoreRequest(snapshot="999", token="t").SerializeToString(),
    "ForgetHost": pb.ForgetHostRequest(host="nobody").SerializeToString(),
    "MoveAgents": pb.MoveAgentsRequest(drained=["nobody"]).SerializeToString(),
    "EndReplica": pb.EndReplicaRequest(name="nobody").SerializeToString(),
    "EndHost": pb.EndHostRequest(host="nobody").SerializeToString(),
    "ReadOutputs": pb.ReadOutputsRequest(topic="none").SerializeToString(),
    "MoveConsumer": pb.MoveConsumerRequest(name="").SerializeToString(),
    "ForgetConsumer": pb.ForgetConsumerRequest(name="nobody").SerializeToString(),
    "MakeToken": pb.MakeTokenRequest(name="", role="king").SerializeToString(),
    "RevokeToken": pb.RevokeTokenRequest(name="nobody").SerializeToString(),
    "RecordCall": pb.RecordCallRequest(call="Settle", outcome="allowed").SerializeToString(),
    "Attend": pb.HostMessage(
        join=pb.Join(host="h1", instance="none", address="127.0.0.1:1", fleet="f", definition_digest=b"d")
    ).SerializeToString(),
    "Replicate": raft_pb2.RaftBatch().SerializeToString(),
    "Open": encode_frame(Frame(body=LinkHello("elsewhere", "h1", 1, 1, 1, 1, 0, 1))),
    "Offer": inputs_pb2.OfferRequest(client="c", inputs=[inputs_pb2.GivenInput(agent="nobody")]).SerializeToString(),
    "Settle": settling(approval_answer_payload(ApprovalAnswer("0" * 32, True))),
    "Ask": inputs_pb2.AskRequest(agent="nobody", key="k").SerializeToString(),
    "Show": agents_pb2.ShowRequest(agent="nobody", what="live").SerializeToString(),
    "ServerReflectionInfo": b"\x3a\x00",  # list the services
}

STREAMS = ("Attend", "Open", "Offer", "Settle", "Ask", "Show", "Watch", "ServerReflectionInfo")
"""Their answers are read one by one."""

REFUSALS = (
    "this certificate may not do that",
    "this token may not do that",
    "the certificate says",
    "the certificate names",
)

YES, NO, SHUT_OUT, UNKNOWN = "yes", "no", "shut out", "unknown"
"""The call is let in; it is refused; its caller gets no further than the handshake; there is no such call here."""

_UNHEARD = "unheard"
"""gRPC's own word for a write that failed because the call had ended: it has lost how."""


async def call(channel: grpc.aio.Channel, rpc: str, data: bytes | None = None) -> str:
    """Make this call, about h1 or c2 where it matters about whom; how it ends."""
    name = rpc.rpartition("/")[2]
    said = REQUESTS.get(name, b"") if data is None else data
    if name not in STREAMS:
        return await _call_once(channel, PATHS[rpc], said)
    while (meaning := await _open_stream(channel, PATHS[rpc], said)) == _UNHEARD:
        pass
    return meaning


async def _call_once(channel: grpc.aio.Channel, path: str, data: bytes) -> str:
    unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    try:
        await unary(data, timeout=LIMIT_S)
    except grpc.aio.AioRpcError as error:
        return _meaning(error.code(), error.details() or "", dict(error.trailing_metadata() or ()))
    return YES


async def _open_stream(channel: grpc.aio.Channel, path: str, data: bytes) -> str:
    stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(path)(timeout=LIMIT_S)
    answer: object = None
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await stream.write(data)
        answer = await stream.read()
    if isinstance(answer, bytes):
        stream.cancel()
        return NO if _is_refusal(path.rpartition("/")[2], answer) else YES
    code = await stream.code()
    if code is grpc.StatusCode.INTERNAL:
        return _UNHEARD
    return _meaning(code, await stream.details() or "", dict(await stream.trailing_metadata() or ()))


def _meaning(code: grpc.StatusCode, details: str, told: dict[str, object]) -> str:
    """How a call without an answer ended."""
    if code is grpc.StatusCode.PERMISSION_DENIED and details.startswith(REFUSALS):
        return NO
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UNKNOWN
    if code is grpc.StatusCode.UNAVAILABLE and not told:
        return SHUT_OUT
    behind = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)
    return YES if code in behind else f"{code.name}: {details}"


def _is_refusal(name: str, answer: bytes) -> bool:
    """Streams of hosts are refused in their own words."""
    if name == "Attend":
        return pb.Directive.FromString(answer).turned_away.reason.startswith(REFUSALS)
    body = decode_frame(answer).body if name == "Open" else None
    return isinstance(body, Refused) and body.reason.startswith(REFUSALS)


# ---- metrics --------------------------------------------------------------------------------------------------------


async def read_metrics(world: World, caller: Caller, name: str) -> int:
    """The status of `GET /metrics` at the door of this process; 0: no answer at all."""
    host, _, port = world.places[f"metrics {name}"].rpartition(":")
    context = None if caller.is_plain else _context_of(world, caller)
    server = next(role for role, each in SERVERS.items() if each == name)
    try:
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=context, server_hostname=None if context is None else server_name(server, name)
        )
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readline()
        writer.close()
    except OSError:  # reset, or a TLS alert
        return 0
    return int(head.split()[1]) if head else 0


def _context_of(world: World, caller: Caller) -> ssl.SSLContext:
    """Of a caller's certificate; Python's TLS takes it from a file."""
    context = ssl.create_default_context(cafile=str(world.folder / CERTIFICATES / "ca.crt"))
    if caller.pair is not None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"".join(caller.pair))
            file.flush()
            context.load_cert_chain(file.name)
    return context
