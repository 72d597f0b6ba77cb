"""Somebody who reaches the ports of a live fleet and lies: as every replica, as every host, with every number.

Hellos of every session and attempt, and behind each what would end elections or links for good if it were believed. It knows
all that can be known: the cluster's id, names, host starts, plan, addresses.
"""

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import grpc
import grpc.aio

from snapline.channels.frame import Frame, LinkHello, encode_frame
from snapline.channels.link_events import LINK_VERSION
from snapline.coordinator.raft.messages import Hello as RaftHello
from snapline.coordinator.raft.messages import encode_hello
from snapline.messages.status import FleetStatus
from snapline.protos.v1 import link_pb2, raft_pb2
from snapline.security.dial_back import KEY

HUGE = 2**64 - 1
PAUSE_S = 0.01
"""Between two calls of one liar: some hundred calls a second in all, on a machine that has other things to do."""

Open = Callable[[str, str], grpc.aio.Channel]
"""Opens a channel: role of the server, address."""


class Forger:
    """Lies to everybody until the block ends. `refused` counts by status code, `written` the hostile batches and frames."""

    def __init__(self, cluster: str, replicas: dict[str, str], hosts: FleetStatus, open_channel: Open) -> None:
        self.cluster = cluster
        self.replicas = replicas
        self.status = hosts
        self.open_channel = open_channel
        self.chance = random.Random(11)
        self.refused: dict[str, int] = {}
        self.welcome = self.written = 0

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._keep(self._raft, name)) for name in self.replicas]
        tasks += [asyncio.create_task(self._keep(self._link, host.host)) for host in self.status.hosts]
        tasks += [asyncio.create_task(self._keep(self._confirm, name)) for name in self.replicas]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, lie: Callable[[grpc.aio.Channel, str], Coroutine[Any, Any, None]], name: str) -> None:
        address = self.replicas.get(name) or next(host.address for host in self.status.hosts if host.host == name)
        role = "coordinator" if name in self.replicas else "host"
        async with self.open_channel(role, address) as channel:
            while True:
                try:
                    async with asyncio.timeout(5.0):
                        await lie(channel, name)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError) as error:
                    code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
                    self.refused[code] = self.refused.get(code, 0) + 1
                await asyncio.sleep(PAUSE_S)

    def _number(self) -> int:
        return self.chance.choice([0, 1, 2, 3, 1000, 2**32, 2**62, 2**63, HUGE, self.chance.randrange(2**64)])

    def _call_id(self) -> tuple[tuple[str, str], ...]:
        return ((KEY, secrets.token_hex(16)),) if self.chance.random() < 0.8 else ()

    async def _raft(self, channel: grpc.aio.Channel, name: str) -> None:
        """To one replica, as another."""
        other = self.chance.choice([each for each in self.replicas if each != name])
        hello = RaftHello(self.cluster, other, self._number(), self._number(), self.chance.choice(["", "log"]))
        opening: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(
            "/snapline.protos.v1.Raft/Replicate"
        )
        call = opening(metadata=self._call_id())
        await call.write(encode_hello(hello))
        metadata = await call.initial_metadata()
        self.welcome += metadata is not None and metadata.get("snapline-raft") is not None
        for _ in range(3):
            self.written += 1
            await call.write(raft_pb2.RaftBatch(messages=self._raft_messages()).SerializeToString())
        await call.done_writing()
        await call

    def _raft_messages(self) -> Sequence[raft_pb2.RaftMessage]:
        number, pb = self._number, raft_pb2
        entries = pb.LogEntries(command=[b"\0x"], index=[number()], term=[number()], prev_log_index=number())
        entries.prev_log_term = number()
        return [
            pb.RaftMessage(request_vote=pb.RequestVote(term=HUGE, last_log_index=HUGE, last_log_term=HUGE)),
            pb.RaftMessage(request_vote=pb.RequestVote(term=2**20, last_log_index=2**40, last_log_term=2**19)),
            pb.RaftMessage(append_entries=pb.AppendEntries(term=number(), commit_index=number(), entries=entries)),
            pb.RaftMessage(next_node_index=pb.NextNodeIndex(next_node_index=number(), success=True, term=number())),
            pb.RaftMessage(timeout_now=pb.TimeoutNow(term=number())),
        ]

    async def _link(self, channel: grpc.aio.Channel, name: str) -> None:
        """To one host, as another: of the run and the plan there are, with an attempt far ahead."""
        here = next(host for host in self.status.hosts if host.host == name)
        other = self.chance.choice([host for host in self.status.hosts if host.host != name])
        attempt = self.chance.choice([2, 1000, 2**63, HUGE])
        hello = LinkHello(
            self.cluster, other.host, other.host_start, here.host_start, attempt, self.status.plan, 0, LINK_VERSION
        )
        opening: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/snapline.protos.v1.Link/Open"
        )
        call = opening(metadata=self._call_id())
        await call.write(encode_frame(Frame(0, 0, HUGE, HUGE, body=hello)))
        answer = await call.read()
        if isinstance(answer, bytes):
            self.welcome += link_pb2.Frame.FromString(answer).WhichOneof("body") == "hello"
        for _ in range(3):
            self.written += 1
            await call.write(encode_frame(Frame(self._number(), self._number(), HUGE, HUGE, [1, 2], [HUGE, HUGE])))
        await call.done_writing()
        await call.read()

    async def _confirm(self, channel: grpc.aio.Channel, name: str) -> None:
        """Whose calls are these? Nobody's."""
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/snapline.protos.v1.Raft/Confirm")
        answer = await ask(link_pb2.CallIds(id=[secrets.token_bytes(16) for _ in range(60)]).SerializeToString())
        self.welcome += len(link_pb2.CallIds.FromString(answer).id)
