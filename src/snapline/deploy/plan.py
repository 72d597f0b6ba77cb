"""Plan of a fleet on other machines, for any launcher. The plan defines the fleet's processes, certificates and command lines."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from snapline.deploy.launching import Kind, SnaplineCommands
from snapline.deploy.running_fleet import LAST_SNAPSHOT_S, SINGLE_COORDINATOR
from snapline.deploy.supervisor import OnFailure
from snapline.errors import UsageError

NODE, PRIVATE = "@node", "@private"
"""Placeholders in command lines for the address of the machine that runs the process, and for the folder on that machine with the process's
certificates."""

Files = Callable[[Kind, str], Mapping[str, bytes]]
"""Function that returns the certificates and keys of the process with this kind and name, as file contents by file name."""

AUTHORITY = "ca.crt"


def bracketed(address: str) -> str:
    """Return an address to which a port can be appended. An IPv6 address is enclosed in brackets."""
    return f"[{address}]" if ":" in address else address


class FleetPlan(msgspec.Struct, frozen=True):
    """Plan of a fleet and its processes.

    Attributes:
        name: name of the fleet, which is unique at its place.
        fleet, arguments: `MODULE:FLEET`, and the arguments to pass if FLEET is a function.
        data_dir: path, on every node, of the folder for logs and the coordinators' files. The nodes need not share this folder.
        store: URL of the store, or a path that all nodes share. If `store` is empty, the store is the folder `store` in `data_dir`, and all
            nodes must share `data_dir`.
        node: resources to reserve for each host on its node. Used only on Ray.
        on_failure: whether agents of a lost host move to other hosts immediately, or first wait for the host to return. The lost host is
            restarted in either case.
        is_insecure: whether plaintext between nodes is allowed.
        domain: trust domain of the certificates.
        log: command-line options for logs and OpenTelemetry, for each process.
        last_snapshot_s: time limit in seconds for the last snapshot when the fleet is shut down. If `last_snapshot_s` is 0, no last
            snapshot is taken.
        begin_anew: whether the fleet starts from its initial states if all of its snapshots are damaged.
        has_metrics: whether each process serves metrics on its own port. The folder `metrics/` in `data_dir` contains the addresses.
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
    """Refuse to run processes without certificates if other machines can reach the processes. Callers skip this check if `--insecure` is
    given.

    Args:
        address: address of a process on another machine, or an empty string if all processes run on this machine.

    Raises:
        UsageError: If `address` is not empty.
    """
    if address:
        raise UsageError(
            f"processes at {address} would speak in plaintext to other machines, and anybody there take part: give --tls DIR "
            "(`snapline auth init DIR` makes the certificates), or --insecure if the network is yours alone"
        )


def read_certificates(folder: Path, hosts: int, coordinators: int) -> dict[str, bytes]:
    """Return the processes' certificate files from a folder created by `snapline auth init`. Omit the certificate authority's key.

    Raises:
        UsageError: If a file is missing. The message explains how to create the file.
    """
    owners = [("host", f"h{number}") for number in range(1, hosts + 1)]
    owners += [("coordinator", f"c{number}") for number in range(1, coordinators + 1)]
    return read_owner_files(folder, [*owners, ("launcher", "launcher")])


def read_owner_files(folder: Path, owners: Iterable[tuple[str, str]]) -> dict[str, bytes]:
    """Return the certificates and keys of the given roles and names, and the certificate authority's certificate.

    Raises the same errors as `read_certificates`.
    """
    contents: dict[str, bytes] = {}
    for role, name in owners:
        for file in (f"{role}-{name}.crt", f"{role}-{name}.key"):
            try:
                contents[file] = (folder / file).read_bytes()
            except OSError as error:
                command = f"`snapline auth issue {folder} {role} {name}`"
                raise UsageError(f"{folder / file} cannot be read: {command} makes it") from error
    try:
        return {**contents, AUTHORITY: (folder / AUTHORITY).read_bytes()}
    except OSError as error:
        raise UsageError(f"{folder / AUTHORITY} cannot be read: `snapline auth init {folder}` makes it") from error


def own_files(certificates: Mapping[str, bytes], role: str, name: str) -> dict[str, bytes]:
    """Return the certificates that one process needs: its own certificate and the certificate authority's.

    Return an empty dict if the fleet does not use certificates.
    """
    if not certificates:
        return {}
    owner = f"{role}-{'c1' if name == SINGLE_COORDINATOR else name}"
    return {
        "own.crt": certificates[f"{owner}.crt"],
        "own.key": certificates[f"{owner}.key"],
        AUTHORITY: certificates[AUTHORITY],
    }


def commands_of(plan: FleetPlan, *, is_tls: bool) -> SnaplineCommands:
    """Return the builder of the command lines of the plan's processes. The command lines contain placeholders that each node replaces."""
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
