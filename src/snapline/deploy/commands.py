"""Command lines of the processes that launchers start."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from snapline.deploy.data_directory import COORDINATOR_FOLDER, METRICS_FOLDER, STORE_FOLDER, TRACES_FOLDER, marks_of
from snapline.deploy.launching import Kind

MOVE_GRACE_S, RESTART_GRACE_S = 0.3, 10.0
"""Time that the coordinator waits for a lost host before its agents move.

`MOVE_GRACE_S` applies when the host is not restarted: long enough for the launcher to report the cause of the exit. `RESTART_GRACE_S` is
longer than a process start on a busy machine, because moving agents costs more than waiting."""


class Commands(Protocol):
    """Builds the children's command lines; tests put other programs here."""

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        """Command line of coordinator replica `name`, which listens at `address`; `members`: id → address of all replicas, empty for one."""
        ...

    def host(self, address: str, host: str, instance: str) -> list[str]:
        """Command line of a host that joins the coordinator at `address` (comma-separated for several replicas).

        `instance` identifies this run of the host.
        """
        ...


class SnaplineCommands:
    """snapline's own processes, everything under one folder."""

    def __init__(
        self,
        *,
        data_dir: Path,
        fleet: str,
        hosts: int,
        arguments: Mapping[str, str],
        on_failure: str,
        trace_every: int = 0,
        store: str = "",
        listen: str = "127.0.0.1:0",
        metrics: str = "",
        log: Sequence[str] = (),
        last_snapshot_s: float = 0.0,
        begin_anew: bool = False,
        trust: Callable[[Kind, str], Sequence[str]] = lambda kind, name: (),
    ) -> None:
        """Create the command lines of a fleet.

        Args:
            data_dir: folder for the files of all processes.
            fleet: `MODULE:FLEET`.
            hosts: number of hosts.
            arguments: arguments for a FLEET that is a function.
            on_failure: "move" or "restart": what happens to a lost host's agents.
            trace_every: trace every N-th message of each channel; 0: no trace.
            store: URL or path; empty: a folder in `data_dir`.
            listen: address where hosts listen.
            metrics: address where each process serves metrics; empty: none.
            log: `--log-…` and `--otel` options.
            last_snapshot_s: time limit for the last snapshot when a process is stopped.
            begin_anew: whether coordinators get `--begin-anew`.
            trust: returns the `--tls-…` or `--insecure` options of a process.
        """
        self._data_dir = data_dir
        self._store = store or str(data_dir / STORE_FOLDER)
        self._fleet = fleet
        self._hosts = hosts
        self._arguments = dict(arguments)
        self._rejoin_grace_s = MOVE_GRACE_S if on_failure == "move" else RESTART_GRACE_S
        self._trace_every = trace_every
        self._listen = listen
        self._metrics_at = metrics
        self._log = (*log, "--last-snapshot-s", f"{last_snapshot_s:g}")
        self._begin_anew = ("--begin-anew",) if begin_anew else ()
        self._trust = trust

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        """`snapline coordinator run …`."""
        folder = self._data_dir / COORDINATOR_FOLDER
        peers = ",".join(f"{member}={where}" for member, where in members.items())
        return [
            *(sys.executable, "-m", "snapline", "coordinator", "run"),
            *("--listen", address, "--data-dir", str(folder / name if members else folder)),
            *(("--id", name, "--peers", peers) if members else ()),
            *("--store", self._store, "--hosts", str(self._hosts)),
            *("--rejoin-grace", f"{self._rejoin_grace_s:g}", "--stay"),
            *self._begin_anew,
            *self._metrics(name),
            *self._log,
            *self._trust("coordinator", name),
        ]

    def host(self, address: str, host: str, instance: str) -> list[str]:
        """`snapline host run …`."""
        arguments = [part for key, value in self._arguments.items() for part in ("--arg", f"{key}={value}")]
        return [
            *(sys.executable, "-m", "snapline", "host", "run"),
            *("--coordinator", address, "--id", host, "--instance", instance, "--fleet", self._fleet),
            *("--store", self._store, "--listen", self._listen),
            *("--marks", str(marks_of(self._data_dir, host))),
            *self._metrics(host),
            *self._log,
            *self._trust("host", host),
            *arguments,
            *self._trace(),
        ]

    def _metrics(self, name: str) -> list[str]:
        if not self._metrics_at:
            return []
        return ["--metrics", self._metrics_at, "--metrics-file", str(self._data_dir / METRICS_FOLDER / f"{name}.json")]

    def _trace(self) -> list[str]:
        if not self._trace_every:
            return []
        return ["--trace", str(self._data_dir / TRACES_FOLDER), "--trace-every", str(self._trace_every)]
