"""Transport security: plaintext on the loopback interface, mutual TLS, or plaintext at the user's request. This module also diagnoses
failed connections.

With mutual TLS, every process has a certificate signed by the fleet's authority. A certificate identifies its process in two forms, one for
servers and one for clients. A server reads the SPIFFE URI `spiffe://DOMAIN/host/h3` in the client's certificate and compares it with the
identity that the client claims. A client checks that the server's certificate contains the DNS name `h3.host.DOMAIN`, since gRPC's asyncio
client cannot see the server's certificate. `rpc_authorization.py` defines the roles and their permissions, and `certificates.py` creates
certificates. Each fleet has its own DOMAIN. Certificates with a different domain are invalid, even if the same authority has signed them.

Rotation. `reload()` reads the certificate files again. After a reload, a server presents the new certificate to new connections, while
existing streams continue. A client presents the new certificate only on new channels, so links are reopened when `generation` has changed.
To replace the authority, first put both authorities into the file, then replace the certificates, and finally remove the old authority.

Guarantee G9 relies on host generations and incarnations. Certificates alone cannot ensure G9, because they identify a host but not the
host's current run.

Diagnosis. If a connection fails, gRPC reports only that the peer could not be reached. If a server rejects the client's certificate under
TLS 1.3, the client's handshake succeeds. Then the server closes the connection, and gRPC cannot distinguish this from a crash. So a process
that could not connect performs a separate TLS handshake with the same certificate files. The handshake shows whether the client has
rejected the server's certificate or the server has rejected the client's. This diagnosis does not depend on the wording of gRPC's errors. A
closed port, or a proxy that has no server behind it, does not count as a rejection.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import grpc.aio

from snapline.channels.servers import address_error, client_options, listen_error
from snapline.errors import ExternalFailureError, UsageError

if TYPE_CHECKING:
    import ssl


log = logging.getLogger("snapline.channels")

DEFAULT_DOMAIN = "snapline"
"""Default SPIFFE trust domain."""

RELOAD_S = 5.0
"""Time in seconds between two checks of the certificate files. It is short, so that new connections soon use a renewed certificate."""

LINK_AGE_S_MAX = 3600.0
"""Time in seconds after which a link is reopened, so that an expired or revoked certificate is rejected within an hour."""


RENEW_S, RENEW_SHARE = 7 * 86_400.0, 0.2
"""Remaining validity below which a certificate is due for renewal: this time in seconds, or this share of the total validity, whichever is
less."""


class Identity(NamedTuple):
    """The role and name of a certificate's owner, such as `("host", "h3")`."""

    role: str
    name: str


class _Mode(Enum):
    LOOPBACK = "loopback"
    INSECURE = "insecure"
    TLS = "tls"


class _Files(NamedTuple):
    authority: Path
    certificate: Path
    key: Path


class _Pems(NamedTuple):
    authority: bytes
    certificate: bytes
    key: bytes


def spiffe_uri(role: str, name: str, domain: str = DEFAULT_DOMAIN) -> str:
    """Return the URI that the certificate of this role and name must contain, for example `spiffe://snapline/host/h3`."""
    return f"spiffe://{domain}/{role}/{name}"


def server_name(role: str, name: str, domain: str = DEFAULT_DOMAIN) -> str:
    """Return the DNS name that the certificate of a server with this role and name must contain, for example `h3.host.snapline`."""
    return f"{name}.{role}.{domain}"


