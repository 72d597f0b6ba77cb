"""Run a fleet's processes on machines that are reachable through `ssh`.

Each machine runs a launch agent (`deploy/launch_agent.py`). The hosts and the coordinators are spread over the machines.

The launcher runs the `ssh` program with the user's configuration and without prompts (BatchMode). One connection to each machine carries
all commands and certificates. Command lines contain no secrets.

A broken connection does not mean that the processes on the machine have ended. So the launcher retries indefinitely, and never reports an
exit that it has not observed. The coordinator monitors its own connections to the hosts, and decides whether the fleet continues without an
unreachable machine. Each process always runs on the same machine. While a machine is down, agents of its hosts run on other hosts. When the
machine returns, its hosts return too.
"""

import asyncio
import re
import secrets
import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from snapline.deploy.launch_agent import NOT_RUNNING
from snapline.deploy.launch_agent_client import (
    LaunchAgentClient,
    LaunchAgentConnection,
    LaunchAgentGoneError,
    LaunchAgentMissingError,
)
from snapline.deploy.launching import Handle, ProcessSpec
from snapline.deploy.plan import NODE, Files, bracketed
from snapline.deploy.supervisor import Exit
from snapline.errors import ExternalFailureError, SnaplineError, UsageError

OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
"""Options of `ssh`. These options close a connection that has been unresponsive for 15 seconds, and the launcher then reconnects."""

PYTHON = "python3"

T = TypeVar("T")


