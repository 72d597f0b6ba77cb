"""Addresses that cannot be listened on, where what may pass is waited for; and connections to peers that are slow to answer."""

import asyncio
import contextlib
import socket

import grpc
import pytest

from snapline.channels import servers
from snapline.channels.servers import (
    AddressBusyError,
    AddressError,
    address_error,
    client_options,
    listen_error,
    wait_until_free,
    wait_until_free_async,
)
from snapline.errors import ExternalFailureError, UsageError


def taken() -> tuple[socket.socket, str]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, f"127.0.0.1:{server.getsockname()[1]}"


async def test_a_port_that_is_in_use_for_a_moment_is_waited_for() -> None:
    server, address = taken()
    asyncio.get_running_loop().call_later(0.3, server.close)
    assert await wait_until_free_async(address)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "unix:/tmp/x", "192.0.2.1:7400", "127.0.0.1:x"])
async def test_what_does_not_pass_is_not_waited_for(address: str) -> None:
    async with asyncio.timeout(servers.PORT_WAIT_S / 2):
        assert await wait_until_free_async(address)
        wait_until_free(address)


async def test_the_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "PORT_WAIT_S", 0.2)
    server, address = taken()
    assert not await wait_until_free_async(address)
    wait_until_free(address)
    server.close()


@pytest.mark.parametrize(
    ("address", "kind", "reason"),
    [
        ("", AddressBusyError, "Address already in use"),
        ("nobody.invalid:7400", AddressBusyError, "not known|name resolution"),
        ("192.0.2.1:7400", AddressError, "Cannot assign requested address"),
        ("127.0.0.1:x", AddressError, "invalid literal"),
    ],
)
def test_only_what_does_not_pass_is_a_wrong_address(address: str, kind: type[Exception], reason: str) -> None:
    server, busy = taken()
    error = address_error("no", listen_error(address or busy), "choose another")
    server.close()
    assert type(error) is kind
    with pytest.raises(kind, match=f"no: .*({reason}).*; choose another"):
        raise error
    assert issubclass(AddressBusyError, ExternalFailureError) and issubclass(AddressError, UsageError)


# ---- far away -----------------------------------------------------------------------------------------------------------


async def test_a_connection_is_established_however_late_the_first_frame_comes() -> None:
    """As over a long way, or from a busy host: each attempt once ended after half a second at most, so there never was a connection."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(delay_s)
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(relay(reader, to_server, 0), relay(from_server, writer, 0.8))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as proxy:
        address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with grpc.aio.insecure_channel(address, options=client_options()) as channel, asyncio.timeout(8):
            await channel.channel_ready()
        await server.stop(None)
