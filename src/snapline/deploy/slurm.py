"""Adapter for Slurm: its programs, with output in a form that programs can read."""

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
"""Time limit for one program: a busy controller takes seconds, and one that is away lets them wait."""

MEND = "mend it, or name another one in SLURM_CONF (`scontrol show config` reads it)"

CHECK_S = 10.0
"""The same before anything is submitted, when somebody waits: without its configuration a program tries for a minute."""

TOO_FEW = "Requested node configuration is not available"
"""Error of `sbatch` for a job that could never run, whatever ended."""

FIELDS = ("JobID", "ArrayJobID", "ArrayTaskID", "Name", "State", "NodeList", "RestartCnt", "Reason", "Comment")

COMMENT = "snapline "
"""Before the folder of the fleet, in the comment of each job: several fleets may have one name."""


class Element(msgspec.Struct, frozen=True):
    """One element of a job array.

    Attributes:
        job: its id; of an element that has not begun perhaps that of the array.
        array, index: name it permanently.
        stem: what its name begins with: `h` of h1, h2 …
        state: Slurm's word, such as `RUNNING`.
        node: where it runs.
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
        """Name of the process that it is for."""
        return self.stem if self.index == ALONE_INDEX else f"{self.stem}{self.index}"

    @property
    def run(self) -> str:
        """Names this one run of it."""
        return f"job {self.array}_{self.index}, run {self.restarts} on {self.node}"

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING"


ALONE_INDEX = 999
"""Index of a process whose name has no number: more than there are hosts, and below Slurm's usual limit."""


def split_name(name: str) -> tuple[str, int]:
    """`h3` is the third of `h`; a name without a number is alone."""
    found = re.fullmatch(r"(.*[^0-9])(\d{1,3})", name)
    if found is None or int(found[2]) >= ALONE_INDEX or found[2] != str(int(found[2])):
        return name, ALONE_INDEX
    return found[1], int(found[2])


def parse_elements(listed: str, fleet: str, folder: str = "") -> dict[str, Element]:
    """Return the elements of a fleet, by the name of their process, from what `squeue` has listed. Those of another folder are passed over.

    Of two for one name the one that ends does not count.
    """
    found: dict[str, Element] = {}
    for line in listed.splitlines():
        job, array, index, name, state, node, restarts, reason, *rest = line.rstrip("|").split("|")
        prefix, of, stem = [*name.split(":"), "", ""][:3]
        if (prefix, of) != (JOB_PREFIX, fleet):
            continue
        comment = "|".join(rest)
        if folder and comment.startswith(COMMENT) and not is_same_folder(comment.removeprefix(COMMENT), folder):
            continue
        element = Element(job, array, int(index), stem, state, node, int(restarts), reason)
        if element.name not in found or found[element.name].state == "COMPLETING":
            found[element.name] = element
    return found


