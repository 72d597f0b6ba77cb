"""A fleet with the certificates that `snapline auth init` makes, and callers of every kind that knock at its doors."""

import asyncio
import contextlib
import datetime
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.integration.processes import LIMIT_S, ended, snapline, start

from snapline.channels import certificates
from snapline.channels.certificates import Authority
from snapline.channels.doors import DOORS, HOST, ROLES
from snapline.channels.frame import Frame, LinkHello, Refused, decode_frame, encode_frame
from snapline.channels.security import Security, server_name
from snapline.conversation.coordinator_client import CoordinatorClient
from snapline.conversation.status import FleetStatus
from snapline.errors import SnaplineError
from snapline.protos.v1 import agents_pb2, inputs_pb2, raft_pb2
from snapline.protos.v1 import coordinator_pb2 as pb

DOMAIN = "shop"
FLEET = "tests.integration.fleets.paced_bank:fleet"
CERTIFICATE_REFUSED = (
    "this certificate may not do that",
    "this token may not do that",
    "the certificate says",
    "the certificate names",
)

NOBODY = ("no certificate", "another authority", "expired", "no role", "host of another domain")
"""Callers who may do nothing at all."""

OTHER_HOST = "host of another name"
CALLERS = (*NOBODY, *ROLES, OTHER_HOST)


class Secured:
    """Processes of a real fleet: a coordinator and hosts h1 and h2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.set = folder / "set"
        self.stop = folder / "stop"
        self.address = ""
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.hosts: dict[str, str] = {}

    def options(self, role: str, name: str) -> tuple[str | Path, ...]:
        leaf = self.set / f"{role}-{name}"
        files = ("--tls-cert", f"{leaf}.crt", "--tls-key", f"{leaf}.key", "--tls-ca", self.set / "ca.crt")
        return (*files, "--tls-domain", DOMAIN)

    async def start(self) -> None:
        made = await snapline("auth", "init", self.set, "--tls-domain", DOMAIN, "--hosts", "h1,h2")
        assert made.code == 0, made.err
        coordinator = ("coordinator", "run", "--listen", "127.0.0.1:0", "--data-dir", self.folder / "coordinator")
        store = ("--store", self.folder / "store")
        own = (*self.options("coordinator", "c1"), "--health", self.health("c1"))
        self.processes["c1"] = await start(*coordinator, *store, "--hosts", "2", *own)
        async with asyncio.timeout(LIMIT_S):
            while not self.address:
                with contextlib.suppress(FileNotFoundError):
                    content = (self.folder / "coordinator" / "coordinator.json").read_bytes()
                    self.address = json.loads(content)["address"]
                await asyncio.sleep(0.02)
        for host in ("h1", "h2"):
            command = ("host", "run", "--coordinator", self.address, "--id", host, "--fleet", FLEET, *store)
            arguments = ("--arg", f"stop={self.stop}", "--arg", "agents=4", "--health", self.health(host))
            self.processes[host] = await start(*command, *arguments, *self.options("host", host))
        status = await self.until_running()
        self.hosts = {host.host: host.address for host in status.hosts}

    def health(self, name: str) -> str:
        """Where a process says how it is, to anybody."""
        return f"unix:{self.folder}/{name}.health"

    def security(self, role: str, name: str, token: str = "") -> Security:
        leaf = self.set / f"{role}-{name}"
        authority = self.set / "ca.crt"
        return Security.tls(
            authority=authority, certificate=f"{leaf}.crt", key=f"{leaf}.key", domain=DOMAIN, token=token
        )

    async def until_running(self) -> FleetStatus:
        client = CoordinatorClient(self.address, self.security("viewer", "viewer"))
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    with contextlib.suppress(SnaplineError):
                        status = await client.status()
                        if status.phase == "running":
                            return status
                    await asyncio.sleep(0.05)
        finally:
            await client.close()

    async def end(self) -> list[int]:
        """Let the fleet end as it does; the exit codes."""
        self.stop.touch()
        return [(await ended(process)).code for process in self.processes.values()]

    async def kill(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    # ---- callers ----------------------------------------------------------------------------------------------------

    def make_callers(self) -> dict[str, tuple[bytes, bytes] | None]:
        """Key and certificate of each."""
        own = Authority.load(self.set)
        found: dict[str, tuple[bytes, bytes] | None] = {"no certificate": None}
        foreign = Authority.create(self.folder / "foreign", domain=DOMAIN)
        found["another authority"] = _pair(foreign.issue("admin", "a"))
        with _two_years_ago():
            found["expired"] = _pair(own.issue("admin", "old"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(certificates, "ROLES", {**ROLES, "passer-by": ""})
            found["no role"] = _pair(own.issue("passer-by", "p"))
        own.domain = "elsewhere"
        found["host of another domain"] = _pair(own.issue("host", "h1-elsewhere"))
        own.domain = DOMAIN
        for role in ROLES:
            kept = self.set / f"{role}-{'h1' if role == HOST else role}"
            found[role] = (
                (kept.with_suffix(".key").read_bytes(), kept.with_suffix(".crt").read_bytes())
                if kept.with_suffix(".crt").exists()
                else _pair(own.issue(role, "one-more"))
            )
        found[OTHER_HOST] = _pair(own.issue("host", "h9"))
        assert tuple(found) == CALLERS
        return found

    def channel(self, pair: tuple[bytes, bytes] | None, server: str = "") -> grpc.aio.Channel:
        """To the coordinator, or to a host."""
        credentials = grpc.ssl_channel_credentials((self.set / "ca.crt").read_bytes(), *(pair or (None, None)))
        role, name = ("host", server) if server else ("coordinator", "coordinator")
        # Not our client's options: it gives up a handshake after 50 ms and tries again, and here one try has to tell.
        options = [("grpc.ssl_target_name_override", server_name(role, name, DOMAIN))]
        return grpc.aio.secure_channel(self.hosts.get(server, self.address), credentials, options=options)


def _pair(issued: certificates.Issued) -> tuple[bytes, bytes]:
    return issued.key.read_bytes(), issued.certificate.read_bytes()


@contextlib.contextmanager
def _two_years_ago() -> Iterator[None]:
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=730)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "_now", lambda: then)
        yield


@contextlib.asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[Secured]:
    fleet = Secured(folder)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.kill()


# ---- what they say: it goes through the door, and does no harm behind it ------------------------------------------------

REQUESTS: dict[str, bytes] = {
    "ReadSnapshots": pb.ReadSnapshotsRequest(verb="list").SerializeToString(),
    "ReadReplica": pb.ReadReplicaRequest(verb="members").SerializeToString(),
    "TransferLeader": pb.TransferLeaderRequest(to="nobody", only_from="one-more").SerializeToString(),
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
    "Settle": inputs_pb2.OfferRequest(client="c", inputs=[inputs_pb2.GivenInput(agent="nobody")]).SerializeToString(),
    "Ask": inputs_pb2.AskRequest(agent="nobody", key="k").SerializeToString(),
    "Show": agents_pb2.ShowRequest(agent="nobody", what="live").SerializeToString(),
    "ServerReflectionInfo": b"\x3a\x00",  # list the services
}


OF_HOSTS = ("/snapline.protos.v1.Link/", "/snapline.protos.v1.Inputs/", "/snapline.protos.v1.Agents/")

STREAMS = ("Attend", "Open", "Offer", "Settle", "Ask", "Show", "Watch", "ServerReflectionInfo")


LEAD, LEAD_OF_C1 = "/snapline.protos.v1.Coordinator/TransferLeader", pb.TransferLeaderRequest(only_from="c1")


async def knock(fleet: Secured, rpc: str, pair: tuple[bytes, bytes] | None, said: bytes = b"") -> str:
    """Call as h1, where it matters who: "yes" if the door was open, "no" if it was not, "shut out" before it was seen."""
    name = rpc.rpartition("/")[2]
    async with fleet.channel(pair, "h2" if rpc.startswith(OF_HOSTS) else "") as channel:
        if name not in STREAMS:
            return await _call_once(channel, rpc, said or REQUESTS.get(name, b""))
        while (meaning := await _open_stream(channel, rpc, REQUESTS.get(name, b""))) == UNHEARD:
            pass
        return meaning


async def knock_bearing(fleet: Secured, rpc: str, token: str) -> str:
    """Call h2 with a token, by what people use."""
    security = fleet.security("bearer", "bearer", token)
    async with security.open_channel(fleet.hosts["h2"], role="host", name="h2") as channel:
        while (meaning := await _open_stream(channel, rpc, REQUESTS[rpc.rpartition("/")[2]])) == UNHEARD:
            pass
        return meaning


async def _call_once(channel: grpc.aio.Channel, rpc: str, data: bytes) -> str:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(rpc)
    try:
        await call(data, timeout=LIMIT_S)
    except grpc.aio.AioRpcError as error:
        return _meaning(error.code(), error.details() or "", dict(error.trailing_metadata() or ()))
    return "yes"


async def _open_stream(channel: grpc.aio.Channel, rpc: str, data: bytes) -> str:
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(rpc)(timeout=LIMIT_S)
    answer: object = None
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(data)
        answer = await call.read()
    if isinstance(answer, bytes):
        call.cancel()
        return "no" if _is_refusal(rpc.rpartition("/")[2], answer) else "yes"
    code = await call.code()
    if code is grpc.StatusCode.INTERNAL:
        return UNHEARD
    return _meaning(code, await call.details() or "", dict(await call.trailing_metadata() or ()))


UNHEARD = "unheard"
"""gRPC's own word for a write that failed because the call had ended: it has lost how."""


