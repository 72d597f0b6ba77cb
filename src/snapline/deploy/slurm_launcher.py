"""Run a fleet's processes on a Slurm cluster. Hosts are elements of a job array, and coordinators are elements of another job array.

Each element runs a worker (`deploy/slurm_worker.py`). `srun` connects the launcher to this worker inside the element's allocation. For
every request to Slurm, `Slurm` runs one of Slurm's programs and parses its output.

- *Node failure*: if Slurm loses contact with a node, it ends and requeues the element. The launcher's connection then breaks, and the
  launcher reports the loss immediately. To start the process again, the launcher waits until the element runs again. A restarted element
  has no process at first. If the old process survives on its node, its messages are rejected, because its host has been replaced (G9).
- *Time limit*: Slurm warns the workers of hosts before the limit. A warned worker requests a last snapshot, ends its process and is
  requeued.
- *Coordinators* keep their addresses and thus their nodes. Instead of requeuing a coordinator's element, the launcher submits a new element
  that requires the same node.
"""

import asyncio
import contextlib
import os
import re
import secrets
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from snapline.deploy.data_directory import LOGS_FOLDER, is_same_folder
from snapline.deploy.launch_agent_client import (
    Dial,
    LaunchAgentClient,
    LaunchAgentConnection,
    LaunchAgentGoneError,
    LaunchAgentMissingError,
)
from snapline.deploy.launching import Handle, Kind, ProcessSpec
from snapline.deploy.plan import NODE, bracketed, check_exposure
from snapline.deploy.slurm_worker import BRIDGE, key_of
from snapline.deploy.supervisor import Exit
from snapline.errors import ExternalFailureError, SnaplineError, UsageError
from snapline.folders import make_private
from snapline.security.transport import is_loopback

JOB_PREFIX = "snapline"

LIMIT_S = 60.0
"""Time limit in seconds for one of Slurm's programs. A busy controller takes seconds, and without a controller the programs hang."""

CONFIGURATION_ADVICE = "correct it, or name another one in SLURM_CONF (`scontrol show config` reads it)"

CHECK_S = 10.0
"""Time limit in seconds for one of Slurm's programs before anything is submitted, while a user waits. Without a configuration, a program
retries for a minute."""

NODES_UNAVAILABLE = "Requested node configuration is not available"
"""Error message of `sbatch` for a job that could not run even on an idle cluster."""

FIELDS = ("JobID", "ArrayJobID", "ArrayTaskID", "Name", "State", "NodeList", "RestartCnt", "Reason", "Comment")

COMMENT = "snapline "
"""Prefix of each job's comment, which the fleet's folder follows. The folder distinguishes fleets of the same name."""


class Element(msgspec.Struct, frozen=True):
    """One element of a job array.

    Attributes:
        job: job id of the element. Before the element starts, this may be the id of its array.
        array, index: id of the array and index of the element, which together identify the element permanently.
        stem: prefix of the process's name, such as `h` for h1, h2 and so on.
        state: Slurm's name of the state, such as `RUNNING`.
        node: node on which the element is running.
        restarts: number of times the element was requeued.
        reason: why the element is waiting.
    """

    job: str
    array: str
    index: int
    stem: str
    state: str
    node: str
    restarts: int
    reason: str

    @property
    def name(self) -> str:
        """Return the name of the process that the element runs."""
        return self.stem if self.index == UNNUMBERED_INDEX else f"{self.stem}{self.index}"

    @property
    def run(self) -> str:
        """Return a text that identifies this run of the element."""
        return f"job {self.array}_{self.index}, run {self.restarts} on {self.node}"

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING"


UNNUMBERED_INDEX = 999
"""Index of a process whose name has no number. The index is above the largest number of hosts and below Slurm's usual limit."""


def split_name(name: str) -> tuple[str, int]:
    """Split a name such as `h3` into `h` and 3. If the name has no number, return `UNNUMBERED_INDEX` as its number."""
    match_ = re.fullmatch(r"(.*[^0-9])(\d{1,3})", name)
    if match_ is None or int(match_[2]) >= UNNUMBERED_INDEX or match_[2] != str(int(match_[2])):
        return name, UNNUMBERED_INDEX
    return match_[1], int(match_[2])