class SshLauncher:
    """Launcher that runs the processes of one fleet on machines that are reachable through `ssh`."""

    def __init__(
        self,
        name: str,
        machines: Sequence[str],
        *,
        data_dir: str,
        ssh: Sequence[str] = ("ssh",),
        python: str = PYTHON,
        code: str = "",
        files: Files = lambda kind, name: {},
        on_note: Callable[[str], None] = lambda note: None,
    ) -> None:
        """Describe the fleet and its machines. `open` then reserves the place.

        Args:
            machines: host names for `ssh`. Each is `user@host`, `ssh://user@host:port`, or a name from the user's ssh configuration.
            data_dir: path, on every machine, of the folder for logs and the coordinators' files. The machines need not share this folder.
            ssh: the ssh program, with options if needed.
            python: path of the Python interpreter on the machines, with snapline installed.
            code: folder on the machines that contains the fleet's module, if the module is not installed.
            files: certificates and keys of each process, readable only by the user of the process.
            on_note: called with a sentence when a machine is unreachable.
        """
        if not machines:
            raise UsageError('which machines? Give --address HOST,HOST… or machines = ["HOST", …] in snapline.toml')
        self._name = name
        self._data_dir = data_dir
        self._ssh = tuple(ssh)
        self._python = python
        self._code = code
        self._files = files
        self._holder = secrets.token_hex(8)
        self._clients = {
            machine: LaunchAgentClient(machine, self._holder, self._dialler(machine), on_note)
            for machine in dict.fromkeys(machines)
        }

    @property
    def where(self) -> str:
        return ", ".join(self._clients)

    @property
    def logs(self) -> str:
        return f"{self._data_dir}/logs on {self.where}"

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Take over the launch agents on all machines. Request each coordinator's port from the launch agent on its machine.

        Raises:
            UsageError: If a machine cannot be used in its current state. The message explains what to do.
            ExternalFailureError: If a machine is unreachable.
        """
        await _all(post.hold() for post in self._clients.values())
        clients = [self._client_of(name) for name in coordinators]
        ports = await _all(post.port(name, post.address) for name, post in zip(coordinators, clients, strict=True))
        return {
            name: _joined(post.address, port) for name, post, port in zip(coordinators, clients, ports, strict=True)
        }

    async def start(self, spec: ProcessSpec) -> Handle:
        client = self._client_of(spec.name)
        command = tuple(word.replace(NODE, bracketed(client.address)) for word in spec.command)
        files = self._files(spec.kind, spec.name)
        return await client.start(msgspec.structs.replace(spec, command=command), files)

    async def watch(self, handle: Handle) -> Exit:
        return await self._client_of(handle.name).watch(handle)

    async def status(self, handle: Handle) -> Exit | None:
        return await self._client_of(handle.name).status(handle)

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        return await self._client_of(handle.name).stop(handle, grace_s)

    async def kill(self, handle: Handle) -> None:
        await self._client_of(handle.name).kill(handle)

    async def freeze(self, handle: Handle) -> None:
        await self._client_of(handle.name).freeze(handle)

    async def thaw(self, handle: Handle) -> None:
        await self._client_of(handle.name).thaw(handle)

    async def close(self) -> None:
        """End all processes of this fleet, including those of earlier launchers.

        Raises:
            ExternalFailureError: If some machines are unreachable. The processes on these machines keep running.
        """
        results = await asyncio.gather(*(post.close() for post in self._clients.values()), return_exceptions=True)
        errors = [error for error in results if isinstance(error, BaseException)]
        if errors:
            messages = "; ".join(str(error) for error in errors)
            raise ExternalFailureError(f"{messages}: processes there keep running until `snapline down` reaches them")

    async def sweep(self) -> list[str]:
        """End the launch agents that earlier launchers have left on these machines. Return the machines on which a launch agent was
        running.

        Raises:
            SnaplineError: If some machines are unreachable. The launch agents on all other machines have been ended.
        """
        clients = [
            LaunchAgentClient(machine, self._holder, self._dialler(machine, "--must-run"), lambda note: None)
            for machine in self._clients
        ]
        return [machine for machine in await _all(_sweep(post) for post in clients) if machine]

    def _client_of(self, name: str) -> LaunchAgentClient:
        """Return the client for the machine of this process. The processes h1 and c1 run on the first machine, h2 and c2 on the second, and
        so on."""
        number = re.search(r"\d+", name)
        clients = list(self._clients.values())
        return clients[(int(number[0]) - 1 if number else 0) % len(clients)]

    def _dialler(self, machine: str, *more: str) -> Callable[[], Awaitable[LaunchAgentConnection]]:
        async def dial() -> LaunchAgentConnection:
            try:
                return await LaunchAgentConnection.open(self.command(machine, *more))
            except LaunchAgentMissingError as error:
                raise explain(machine, error.code, error.said, self._python) from error

        return dial

    def key(self, machine: str) -> str:
        """Return the key of the launch agent on `machine`. The key contains the machine's name, because machines may share a file
        system."""
        return f"{self._name} {self._data_dir} {machine}"

    def command(self, machine: str, *more: str) -> list[str]:
        """Return the command that connects to the launch agent on `machine`."""
        options = [part for option in OPTIONS for part in ("-o", option)]
        bridge_arguments = ("bridge", self.key(machine), "--data-dir", self._data_dir, "--code", self._code, *more)
        arguments = ("-m", "snapline.deploy.launch_agent", *bridge_arguments)
        quoted = " ".join(shlex.quote(word) for word in arguments)
        return [*self._ssh, "-T", *options, machine, f"exec {_path(self._python)} {quoted}"]


def explain(machine: str, code: int, said: str, python: str) -> SnaplineError:
    """Return the error for a machine on which no launch agent replied. The error message contains advice."""
    if code == NOT_RUNNING:
        return LaunchAgentGoneError(f"nothing of this fleet runs on {machine}")
    last = said.splitlines()[-1] if said else f"exit code {code}"
    reasons = {
        "Could not resolve hostname": "no machine of this name is known: mend --address",
        "HOST IDENTIFICATION HAS CHANGED": "its host key is not the one that is known: find out why, then `ssh-keygen -R` it",
        "Host key verification failed": f"its host key is not known: `ssh {machine}` once, and compare what it shows",
        "Permission denied (": f"it does not let us in without a password: `ssh -o BatchMode=yes {machine} true` must work",
        "No module named": f"{python} has no snapline there: install it, or name another interpreter as SNAPLINE_PYTHON",
    }
    for sign, reason in reasons.items():
        if sign in said:
            return UsageError(f"{machine}: {reason}")
    if code in (126, 127):
        return UsageError(
            f"{machine}: {python} cannot be run there: name an interpreter with snapline as SNAPLINE_PYTHON"
        )
    return ExternalFailureError(f"{machine}: {last.removeprefix('snapline: ')}")


async def _sweep(post: LaunchAgentClient) -> str:
    try:
        await post.hold()
    except LaunchAgentGoneError:
        return ""
    await post.close()
    return post.where


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Await all awaitables, then raise the first error, or return the results if there was no error."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _joined(address: str, port: int) -> str:
    return f"{bracketed(address)}:{port}"


def _path(path: str) -> str:
    """Quote a path for a shell, but leave a leading `~/` unquoted, so that the shell expands it."""
    home = "~/" if path.startswith("~/") else ""
    return home + shlex.quote(path.removeprefix(home))
