"""Paths and lock of a local fleet's data directory (`--data-dir`).

    DIR/store               snapshots
    DIR/coordinator         the coordinator's log; with several replicas: DIR/coordinator/c1, c2 …
    DIR/coordinator.json    the coordinator's address; with several replicas: the addresses of c1, c2 …, separated by commas
    DIR/logs/*.log          output of each process; `snapline logs` merges the files
    DIR/traces/*.jsonl      traces of the hosts, with --trace; `snapline analyze DIR/traces` reads them
    DIR/marks/*.marks       the turn that each host is running, to explain why a process died during a turn
    DIR/metrics/*.json      address where each process serves its metrics, with --metrics
    DIR/hosts-wanted        target number of hosts while a supervising process runs; `snapline scale` writes it
    DIR/launcher.json       written by `snapline up`: the process that supervises the fleet; its output is in DIR/launcher.log
    DIR/keeper              written by `snapline up --on podman`: output of the supervising process
    DIR/launcher.lock       locked while a launcher runs here, so that only one fleet uses the folder

If a launcher already runs in the folder, a second launcher exits with code 11.
"""

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from snapline.errors import ExternalFailureError, UsageError
from snapline.folders import make_private
from snapline.storage.disk.local_disk import LockHeldError, lock_file

STORE_FOLDER, COORDINATOR_FOLDER, LOGS_FOLDER, TRACES_FOLDER = "store", "coordinator", "logs", "traces"
METRICS_FOLDER, MARKS_FOLDER = "metrics", "marks"
ADDRESS_FILE, LOCK_FILE = "coordinator.json", "launcher.lock"

PORTS, PORT_ATTEMPTS_MAX = range(20_000, 32_000), 200
"""A coordinator keeps its port across restarts. The port is below Linux's ephemeral ports (32768 and up), because an outgoing connection
could occupy an ephemeral port while the coordinator is down. If 200 attempts fail, the cause is not occupied ports."""


def is_same_folder(one: str | Path, other: str | Path) -> bool:
    """Return whether two paths name the same file or folder. Symbolic links are resolved. The paths need not exist."""
    return os.path.realpath(one) == os.path.realpath(other)


def marks_of(data_dir: Path, host: str) -> Path:
    """Return the path of the file in which a host records the turn that it is running."""
    return data_dir / MARKS_FOLDER / f"{host}.marks"


class DirectoryInUseError(UsageError):
    """The folder is already used by another launcher."""

    exit_code = 11


def lock(data_dir: Path) -> int:
    """Lock the folder for this launcher and return the lock's descriptor.

    The kernel releases the lock when the process exits, for any reason.
    """
    try:
        return lock_file(data_dir / LOCK_FILE)
    except LockHeldError as error:
        raise DirectoryInUseError(
            f"another fleet runs in {data_dir}, supervised by {error}: wait for its end, stop it with `snapline down --data-dir {data_dir}` "
            "if `up` started it, or choose another --data-dir"
        ) from None


@contextlib.contextmanager
def folder_of_fork(folder: Path) -> Iterator[Path]:
    """Yield the path of the store for a new fork.

    Until the block ends, no fleet can start in the folder, and no other fork can be created in it.

    Raises:
        UsageError: If the folder belongs to a fleet.
        DirectoryInUseError: If a fleet runs in the folder, or another fork is being created in it.
    """
    with contextlib.ExitStack() as held:
        try:
            make_private(folder)
            held.callback(os.close, lock(folder))
        except OSError as error:
            raise UsageError(f"{folder} cannot be the folder of a fork: {error.strerror}") from error
        if (folder / COORDINATOR_FOLDER).exists():
            raise UsageError(f"{folder} is the folder of a fleet: give the fork another one")
        yield folder / STORE_FOLDER


def choose_addresses(data_dir: Path, count: int) -> list[str]:
    """Return the coordinators' previous addresses if their ports are free, otherwise new addresses.

    Clients can continue to use addresses that have not changed.

    Raises:
        UsageError: If the fleet in this folder has a different number of coordinators. The number must not change, because a coordinator
            that has lost its recorded votes must not vote again.
    """
    earlier = read_addresses(data_dir)
    if earlier and len(earlier) != count and (data_dir / COORDINATOR_FOLDER).is_dir():
        raise UsageError(
            f"the fleet in {data_dir} has {describe_count(len(earlier))}, and keeps them: "
            f"give --coordinators {len(earlier)}, or choose another --data-dir"
        )
    ports = [int(address.rpartition(":")[2]) for address in earlier]
    chosen: list[int] = []
    for number in range(count):
        attempts = random.sample(PORTS, PORT_ATTEMPTS_MAX)
        if number < len(ports):
            attempts.insert(0, ports[number])
        port = next((port for port in attempts if port not in chosen and is_free("127.0.0.1", port)), None)
        if port is None:
            raise ExternalFailureError(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")
        chosen.append(port)
    addresses = [f"127.0.0.1:{port}" for port in chosen]
    write_address(data_dir, ",".join(addresses))
    return addresses


def write_address(data_dir: Path, address: str) -> None:
    """Write the coordinator's address, or the comma-separated addresses of several coordinators."""
    content = {"apiVersion": "snapline/v1", "kind": "CoordinatorAddress", "address": address}
    path = data_dir / ADDRESS_FILE
    scratch = path.with_name(path.name + ".new")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    scratch.replace(path)


def read_address(data_dir: Path) -> str | None:
    """Return the last known address of the folder's coordinator, or None if no address is known. The addresses of several coordinators are
    separated by commas."""
    return ",".join(read_addresses(data_dir)) or None


def read_addresses(data_dir: Path) -> list[str]:
    """Return the coordinators' addresses, sorted by the coordinators' names. Return an empty list if the file is missing or contains an
    invalid address."""
    try:
        content = msgspec.json.decode((data_dir / ADDRESS_FILE).read_bytes(), type=dict[str, str])
        addresses = content["address"].split(",")
        parts = [address.rpartition(":") for address in addresses]
        return addresses if all(host and 0 < int(port) < 65_536 for host, _, port in parts) else []
    except (OSError, KeyError, ValueError):
        return []


def describe_count(count: int) -> str:
    """Format a number of coordinators, for example as `1 coordinator` or `3 coordinators`."""
    return f"{count} coordinator{'' if count == 1 else 's'}"


def is_free(address: str, port: int) -> bool:
    """Return whether this port is free at `address`, which is an address of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
