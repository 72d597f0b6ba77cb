"""Run a fleet's processes in podman containers on this machine.

Each host and coordinator runs in its own container, with a name such as FLEET-h1 or FLEET-c1.

The containers keep running after their launcher exits. A new launcher finds the containers by name and takes them over. `close` removes all
containers. Each container:

- uses the machine's network and listens on the loopback interface;
- mounts the fleet's data and code as volumes, at the same paths as on the machine;
- receives certificates as podman secrets;
- runs without capabilities, on a read-only file system, as the user who starts the fleet.

The first process of a container is a small init program (`--init`). If the first process were a program without a SIGTERM handler, it would
ignore SIGTERM.
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from snapline.deploy.child import LOG_BYTES_MAX, describe_exit
from snapline.deploy.data_directory import LOGS_FOLDER, choose_addresses, is_same_folder, lock, read_addresses
from snapline.deploy.launching import Handle, ProcessSpec
from snapline.deploy.plan import NODE, PRIVATE, Files
from snapline.deploy.supervisor import Exit
from snapline.errors import ExternalFailureError, UsageError
from snapline.folders import make_private

CALL_S = 120.0
"""Time limit in seconds for one podman command. A command takes seconds, and longer on a machine that starts many containers at once."""

FLEET_LABEL, FOLDER_LABEL, INSTANCE_LABEL = "snapline.fleet", "snapline.folder", "snapline.instance"


class ContainerState(msgspec.Struct, rename="pascal", frozen=True):
    """State of a container in the output of `podman container inspect`."""

    status: str
    pid: int
    exit_code: int
    o_o_m_killed: bool = msgspec.field(name="OOMKilled", default=False)

    @property
    def is_over(self) -> bool:
        """Return whether the container will never run again. A container in the state "created" was left behind by a failed start."""
        return self.status not in ("running", "paused", "stopping")


class _Configuration(msgspec.Struct, rename="pascal", frozen=True):
    labels: dict[str, str] | None = None


class Container(msgspec.Struct, rename="pascal", frozen=True):
    """A container in the output of `podman container inspect`."""

    id: str
    name: str
    state: ContainerState
    config: _Configuration

    def label(self, name: str) -> str:
        """Return the value of the label `name`, or `""` if the container has no such label."""
        return (self.config.labels or {}).get(name, "")


class PodmanError(ExternalFailureError):
    """A podman command failed. The message is the last line of podman's output."""


async def podman(
    program: Sequence[str], *arguments: str, given: bytes | None = None, limit_s: float | None = CALL_S
) -> str:
    """Run podman and return its output.

    Raises:
        PodmanError: If podman failed or took longer than `limit_s`.
        UsageError: If podman is not installed.
    """
    code, out, err = await _run(program, arguments, given, limit_s)
    if code:
        lines = err.strip().splitlines()
        raise PodmanError(lines[-1].removeprefix("Error: ") if lines else f"podman ended with {code}")
    return out


async def last_line(program: Sequence[str], name: str) -> str:
    """Return the last line that a container wrote to stdout or stderr. Return `""` if there is none or podman fails."""
    code, out, err = await _run(program, ("logs", "--tail", "1", name), None, CALL_S)
    return "" if code else f"{out}{err}".strip()


async def _run(
    program: Sequence[str], arguments: Sequence[str], given: bytes | None, limit_s: float | None
) -> tuple[int, str, str]:
    """Run podman in its own session, so that a Ctrl-C does not interrupt it. Return its exit code, stdout and stderr."""
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
    """Return the container with this name or id, or None if it does not exist.

    Raises:
        PodmanError: If the command fails.
    """
    try:
        output = await podman(program, "container", "inspect", name)
    except PodmanError as error:
        if "no such container" in str(error).lower():
            return None
        raise
    return msgspec.json.decode(output, type=list[Container])[0]


