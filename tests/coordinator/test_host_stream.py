"""What hosts say comes whole, in one message or in parts, and ends somewhere."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.coordinator.test_server import Running

from snapline.agent_runtime.host import session as host_session
from snapline.agent_runtime.host.session import PART_BYTES, Session
from snapline.channels.options import RECEIVE_BYTES_MAX
from snapline.channels.security import Security
from snapline.conversation.coordinator_client import CoordinatorClient
from snapline.conversation.messages import EpochRefused
from snapline.coordinator.service.host_stream import MESSAGE_BYTES_MAX, HostStream
from snapline.errors import ProtocolError
from snapline.protos.v1 import coordinator_pb2 as pb

AGENTS = 20_000


def part(data: bytes, *, is_last: bool = False) -> bytes:
    return pb.HostMessage(part=pb.MessagePart(data=data, is_last=is_last)).SerializeToString()


def test_parts_become_the_message_that_they_are_of() -> None:
    said = pb.HostMessage(epoch_refused=pb.EpochRefused(epoch=3, reason="x" * 100)).SerializeToString()
    stream = HostStream()
    for _ in range(2):
        assert stream.take(part(said[:50])) is None
        assert stream.take(part(said[50:], is_last=True)) == EpochRefused(3, "x" * 100)
        assert stream.take(said) == EpochRefused(3, "x" * 100)


def test_parts_without_an_end_are_refused() -> None:
    stream = HostStream()
    with pytest.raises(ProtocolError, match="more than"):
        for _ in range(MESSAGE_BYTES_MAX // PART_BYTES + 1):
            stream.take(part(bytes(PART_BYTES)))
    stream = HostStream()
    with pytest.raises(ProtocolError, match="parts"):
        for _ in range(1000):
            stream.take(part(b""))


def test_nothing_comes_between_parts() -> None:
    stream = HostStream()
    stream.take(part(b"x"))
    with pytest.raises(ProtocolError, match="between"):
        stream.take(pb.HostMessage(leave=pb.Leave()).SerializeToString())


def definition() -> pb.FleetDefinition:
    """The largest fleet, with long names: more than a server takes at once."""
    agents = [pb.AgentKind(agent=f"agent-{n:06}-{'x' * 100}", kind=f"module.{'y' * 100}:Class") for n in range(AGENTS)]
    return pb.FleetDefinition(name="f", protocol="chandy-lamport", agents=agents)


async def defines(running: Running, limit_s: float) -> bool:
    """Whether a fleet of that size can be defined by a host's real session."""
    address = await running.start(hosts_expected=2)
    store = running.open_store()

    def received(directive: pb.Directive) -> None:
        match directive.WhichOneof("kind"):
            case "probe":
                path = directive.probe.path
                session.send(pb.HostMessage(probe=pb.ProbeRead(path=path, content=store.read_probe(path))))
            case "welcome" if directive.welcome.wants_definition:
                session.send(pb.HostMessage(fleet=definition()))

    join = pb.Join(host="h1", instance="i", address="127.0.0.1:1", fleet="f", definition_digest=b"d")
    session = Session(address, Security.loopback(), lambda: pb.HostMessage(join=join), received, lambda text: None)
    attending = asyncio.create_task(session.run())
    client = CoordinatorClient(address)
    try:
        async with asyncio.timeout(limit_s):
            while (await client.status()).agents < AGENTS:
                session.send(pb.HostMessage(heartbeat=pb.Heartbeat(sequence=1)))
                await asyncio.sleep(0.1)
        return True
    except TimeoutError:
        return False
    finally:
        attending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await attending
        await client.close()
        await running.stop()


async def test_the_largest_definition_comes_through(tmp_path: Path) -> None:
    assert definition().ByteSize() > RECEIVE_BYTES_MAX
    assert await defines(Running(tmp_path), 60)


@pytest.mark.slow
async def test_a_mutant_that_sends_it_whole_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_session, "PART_BYTES", 2**30)
    assert not await defines(Running(tmp_path), 3)
