"""What hosts say comes whole, in one message or in parts, and ends somewhere."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.coordinator.test_server import Running

from snapline.agent_runtime.host.coordinator_session import Session
from snapline.channels.servers import RECEIVE_BYTES_MAX
from snapline.coordinator.service.servicer import HOST_MESSAGE_BYTES_MAX, HostStream, read_host_message
from snapline.coordinator.state.fleet_records import AGENTS_MAX
from snapline.errors import ProtocolError
from snapline.messages import wire
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.host_messages import (
    AgentKind,
    Directive,
    EpochRefused,
    FleetDefinition,
    Heartbeat,
    Join,
    Leave,
    MessagePart,
    ProbeRead,
    ReadProbe,
    Welcome,
)
from snapline.messages.wire import PART_BYTES, encode_host_message
from snapline.security.transport import Security

AGENTS = 20_000


def part(data: bytes, *, is_last: bool = False) -> bytes:
    return encode_host_message(MessagePart(data, is_last))


def test_parts_become_the_message_that_they_are_of() -> None:
    said = encode_host_message(EpochRefused(3, "x" * 100))
    stream = HostStream()
    for _ in range(2):
        assert stream.take(part(said[:50])) is None
        assert stream.take(part(said[50:], is_last=True)) == EpochRefused(3, "x" * 100)
        assert stream.take(said) == EpochRefused(3, "x" * 100)


def test_parts_without_an_end_are_refused() -> None:
    stream = HostStream()
    with pytest.raises(ProtocolError, match="more than"):
        for _ in range(HOST_MESSAGE_BYTES_MAX // PART_BYTES + 1):
            stream.take(part(bytes(PART_BYTES)))
    stream = HostStream()
    with pytest.raises(ProtocolError, match="parts"):
        for _ in range(1000):
            stream.take(part(b""))


def test_nothing_comes_between_parts() -> None:
    stream = HostStream()
    stream.take(part(b"x"))
    with pytest.raises(ProtocolError, match="between"):
        stream.take(encode_host_message(Leave()))


def definition() -> FleetDefinition:
    """The largest fleet with long names: more than a server takes at once."""
    agents = [AgentKind(f"agent-{n:06}-{'x' * 100}", f"module.{'y' * 100}:Class") for n in range(AGENTS)]
    return FleetDefinition("f", "chandy-lamport", 0, 0, tuple(agents))


def test_as_many_agents_as_a_fleet_may_have_are_not_too_many() -> None:
    agents = tuple([AgentKind(f"agent-{number}", "module:Class") for number in range(AGENTS_MAX)])
    named = FleetDefinition("f", "chandy-lamport", 0, 0, agents)
    said = encode_host_message(named)
    assert read_host_message(said) == named
    with pytest.raises(ProtocolError, match="entries"):
        read_host_message(said + said)  # to protobuf, one message with all of them twice


async def defines(running: Running, limit_s: float) -> bool:
    """Whether a fleet of that size can be defined by a host's real session."""
    address = await running.start(hosts_expected=2)
    store = running.open_store()

    def received(directive: Directive) -> None:
        match directive:
            case ReadProbe():
                session.send(ProbeRead(directive.path, store.read_probe(directive.path)))
            case Welcome() if directive.wants_definition:
                session.send(definition())

    join = Join("h1", "i", "127.0.0.1:1", "f", b"d")
    session = Session(address, Security.loopback(), lambda: join, received, lambda text: None)
    attending = asyncio.create_task(session.run())
    client = CoordinatorClient(address)
    try:
        async with asyncio.timeout(limit_s):
            while (await client.status()).agents < AGENTS:
                session.send(Heartbeat(1))
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
    assert len(encode_host_message(definition())) > RECEIVE_BYTES_MAX
    assert await defines(Running(tmp_path), 60)


@pytest.mark.slow
async def test_a_mutant_that_sends_it_whole_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PART_BYTES", 2**30)
    assert not await defines(Running(tmp_path), 3)