class Security:
    """Transport security of this process, used to listen, to dial and to identify peers. Create instances with `loopback`, `tls` or
    `insecure`.

    Attributes:
        generation: counter that increases each time `reload` finds changed certificates.
    """

    def __init__(
        self, mode: _Mode, *, files: _Files | None = None, domain: str = DEFAULT_DOMAIN, token: str = ""
    ) -> None:
        self._mode = mode
        self._files = files
        self._token = token
        self._pems: _Pems | None = None
        self._configuration: grpc.ServerCertificateConfiguration | None = None
        self._context: tuple[int, ssl.SSLContext] | None = None
        self._valid_s: tuple[float, float] = (0.0, math.inf)
        """First and last second in which our certificate is valid, in seconds since 1970."""
        self._warned = (0, False)
        """Generation of the certificate about which the last expiry warning was logged, and whether the certificate had already expired."""
        self.domain = domain
        self.generation = 0

    @classmethod
    def loopback(cls) -> "Security":
        """Allow plaintext, but only between processes on this machine."""
        return cls(_Mode.LOOPBACK)

    @classmethod
    def insecure(cls) -> "Security":
        """Allow plaintext to all machines. Anyone who can reach a port may then join the fleet. Plaintext to other machines is used only if
        the user passes `--insecure`."""
        return cls(_Mode.INSECURE)

    @classmethod
    def tls(
        cls,
        *,
        authority: str | Path,
        certificate: str | Path,
        key: str | Path,
        domain: str = DEFAULT_DOMAIN,
        token: str = "",
    ) -> "Security":
        """Use mutual TLS with certificates in PEM files. The files are read when they are first needed, and again by `reload`. `token` is
        sent with every call."""
        files = _Files(Path(authority), Path(certificate), Path(key))
        return cls(_Mode.TLS, files=files, domain=domain, token=token)

    def bearing(self, token: str) -> "Security":
        """Return a copy that sends this token with every call, so that the role of the token counts."""
        return Security(self._mode, files=self._files, domain=self.domain, token=token)

    @property
    def is_tls(self) -> bool:
        """Return whether mutual TLS is used."""
        return self._mode is _Mode.TLS

    def check_listen_address(self, address: str) -> None:
        """Check that listening at this address does not expose plaintext to other machines.

        Raises:
            UsageError: If the address is not a loopback address, TLS is not used, and the user did not pass `--insecure`.
        """
        if self._mode is _Mode.LOOPBACK and not is_loopback(address):
            raise UsageError(
                f"listening on {address} without certificates would let anybody on the network take part: "
                f"give certificates (--tls-cert, --tls-key and --tls-ca; `snapline up`: --tls), listen on 127.0.0.1, or pass --insecure "
                f"if the network is yours alone"
            )

    def may_dial(self, address: str) -> bool:
        """Return whether this process may dial the address (see `check_dial_address`)."""
        return self._mode is not _Mode.LOOPBACK or is_loopback(address)

    def check_dial_address(self, address: str) -> None:
        """Raise UsageError if dialling this address would send plaintext to another machine, unless `--insecure` was given."""
        if not self.may_dial(address):
            raise UsageError(
                f"dialling {address} without certificates would send everything in plaintext: "
                f"give certificates, or pass --insecure if the network is yours alone"
            )

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Add a listening address to a server. Return the port.

        Raises:
            UsageError: If listening at the address in plaintext is not permitted (see `check_listen_address`).
            AddressError: the address does not belong to this machine.
            AddressBusyError: the port is in use, or the host name is unknown.
            ExternalFailureError: the certificates are unreadable.
        """
        self.check_listen_address(address)
        if self._mode is _Mode.INSECURE and not is_loopback(address):
            log.warning(
                "listening on %s in plaintext: whoever reaches this port is master of the fleet (--insecure)", address
            )
        try:
            if self.is_tls:
                port = server.add_secure_port(address, self._server_credentials())
            else:
                port = server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if port == 0:  # gRPC does not report the system's reason
            raise address_error(f"cannot listen on {address}", listen_error(address), "choose another --listen")
        return port

    def open_channel(self, address: str, *, role: str, name: str | None) -> grpc.aio.Channel:
        """Open a channel to a server that must prove that it is `name` with the role `role`. The channel presents this process's newest
        certificate.

        If `name` is None, the server's certificate must contain the host name in the address instead.
        """
        self.check_dial_address(address)
        if not self.is_tls:
            return grpc.aio.insecure_channel(address, options=client_options())
        expected = None if name is None else server_name(role, name, self.domain)
        return grpc.aio.secure_channel(address, self._client_credentials(), options=client_options(expected))

    def open_blocking_channel(self, address: str, *, role: str, name: str) -> grpc.Channel:
        """Open a channel as `open_channel` does, but for threads that have no event loop."""
        self.check_dial_address(address)
        if not self.is_tls:
            return grpc.insecure_channel(address, options=client_options())
        expected = server_name(role, name, self.domain)
        return grpc.secure_channel(address, self._client_credentials(), options=client_options(expected))

    def _client_credentials(self) -> grpc.ChannelCredentials:
        pems = self._load()
        credentials = grpc.ssl_channel_credentials(pems.authority, pems.key, pems.certificate)
        if not self._token:
            return credentials
        return grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(self._token))

    def client_context(self) -> "ssl.SSLContext":
        """Return a TLS context for Python's `ssl` module that uses the same certificates. Raise OSError if the files are unreadable or do
        not belong together."""
        import ssl

        assert self._files is not None, "only with TLS"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # gRPC accepts any certificate in the file as a root
        context.load_verify_locations(self._files.authority)
        context.load_cert_chain(self._files.certificate, self._files.key)
        context.set_alpn_protocols(["h2"])
        return context

    def identity(self, context: grpc.aio.ServicerContext[Any, Any]) -> Identity | None:
        """Return the identity in the caller's certificate. Return None if TLS is not used, or if the certificate contains no identity in
        this fleet's domain."""
        if not self.is_tls:
            return None
        names = context.auth_context().get("x509_subject_alternative_name", ())
        return self.identity_in([name.decode(errors="replace") for name in names])

    def certificate_of(self, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        """Return the certificate chain that a caller has presented, in PEM format."""
        auth_context = context.auth_context()
        return next(iter(auth_context.get("x509_pem_cert_chain") or auth_context.get("x509_pem_cert") or ()), b"")

    def identity_in(self, names: Iterable[str]) -> Identity | None:
        """Return the identity in a certificate that contains the given URIs and DNS names. Return None unless exactly one of the names is a
        valid identity in this fleet's domain."""
        prefix = f"spiffe://{self.domain}/"
        identities = [name[len(prefix) :] for name in names if name.startswith(prefix)]
        if len(identities) != 1 or identities[0].count("/") != 1:
            return None
        role, _, name = identities[0].partition("/")
        return Identity(role, name)

    def http_context(self) -> "ssl.SSLContext":
        """Return a TLS context for an HTTP server that presents this process's newest certificate. Clients must present a certificate.

        Call this method for each connection, because the certificates may have been renewed.

        Raises:
            ExternalFailureError: the certificates are unreadable.
        """
        import ssl

        pems, files = self._load(), self._files
        assert files is not None
        if self._context is None or self._context[0] != self.generation:
            tls_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls_context.minimum_version = ssl.TLSVersion.TLSv1_2
            tls_context.verify_mode = ssl.CERT_REQUIRED
            try:
                tls_context.load_cert_chain(files.certificate, files.key)
                tls_context.load_verify_locations(cadata=pems.authority.decode())
            except (ssl.SSLError, OSError, ValueError) as error:
                raise ExternalFailureError(f"{files.certificate} cannot be used for HTTP: {error}") from error
            self._context = self.generation, tls_context
        return self._context[1]

    def refusal(self, context: grpc.aio.ServicerContext[Any, Any], *, role: str, name: str) -> str | None:
        """Return the reason why the caller may not act as `name` with the role `role`, or None if it may. Without TLS, return None."""
        if not self.is_tls:
            return None
        identity = self.identity(context)
        if identity == (role, name):
            return None
        says = "names nobody of this fleet" if identity is None else f"says {identity.role} {identity.name}"
        return f"the certificate {says}, the caller says {role} {name}"

    def reload(self) -> bool:
        """Read the certificate files again. If the certificates have changed, use the new ones. Return whether the certificates have
        changed.

        If the files are unreadable or do not belong together, log a warning and keep using the old certificates. The three files cannot be
        replaced atomically, so a failed reload may succeed when it is repeated.
        """
        if not self.is_tls or self._pems is None:
            return False
        try:
            pems = self._read()
        except ExternalFailureError as error:
            log.warning("certificates were not reloaded: %s", error)
            return False
        if pems == self._pems:
            self._warn_of_expiry()
            return False
        self._use(pems)
        return True

    def authority(self) -> bytes:
        """Return the certificates of the trusted authorities in PEM format."""
        return self._load().authority

    def certificate_left_ns(self) -> int | None:
        """Return the remaining validity of this process's certificate in nanoseconds if the certificate is due for renewal, otherwise None.
        A value of 0 or less means that the certificate has expired."""
        begun_s, ends_s = self._valid_s
        left_s = ends_s - time.time()
        return round(left_s * 1e9) if left_s < min(RENEW_S, RENEW_SHARE * (ends_s - begun_s)) else None

    def _warn_of_expiry(self) -> None:
        """Log a warning once when the certificate is due for renewal, and once when it has expired."""
        left_ns = self.certificate_left_ns()
        if left_ns is None or self._warned >= (self.generation, left_ns <= 0):
            return
        self._warned, at = (
            (self.generation, left_ns <= 0),
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._valid_s[1])),
        )
        assert self._files is not None
        problem = "has expired: new connections are refused" if left_ns <= 0 else "expires soon"
        log.warning(
            "the certificate in %s %s (%s UTC): `snapline auth renew DIR` renews it",
            self._files.certificate,
            problem,
            at,
        )

    def _load(self) -> _Pems:
        if self._pems is None:
            self._use(self._read())
        assert self._pems is not None
        return self._pems

    def _read(self) -> _Pems:
        assert self._files is not None
        try:
            pems = _Pems(*(path.read_bytes() for path in self._files))
        except OSError as error:
            raise ExternalFailureError(f"cannot read a certificate: {error}") from error
        _check(self._files, pems)
        return pems

    def _use(self, pems: _Pems) -> None:
        self._configuration = grpc.ssl_server_certificate_configuration(
            [(pems.key, pems.certificate)], root_certificates=pems.authority
        )
        self._pems = pems
        self._valid_s = _validity(pems.certificate)
        self.generation += 1
        self._warn_of_expiry()

    def _server_credentials(self) -> grpc.ServerCredentials:
        self._load()
        assert self._configuration is not None
        served: grpc.ServerCertificateConfiguration = self._configuration

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            # gRPC calls this on its own thread at every handshake. Return the cached files, or None if they are unchanged.
            nonlocal served
            if self._configuration is served:
                return None
            assert self._configuration is not None
            served = self._configuration
            return served

        return grpc.dynamic_ssl_server_credentials(
            served,
            fetch,  # type: ignore[arg-type]  # the stubs do not allow None
            require_client_authentication=True,
        )


