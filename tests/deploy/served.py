"""Which certificates processes of a fleet serve just now."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from snapline.messages.status import FleetStatus

LIMIT_S = 180.0


def addresses(coordinators: str, status: FleetStatus) -> dict[str, str]:
    """ROLE-NAME → where it listens; `coordinators`: those of c1, c2 … with commas between."""
    found = {f"coordinator-c{number}": address for number, address in enumerate(coordinators.split(","), 1)}
    return found | {f"host-{host.host}": host.address for host in status.hosts}


async def until_renewed(folder: Path, served: Mapping[str, str], own: str) -> None:
    """All serve the certificates that are in `folder`; `own`: ROLE-NAME of the certificate that we show."""
    wanted = {name: ssl.PEM_cert_to_DER_cert((folder / f"{name}.crt").read_text()) for name in served}
    pair = (folder / f"{own}.crt", folder / f"{own}.key")
    async with asyncio.timeout(LIMIT_S):
        while wanted != {name: await asyncio.to_thread(_certificate_at, at, pair) for name, at in served.items()}:
            await asyncio.sleep(0.2)


def _certificate_at(address: str, own: tuple[Path, Path]) -> bytes:
    """Empty: nobody serves any there, or not yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(*own)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), timeout=LIMIT_S) as plain,
        context.wrap_socket(plain) as secure,
    ):
        return secure.getpeercert(binary_form=True) or b""
    return b""
