"""podman's command line, as far as launchers need it."""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from snapline.errors import ExternalFailureError, UsageError

CALL_S = 120.0
"""Time limit for one call. A call takes seconds, and longer on a machine that starts many containers at once."""

FLEET_LABEL, FOLDER_LABEL, INSTANCE_LABEL = "snapline.fleet", "snapline.folder", "snapline.instance"


class ContainerState(msgspec.Struct, rename="pascal", frozen=True):
    """State of one container, from `podman container inspect`."""

    status: str
    pid: int
    exit_code: int
    o_o_m_killed: bool = msgspec.field(name="OOMKilled", default=False)

    @property
    def is_over(self) -> bool:
        """Return whether the container will never run again. A container that is only "created" was left by a failed start."""
        return self.status not in ("running", "paused", "stopping")


class _Configuration(msgspec.Struct, rename="pascal", frozen=True):
    labels: dict[str, str] | None = None


class Container(msgspec.Struct, rename="pascal", frozen=True):
    """One container."""

    id: str
    name: str
    state: ContainerState
    config: _Configuration

    def label(self, name: str) -> str:
        """Return the value of a label; `""` if there is none of this name."""
        return (self.config.labels or {}).get(name, "")


class PodmanError(ExternalFailureError):
    """podman failed; the message is the last line of its output."""


async def podman(
    program: Sequence[str], *arguments: str, given: bytes | None = None, limit_s: float | None = CALL_S
) -> str:
    """Run podman and return what it printed.

    Raises:
        PodmanError: podman failed, or took longer than `limit_s`.
        UsageError: podman is not installed.
    """
    code, out, err = await _run(program, arguments, given, limit_s)
    if code:
        lines = err.strip().splitlines()
        raise PodmanError(lines[-1].removeprefix("Error: ") if lines else f"podman ended with {code}")
    return out


async def last_line(program: Sequence[str], name: str) -> str:
    """Return the last line of a container's output, from either stream; `""` if empty or unknown."""
    code, out, err = await _run(program, ("logs", "--tail", "1", name), None, CALL_S)
    return "" if code else f"{out}{err}".strip()


async def _run(
    program: Sequence[str], arguments: Sequence[str], given: bytes | None, limit_s: float | None
) -> tuple[int, str, str]:
    """Run podman in its own session, so that Ctrl-C does not interrupt it."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *program,
            *arguments,
            stdin=pipe if given is not None else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise UsageError(f"{program[0]} is not there: install podman, runc or crun, and catatonit") from error
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate(given)
    except TimeoutError:
        raise PodmanError(f"`podman {arguments[0]}` did not answer within {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


async def inspect(program: Sequence[str], name: str) -> Container | None:
    """Return the container of this name or id; None if there is none.

    Raises:
        PodmanError: podman does not work.
    """
    try:
        output = await podman(program, "container", "inspect", name)
    except PodmanError as error:
        if "no such container" in str(error).lower():
            return None
        raise
    return msgspec.json.decode(output, type=list[Container])[0]


async def containers_of(program: Sequence[str], fleet: str) -> list[Container]:
    """Return all containers of this fleet, whether they run or not."""
    listed = await podman(program, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={FLEET_LABEL}={fleet}")
    inspected = await asyncio.gather(*(inspect(program, container) for container in listed.split()))
    return [container for container in inspected if container is not None]