def parse_elements(listed: str, fleet: str, folder: str = "") -> dict[str, Element]:
    """Parse the output of `squeue`, and return the fleet's elements by process name. If `folder` is given, skip elements that belong to
    other folders.

    If two elements have the same name, ignore one that is completing.
    """
    elements: dict[str, Element] = {}
    for line in listed.splitlines():
        job, array, index, name, state, node, restarts, reason, *rest = line.rstrip("|").split("|")
        prefix, owner, stem = [*name.split(":"), "", ""][:3]
        if (prefix, owner) != (JOB_PREFIX, fleet):
            continue
        comment = "|".join(rest)
        if folder and comment.startswith(COMMENT) and not is_same_folder(comment.removeprefix(COMMENT), folder):
            continue
        element = Element(job, array, int(index), stem, state, node, int(restarts), reason)
        if element.name not in elements or elements[element.name].state == "COMPLETING":
            elements[element.name] = element
    return elements


class Slurm:
    """Runner of Slurm's programs on one cluster for one fleet."""

    def __init__(self, fleet: str, programs: Mapping[str, str] | None = None, *, folder: str = "") -> None:
        """`programs` contains the paths of programs that are not in PATH, by name. If `folder` is not empty, ignore elements of fleets in
        other folders."""
        self._fleet = fleet
        self._folder = folder
        self._programs = dict(programs or {})
        self._running_query: asyncio.Task[dict[str, Element]] | None = None
        self._next_query: asyncio.Task[dict[str, Element]] | None = None

    async def elements(self) -> dict[str, Element]:
        """Map the name of each process to its waiting, running or completing element. The result comes from a query that starts after this
        call.

        All calls that arrive during a running query share the next query, because many calls arrive at the same time.
        """
        if self._next_query is None:
            self._next_query = asyncio.create_task(self._query_after(self._running_query))
        return await asyncio.shield(self._next_query)

    async def _query_after(self, earlier: "asyncio.Task[dict[str, Element]] | None") -> dict[str, Element]:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._running_query, self._next_query = self._next_query, None
        form = ",".join(f"{field}:|" for field in FIELDS)
        listed = await self.call("squeue", "--noheader", "--array", "--me", "--Format", form)
        return parse_elements(listed, self._fleet, self._folder)

    async def check(self, processes: int, options: Sequence[str]) -> None:
        """Check that Slurm accepts jobs with these options, and that `processes` of these jobs could run at the same time. This submits no
        job.

        Raises:
            UsageError: If Slurm refuses an option, its configuration is unreadable, or the cluster is too small.
            ExternalFailureError: If Slurm does not reply.
        """
        await self._test(["--ntasks=1", *options])
        together = [f"--ntasks={processes}", *([f"--nodes={processes}"] if "--exclusive" in options else [])]
        try:
            await self._test([*together, *options])
        except (
            SnaplineError
        ) as error:  # other errors, such as a limit on nodes per job, do not apply to many small jobs
            if NODES_UNAVAILABLE in str(error):
                raise UsageError(
                    f"the Slurm cluster has no room for {processes} processes at once with these options: ask for fewer --hosts, add nodes, "
                    "or change --sbatch-option; `sinfo` lists the nodes"
                ) from error

    async def _test(self, options: Sequence[str]) -> None:
        await self.call("sbatch", "--test-only", *options, "--wrap=true", limit_s=CHECK_S)

    async def open_address(self) -> str:
        """Return the name or address of the first node whose address is not a loopback address, or an empty string if there is none."""
        listed = await self.call("scontrol", "--oneliner", "show", "nodes", limit_s=CHECK_S)
        names = [word.partition("=")[2] for word in listed.split() if word.startswith("NodeAddr=")]
        for name in dict.fromkeys(names):
            with contextlib.suppress(OSError):
                addresses = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
                if not is_loopback(f"{addresses[0][4][0]}:0"):
                    return name
        return ""

    async def submit(self, stem: str, indices: Sequence[int], options: Sequence[str], command: str) -> str:
        """Submit a job array and return its id."""
        array = ",".join(map(str, sorted(indices)))
        identity = [f"--job-name={JOB_PREFIX}:{self._fleet}:{stem}", f"--array={array}", "--parsable"]
        identity += [f"--comment={COMMENT}{self._folder}"] if self._folder else []
        output = await self.call("sbatch", *identity, *options, f"--wrap=exec {command}")
        return output.strip().partition(";")[0]

    async def cancel(self, elements: Sequence[Element]) -> None:
        """Cancel these elements."""
        if elements:
            await self.call("scancel", "--quiet", *(f"{element.array}_{element.index}" for element in elements))

    async def address(self, node: str) -> str:
        """Return the IP address of a node."""
        output = await self.call("scontrol", "--oneliner", "show", "node", node)
        name = next((word.partition("=")[2] for word in output.split() if word.startswith("NodeAddr=")), node)
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ExternalFailureError(f"node {node}: nobody knows the address of {name}: {error.strerror}") from error
        return str(addresses[0][4][0])

    def bridge(self, element: Element, command: Sequence[str]) -> list[str]:
        """Return an `srun` command that runs `command` inside the element's allocation, connected to this process's standard streams."""
        srun = self._programs.get("srun", "srun")
        place = (f"--jobid={element.job}", "--overlap", "--ntasks=1", "--nodes=1", "--quiet", "--unbuffered")
        return [srun, *place, *command]

    async def call(self, program: str, *arguments: str, limit_s: float = LIMIT_S) -> str:
        """Run one of Slurm's programs until it exits, and return its output.

        Raises:
            UsageError: If the program is missing, its configuration is unreadable, or it rejects the arguments.
            ExternalFailureError: If the program fails.
        """
        configuration = os.environ.get("SLURM_CONF", "")
        if configuration and not os.path.exists(configuration):  # the program would search for the file for a minute
            raise UsageError(
                f"Slurm's configuration cannot be read: {configuration} is not there; {CONFIGURATION_ADVICE}"
            )
        try:
            process = await asyncio.create_subprocess_exec(
                self._programs.get(program, program),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C at the terminal must reach the launcher only
            )
        except OSError as error:
            raise UsageError(
                f"{program} cannot be run here ({error.strerror}): this needs a machine of a Slurm cluster"
            ) from error
        out, err = await asyncio.shield(
            _ended(process, program, limit_s)
        )  # shielded, so that a cancellation cannot lose a submitted job
        if process.returncode:
            errors = err.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
            if any("configuration file" in line for line in errors):
                raise UsageError(
                    f"Slurm's configuration cannot be read: {_strip_prefixes(program, errors[0])}; {CONFIGURATION_ADVICE}"
                )
            kind = UsageError if program == "sbatch" and _is_refused(errors) else ExternalFailureError
            raise kind(f"{program}: {_strip_prefixes(program, errors[-1])}")
        return out.decode()


