"""Diagnosis of failed connections: certificates and TLS of two processes. gRPC reports only that the peer could not be reached.

If a server rejects our certificate under TLS 1.3, the handshake succeeds on our side and the server then closes the connection: gRPC reports
that like a server crash. So a process that could not connect makes a TLS handshake of its own with the same files. The result shows which side
rejected the other. It does not depend on the wording of gRPC's errors, and neither a closed port nor a proxy without a server counts as
a rejection.
"""

import asyncio
from collections.abc import Iterable

from snapline.security.transport import RELOAD_S, Security, is_loopback, server_name

TRUST_WAIT_S = 2 * RELOAD_S
"""Time after which distrust is final. A rotation reaches every process in half of this time, so a peer that was never trusted
for this long belongs to another authority."""

PROBE_S = 5.0
"""Time limit of a handshake, which usually takes milliseconds. A slower peer is considered busy, not distrusted."""

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Connection preface and empty SETTINGS frame (RFC 9113, 3.4): a plaintext gRPC server answers with a SETTINGS frame of its own."""

HANDSHAKES = 2
"""Number of handshakes that must have the same result: a single closed connection could be a server crash."""


class DistrustTracker:
    """Time since when each address is distrusted, and whether that is final. Does no I/O."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._since_s: dict[str, float | None] = dict.fromkeys(addresses)
        self._untried = set(self._since_s)
        self._is_proved = False

    @property
    def is_distrust_final(self) -> bool:
        """Return whether no peer has ever answered, though each address was tried."""
        return not self._is_proved and not self._untried

    @property
    def is_proved(self) -> bool:
        """Return whether a peer has ever answered: then the certificates were valid, and distrust is never final."""
        return self._is_proved

    def answered(self) -> None:
        """Note that a peer has answered."""
        self._is_proved = True

    def failed(self, address: str, now_s: float, *, is_distrust: bool) -> bool:
        """Record a failed attempt; return whether all addresses have been distrusted for long enough."""
        self._untried.discard(address)
        if address in self._since_s:
            since_s = self._since_s[address]
            self._since_s[address] = (now_s if since_s is None else since_s) if is_distrust else None
        waits = [since_s for since_s in self._since_s.values() if since_s is not None]
        is_everybody = len(waits) == len(self._since_s)
        return not self._is_proved and is_everybody and now_s - max(waits) >= TRUST_WAIT_S


async def distrust_reason(security: Security, address: str, *, role: str, name: str) -> str | None:
    """Return a message about the certificate problem; None if certificates are not the cause, or no peer answers."""
    if not security.is_tls:
        return None
    try:
        async with asyncio.timeout(PROBE_S):
            for _ in range(HANDSHAKES):
                if (reason := await _refusal(security, address, role, name)) is None:
                    return None
    except (OSError, ValueError):  # no peer answers in time, or the address has no port
        return None
    return reason


async def transport_mismatch(security: Security, address: str) -> str | None:
    """Return a message, with the remedy, that one side uses TLS and the other plaintext; None if that is not the cause."""
    host, _, port = address.rpartition(":")
    speaks = _speaks_plaintext if security.is_tls else _speaks_tls
    try:
        async with asyncio.timeout(PROBE_S):
            if not await speaks(host.strip("[]"), int(port)):
                return None
    except (OSError, ValueError, EOFError):
        return None
    if not security.is_tls:
        return f"the process at {address} speaks TLS, and no certificates are given here: give --tls-cert, --tls-key and --tls-ca"
    instead = "" if is_loopback(address) else " and give --insecure"
    return (
        f"the process at {address} speaks plaintext, and certificates are given here: give it certificates too, or leave out "
        f"--tls-cert, --tls-key and --tls-ca here{instead}"
    )


async def _speaks_plaintext(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(HTTP2_PREFACE)
        header = await reader.readexactly(9)
        return header[3] == 4 and header[5:] == bytes(4)
    finally:
        writer.transport.abort()


async def _speaks_tls(host: str, port: int) -> bool:
    """Return whether a handshake succeeds, or ends with a TLS alert. It authenticates neither side and sends no data."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in str(error.reason)
    writer.transport.abort()
    return True


def trust_advice(why: str) -> str:
    """Return the advice for a certificate problem."""
    if "expired" in why:
        return "renew that certificate: `snapline auth renew DIR` does it for those that `snapline auth init` has made"
    return "have one authority sign both certificates, and give its certificate to both as --tls-ca"


async def _refusal(security: Security, address: str, role: str, name: str) -> str | None:
    """One handshake, up to the first byte that a server sends to whom it trusts."""
    import ssl

    host, _, port = address.rpartition(":")
    expected = server_name(role, name, security.domain)
    try:
        reader, writer = await asyncio.open_connection(
            host.strip("[]"), int(port), ssl=security.client_context(), server_hostname=expected
        )
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not trusted here: {error.verify_message}"
    except ssl.SSLError as error:
        return _alert(error)
    try:
        return None if await reader.read(1) else "it does not trust ours"
    except ConnectionResetError:
        return "it does not trust ours"
    except ssl.SSLError as error:
        return _alert(error)
    finally:
        writer.transport.abort()


def _alert(error: OSError) -> str | None:
    """Return the alert that the peer sent; None for other errors, which do not concern certificates."""
    reason = str(getattr(error, "reason", ""))
    about = "CERTIFICATE" in reason or "UNKNOWN_CA" in reason
    return f"it does not trust ours: {reason.lower().replace('_', ' ')}" if "ALERT" in reason and about else None
