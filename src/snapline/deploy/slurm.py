"""Adapter for Slurm: runs its programs and parses their output."""

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence

import msgspec

from snapline.deploy.data_directory import is_same_folder
from snapline.errors import ExternalFailureError, SnaplineError, UsageError
from snapline.security.transport import is_loopback

JOB_PREFIX = "snapline"

LIMIT_S = 60.0
"""Time limit for one program. A busy controller takes seconds; without a controller the programs hang."""

CONFIGURATION_ADVICE = "correct it, or name another one in SLURM_CONF (`scontrol show config` reads it)"

CHECK_S = 10.0
"""Time limit for one program before anything is submitted, while a user waits. Without a configuration a program tries for a minute."""

NODES_UNAVAILABLE = "Requested node configuration is not available"
"""Error of `sbatch` for a job that could never run, even on an idle cluster."""

FIELDS = ("JobID", "ArrayJobID", "ArrayTaskID", "Name", "State", "NodeList", "RestartCnt", "Reason", "Comment")

COMMENT = "snapline "
"""Prefix of the fleet's folder in the comment of each job; the folder distinguishes fleets of the same name."""


class Element(msgspec.Struct, frozen=True):
    """One element of a job array.

    Attributes:
        job: job id; before the element starts perhaps the id of the array.
        array, index: permanent id of the element.
        stem: prefix of the process's name: `h` of h1, h2 …
        state: Slurm's state, such as `RUNNING`.
        node: the node that it runs on.
        restarts: how often it was requeued.
        reason: why it waits.
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
        """Name of the process that the element runs."""
        return self.stem if self.index == UNNUMBERED_INDEX else f"{self.stem}{self.index}"

    @property
    def run(self) -> str:
        """Description that identifies this run of the element."""
        return f"job {self.array}_{self.index}, run {self.restarts} on {self.node}"

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING"


UNNUMBERED_INDEX = 999
"""Index of a process whose name has no number: above the number of hosts, and below Slurm's usual limit."""


def split_name(name: str) -> tuple[str, int]:
    """Split `h3` into `h` and 3; a name without a number gets `UNNUMBERED_INDEX`."""
    match_ = re.fullmatch(r"(.*[^0-9])(\d{1,3})", name)
    if match_ is None or int(match_[2]) >= UNNUMBERED_INDEX or match_[2] != str(int(match_[2])):
        return name, UNNUMBERED_INDEX
    return match_[1], int(match_[2])


def parse_elements(listed: str, fleet: str, folder: str = "") -> dict[str, Element]:
    """Return the elements of a fleet by process name, from the output of `squeue`. Elements of another folder are skipped.

    If a name has two elements, a completing one is ignored.
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
    """The programs of one cluster, for one fleet."""

    def __init__(self, fleet: str, programs: Mapping[str, str] | None = None, *, folder: str = "") -> None:
        """Create the adapter. `programs`: name → path of programs outside PATH. `folder`: the fleet's folder; empty: any."""
        self._fleet = fleet
        self._folder = folder
        self._programs = dict(programs or {})
        self._running_query: asyncio.Task[dict[str, Element]] | None = None
        self._next_query: asyncio.Task[dict[str, Element]] | None = None

    async def elements(self) -> dict[str, Element]:
        """Return the fleet's waiting, running and completing elements by process name; the query starts after this call.

        Calls made during a query share the next query, because many come at the same time.
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
        """Check that Slurm accepts jobs with these options, and that `processes` of them could run at once. Submit nothing.

        Raises:
            UsageError: Slurm refuses an option, its configuration cannot be read, or the cluster is too small.
            ExternalFailureError: Slurm does not answer.
        """
        await self._test(["--ntasks=1", *options])
        together = [f"--ntasks={processes}", *([f"--nodes={processes}"] if "--exclusive" in options else [])]
        try:
            await self._test([*together, *options])
        except SnaplineError as error:  # other errors, such as a node limit per job, do not apply to many small jobs
            if NODES_UNAVAILABLE in str(error):
                raise UsageError(
                    f"the Slurm cluster has no room for {processes} processes at once with these options: ask for fewer --hosts, add nodes, "
                    "or change --sbatch-option; `sinfo` lists the nodes"
                ) from error

    async def _test(self, options: Sequence[str]) -> None:
        await self.call("sbatch", "--test-only", *options, "--wrap=true", limit_s=CHECK_S)

    async def open_address(self) -> str:
        """Return the address of a node that is not this machine; empty if there is none."""
        listed = await self.call("scontrol", "--oneliner", "show", "nodes", limit_s=CHECK_S)
        names = [word.partition("=")[2] for word in listed.split() if word.startswith("NodeAddr=")]
        for name in dict.fromkeys(names):
            with contextlib.suppress(OSError):
                addresses = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
                if not is_loopback(f"{addresses[0][4][0]}:0"):
                    return name
        return ""

    async def submit(self, stem: str, indices: Sequence[int], options: Sequence[str], command: str) -> str:
        """Submit one job array; return its id."""
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
        """Return an `srun` command that runs `command` inside an element's allocation, with our standard streams."""
        srun = self._programs.get("srun", "srun")
        place = (f"--jobid={element.job}", "--overlap", "--ntasks=1", "--nodes=1", "--quiet", "--unbuffered")
        return [srun, *place, *command]

    async def call(self, program: str, *arguments: str, limit_s: float = LIMIT_S) -> str:
        """Run one of Slurm's programs to its end; return its output.

        Raises:
            UsageError: the program is missing, its configuration cannot be read, or it refuses the arguments.
            ExternalFailureError: the program fails.
        """
        configuration = os.environ.get("SLURM_CONF", "")
        if configuration and not os.path.exists(configuration):  # the program would look for the file for a minute
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
        )  # shielded: a submitted job must not become unknown
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
    """Return the output of a program, or kill it after `limit_s`. A program that waits for its configuration says so on stderr."""
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
    """Return whether a retry would not help, such as for an unknown option or partition."""
    signs = ("nvalid", "nrecognized", "nknown", "not permitted", 'Try "sbatch --help"')
    return any(sign in line for line in said for sign in signs)