class Slurm:
    """The programs of one cluster, for one fleet."""

    def __init__(self, fleet: str, programs: Mapping[str, str] | None = None, *, folder: str = "") -> None:
        """`programs`: paths of those that are not found by their name. `folder`: of the fleet; empty: whichever."""
        self._fleet = fleet
        self._folder = folder
        self._programs = dict(programs or {})
        self._looking: asyncio.Task[dict[str, Element]] | None = None
        self._next: asyncio.Task[dict[str, Element]] | None = None

    async def elements(self) -> dict[str, Element]:
        """Return the fleet's elements that wait, run, or end, by the name of their process, as they are after this call.

        Calls made while one look is under way share the next one: many come at the same time.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._look_after(self._looking))
        return await asyncio.shield(self._next)

    async def _look_after(self, earlier: "asyncio.Task[dict[str, Element]] | None") -> dict[str, Element]:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._looking, self._next = self._next, None
        form = ",".join(f"{field}:|" for field in FIELDS)
        listed = await self.call("squeue", "--noheader", "--array", "--me", "--Format", form)
        return parse_elements(listed, self._fleet, self._folder)

    async def check(self, processes: int, options: Sequence[str]) -> None:
        """Check that jobs with these options are taken, and that so many can ever run at once. Submits nothing.

        Raises:
            UsageError: an option is refused, Slurm's configuration cannot be read, or the cluster is too small.
            ExternalFailureError: nothing answers.
        """
        await self._test(["--ntasks=1", *options])
        together = [f"--ntasks={processes}", *([f"--nodes={processes}"] if "--exclusive" in options else [])]
        try:
            await self._test([*together, *options])
        except SnaplineError as error:  # others, such as a limit of nodes for one job, do not hold for many small ones
            if TOO_FEW in str(error):
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
                found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
                if not is_loopback(f"{found[0][4][0]}:0"):
                    return name
        return ""

    async def submit(self, stem: str, indices: Sequence[int], options: Sequence[str], command: str) -> str:
        """One array; returns its id."""
        array = ",".join(map(str, sorted(indices)))
        what = [f"--job-name={JOB_PREFIX}:{self._fleet}:{stem}", f"--array={array}", "--parsable"]
        what += [f"--comment={COMMENT}{self._folder}"] if self._folder else []
        told = await self.call("sbatch", *what, *options, f"--wrap=exec {command}")
        return told.strip().partition(";")[0]

    async def cancel(self, elements: Sequence[Element]) -> None:
        """End them."""
        if elements:
            await self.call("scancel", "--quiet", *(f"{element.array}_{element.index}" for element in elements))

    async def address(self, node: str) -> str:
        """IP address of a node."""
        told = await self.call("scontrol", "--oneliner", "show", "node", node)
        name = next((word.partition("=")[2] for word in told.split() if word.startswith("NodeAddr=")), node)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ExternalFailureError(f"node {node}: nobody knows the address of {name}: {error.strerror}") from error
        return str(found[0][4][0])

    def bridge(self, element: Element, command: Sequence[str]) -> list[str]:
        """Return the command that runs a command next to what an element runs, joined to our standard streams."""
        srun = self._programs.get("srun", "srun")
        place = (f"--jobid={element.job}", "--overlap", "--ntasks=1", "--nodes=1", "--quiet", "--unbuffered")
        return [srun, *place, *command]

    async def call(self, program: str, *arguments: str, limit_s: float = LIMIT_S) -> str:
        """Run one of Slurm's programs to its end; returns what it has printed.

        Raises:
            UsageError: it is not there, its configuration cannot be read, or it does not accept what it was asked.
            ExternalFailureError: it fails.
        """
        configuration = os.environ.get("SLURM_CONF", "")
        if configuration and not os.path.exists(configuration):  # the program would look for it for a minute
            raise UsageError(f"Slurm's configuration cannot be read: {configuration} is not there; {MEND}")
        try:
            process = await asyncio.create_subprocess_exec(
                self._programs.get(program, program),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C at the terminal is for the launcher
            )
        except OSError as error:
            raise UsageError(
                f"{program} cannot be run here ({error.strerror}): this needs a machine of a Slurm cluster"
            ) from error
        out, err = await asyncio.shield(
            _ended(process, program, limit_s)
        )  # what was begun, such as a job, is known when it is over
        if process.returncode:
            said = err.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
            if any("configuration file" in line for line in said):
                raise UsageError(f"Slurm's configuration cannot be read: {_plain(program, said[0])}; {MEND}")
            kind = UsageError if program == "sbatch" and _is_refused(said) else ExternalFailureError
            raise kind(f"{program}: {_plain(program, said[-1])}")
        return out.decode()


def _plain(program: str, line: str) -> str:
    return line.removeprefix(f"{program}: ").removeprefix("fatal: ").removeprefix("error: ")


async def _ended(process: asyncio.subprocess.Process, program: str, limit_s: float) -> tuple[bytes, bytes]:
    """Return the output of a program; one that waits for a missing configuration reports it meanwhile."""
    talking = asyncio.ensure_future(process.communicate())
    done, _ = await asyncio.wait({talking}, timeout=limit_s)
    if done:
        return talking.result()
    process.kill()
    _, err = await talking
    said = err.decode(errors="replace").strip().splitlines()
    if any("stat file" in line for line in said):
        raise UsageError(f"Slurm's configuration cannot be read: {_plain(program, said[0])}; {MEND}")
    told = f" ({_plain(program, said[-1])})" if said else ""
    raise ExternalFailureError(
        f"{program} has not answered within {limit_s:g} s{told}: does `scontrol ping` find the controller?"
    )


def _is_refused(said: Sequence[str]) -> bool:
    """Return whether a repetition would not help: an unknown option, an unknown partition."""
    signs = ("nvalid", "nrecognized", "nknown", "not permitted", 'Try "sbatch --help"')
    return any(sign in line for line in said for sign in signs)
