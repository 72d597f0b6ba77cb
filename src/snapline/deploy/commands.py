"""Command lines of the processes that launchers start."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from snapline.deploy.data_directory import COORDINATOR_FOLDER, METRICS_FOLDER, STORE_FOLDER, TRACES_FOLDER, marks_of
from snapline.deploy.launching import Kind

MOVE_GRACE_S, RESTART_GRACE_S = 0.3, 10.0
"""Time that the coordinator waits for a lost host before its agents move: when it will not be started again, for the launcher's report of what it
died of; otherwise longer than a process takes to start on a busy machine, since moving agents costs more than waiting."""


class Commands(Protocol):
    """Builds the children's command lines; tests put other programs here."""

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        """The coordinator's replica `name`, to listen at `address`; `members`: id → address of all, empty if it is alone."""
        ...

    def host(self, address: str, host: str, instance: str) -> list[str]:
        """A host that joins the coordinator at `address` (of several replicas: all, with commas between).

        `instance` names this one run of it.
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

        `store`: a URL or path; empty: a folder in `data_dir`. `listen`: where hosts do. `metrics`: where each process serves them; "": nowhere.
        `log`: `--log-…` and `--otel`. `last_snapshot_s`: how long each process waits for one when it is stopped. `begin_anew`: coordinators get
        `--begin-anew`. `trust`: `--tls-…` or `--insecure`.
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
