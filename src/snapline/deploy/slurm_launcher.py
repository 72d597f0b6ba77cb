"""Processes on a Slurm cluster: each host is an element of one job array, each coordinator an element of another.

An element runs a worker (`deploy/slurm_worker.py`). `srun` connects the launcher to it inside the element's allocation. All requests to Slurm
go through its programs (`deploy/slurm.py`).

- *Node failure*: when Slurm misses a node, it ends the element and requeues it. The launcher's connection breaks, and the launcher reports the
  loss at once. The next start waits until the element runs again, without a process. A process that survives on the old node belongs to a
  replaced host, and its messages are rejected (G9).
- *Time limit*: Slurm warns hosts in advance. The worker requests a last snapshot, ends its process and is requeued.
- *Coordinators* keep their address, and so their node: their elements are not requeued, and a new element requests the same node.
"""

import asyncio
import contextlib
import secrets
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from snapline.deploy.data_directory import LOGS_FOLDER
from snapline.deploy.launch_agent_client import (
    Dial,
    LaunchAgentClient,
    LaunchAgentConnection,
    LaunchAgentGoneError,
    LaunchAgentMissingError,
)
from snapline.deploy.launching import Exit, Handle, Kind, ProcessSpec
from snapline.deploy.plan import NODE, check_exposure
from snapline.deploy.slurm import Element, Slurm, split_name
from snapline.deploy.slurm_worker import BRIDGE, key_of
from snapline.errors import ExternalFailureError, UsageError
from snapline.folders import make_private

NOTICE_S = 120
"""How long before the time limit hosts are warned. Slurm may warn a minute early; it ends them at the limit."""

SNAPSHOT_LIMIT_S = 60
"""Part of the notice period that the last snapshot may take."""

GATHER_S = 0.1
"""Time in which start requests are collected into one array."""

LOOK_S, LOOK_S_MAX = 0.3, 5.0
"""Interval between two queries of the queue; doubled each time, up to the maximum."""

CLOSE_S = 90.0
"""Time limit for cancelled elements to leave the queue: Slurm waits half a minute before it kills them."""

WAITING_S = 30.0
"""Waiting time after which an element is reported in a note."""

SUBMITTED, SUBMISSIONS_MAX = "it was submitted", 3
"""Largest number of submissions: if this many jobs of a process end before the launcher can connect, the start fails."""


