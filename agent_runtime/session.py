"""A host's stream to the coordinator: what comes in becomes events, commands for the coordinator go out.

The stream is dialled again for as long as the host lives. Nothing is kept here while it is down: whatever the
coordinator must still hear, the host core says again at the next Welcome.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import grpc

from snapline.agent_runtime import host_events as ev
from snapline.channels.security import Security
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc as rpc

RETRY_LEAST_S, RETRY_MOST_S = 0.05, 0.5
"""Failing calls return within a millisecond; with jitter, hosts do not come back all at once."""

OUTGOING_MAX = 10_000
"""Messages waiting for the stream's writer. Above this they are dropped: the coordinator has not read for long, its keepalive
or ours ends the stream soon, and the core says what matters again at the next Welcome."""

if TYPE_CHECKING:
    _Call = grpc.aio.StreamStreamCall[pb.HostMessage, pb.Directive]


_STREAM_ENDED = (grpc.RpcError, asyncio.InvalidStateError)
"""What reading and writing raise when the call has failed, and when it had ended before."""


class Session:
    """Keeps one Attend stream alive. `received` is called on the event loop with each directive."""

    def __init__(
        self,
        address: str,
        security: Security,
        hello: Callable[[], pb.HostMessage],
        received: Callable[[pb.Directive], None],
        warn: Callable[[str], None],
    ) -> None:
        self._address = address
        self._security = security
        self._hello = hello
        self._received = received
        self._warn = warn
        self._outgoing: asyncio.Queue[pb.HostMessage] | None = None
        self._is_closing = False

    @property
    def is_attached(self) -> bool:
        return self._outgoing is not None

    def send(self, message: pb.HostMessage) -> None:
        """Queue a message; dropped while there is no stream."""
        if self._outgoing is not None and self._outgoing.qsize() < OUTGOING_MAX:
            self._outgoing.put_nowait(message)

    async def run(self) -> None:
        """Attend until cancelled."""
        warned = False
        while not self._is_closing:
            try:
                async with self._security.open_channel(
                    self._address, role="coordinator", name="coordinator"
                ) as channel:
                    await self._attend(channel)
                    warned = False
            except _STREAM_ENDED as error:
                if not warned:
                    self._warn(f"no coordinator at {self._address}: {_reason(error)}; trying on{self._hint()}")
                    warned = True
            finally:
                self._outgoing = None
            await asyncio.sleep(random.uniform(RETRY_LEAST_S, RETRY_MOST_S))

    def _hint(self) -> str:
        """A handshake that fails looks like a broken connection from here."""
        return " (if it runs: does each side trust the other's certificate?)" if self._security.is_tls else ""

    async def _attend(self, channel: grpc.aio.Channel) -> None:
        call: _Call = rpc.CoordinatorStub(channel).Attend()  # type: ignore[no-untyped-call]  # generated code
        await call.write(self._hello())
        outgoing = self._outgoing = asyncio.Queue()
        writer = asyncio.ensure_future(_write_all(call, outgoing))
        try:
            async for directive in _directives(call):
                self._received(directive)
        finally:
            self._outgoing = None
            writer.cancel()
            call.cancel()
            # Not `await writer` under `suppress`: a cancellation of ours that came meanwhile would be swallowed with its.
            await asyncio.wait({writer})
            if not writer.cancelled():
                writer.exception()

    async def leave(self, reason: str, wait_s: float = 0.5) -> None:
        """Say goodbye and give it a moment to go out."""
        self._is_closing = True
        if self._outgoing is not None:
            self.send(pb.HostMessage(leave=pb.Leave(reason=reason)))
            deadline = asyncio.get_running_loop().time() + wait_s
            while self._outgoing is not None and not self._outgoing.empty():
                if asyncio.get_running_loop().time() > deadline:
                    return
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)


async def _write_all(call: "_Call", outgoing: "asyncio.Queue[pb.HostMessage]") -> None:
    while True:
        await call.write(await outgoing.get())


async def _directives(call: "_Call") -> AsyncIterator[pb.Directive]:
    while True:
        directive = await call.read()
        if not isinstance(directive, pb.Directive):
            return  # end of the stream
        yield directive


def _reason(error: Exception) -> str:
    details = getattr(error, "details", lambda: None)()
    return str(details or error)


def event_of(directive: pb.Directive) -> ev.Event | None:
    """The host core's event for a directive, or None for one that is the adapter's."""
    kind = directive.WhichOneof("kind")
    match kind:
        case "welcome":
            welcome = directive.welcome
            return ev.Welcomed(welcome.host_start, welcome.cluster)
        case "roster":
            return ev.RosterReceived(
                tuple(ev.RosterEntry(entry.host, entry.address, entry.host_start) for entry in directive.roster.hosts)
            )
        case "plan":
            return _plan_event(directive.plan)
        case "begin_epoch":
            return ev.EpochBegun(directive.begin_epoch.epoch, directive.begin_epoch.plan)
        case "end_epoch":
            return ev.EpochEnded(directive.end_epoch.epoch, directive.end_epoch.is_complete)
        case "reserved":
            reserved = directive.reserved
            return ev.AgentsReserved(
                reserved.request,
                reserved.recorded,
                tuple(reserved.open_epochs),
                reserved.incarnation,
                reserved.refused,
            )
        case "retired":
            retired = directive.retired
            return ev.AgentRetired(retired.request, tuple(retired.open_epochs), retired.refused)
        case "located":
            located = directive.located
            places = zip(located.agents, located.hosts, located.incarnations, strict=True)
            return ev.AgentsLocated(located.request, tuple(ev.Placement(a, "", h, i) for a, h, i in places))
        case _:
            return None


def _plan_event(plan: pb.Plan) -> ev.PlanReceived:
    hosts = tuple(plan.hosts)
    agents = tuple(
        ev.Placement(placed.agent, placed.kind, hosts[placed.host], placed.incarnation) for placed in plan.agents
    )
    return ev.PlanReceived(plan.number, plan.line_epoch, plan.line_root, plan.begun_epoch, hosts, agents)


def message_of(command: ev.Command, start: int) -> pb.HostMessage | None:
    """The message for a command that the coordinator is to hear, or None."""
    match command:
        case ev.ConfirmPlan():
            return pb.HostMessage(plan_applied=pb.PlanApplied(plan=command.plan, host_start=start))
        case ev.RefusePlan():
            return pb.HostMessage(
                plan_refused=pb.PlanRefused(
                    plan=command.plan,
                    host_start=start,
                    damaged_epoch=command.damaged_epoch,
                    path=command.path,
                    reason=command.reason,
                )
            )
        case ev.RefuseEpoch():
            return pb.HostMessage(
                epoch_refused=pb.EpochRefused(epoch=command.epoch, reason=command.reason, is_final=False)
            )
        case ev.ReserveAgents():
            kinds = [pb.AgentKind(agent=agent, kind=kind) for agent, kind in command.agents]
            return pb.HostMessage(reserve=pb.ReserveAgents(request=command.request, plan=command.plan, agents=kinds))
        case ev.RetireAgent():
            return pb.HostMessage(
                retire=pb.RetireAgent(request=command.request, plan=command.plan, agent=command.agent)
            )
        case ev.LocateAgents():
            return pb.HostMessage(locate=pb.LocateAgents(request=command.request, agents=command.agents))
        case ev.ReportAgentFailed():
            return pb.HostMessage(
                agent_failed=pb.AgentFailed(agent=command.agent, incarnation=command.incarnation, reason=command.reason)
            )
        case ev.ReportPeerSuspected():
            return pb.HostMessage(
                peer_suspected=pb.PeerSuspected(host=command.peer, host_start=command.start, reason=command.reason)
            )
        case _:
            return None