def _meaning(code: grpc.StatusCode, details: str, told: dict[str, object]) -> str:
    """How a call without an answer ended."""
    if code is grpc.StatusCode.PERMISSION_DENIED and details.startswith(CERTIFICATE_REFUSED):
        return "no"
    if code is grpc.StatusCode.UNAVAILABLE and not told:
        return "shut out"
    behind = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)
    return "yes" if code in behind else f"{code.name}: {details}"


def _is_refusal(name: str, answer: bytes) -> bool:
    """Streams are refused in their own words."""
    if name == "Attend":
        return pb.Directive.FromString(answer).turned_away.reason.startswith(CERTIFICATE_REFUSED)
    body = decode_frame(answer).body if name == "Open" else None
    return isinstance(body, Refused) and body.reason.startswith(CERTIFICATE_REFUSED)


def declared(rpc: str, caller: str) -> str:
    """What the table says."""
    if caller in ("no certificate", "another authority", "expired"):
        return "shut out"
    door = DOORS[rpc]
    if caller == OTHER_HOST:
        return "yes" if HOST in door.roles and not door.is_for_itself else "no"
    return "yes" if caller in door.roles else "no"


def as_table(found: dict[str, dict[str, str]]) -> str:
    """RPC → caller → outcome, for people."""
    lines = [" " * 24 + "  ".join(CALLERS)]
    for rpc, outcomes in found.items():
        cells = [outcomes[caller].center(len(caller)) for caller in CALLERS]
        lines.append(f"{rpc.rpartition('/')[2]:<24}" + "  ".join(cells))
    return "\n".join(lines)