class SlurmLauncher:
    """Processes of one fleet on a cluster."""

    def __init__(
        self,
        name: str,
        *,
        data_dir: str,
        python: str = sys.executable,
        code: str = "",
        options: Sequence[str] = (),
        notice_s: int = NOTICE_S,
        trust: Sequence[str] = (),
        slurm: Slurm | None = None,
        on_note: Callable[[str], None] = lambda note: None,
    ) -> None:
        """Describe a place; `open` takes it.

        Args:
            name: name of the fleet.
            data_dir: a path that all nodes share for logs and the coordinators' files.
            python: the nodes' Python interpreter with snapline.
            code: folder on the nodes with the fleet's module; empty: the current one.
            options: options of `sbatch` for all jobs: partition, time, account …
            notice_s: how long before the time limit hosts are warned.
            trust: `--tls-…` or `--insecure`, for the command that requests the last snapshot.
            slurm: adapter of the cluster; default: a new one.
            on_note: receives a sentence when an element waits for a long time.
        """
        self._name = name
        self._data_dir = data_dir
        self._python = python
        self._code = code
        self._options = tuple(options)
        self._notice_s = notice_s
        self._trust = tuple(trust)
        self._slurm = slurm or Slurm(name, folder=data_dir)
        self._on_note = on_note
        self._holder = secrets.token_hex(8)
        self._workers: dict[str, LaunchAgentClient] = {}  # by process name; only the latest
        self._find_locks: dict[str, asyncio.Lock] = {}
        self._addresses: dict[str, str] = {}  # of coordinators
        self._nodes: dict[str, str] = {}  # of coordinators: the nodes of their addresses
        self._pending_starts: dict[str, Kind] = {}  # processes that need an element
        self._flushing: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def where(self) -> str:
        return f"Slurm's jobs snapline:{self._name}"

    @property
    def logs(self) -> str:
        return f"{self._data_dir}/{LOGS_FOLDER}"

    async def check(self, processes: int) -> None:
        """Check that `processes` can run at once, and that plaintext between machines is allowed if it would be used.

        Raises:
            UsageError: a check fails; the message says what to change.
            ExternalFailureError: Slurm does not answer.
        """
        await self._slurm.check(processes, self._options)
        if not self._trust:
            check_exposure(await self._slurm.open_address())

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Start the coordinators' elements, and ask their workers for ports.

        Raises:
            UsageError: `sbatch` refuses the options, or is missing.
        """
        make_private(Path(self.logs))
        await self._slurm.elements()  # an unreachable cluster is an error here; later calls wait for it
        addresses = await asyncio.gather(*(self._coordinator_address(name) for name in coordinators))
        self._addresses = dict(zip(coordinators, addresses, strict=True))
        return dict(self._addresses)

    async def start(self, spec: ProcessSpec) -> Handle:
        """Start a process; wait for its element without a limit."""
        while True:
            worker = await self._worker(spec.name, spec.kind)
            command = tuple(word.replace(NODE, _bracketed(worker.address)) for word in spec.command)
            shutdown = self._shutdown_command() if spec.kind == "host" else ()
            with contextlib.suppress(LaunchAgentGoneError):
                return await worker.start(msgspec.structs.replace(spec, command=command), {}, shutdown)
            self._forget(spec.name, worker)

    async def watch(self, handle: Handle) -> Exit:
        worker = self._worker_of(handle)
        return await worker.watch(handle) if worker else _gone(handle)

    async def status(self, handle: Handle) -> Exit | None:
        worker = self._worker_of(handle)
        return await worker.status(handle) if worker else _gone(handle)

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        worker = self._worker_of(handle)
        return await worker.stop(handle, grace_s) if worker else _gone(handle)

    async def kill(self, handle: Handle) -> None:
        worker = self._worker_of(handle)
        if worker is not None:
            await worker.kill(handle)

    async def freeze(self, handle: Handle) -> None:
        worker = self._worker_of(handle)
        if worker is not None:
            await worker.freeze(handle)

    async def thaw(self, handle: Handle) -> None:
        worker = self._worker_of(handle)
        if worker is not None:
            await worker.thaw(handle)

    async def close(self) -> None:
        """Close; cancel all elements of this fleet, also an earlier launcher's, unless another launcher has taken the fleet over.

        Raises:
            ExternalFailureError: Slurm does not end the elements.
        """
        self._is_closed = True
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        await asyncio.gather(*(seat.close() for seat in self._workers.values()), return_exceptions=True)
        if not any(seat.is_replaced for seat in self._workers.values()):
            await self.sweep()

    async def sweep(self) -> list[str]:
        """Cancel all elements of this fleet, and wait until they are gone; return the names of their processes."""
        cancelled = left = await self._slurm.elements()
        await self._slurm.cancel(list(cancelled.values()))
        deadline_s = asyncio.get_running_loop().time() + CLOSE_S
        while left:
            if asyncio.get_running_loop().time() > deadline_s:
                runs = ", ".join(element.run for element in left.values())
                raise ExternalFailureError(f"Slurm does not end {runs}: `scancel` and `squeue` say more")
            await asyncio.sleep(LOOK_S)
            left = await self._slurm.elements()
        return sorted(cancelled)

    # -- workers ------------------------------------------------------------------------------------------------------------

    async def _coordinator_address(self, name: str) -> str:
        worker = await self._worker(name, "coordinator")
        return f"{_bracketed(worker.address)}:{await worker.port(name, worker.address)}"

    def _worker_of(self, handle: Handle) -> LaunchAgentClient | None:
        worker = self._workers.get(handle.name)
        return worker if worker is not None and worker.where == handle.where else None

    def _forget(self, name: str, seat: LaunchAgentClient) -> None:
        if self._workers.get(name) is seat:
            del self._workers[name]

    async def _worker(self, name: str, kind: Kind) -> LaunchAgentClient:
        """Return the client of this process's worker: a known one, or that of a running or a new element."""
        async with self._find_locks.setdefault(name, asyncio.Lock()):
            pause_s, waiting_s, is_reported, submitted = LOOK_S, 0.0, False, 0
            while True:
                try:
                    worker, reason = await self._find_worker(name, kind)
                except ExternalFailureError as error:
                    worker, reason = None, str(error)
                if worker is not None:
                    return worker
                submitted += reason == SUBMITTED
                if submitted > SUBMISSIONS_MAX:
                    raise ExternalFailureError(
                        f"jobs for {name} end as soon as they begin: {self.logs} and `scontrol show job` say why"
                    )
                if waiting_s > WAITING_S and not is_reported:
                    self._on_note(f"{name} waits for Slurm: {reason}")
                    is_reported = True
                await asyncio.sleep(pause_s)
                waiting_s += pause_s
                pause_s = min(2 * pause_s, LOOK_S_MAX)

    async def _find_worker(self, name: str, kind: Kind) -> tuple[LaunchAgentClient | None, str]:
        """Return the worker's client, or the reason why there is none yet."""
        if self._is_closed:
            raise UsageError(f"{self.where} are ended")
        element = (await self._slurm.elements()).get(name)
        if element is None:
            await self._submit(name, kind)
            return None, SUBMITTED
        if not element.is_running:
            return None, element.reason
        worker = self._workers.get(name)
        if worker is None or worker.where != element.run:
            worker = await self._connect_worker(name, element)
            self._nodes |= {name: element.node} if kind == "coordinator" else {}
        return worker, "its worker does not answer"

    async def _connect_worker(self, name: str, element: Element) -> LaunchAgentClient:
        """Connect to the worker of a running element.

        Raises:
            ExternalFailureError: the worker does not answer yet, or has ended.
        """
        worker = LaunchAgentClient(element.run, self._holder, self._dialler(name, element), self._on_note)
        worker.address = await self._slurm.address(element.node)
        try:
            await worker.hold()
        except BaseException:
            await worker.leave()
            raise
        old = self._workers.get(name)
        if old is not None:
            await old.leave()
        self._workers[name] = worker
        return worker

    def _dialler(self, name: str, element: Element) -> Dial:
        key = key_of(element.job, element.restarts, element.node)
        command = (self._python, "-m", BRIDGE, "bridge", key, "--must-run")

        async def dial() -> LaunchAgentConnection:
            now = (await self._slurm.elements()).get(name)
            if now is None or now.run != element.run or not now.is_running:
                raise LaunchAgentGoneError(f"{element.run} is over: {now.state if now else 'it has left the queue'}")
            try:
                return await LaunchAgentConnection.open(self._slurm.bridge(element, command))
            except LaunchAgentMissingError as error:
                raise ExternalFailureError(f"{element.run}: {error}") from error

        return dial

    # -- jobs -------------------------------------------------------------------------------------------------------------

    async def _submit(self, name: str, kind: Kind) -> None:
        """Submit an element for this process, in one array with those requested at the same time."""
        self._pending_starts[name] = kind
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await asyncio.shield(self._flushing)

    async def _flush(self) -> None:
        await asyncio.sleep(GATHER_S)
        wanted, self._pending_starts, self._flushing = self._pending_starts, {}, None
        arrays: dict[tuple[str, Kind, str], list[int]] = {}
        for name, kind in wanted.items():
            stem, index = split_name(name)
            arrays.setdefault((stem, kind, self._nodes.get(name, "")), []).append(index)
        command = shlex.join([self._python, "-m", "snapline.deploy.slurm_worker", self._data_dir])
        for (stem, kind, node), indices in arrays.items():
            await self._slurm.submit(stem, indices, self._sbatch_options(stem, kind, node), command)

    def _sbatch_options(self, stem: str, kind: Kind, node: str) -> list[str]:
        options = ["--ntasks=1", "--open-mode=append", f"--output={self.logs}/slurm-{stem}-%A_%a.log"]
        options += [f"--chdir={self._code}"] if self._code else []
        options += ["--requeue", f"--signal=B:USR1@{self._notice_s}"] if kind == "host" else ["--no-requeue"]
        return [*options, *([f"--nodelist={node}"] if node else []), *self._options]

    def _shutdown_command(self) -> tuple[str, ...]:
        """Return the command that requests a last snapshot."""
        where = ("--coordinator", ",".join(self._addresses.values()), "--timeout", str(SNAPSHOT_LIMIT_S))
        return (self._python, "-m", "snapline", "snapshot", "create", *where, *self._trust)


def _gone(handle: Handle) -> Exit:
    return Exit(None, f"gone: {handle.where} is over")


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