async def containers_of(program: Sequence[str], fleet: str) -> list[Container]:
    """Return all containers of this fleet, including containers that are not running."""
    listed = await podman(program, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={FLEET_LABEL}={fleet}")
    inspected = await asyncio.gather(*(inspect(program, container) for container in listed.split()))
    return [container for container in inspected if container is not None]


IMAGE = "snapline"
"""Name of the image that docs/deploy-containers.md builds."""

SECRETS = "/run/secrets"
"""Folder for podman's secrets in a container. The folder is a file system of its own, because secrets cannot be mounted on a read-only file
system."""

CONFINED = (
    "--cap-drop",
    "all",
    "--security-opt",
    "no-new-privileges",
    "--security-opt",
    "label=disable",
    "--read-only",
)
"""Options that confine a container. The container gets no capabilities and cannot use set-user-id programs, and only its volumes and `/tmp`
are writable. Volumes are the user's folders, so they are not relabelled."""

SIGNALLED = 128
"""Base of the exit code of a container whose process was killed by a signal. The exit code is this base plus the signal number."""


class PodmanLauncher:
    """Launcher that runs the processes of one fleet in podman containers."""

    def __init__(
        self,
        fleet: str,
        data_dir: Path,
        *,
        image: str = IMAGE,
        folder: Path | None = None,
        volumes: Sequence[Path] = (),
        files: Files = lambda kind, name: {},
        program: Sequence[str] = ("podman",),
    ) -> None:
        """Describe the fleet and its containers. `open` then reserves the place.

        Args:
            fleet: name of the fleet, which is part of the names of all containers and secrets.
            data_dir: folder for the coordinators' files and logs. The folder is mounted as a volume at the same path.
            image: container image with snapline and the agents' dependencies.
            folder: folder that contains the fleet's code. The folder is mounted read-only, and is the working directory of the processes.
            volumes: additional folders that the processes need, such as the store's folder.
            files: certificates and keys of each process, delivered to the containers as podman secrets.
            program: the podman program, with options if needed.
        """
        self._fleet = fleet
        self._data_dir = data_dir.absolute()
        self._image = image
        self._folder = folder.absolute() if folder is not None else None
        self._volumes = [path.absolute() for path in volumes]
        self._files = files
        self._program = tuple(program)
        self._starting: set[asyncio.Task[Handle]] = set()
        self._lock_fd: int | None = None

    @property
    def where(self) -> str:
        return f"podman's containers {self._fleet}-…"

    @property
    def logs(self) -> str:
        return str(self._data_dir / LOGS_FOLDER)

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Lock the folder, and choose the coordinators' ports. Reuse the ports of the previous run if they are free or its containers are
        still running.

        Raises:
            DirectoryInUseError: If another launcher is already using this folder.
            UsageError: If the fleet's name is used with another folder, the number of coordinators has changed, or podman is missing.
        """
        for path in self._volumes:
            make_private(path)
        make_private(self._data_dir / LOGS_FOLDER)
        self._lock_fd = lock(self._data_dir)
        existing = await containers_of(self._program, self._fleet)
        for container in existing:
            if not is_same_folder(container.label(FOLDER_LABEL), self._data_dir):
                raise UsageError(
                    f"container {container.name} is of a fleet in {container.label(FOLDER_LABEL)}: give another --name"
                )
        earlier = read_addresses(self._data_dir)
        if len(earlier) == len(coordinators) and any(not container.state.is_over for container in existing):
            return dict(zip(coordinators, earlier, strict=True))
        return dict(zip(coordinators, choose_addresses(self._data_dir, len(coordinators)), strict=True))

    async def start(self, spec: ProcessSpec) -> Handle:
        """If this call is cancelled, the start continues in the background, so that `close` finds the container."""
        task = asyncio.create_task(self._start(spec))
        self._starting.add(task)
        task.add_done_callback(self._started)
        return await asyncio.shield(task)

    async def watch(self, handle: Handle) -> Exit:
        with contextlib.suppress(PodmanError):  # the container is gone, which `status` reports
            await podman(self._program, "wait", handle.where, limit_s=None)
        return await self.status(handle) or Exit(None, "podman does not say how it ended", log=self.logs)

    async def status(self, handle: Handle) -> Exit | None:
        container = await inspect(self._program, handle.where)
        if container is None:
            return Exit(None, "its container is gone", log=self.logs)
        return await self._exit_of(handle, container) if container.state.is_over else None

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        await self._signal(handle, "TERM")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                return await self.watch(handle)
        await self.kill(handle)
        return await self.watch(handle)

    async def kill(self, handle: Handle) -> None:
        await self._signal(handle, "KILL")
        await self.thaw(handle)  # a frozen container does not react to the signal

    async def freeze(self, handle: Handle) -> None:
        """Freeze the whole container through its control group, because a signal would reach only the container's init process."""
        await self._run_quietly("pause", handle)

    async def thaw(self, handle: Handle) -> None:
        await self._run_quietly("unpause", handle)

    async def close(self) -> None:
        """Remove all containers of this fleet, including those of earlier launchers, and unlock the folder."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        await self.sweep()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    async def sweep(self) -> list[str]:
        """Remove this fleet's containers and secrets, including those of earlier launchers. Return the names of the removed containers.

        If containers with the fleet's name belong to another folder, keep these containers and all secrets.
        """
        containers = await containers_of(self._program, self._fleet)
        ours = [container for container in containers if is_same_folder(container.label(FOLDER_LABEL), self._data_dir)]
        if ours:
            await podman(self._program, "rm", "--force", "--volumes", "--time", "2", "--ignore", *(x.id for x in ours))
        if len(ours) < len(containers):
            return [container.name for container in ours]
        secrets = await podman(self._program, "secret", "ls", "--quiet", "--filter", f"name=^{self._fleet}\\.")
        if secrets.split():
            await podman(self._program, "secret", "rm", *secrets.split())
        return [container.name for container in ours]

    # -- one container ------------------------------------------------------------------------------------------------------

    async def _start(self, spec: ProcessSpec) -> Handle:
        name = f"{self._fleet}-{spec.name}"
        container = await inspect(self._program, name)
        if container is not None and container.state.is_over:
            await podman(self._program, "rm", "--force", "--volumes", name)
            container = None
        if container is None:
            files = self._files(spec.kind, spec.name)
            await self._keep_secrets(spec.name, files)
            await podman(self._program, *self._arguments(spec, files))
            container = await inspect(self._program, name)
        if container is None:
            raise PodmanError(f"container {name} was started, and is gone")
        return Handle(spec.name, container.label(INSTANCE_LABEL), container.id, container.state.pid)

    def _arguments(self, spec: ProcessSpec, files: Mapping[str, bytes]) -> list[str]:
        labels = {FLEET_LABEL: self._fleet, FOLDER_LABEL: str(self._data_dir), INSTANCE_LABEL: spec.instance}
        owner = f"{os.getuid()}:{os.getgid()}"
        log = self._data_dir / LOGS_FOLDER / f"{spec.name}.log"
        arguments = [
            "run",
            "--detach",
            "--name",
            f"{self._fleet}-{spec.name}",
            "--network",
            "host",
            "--init",
            "--no-healthcheck",
        ]
        arguments += [*CONFINED, "--user", owner, *(("--userns", "keep-id") if os.getuid() else ())]
        arguments += [part for key, value in labels.items() for part in ("--label", f"{key}={value}")]
        arguments += ["--log-driver", "k8s-file", "--log-opt", f"path={log}", "--log-opt", f"max-size={LOG_BYTES_MAX}"]
        arguments += [part for path in (self._data_dir, *self._volumes) for part in ("--volume", f"{path}:{path}")]
        if self._folder is not None:
            arguments += ["--volume", f"{self._folder}:{self._folder}:ro", "--workdir", str(self._folder)]
        arguments += ["--tmpfs", SECRETS] if files else []
        for file in files:
            secret = f"{self._fleet}.{spec.name}.{file}"
            arguments += ["--secret", f"{secret},target={file},uid={os.getuid()},gid={os.getgid()},mode=0400"]
        command = [word.replace(NODE, "127.0.0.1").replace(PRIVATE, SECRETS) for word in spec.command[1:]]
        return [*arguments, "--entrypoint", "python3", self._image, *command]

    async def _keep_secrets(self, name: str, files: Mapping[str, bytes]) -> None:
        """Replace the process's secrets by the current certificate files, because certificates may have been renewed since the last
        start."""
        for file, content in files.items():
            secret = f"{self._fleet}.{name}.{file}"
            with contextlib.suppress(PodmanError):  # the secret does not exist yet
                await podman(self._program, "secret", "rm", secret)
            await podman(self._program, "secret", "create", secret, "-", given=content)

    async def _signal(self, handle: Handle, signal: str) -> None:
        await self._run_quietly("kill", handle, "--signal", signal)

    async def _run_quietly(self, word: str, handle: Handle, *more: str) -> None:
        with contextlib.suppress(PodmanError):  # the container has exited, or is already in the requested state
            await podman(self._program, word, *more, handle.where)

    async def _exit_of(self, handle: Handle, container: Container) -> Exit:
        state = container.state
        code = SIGNALLED - state.exit_code if state.exit_code > SIGNALLED else state.exit_code
        text = "out of memory" if state.o_o_m_killed else describe_exit(code)
        last_words = await last_line(self._program, container.id)
        return Exit(code, text, last_words, str(self._data_dir / LOGS_FOLDER / f"{handle.name}.log"))

    def _started(self, task: asyncio.Task[Handle]) -> None:
        self._starting.discard(task)
        if not task.cancelled():
            task.exception()  # mark the error as retrieved; a waiting caller also receives it
