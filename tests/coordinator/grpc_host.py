"""A host played by a test: a real Attend stream, real packs in a real store, no agents."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from snapline.channels.servers import client_options
from snapline.protos.v1 import coordinator_pb2 as pb
from snapline.protos.v1 import coordinator_pb2_grpc
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, encode_checkpoint
from snapline.storage.store.store import Store


class GrpcHost:
    """Does what a host does, as long as `is_willing` says so; keeps every directive in `heard`."""

    def __init__(self, name: str, address: str, store: Store, *, instance: str = "", digest: bytes = b"d") -> None:
        self.name = name
        self.instance = instance or f"{name}-1"
        self.digest = digest
        self.store = store
        self.heard: list[pb.Directive] = []
        self.start = 0
        self.plan = pb.Plan()
        self.reports_epochs = True
        self.period_ns = 0
        self._changed = asyncio.Condition()
        self._writing = asyncio.Lock()
        self._address = address
        self._tasks: list[asyncio.Task[None]] = []
        self._call: Any = None

    async def connect(self, channel: grpc.aio.Channel | None = None) -> None:
        self._channel = channel or grpc.aio.insecure_channel(self._address, options=client_options())
        stub: Any = coordinator_pb2_grpc.CoordinatorStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._call = stub.Attend(wait_for_ready=True)
        await self.say(
            join=pb.Join(
                host=self.name,
                instance=self.instance,
                address="127.0.0.1:1",
                fleet="f",
                definition_digest=self.digest,
                plan=self.plan.number,
            )
        )
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._beat())]

    async def say(self, **kind: Any) -> None:
        async with self._writing:
            await self._call.write(pb.HostMessage(**kind))

    async def drop(self) -> None:
        """The process dies: the stream breaks."""
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    async def until(self, condition: Callable[[pb.Directive], bool], timeout_s: float = 10.0) -> pb.Directive:
        """Wait for a directive, heard already or to come."""
        async with asyncio.timeout(timeout_s), self._changed:
            while True:
                for directive in self.heard:
                    if condition(directive):
                        return directive
                await self._changed.wait()

    def kinds(self) -> list[str]:
        return [str(directive.WhichOneof("kind")) for directive in self.heard]

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            await self.say(heartbeat=pb.Heartbeat(sequence=1, turns=7))

    async def _listen(self) -> None:
        async for directive in self._call:
            await self._react(directive)
            async with self._changed:
                self.heard.append(directive)
                self._changed.notify_all()

    async def _react(self, directive: pb.Directive) -> None:
        match directive.WhichOneof("kind"):
            case "welcome":
                await self._on_welcome(directive.welcome)
            case "read_probe":
                await self._on_probe(directive.read_probe.path)
            case "plan":
                self.plan = directive.plan
                await self.say(plan_applied=pb.PlanApplied(plan=self.plan.number, host_start=self.start))
            case "begin_epoch" if self.reports_epochs:
                await self._report(directive.begin_epoch.epoch)
            case "quiesce" if directive.quiesce.holds_effects:
                await self.say(quiesced=pb.Quiesced(number=directive.quiesce.number))
            case "evaluate_stop":
                await self.say(stop_evaluated=pb.StopEvaluated(epoch=directive.evaluate_stop.epoch, reached=False))

    async def _on_probe(self, path: str) -> None:
        await self.say(probe_read=pb.ProbeRead(path=path, content=self.store.read_probe(path)))

    async def _on_welcome(self, welcome: pb.Welcome) -> None:
        self.start = welcome.host_start
        if welcome.wants_definition:
            agents = [pb.AgentKind(agent=f"a{n}", kind="m:A") for n in range(4)]
            definition = pb.FleetDefinition(
                name="f", protocol="chandy-lamport", period_ns=self.period_ns, agents=agents
            )
            await self.say(fleet_definition=definition)

    async def _report(self, epoch: int) -> None:
        """Each agent has sent 3 messages to the next one of all; 2 are received, one is in transit."""
        agents = [x.agent for x in self.plan.agents]
        mine = [x.agent for x in self.plan.agents if self.plan.hosts[x.host] == self.name]
        before = {agents[n]: agents[n - 1] for n in range(len(agents))}
        after = {sender: receiver for receiver, sender in before.items()}
        blobs = [
            (
                agent,
                encode_checkpoint(
                    AgentCheckpoint(
                        agent=agent,
                        kind="m:A",
                        epoch=epoch,
                        sent={after[agent]: 3},
                        received={before[agent]: 2},
                        in_transit={before[agent]: [InTransitMessage(3, epoch - 1, b"\x01m\x07")]},
                        state=b"\x81\xa1x\x01",
                    )
                ),
            )
            for agent in mine
        ]
        pack = self.store.write_pack(writer=f"{self.name}.{self.start}", epoch=epoch, blobs=blobs)
        index = {agent: n for n, agent in enumerate(agents)}
        columns = [index[agent] for agent in mine]
        await self.say(
            epoch_report=pb.EpochReport(
                epoch=epoch,
                host_start=self.start,
                pack=pb.ReportedPack(path=pack.path, size_bytes=pack.size_bytes, index_digest=pack.index_digest),
                names=agents,
                agents=columns,
                unborn=[False] * len(mine),
                sent_from=columns,
                sent_to=[index[after[agent]] for agent in mine],
                sent_number=[3] * len(mine),
                received_from=[index[before[agent]] for agent in mine],
                received_to=columns,
                received_number=[2] * len(mine),
                recorded_count=[1] * len(mine),
                state_bytes=10,
                channel_state_messages=len(mine),
            )
        )
