"""Addresses and certificates of a client's connections."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from snapline.deploy.data_directory import ADDRESS_FILE, read_address
from snapline.errors import UsageError
from snapline.messages.coordinator_client import TIMEOUT_S, CoordinatorClient
from snapline.security.transport import DEFAULT_DOMAIN, RELOAD_S, Security

CONNECT_S_MAX = 10.0
"""Longest wait for the coordinator's first answer: an election takes a second or two."""


class Certificates(msgspec.Struct, frozen=True):
    """Files of a certificate with the role `client` (docs/security.md).

    Attributes:
        certificate, key: our certificate and key, as PEM files.
        authority: the certificates that we trust.
        domain: the fleet's trust domain.
    """

    certificate: str | Path
    key: str | Path
    authority: str | Path
    domain: str = DEFAULT_DOMAIN


def address_of(address: str, data_dir: str | Path | None) -> str:
    """Return the coordinator's address; several replicas are separated by commas.

    Raises:
        UsageError: neither argument is given, or both are.
    """
    if address and data_dir is not None:
        raise UsageError("address and data_dir both name a coordinator: give one of them")
    if data_dir is not None:
        address = read_address(Path(data_dir)) or ""
        if not address:
            raise UsageError(
                f"{Path(data_dir) / ADDRESS_FILE} names no coordinator: is it the folder of a local fleet?"
            )
    if not [part for part in address.split(",") if part.strip()]:
        raise UsageError("whom to ask? Give the coordinator's address, or data_dir of a local fleet")
    return address


def security_of(tls: Certificates | None, *, insecure: bool) -> Security:
    """Return the security settings for these arguments.

    Raises:
        UsageError: they contradict each other.
    """
    if tls is None:
        return Security.insecure() if insecure else Security.loopback()
    if insecure:
        raise UsageError("insecure contradicts tls: leave one out")
    return Security.tls(authority=tls.authority, certificate=tls.certificate, key=tls.key, domain=tls.domain)


class Startable(Protocol):
    """A client before its first use."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...


_Client = TypeVar("_Client", bound=Startable)


async def started(client: _Client) -> _Client:
    """Return the client, once the coordinator has answered it; raises what `Client.connect` raises."""
    try:
        await client.start()
    except BaseException:
        await client.close()
        raise
    return client


async def keep_reloading(security: Security, renew: Callable[[], None]) -> None:
    """Check the certificate files periodically; call `renew` when they have changed."""
    generation = security.generation
    while True:
        await asyncio.sleep(RELOAD_S)
        await asyncio.to_thread(security.reload)
        if generation != security.generation:
            generation = security.generation
            renew()


async def close_later(older: CoordinatorClient) -> None:
    """Close a replaced client once its pending calls have ended."""
    try:
        await asyncio.sleep(TIMEOUT_S)
    finally:
        await older.close()