def _check(files: _Files, pems: _Pems) -> None:
    """Check that the certificate matches the key, and that the authority's file is valid. With an invalid file, every handshake would fail
    without a reason, and an empty key would make gRPC abort the process.

    The check uses the bytes that were already read, because another process may be writing the files.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        with _in_memory(pems.certificate) as certificate, _in_memory(pems.key) as key:
            context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise ExternalFailureError(
            f"{files.certificate} and {files.key} are not a certificate and its key: {error}"
        ) from error
    try:
        with _in_memory(pems.authority) as authority:
            context.load_verify_locations(authority)
    except (ssl.SSLError, OSError) as error:
        raise ExternalFailureError(f"{files.authority} holds no certificates of an authority: {error}") from error


def _validity(certificate: bytes) -> tuple[float, float]:
    """Return the times between which a certificate is valid, in seconds since 1970.

    Python's `ssl` module provides these times only for peers' certificates, so this function uses one of its internal functions.
    """
    import ssl

    with _in_memory(certificate) as path:
        decode = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]  # missing in the stubs
        decoded = decode(path)
    return ssl.cert_time_to_seconds(decoded["notBefore"]), ssl.cert_time_to_seconds(decoded["notAfter"])


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield a path from which OpenSSL, which accepts only paths, can read the content. The content stays in memory and is never written to
    disk."""
    with open(os.memfd_create("pem"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def is_loopback(address: str) -> bool:
    """Return whether an address of the form `host:port`, `[::1]:port` or `unix:path` can be reached only from this machine."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


TRUST_WAIT_S = 2 * RELOAD_S
"""Time in seconds after which distrust is final. A rotation reaches every process in half of this time. So if a peer has never been trusted
for this long, its certificate was signed by a different authority."""

PROBE_S = 5.0
"""Time limit in seconds for a handshake, which usually takes milliseconds. If a peer is slower, this is taken as a sign that it is busy,
not that there is distrust."""

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Connection preface and empty SETTINGS frame (RFC 9113, 3.4). A plaintext gRPC server answers with its own SETTINGS frame."""

HANDSHAKES = 2
"""Number of handshakes that must all end in a rejection. A single closed connection could be a server crash."""


class DistrustTracker:
    """Tracks, for each address, how long this process and the peer there have rejected each other's certificates, and decides whether this
    is final. The class does no I/O."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._since_s: dict[str, float | None] = dict.fromkeys(addresses)
        self._untried = set(self._since_s)
        self._is_proved = False

    @property
    def is_distrust_final(self) -> bool:
        """Return whether the rejection can be final, because each address has been tried and no peer has ever answered."""
        return not self._is_proved and not self._untried

    @property
    def is_proved(self) -> bool:
        """Return whether a peer has ever answered. If so, the certificates were once valid, so a rejection is never final."""
        return self._is_proved

    def answered(self) -> None:
        """Record that a peer has answered."""
        self._is_proved = True

    def failed(self, address: str, now_s: float, *, is_distrust: bool) -> bool:
        """Record a failed attempt. Return True if no peer has ever answered, and certificates have been rejected at all addresses for at
        least `TRUST_WAIT_S`."""
        self._untried.discard(address)
        if address in self._since_s:
            since_s = self._since_s[address]
            self._since_s[address] = (now_s if since_s is None else since_s) if is_distrust else None
        waits = [since_s for since_s in self._since_s.values() if since_s is not None]
        is_everybody = len(waits) == len(self._since_s)
        return not self._is_proved and is_everybody and now_s - max(waits) >= TRUST_WAIT_S


async def distrust_reason(security: Security, address: str, *, role: str, name: str) -> str | None:
    """Return a message that explains why the peer or this process rejects a certificate. Return None if neither rejects a certificate, or
    if no peer answers."""
    if not security.is_tls:
        return None
    try:
        async with asyncio.timeout(PROBE_S):
            for _ in range(HANDSHAKES):
                if (reason := await _refusal(security, address, role, name)) is None:
                    return None
    except (OSError, ValueError):  # no peer answered in time, or the address has no port
        return None
    return reason


async def transport_mismatch(security: Security, address: str) -> str | None:
    """Return a message, with a remedy, if this process uses TLS and the peer plaintext, or vice versa. Otherwise return
    None."""
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
    """Return whether the server speaks TLS, which means that a TLS handshake succeeds or ends with a TLS alert. The handshake authenticates
    neither the server nor the client, and no data is sent."""
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
    """Return advice to the user about the certificate problem `why`."""
    if "expired" in why:
        return "renew that certificate: `snapline auth renew DIR` does it for those that `snapline auth init` has made"
    return "have one authority sign both certificates, and give its certificate to both as --tls-ca"


async def _refusal(security: Security, address: str, role: str, name: str) -> str | None:
    """Perform one TLS handshake, and wait for the first byte, which a server sends only to clients that it trusts. Return the reason if the
    client or the server rejects the other's certificate, otherwise None."""
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
    """Return a message that contains the TLS alert sent by the peer, or None if the alert does not concern certificates."""
    reason = str(getattr(error, "reason", ""))
    about = "CERTIFICATE" in reason or "UNKNOWN_CA" in reason
    return f"it does not trust ours: {reason.lower().replace('_', ' ')}" if "ALERT" in reason and about else None
