"""Processes on a Slurm cluster: hosts are elements of a job array, one each, and coordinators of another.

An element runs a seat (`deploy/slurm_worker.py`), and `srun` joins the launcher to it, inside the element's own allocation. All requests to Slurm
go through its programs (`deploy/slurm.py`).

- *A node that fails*: Slurm gives the element up when it misses the node, and requeues it. The launcher's connection ends with it, which it reports
  at once; the next start waits until the element runs again, and finds it empty. What runs on on the old node, if anything does, is of a
  host start that has been replaced, and is refused (G9).
- *The time limit*: hosts are warned before it; the seat has a last snapshot taken, ends its process and is requeued.
- A *coordinator* keeps its address, and so its node: its element is not requeued, and the next one asks for that node.
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
from snapline.deploy.launch_agent_protocol import LaunchAgentConnection, LaunchAgentMissingError
from snapline.deploy.launching import Exit, Handle, Kind, ProcessSpec
from snapline.deploy.plan import NODE, check_exposure
from snapline.deploy.post_caller import Dial, LaunchAgentClient, LaunchAgentGoneError
from snapline.deploy.slurm import Element, Slurm, split_name
from snapline.deploy.slurm_worker import BRIDGE, key_of
from snapline.errors import ExternalFailureError, UsageError
from snapline.folders import make_private

NOTICE_S = 120
"""Time of the hosts' warning before the time limit. Slurm may be a minute early, and ends them at the limit."""

SNAPSHOT_LIMIT_S = 60
"""Part of it for the last snapshot."""

GATHER_S = 0.1
"""Time in which requested starts are gathered into one array."""

LOOK_S, LOOK_S_MAX = 0.3, 5.0
"""Between two looks at the queue, doubled each time, up to the second number."""

CLOSE_S = 90.0
"""Time for cancelled elements to leave the queue: Slurm gives them half a minute before it kills."""

WAITING_S = 30.0
"""An element that has waited so long is worth a sentence."""

