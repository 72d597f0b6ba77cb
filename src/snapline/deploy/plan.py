"""Plan of what runs elsewhere, the same for all launchers: a plan, the certificates of its processes, and their command lines."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from snapline.deploy.commands import SnaplineCommands
from snapline.deploy.launching import Kind
from snapline.deploy.running_fleet import ALONE, LAST_SNAPSHOT_S
from snapline.deploy.supervisor import OnFailure
from snapline.errors import UsageError

NODE, PRIVATE = "@node", "@private"
"""Placeholders in command lines: the address of the machine that a process comes to, and the folder with its certificates there."""

Files = Callable[[Kind, str], Mapping[str, bytes]]
"""Certificates and keys for the process of this kind and name: file name → content."""

AUTHORITY = "ca.crt"


class FleetPlan(msgspec.Struct, frozen=True):
    """Plan of a fleet: what runs, and where.

    Attributes:
        name: of the fleet at its place.
        fleet, arguments: `MODULE:FLEET`, and what it is called with.
        data_dir: a path on every node for logs and the coordinators' own; it need not be shared.
        store: URL, or a path that all nodes share; empty: `store` in `data_dir`, which must then be shared.
        node: on Ray: resources that each host reserves on its node.
        on_failure: whether a lost host's agents move at once, or wait for it for a while; it comes back in both cases.
        is_insecure: plaintext between nodes, at the user's request.
        domain: trust domain of the certificates.
        log: options of each process for its logs and its export to OpenTelemetry.
        last_snapshot_s: how long a last snapshot may take when the fleet is taken down; 0: none is taken.
        begin_anew: if all snapshots of the fleet are damaged it begins from its initial states.
        has_metrics: each process serves metrics on its machine, at a port of its own; `metrics/` in `data_dir` holds the addresses.
    """

    name: str
    fleet: str
    data_dir: str
    hosts: int
    node: dict[str, float]
    coordinators: int = 1
    arguments: dict[str, str] = {}
    store: str = ""
    on_failure: OnFailure = "move"
    is_insecure: bool = False
    domain: str = "snapline"
    has_metrics: bool = False
    log: tuple[str, ...] = ()
    last_snapshot_s: float = LAST_SNAPSHOT_S
    begin_anew: bool = False


def check_exposure(address: str) -> None:
    """Refuse processes without certificates, if `--insecure` was not given: `address` is one beyond this machine, or empty.

    Raises:
        UsageError: there is one.
    """
    if address:
        raise UsageError(
            f"processes at {address} would speak in plaintext to other machines, and anybody there take part: give --tls DIR "
            "(`snapline auth init DIR` makes the certificates), or --insecure if the network is yours alone"
        )


def read_certificates(folder: Path, hosts: int, coordinators: int) -> dict[str, bytes]:
    """Return what the processes of such a fleet need of a folder made by `snapline auth init`: never the authority's key.

    Raises:
        UsageError: one is not there; explains how it is made.
    """
    owners = [("host", f"h{number}") for number in range(1, hosts + 1)]
    owners += [("coordinator", f"c{number}") for number in range(1, coordinators + 1)]
    return read_of(folder, [*owners, ("launcher", "launcher")])


def read_of(folder: Path, owners: Iterable[tuple[str, str]]) -> dict[str, bytes]:
    """Certificates and keys of these roles and names, and the authority's certificate; raises as `read_certificates` does."""
    found: dict[str, bytes] = {}
    for role, name in owners:
        for file in (f"{role}-{name}.crt", f"{role}-{name}.key"):
            try:
                found[file] = (folder / file).read_bytes()
            except OSError as error:
                made = f"`snapline auth issue {folder} {role} {name}`"
                raise UsageError(f"{folder / file} cannot be read: {made} makes it") from error
    try:
        return {**found, AUTHORITY: (folder / AUTHORITY).read_bytes()}
    except OSError as error:
        raise UsageError(f"{folder / AUTHORITY} cannot be read: `snapline auth init {folder}` makes it") from error


def own_files(certificates: Mapping[str, bytes], role: str, name: str) -> dict[str, bytes]:
    """Return those certificates that one process needs: its own, and the authority's."""
    if not certificates:
        return {}
    owner = f"{role}-{'c1' if name == ALONE else name}"
    return {
        "own.crt": certificates[f"{owner}.crt"],
        "own.key": certificates[f"{owner}.key"],
        AUTHORITY: certificates[AUTHORITY],
    }


def commands_of(plan: FleetPlan, *, is_tls: bool) -> SnaplineCommands:
    """Command lines for nodes."""
    files = (
        "--tls-cert",
        f"{PRIVATE}/own.crt",
        "--tls-key",
        f"{PRIVATE}/own.key",
        "--tls-ca",
        f"{PRIVATE}/{AUTHORITY}",
    )
    trust = (*files, "--tls-domain", plan.domain) if is_tls else ("--insecure",) if plan.is_insecure else ()
    return SnaplineCommands(
        data_dir=Path(plan.data_dir),
        fleet=plan.fleet,
        hosts=plan.hosts,
        arguments=plan.arguments,
        on_failure=plan.on_failure,
        store=plan.store,
        listen=f"{NODE}:0",
        metrics=f"{NODE}:0" if plan.has_metrics else "",
        log=plan.log,
        last_snapshot_s=plan.last_snapshot_s,
        begin_anew=plan.begin_anew,
        trust=lambda kind, name: trust,
    )
