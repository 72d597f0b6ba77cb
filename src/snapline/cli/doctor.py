"""`snapline doctor` and `snapline version` check this machine, a store and a fleet. Each finding is a sentence that names the next step to
take."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from snapline.cli.command import Connection, Display, command
from snapline.cli.output import Document, DocumentTables, concern_lines, count, document, rows_of
from snapline.cli.settings import UserSettings
from snapline.errors import SnaplineError

if TYPE_CHECKING:
    from snapline.storage.store.store import Store


FILES_MIN = 4096
"""Smallest sufficient limit on open files. Each link, client and pack is an open file, so the common default of 1,024 is too small for some
hundred clients."""

WRITES = 9
SLOW_S = 0.05
"""Time in seconds above which a durable write counts as slow. A snapshot requires several durable writes, and an input at least one."""

FREE_BYTES_MIN = 1 << 30
DAYS_MIN = 7
DAY_S = 86_400.0

State = Literal["ok", "warning", "bad"]

EXTRAS = {
    "numpy": "numpy",
    "ray": "ray",
    "s3": "obstore",
    "crypto": "cryptography",
    "http": "uvicorn",
    "torch": "torch",
}
"""For each extra, the name of a module that the extra installs."""

PROGRAMS = {"ssh": "ssh", "slurm": "sbatch", "podman": "podman"}
"""For each place of `snapline up --on`, the program that it requires on this machine."""


class DoctorFinding(NamedTuple):
    """The result of one check."""

    what: str
    state: State
    text: str


@command
def doctor(
    connection: Connection,
    display: Display,
    store: Annotated[
        str, typer.Option("--store", metavar="STORE", help="Store to check: write to it, read it back, and clean up.")
    ] = "",
) -> None:
    """Check this machine, a store and a fleet for problems, without changing them.

    The fleet is that of --coordinator, --data-dir or snapline.toml, if one of them names a fleet. Exit code 1: a finding is `bad`.
    """
    is_named = connection.coordinator is not None or connection.data_dir is not None or UserSettings().path.exists()
    checks: list[Callable[[], Iterator[DoctorFinding]]] = [_python, _files, _programs]
    checks += [lambda: _store(store)] if store else []
    checks += [lambda: _certificate(connection), lambda: _fleet(connection)] if is_named else []
    findings = [finding for check in checks for finding in check()]
    display.printer().result(document("Doctor", findings=[finding._asdict() for finding in findings]), _show)
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)


def _show(result: Document, tables: DocumentTables) -> None:
    for row in rows_of(result, "findings"):
        tables.wrapped(f"{row['state']:<8} {row['what']:<12} ", str(row["text"]))


# ---- this machine -----------------------------------------------------------------------------------------------------


def _python() -> Iterator[DoctorFinding]:
    import grpc

    from snapline.compiled import version_text

    version = ".".join([str(part) for part in sys.version_info[:3]])
    yield DoctorFinding("snapline", "ok", f"{version_text()} on Python {version}, gRPC {grpc.__version__}")
    installed = [extra for extra, module in EXTRAS.items() if find_spec(module) is not None]
    missing = [extra for extra in EXTRAS if extra not in installed]
    rest = f"; `pip install 'snapline[{','.join(missing)}]'` adds {', '.join(missing)}" if missing else ""
    yield DoctorFinding("extras", "ok", f"{', '.join(installed) or 'none'} installed{rest}")


def _files() -> Iterator[DoctorFinding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= FILES_MIN or soft == resource.RLIM_INFINITY:
        yield DoctorFinding("open files", "ok", f"a process may open {soft:,}")
    else:
        remedy = f"run `ulimit -n {min(hard, 65_536)}` before you start a large fleet"
        yield DoctorFinding("open files", "warning", f"a process may open {soft:,}: {remedy}")
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        state: State = "ok" if free >= FREE_BYTES_MIN else "warning"
        yield DoctorFinding("/dev/shm", state, f"{free >> 20:,} MiB free for checkpoints that are not in the store yet")


def _programs() -> Iterator[DoctorFinding]:
    available = [place for place, program in PROGRAMS.items() if shutil.which(program)]
    available += ["ray"] if find_spec("ray") is not None else []
    yield DoctorFinding("up --on", "ok", f"`snapline up` can use {', '.join(['local', *available])}")


# ---- a store ------------------------------------------------------------------------------------------------------------


def _store(location: str) -> Iterator[DoctorFinding]:
    import statistics

    from snapline.storage.disk.local_disk import creates_only
    from snapline.storage.disk.object_disk import open_disk
    from snapline.storage.keys.key_files import keys_from_environment
    from snapline.storage.store.store import Store

    try:
        disk = open_disk(location)
        opened = Store.open(location, disk=disk, keys=keys_from_environment())
        times = [_write_once(opened) for _ in range(WRITES)]
    except SnaplineError as error:
        yield DoctorFinding("store", "bad", str(error))
        return
    took_s = statistics.median(times)
    state: State = "ok" if took_s < SLOW_S else "warning"
    cost = "" if state == "ok" else ": snapshots and inputs are slow"
    text = f"a durable write takes {took_s * 1e3:.1f} ms (median), at most {max(times) * 1e3:.1f} ms{cost}"
    yield DoctorFinding("store", state, text)
    if creates_only(disk):
        yield DoctorFinding("store logs", "ok", "the store can log inputs, steps and effects")
    else:
        why = "the store cannot create a file without perhaps replacing another"
        yield DoctorFinding("store logs", "bad", f"{why}, so fleets accept no inputs: use another store")
    if Path(location).is_dir():
        free = shutil.disk_usage(location).free
        free_state: State = "ok" if free >= FREE_BYTES_MIN else "bad"
        remedy = "" if free_state == "ok" else ": `snapline snapshot prune` deletes old snapshots"
        yield DoctorFinding("store space", free_state, f"{free >> 20:,} MiB free{remedy}")


def _write_once(store: "Store") -> float:
    """Perform one probe write, like a host that joins, and return the duration in seconds."""
    start_s = time.perf_counter()
    path, _ = store.write_probe()
    took_s = time.perf_counter() - start_s
    store.remove_probe(path)
    return took_s


# ---- a fleet ------------------------------------------------------------------------------------------------------------


def _certificate(connection: Connection) -> Iterator[DoctorFinding]:
    if connection.tls_cert is None:
        return
    try:
        from cryptography import x509
    except ImportError:
        yield DoctorFinding("certificate", "warning", "cannot be read here: pip install 'snapline[crypto]'")
        return
    try:
        certificate = x509.load_pem_x509_certificate(connection.tls_cert.read_bytes())
    except (OSError, ValueError) as error:
        yield DoctorFinding("certificate", "bad", f"{connection.tls_cert} cannot be read: {error}")
        return
    days = (certificate.not_valid_after_utc.timestamp() - time.time()) / DAY_S
    state: State = "bad" if days <= 0 else "ok" if days >= DAYS_MIN else "warning"
    hint = "" if state == "ok" else ": `snapline auth renew` renews it"
    yield DoctorFinding("certificate", state, f"{connection.tls_cert.name} is good for {days:.0f} days{hint}")


def _fleet(connection: Connection) -> Iterator[DoctorFinding]:
    from snapline.messages.answers import document_of

    try:
        status = document_of(connection.ask(lambda client: client.status(connection.timeout)))
    except SnaplineError as error:
        yield DoctorFinding("coordinator", "bad", str(error))
        return
    phase = str(status["phase"])
    state: State = "bad" if phase == "failed" else "ok" if phase in ("running", "finished") else "warning"
    reason = f" ({status['reason']})" if status.get("reason") else ""
    epoch = status["last_complete_epoch"]
    newest = f"its newest complete snapshot is epoch {epoch}" if epoch else "it has no complete snapshot yet"
    yield DoctorFinding("fleet", state, f"{status['fleet']} is {phase}{reason}; {newest}")
    yield _hosts(rows_of(status, "hosts"))
    store = status.get("store")
    if isinstance(store, dict) and store.get("state") == "degraded":
        yield DoctorFinding("its store", "bad", f"{store.get('reason')}")
    for line in concern_lines(status):
        yield DoctorFinding("concern", "warning", line)


def _hosts(hosts: Sequence[Document]) -> DoctorFinding:
    """Count the hosts that are alive and that have left, and name those that are lost."""
    by_state = {
        state: [str(row["host"]) for row in hosts if row["state"] == state] for state in ("alive", "left", "lost")
    }
    left, lost = by_state["left"], by_state["lost"]
    text = f"{count(len(by_state['alive']), 'host')} alive" + (f", {len(left):,} left on request" if left else "")
    if not lost:
        return DoctorFinding("hosts", "ok", text)
    return DoctorFinding(
        "hosts", "warning", f"{text}; lost: {', '.join(lost)}; `snapline host logs {lost[0]}` says why"
    )


@command
def version(display: Display) -> None:
    """Print the version, and whether the cores are compiled."""
    import platform

    import snapline
    from snapline.compiled import is_compiled, version_text

    result = document(
        "Version", version=snapline.__version__, python=platform.python_version(), is_compiled=is_compiled()
    )
    display.printer().result(result, lambda _, tables: tables.line(f"snapline {version_text()}"))
