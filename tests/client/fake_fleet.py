"""A fleet for a client: a coordinator that knows where agents live, and hosts with the real service. Nothing runs the agents."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from tests.client.fake_host import Books, FakeHost

from snapline.client.client import Client
from snapline.messages.answers import LocatedAgent, LocateReply
from snapline.messages.coordinator_client import LEADER_KEY
from snapline.messages.wire import writer_of
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc
from snapline.security.rpc_authorization import Context, RpcGuard
from snapline.security.transport import Security


class FakeCoordinator(coordinator_pb2_grpc.CoordinatorServicer):
    """A replica. `leader`: it does not lead, and names this address; `outcome`: of snapshots, which do not end if `is_silent`."""

    def __init__(self, fleet: "FakeFleet") -> None:
        self.fleet = fleet
        self.leader: str | None = None
        self.asked = 0
        self.is_silent = False
        self.outcome = pb.SnapshotOutcome(epoch=3, is_complete=True, root="ab", elapsed_ns=1)

    async def Locate(self, request: pb.LocateRequest, context: Context) -> pb.LocateReply:
        self.asked += 1
        if self.leader is not None:
            context.set_trailing_metadata(((LEADER_KEY, self.leader),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "another replica leads")
        agents = sorted(self.fleet.owners) if request.all else list(request.agents)
        reply = LocateReply(self.fleet.phase, self.fleet.reason, tuple([self.fleet.place(agent) for agent in agents]))
        made = writer_of(LocateReply, pb.LocateReply)(reply)
        assert isinstance(made, pb.LocateReply)
        return made

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.FleetStatus:
        hosts = [
            pb.HostStatus(
                host=name,
                address=host.address,
                state=self.fleet.states.get(name, "alive"),
                inputs_waiting=self.fleet.inputs_waiting,
            )
            for name, host in sorted(self.fleet.hosts.items())
        ]
        return pb.FleetStatus(fleet="shop", phase=self.fleet.phase, hosts=hosts)

    async def CreateSnapshot(self, request: pb.CreateSnapshotRequest, context: Context) -> pb.SnapshotOutcome:
        self.asked += 1
        if self.is_silent:
            await asyncio.Event().wait()
        if self.leader is not None:
            context.set_trailing_metadata(((LEADER_KEY, self.leader),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "another replica leads")
        return self.outcome


class FakeFleet:
    """`owners`: agent → host, as the coordinator says; `states`: host → "lost", where it is not alive; `inputs_waiting`: of each host."""

    def __init__(self, security: Security | None = None) -> None:
        self.security = security or Security.loopback()
        self.phase, self.reason = "running", ""
        self.books = Books("a", "b", "c")
        self.hosts: dict[str, FakeHost] = {}
        self.owners: dict[str, str] = {}
        self.left: list[str] = []
        self.inputs_waiting = 0
        self.states: dict[str, str] = {}
        self.coordinator = FakeCoordinator(self)
        self.address = ""
        self._servers: list[grpc.aio.Server] = []

    async def start(self) -> "FakeFleet":
        self.address = await self.serve(self.coordinator)
        for host in ("h1", "h2"):
            self.hosts[host] = await FakeHost(host, self.books).start()
        for agent, host in (("a", "h1"), ("b", "h1"), ("c", "h2")):
            self.move(agent, host)
        return self

    async def serve(self, coordinator: FakeCoordinator) -> str:
        """One more replica; returns its address."""
        server = grpc.aio.server(interceptors=(RpcGuard(self.security),))
        coordinator_pb2_grpc.add_CoordinatorServicer_to_server(coordinator, server)  # type: ignore[no-untyped-call]
        port = self.security.add_port(server, "127.0.0.1:0")
        await server.start()
        self._servers.append(server)
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        for host in self.hosts.values():
            await host.stop()
        for server in self._servers:
            await server.stop(None)

    def move(self, agent: str, host: str) -> None:
        """It lives there from now on."""
        self.owners[agent] = host
        for name, each in self.hosts.items():
            each.agents = [other for other, owner in self.owners.items() if owner == name]

    def place(self, agent: str) -> LocatedAgent:
        if agent in self.left:
            return LocatedAgent(agent, "left")
        if agent not in self.owners:
            return LocatedAgent(agent, "unknown")
        host = self.owners[agent]
        return LocatedAgent(agent, self.states.get(host, "alive"), host, self.hosts[host].address, 1)


@contextlib.asynccontextmanager
async def fleet_and_client() -> AsyncIterator[tuple[FakeFleet, Client]]:
    fleet = await FakeFleet().start()
    try:
        async with await Client.connect(fleet.address) as client:
            yield fleet, client
    finally:
        await fleet.stop()
