"""A fleet of real processes with certificates, kept by a launcher; whoever holds it is an operator."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tests.integration.processes import snapline
from tests.integration.running import Running

from snapline.deploy.launching import Kind, SnaplineCommands
from snapline.deploy.local import LocalFleet
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.security.transport import Security

PACED_BANK = "tests.integration.fleets.paced_bank:fleet"


def security(folder: Path, owner: str) -> Security:
    """That of ROLE-NAME, in a folder that `auth init` has made."""
    return Security.tls(authority=folder / "ca.crt", certificate=folder / f"{owner}.crt", key=folder / f"{owner}.key")


def _names(prefix: str, count: int) -> str:
    return ",".join([f"{prefix}{number}" for number in range(1, count + 1)])


@contextlib.asynccontextmanager
async def running_secured(
    data_dir: Path, certificates: Path, fleet: str, arguments: Mapping[str, str], *, hosts: int, coordinators: int
) -> AsyncIterator[Running]:
    """Run it, `MODULE:FLEET`; certificates are made in a folder, and read there by every process."""
    replicas = _names("c", coordinators) if coordinators > 1 else "coordinator"
    made = await snapline("auth", "init", certificates, "--hosts", _names("h", hosts), "--replicas", replicas)
    assert made.code == 0, made.err

    def trust(kind: Kind, name: str) -> list[str]:
        own = f"{certificates}/{kind}-{name}"
        return ["--tls-cert", f"{own}.crt", "--tls-key", f"{own}.key", "--tls-ca", f"{certificates}/ca.crt"]

    commands = SnaplineCommands(
        data_dir=data_dir.absolute(), fleet=fleet, hosts=hosts, arguments=arguments, on_failure="restart", trust=trust
    )
    notes: list[str] = []
    local = LocalFleet(
        commands,
        data_dir=data_dir,
        hosts=hosts,
        coordinators=coordinators,
        connect=lambda address: CoordinatorClient(address, security(certificates, "launcher-launcher")),
        on_note=notes.append,
    )
    async with local:
        client = CoordinatorClient(local.address, security(certificates, "operator-operator"))
        try:
            yield Running(local, client, notes)
        finally:
            await client.close()