def _strip_prefixes(program: str, line: str) -> str:
    return line.removeprefix(f"{program}: ").removeprefix("fatal: ").removeprefix("error: ")


async def _ended(process: asyncio.subprocess.Process, program: str, limit_s: float) -> tuple[bytes, bytes]:
    """Wait for a program to exit, and return its stdout and stderr. If the program is still running after `limit_s` seconds, kill it and
    raise an error that quotes its stderr."""
    communication = asyncio.ensure_future(process.communicate())
    done, _ = await asyncio.wait({communication}, timeout=limit_s)
    if done:
        return communication.result()
    process.kill()
    _, err = await communication
    errors = err.decode(errors="replace").strip().splitlines()
    if any("stat file" in line for line in errors):
        raise UsageError(
            f"Slurm's configuration cannot be read: {_strip_prefixes(program, errors[0])}; {CONFIGURATION_ADVICE}"
        )
    detail = f" ({_strip_prefixes(program, errors[-1])})" if errors else ""
    raise ExternalFailureError(
        f"{program} has not answered within {limit_s:g} s{detail}: does `scontrol ping` find the controller?"
    )


def _is_refused(said: Sequence[str]) -> bool:
    """Return whether the error is permanent, for example an unknown option, so that a retry would fail again."""
    signs = ("nvalid", "nrecognized", "nknown", "not permitted", 'Try "sbatch --help"')
    return any(sign in line for line in said for sign in signs)


NOTICE_S = 120
"""Time in seconds before the time limit at which Slurm warns hosts. Slurm may warn up to a minute earlier, and ends hosts at the limit."""

SNAPSHOT_LIMIT_S = 60
"""Largest part of the notice period, in seconds, that the last snapshot may take."""

GATHER_S = 0.1
"""Time in seconds for which start requests are collected into one array."""

LOOK_S, LOOK_S_MAX = 0.3, 5.0
"""Interval in seconds between two queries of Slurm's queue. The interval doubles after each query, up to the maximum."""

