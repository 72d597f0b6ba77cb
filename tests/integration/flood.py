"""A process that harms by connecting: `python -m tests.integration.flood HOST:PORT COUNT SECONDS [--ask PATH --tls CERTIFICATE KEY]`.

It opens so many connections to one port at once, and goes on for so long after the last; one that is closed at the other end is opened again after a second. Without `--ask` it says nothing on them. With it each speaks HTTP/2, makes 64 calls of that path, and lets nothing of the answers come: its
window is empty. Prints JSON: how many it had at most, at the end, and one after the other.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import ssl
import struct
import time

STREAMS = 64
AGAIN_S = 1.0
OPENING_S = 40.0
"""For all to have been opened once."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, DATA = 4, 1, 0
INITIAL_WINDOW_SIZE = 4
END_STREAM, END_HEADERS = 1, 4


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _header(name: bytes, value: bytes) -> bytes:
    """HPACK's literal without indexing, and without Huffman's code (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def calls(path: str) -> bytes:
    """What a client says that asks and does not listen (RFC 9113)."""
    fields = {":method": "POST", ":scheme": "https", ":path": path, ":authority": "flood", "te": "trailers"}
    fields["content-type"] = "application/grpc"
    head = b"".join([_header(name.encode(), value.encode()) for name, value in fields.items()])
    said = PREFACE + _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)) + _frame(SETTINGS, 1, 0, b"")
    for stream in range(1, 2 * STREAMS, 2):
        said += _frame(HEADERS, END_HEADERS, stream, head) + _frame(DATA, END_STREAM, stream, bytes(5))
    return said


class Flood:
    """Attributes:
    held: connections just now.
    most: at any time.
    opened: all together.
    """

    def __init__(self, address: str, said: bytes, context: ssl.SSLContext | None) -> None:
        host, _, port = address.rpartition(":")
        self._place = (host, int(port))
        self._said = said
        self._context = context
        self.held = self.most = self.opened = 0

    async def hold_one(self) -> None:
        """One connection after the other, until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                await self._hold()
            await asyncio.sleep(AGAIN_S)

    async def _hold(self) -> None:
        loop = asyncio.get_running_loop()
        if self._context is not None:
            _, writer = await asyncio.open_connection(*self._place, ssl=self._context, limit=1)
            writer.write(self._said)
            connection = writer.get_extra_info("socket")
            self._count(1)
            try:
                while not writer.is_closing():
                    await asyncio.sleep(0.5)
            finally:
                self._count(-1)
                writer.close()
            return
        with socket.socket() as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(connection, self._place)
            self._count(1)
            try:
                await loop.sock_sendall(connection, self._said)
                if self._said:
                    await asyncio.Event().wait()
                while await loop.sock_recv(connection, 4096):
                    pass
            finally:
                self._count(-1)

    def _count(self, change: int) -> None:
        self.held += change
        self.opened += change > 0
        self.most = max(self.most, self.held)


async def flood(options: argparse.Namespace) -> dict[str, int]:
    context = None
    if options.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(*options.tls)
        context.set_alpn_protocols(["h2"])
    made = Flood(options.address, calls(options.ask) if options.ask else b"", context)
    tasks = [asyncio.create_task(made.hold_one()) for _ in range(options.count)]
    deadline_s = time.monotonic() + OPENING_S
    while made.opened < options.count and time.monotonic() < deadline_s:
        await asyncio.sleep(0.2)
    await asyncio.sleep(options.seconds)
    held = made.held
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"most": made.most, "held": held, "opened": made.opened}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("count", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--ask", default="")
    parser.add_argument("--tls", nargs=2)
    print(json.dumps(asyncio.run(flood(parser.parse_args()))))


if __name__ == "__main__":
    main()
