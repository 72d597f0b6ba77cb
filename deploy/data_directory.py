"""The folder of a local fleet, the `--data-dir` of the command line.

DIR/store               snapshots
DIR/coordinator         the coordinator's log
DIR/coordinator.json    where the coordinator listens
DIR/logs/*.log          what each process printed
DIR/launcher.lock       held while a launcher runs here: two fleets in one folder would be one fleet twice
"""

import fcntl
import os
import random
import socket
from pathlib import Path

import msgspec

from snapline.errors import MisuseError, WorldError

STORE_FOLDER, COORDINATOR_FOLDER, LOGS_FOLDER, TRACES_FOLDER = "store", "coordinator", "logs", "traces"
ADDRESS_FILE, LOCK_FILE = "coordinator.json", "launcher.lock"

PORTS, PORT_ATTEMPTS_MAX = range(20_000, 32_000), 200
"""The coordinator's port is kept across its restarts. It is taken from below Linux's ephemeral ports (32768 and up), where
an outgoing connection could occupy it while the coordinator is down. 200 attempts: more say that something else is wrong."""


class DirectoryInUseError(MisuseError):
    """Another launcher runs on this folder."""

    exit_code = 11


def lock(data_dir: Path) -> int:
    """Take the folder for this launcher. The kernel lets go when the process ends, however it ends."""
    descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DirectoryInUseError(
            f"another fleet runs in {data_dir}: wait for its end or choose another --data-dir"
        ) from None
    return descriptor


def choose_address(data_dir: Path) -> str:
    """The port of the run before, if it is still free, so that whoever wrote it down is right; otherwise a new one."""
    earlier = read_address(data_dir)
    attempts = random.sample(PORTS, PORT_ATTEMPTS_MAX)
    if earlier is not None:
        attempts.insert(0, int(earlier.rpartition(":")[2]))
    port = next((port for port in attempts if _is_free(port)), None)
    if port is None:
        raise WorldError(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop}")
    address = f"127.0.0.1:{port}"
    content = {"apiVersion": "snapline/v1", "kind": "CoordinatorAddress", "address": address}
    path = data_dir / ADDRESS_FILE
    scratch = path.with_name(path.name + ".new")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    scratch.replace(path)
    return address


def read_address(data_dir: Path) -> str | None:
    """Where the folder's coordinator listens, or listened; None if the file is not there or holds no address."""
    try:
        content = msgspec.json.decode((data_dir / ADDRESS_FILE).read_bytes(), type=dict[str, str])
        host, _, port = content["address"].rpartition(":")
        return content["address"] if host and 0 < int(port) < 65_536 else None
    except (OSError, KeyError, ValueError):
        return None


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