SUBMITTED, SUBMISSIONS_MAX = "it was submitted", 3
"""Largest number of submissions: a process whose jobs have ended so often before any connection to them is given up for now."""


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
            name: of the fleet.
            data_dir: a path that all nodes share: logs, and the coordinators' own.
            python: the interpreter on the nodes that has snapline.
            code: the folder there in which the fleet's module lies; empty: the current one.
            options: for `sbatch`, of all jobs: partition, time, account …
            notice_s: how long before the time limit hosts are warned.
            trust: `--tls-…` or `--insecure`, for the command that asks for the last snapshot.
            on_note: gets a sentence when an element waits for long.
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
        self._seats: dict[str, LaunchAgentClient] = {}  # by name of the process; the last one of each
        self._finding: dict[str, asyncio.Lock] = {}
        self._addresses: dict[str, str] = {}  # of coordinators
        self._nodes: dict[str, str] = {}  # of coordinators: those that their addresses are on
        self._wanted: dict[str, Kind] = {}  # processes that need an element
        self._flushing: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def where(self) -> str:
        return f"Slurm's jobs snapline:{self._name}"

    @property
    def logs(self) -> str:
        return f"{self._data_dir}/{LOGS_FOLDER}"

    async def check(self, processes: int) -> None:
        """Check that so many can run at once, and that nothing would be in plaintext between machines that need not be.

        Raises:
            UsageError: it cannot be; explains what helps.
            ExternalFailureError: Slurm does not answer.
        """
        await self._slurm.check(processes, self._options)
        if not self._trust:
            check_exposure(await self._slurm.open_address())

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Have the coordinators' elements run, and ask their seats for ports.

        Raises:
            UsageError: `sbatch` refuses the options, or is not there.
        """
        make_private(Path(self.logs))
        await self._slurm.elements()  # a cluster that does not answer is an error here, and waited for later
        found = await asyncio.gather(*(self._take_place(name) for name in coordinators))
        self._addresses = dict(zip(coordinators, found, strict=True))
        return dict(self._addresses)

    async def start(self, spec: ProcessSpec) -> Handle:
        """Waits for an element as long as it takes."""
        while True:
            seat = await self._seat(spec.name, spec.kind)
            command = tuple(word.replace(NODE, _bracketed(seat.address)) for word in spec.command)
            shutdown = self._farewell() if spec.kind == "host" else ()
            with contextlib.suppress(LaunchAgentGoneError):
                return await seat.start(msgspec.structs.replace(spec, command=command), {}, shutdown)
            self._forget(spec.name, seat)

    async def watch(self, handle: Handle) -> Exit:
        seat = self._seat_of(handle)
        return await seat.watch(handle) if seat else _gone(handle)

    async def status(self, handle: Handle) -> Exit | None:
        seat = self._seat_of(handle)
        return await seat.status(handle) if seat else _gone(handle)

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        seat = self._seat_of(handle)
        return await seat.stop(handle, grace_s) if seat else _gone(handle)

    async def kill(self, handle: Handle) -> None:
        seat = self._seat_of(handle)
        if seat is not None:
            await seat.kill(handle)

    async def freeze(self, handle: Handle) -> None:
        seat = self._seat_of(handle)
        if seat is not None:
            await seat.freeze(handle)

    async def thaw(self, handle: Handle) -> None:
        seat = self._seat_of(handle)
        if seat is not None:
            await seat.thaw(handle)

    async def close(self) -> None:
        """Close; also end elements of this fleet that an earlier launcher has left; none, if another launcher has taken it over.

        Raises:
            ExternalFailureError: Slurm does not end them.
        """
        self._is_closed = True
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        await asyncio.gather(*(seat.close() for seat in self._seats.values()), return_exceptions=True)
        if not any(seat.is_replaced for seat in self._seats.values()):
            await self.sweep()

    async def sweep(self) -> list[str]:
        """Cancel all elements of this fleet, and wait until they have gone; return the names of its processes."""
        first = left = await self._slurm.elements()
        await self._slurm.cancel(list(first.values()))
        deadline_s = asyncio.get_running_loop().time() + CLOSE_S
        while left:
            if asyncio.get_running_loop().time() > deadline_s:
                told = ", ".join(element.run for element in left.values())
                raise ExternalFailureError(f"Slurm does not end {told}: `scancel` and `squeue` say more")
            await asyncio.sleep(LOOK_S)
            left = await self._slurm.elements()
        return sorted(first)

    # -- seats ------------------------------------------------------------------------------------------------------------

    async def _take_place(self, name: str) -> str:
        seat = await self._seat(name, "coordinator")
        return f"{_bracketed(seat.address)}:{await seat.port(name, seat.address)}"

    def _seat_of(self, handle: Handle) -> LaunchAgentClient | None:
        seat = self._seats.get(handle.name)
        return seat if seat is not None and seat.where == handle.where else None

    def _forget(self, name: str, seat: LaunchAgentClient) -> None:
        if self._seats.get(name) is seat:
            del self._seats[name]

    async def _seat(self, name: str, kind: Kind) -> LaunchAgentClient:
        """Return the seat of this process: that of before, or of an element that runs, or of a new one."""
        async with self._finding.setdefault(name, asyncio.Lock()):
            pause_s, waiting_s, told, submitted = LOOK_S, 0.0, False, 0
            while True:
                try:
                    seat, reason = await self._found(name, kind)
                except ExternalFailureError as error:
                    seat, reason = None, str(error)
                if seat is not None:
                    return seat
                submitted += reason == SUBMITTED
                if submitted > SUBMISSIONS_MAX:
                    raise ExternalFailureError(
                        f"jobs for {name} end as soon as they begin: {self.logs} and `scontrol show job` say why"
                    )
                if waiting_s > WAITING_S and not told:
                    self._on_note(f"{name} waits for Slurm: {reason}")
                    told = True
                await asyncio.sleep(pause_s)
                waiting_s += pause_s
                pause_s = min(2 * pause_s, LOOK_S_MAX)

    async def _found(self, name: str, kind: Kind) -> tuple[LaunchAgentClient | None, str]:
        """Return the seat, or the reason why there is none yet."""
        if self._is_closed:
            raise UsageError(f"{self.where} are ended")
        element = (await self._slurm.elements()).get(name)
        if element is None:
            await self._submit(name, kind)
            return None, SUBMITTED
        if not element.is_running:
            return None, element.reason
        seat = self._seats.get(name)
        if seat is None or seat.where != element.run:
            seat = await self._take(name, element)
            self._nodes |= {name: element.node} if kind == "coordinator" else {}
        return seat, "its seat does not answer"

    async def _take(self, name: str, element: Element) -> LaunchAgentClient:
        """Join the seat of an element that runs.

        Raises:
            ExternalFailureError: that does not work yet, or any more.
        """
        seat = LaunchAgentClient(element.run, self._holder, self._dialler(name, element), self._on_note)
        seat.address = await self._slurm.address(element.node)
        try:
            await seat.hold()
        except BaseException:
            await seat.leave()
            raise
        old = self._seats.get(name)
        if old is not None:
            await old.leave()
        self._seats[name] = seat
        return seat

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
        """Have an element made, in one array with those that are wanted at the same time."""
        self._wanted[name] = kind
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await asyncio.shield(self._flushing)

    async def _flush(self) -> None:
        await asyncio.sleep(GATHER_S)
        wanted, self._wanted, self._flushing = self._wanted, {}, None
        arrays: dict[tuple[str, Kind, str], list[int]] = {}
        for name, kind in wanted.items():
            stem, index = split_name(name)
            arrays.setdefault((stem, kind, self._nodes.get(name, "")), []).append(index)
        command = shlex.join([self._python, "-m", "snapline.deploy.slurm_worker", self._data_dir])
        for (stem, kind, node), indices in arrays.items():
            await self._slurm.submit(stem, indices, self._sbatch_options(stem, kind, node), command)

    def _sbatch_options(self, stem: str, kind: Kind, node: str) -> list[str]:
        ours = ["--ntasks=1", "--open-mode=append", f"--output={self.logs}/slurm-{stem}-%A_%a.log"]
        ours += [f"--chdir={self._code}"] if self._code else []
        ours += ["--requeue", f"--signal=B:USR1@{self._notice_s}"] if kind == "host" else ["--no-requeue"]
        return [*ours, *([f"--nodelist={node}"] if node else []), *self._options]

    def _farewell(self) -> tuple[str, ...]:
        """A last snapshot."""
        where = ("--coordinator", ",".join(self._addresses.values()), "--timeout", str(SNAPSHOT_LIMIT_S))
        return (self._python, "-m", "snapline", "snapshot", "create", *where, *self._trust)


def _gone(handle: Handle) -> Exit:
    return Exit(None, f"gone: {handle.where} is over")


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