CLOSE_S = 90.0
"""Time limit in seconds for cancelled elements to leave the queue. Slurm waits half a minute before it kills them."""

WAITING_S = 30.0
"""Waiting time in seconds after which a note reports that an element is still waiting."""

SUBMITTED, SUBMISSIONS_MAX = "it was submitted", 3
"""Reason for waiting after a submission, and the largest number of submissions per start. If more jobs of a process end before the launcher
can connect, the start fails."""


class SlurmLauncher:
    """Launcher that runs the processes of one fleet on a Slurm cluster."""

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
        """Describe the fleet and its cluster. `open` then reserves the place.

        Args:
            data_dir: path of a folder, shared by all nodes, for logs and the coordinators' files.
            python: path of the Python interpreter on the nodes, with snapline installed.
            code: folder on the nodes that contains the fleet's module. If `code` is empty, jobs run in the current folder.
            options: `sbatch` options for all jobs, such as the partition, time limit or account.
            notice_s: how many seconds before the time limit hosts are warned.
            trust: `--tls-…` or `--insecure` options for the command that requests a last snapshot.
            slurm: runner of Slurm's programs; by default, a new one is created.
            on_note: called with a sentence when an element has waited for a long time.
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
        self._workers: dict[str, LaunchAgentClient] = {}  # by process name; only the worker of the latest run
        self._find_locks: dict[str, asyncio.Lock] = {}
        self._addresses: dict[str, str] = {}  # by coordinator name
        self._nodes: dict[str, str] = {}  # by coordinator name: the node to which its address belongs
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
        """Check that `processes` processes can run at the same time, and that any plaintext between machines is allowed.

        Raises:
            UsageError: If a check fails. The message explains what to change.
            ExternalFailureError: If Slurm does not reply.
        """
        await self._slurm.check(processes, self._options)
        if not self._trust:
            check_exposure(await self._slurm.open_address())

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Start the coordinators' elements, and request each coordinator's port from its worker.

        Raises:
            UsageError: If `sbatch` is missing or refuses the options.
        """
        make_private(Path(self.logs))
        await self._slurm.elements()  # here an unreachable cluster is an error, but later calls wait for the cluster
        addresses = await asyncio.gather(*(self._coordinator_address(name) for name in coordinators))
        self._addresses = dict(zip(coordinators, addresses, strict=True))
        return dict(self._addresses)

    async def start(self, spec: ProcessSpec) -> Handle:
        """Start a process and return its handle. Wait for the element of the process without a time limit."""
        while True:
            worker = await self._worker(spec.name, spec.kind)
            command = tuple(word.replace(NODE, bracketed(worker.address)) for word in spec.command)
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
        """Cancel all elements of this fleet, including those of earlier launchers. Do nothing if another launcher has taken over the fleet.

        Raises:
            ExternalFailureError: If Slurm fails to end the elements.
        """
        self._is_closed = True
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._workers.values()), return_exceptions=True)
        if not any(worker.is_replaced for worker in self._workers.values()):
            await self.sweep()

    async def sweep(self) -> list[str]:
        """Cancel all elements of this fleet, and wait until they have left the queue. Return the names of the elements' processes."""
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
        return f"{bracketed(worker.address)}:{await worker.port(name, worker.address)}"

    def _worker_of(self, handle: Handle) -> LaunchAgentClient | None:
        worker = self._workers.get(handle.name)
        return worker if worker is not None and worker.where == handle.where else None

    def _forget(self, name: str, worker: LaunchAgentClient) -> None:
        if self._workers.get(name) is worker:
            del self._workers[name]

    async def _worker(self, name: str, kind: Kind) -> LaunchAgentClient:
        """Return the client of the process's worker. If no client is known, connect to the worker of the process's element, or submit a new
        element."""
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
        """Return the worker's client, or None and the reason why the worker is not available yet."""
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
        """Connect to the worker of an element that is running.

        Raises:
            ExternalFailureError: If the worker does not reply yet, or has exited.
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
        """Submit an element for this process. Elements that are requested at the same time are submitted together as one array."""
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
        """Return the command that requests a last snapshot before the time limit."""
        where = ("--coordinator", ",".join(self._addresses.values()), "--timeout", str(SNAPSHOT_LIMIT_S))
        return (self._python, "-m", "snapline", "snapshot", "create", *where, *self._trust)


def _gone(handle: Handle) -> Exit:
    return Exit(None, f"gone: {handle.where} is over")
