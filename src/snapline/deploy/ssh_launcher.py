"""Processes on machines that `ssh` reaches: a post (`deploy/launch_agent.py`) on each, hosts and coordinators spread over them.

The user's own `ssh` is run, with the user's configuration, and asks no questions (BatchMode). One connection to each machine carries all commands
and all certificates; no secret is on a command line.

A broken connection shows nothing about the processes behind it: it is made again, for as long as it takes, and no unseen end is reported. The
coordinator decides whether the fleet goes on without such a machine, by the hosts' streams. A name keeps its machine: a host
whose machine is down comes back with it, and its agents are with the others meanwhile.
"""

import asyncio
import re
import secrets
import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from snapline.deploy.launch_agent import NOT_RUNNING
from snapline.deploy.launch_agent_protocol import LaunchAgentConnection, LaunchAgentMissingError
from snapline.deploy.launching import Exit, Handle, ProcessSpec
from snapline.deploy.plan import NODE, Files
from snapline.deploy.post_caller import LaunchAgentClient, LaunchAgentGoneError
from snapline.errors import ExternalFailureError, SnaplineError, UsageError

OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
"""Options of `ssh`: a connection through which nothing has come for 15 seconds is closed; a new one is made."""

PYTHON = "python3"

T = TypeVar("T")


class SshLauncher:
    """Processes of one fleet on some machines."""

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
        """Describe a place; `open` takes it.

        Args:
            name: of the fleet.
            machines: what `ssh` calls them: `user@host`, `ssh://user@host:port`, or a name of its configuration.
            data_dir: a path on every machine: logs, and the coordinators' own. It need not be shared.
            ssh: the program, with options if need be.
            python: the interpreter there that has snapline.
            code: the folder there in which the fleet's module lies, if it is not installed.
            files: what each process needs to be trusted; written there where only its user can read.
            on_note: gets a sentence when a machine cannot be reached.
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
        self._posts = {
            machine: LaunchAgentClient(machine, self._holder, self._dialler(machine), on_note)
            for machine in dict.fromkeys(machines)
        }

    @property
    def where(self) -> str:
        return ", ".join(self._posts)

    @property
    def logs(self) -> str:
        return f"{self._data_dir}/logs on {self.where}"

    async def open(self, coordinators: Sequence[str]) -> dict[str, str]:
        """Take the posts over, and get ports from those of the coordinators.

        Raises:
            UsageError: a machine cannot be used as it is; explains what to do.
            ExternalFailureError: a machine does not answer.
        """
        await _all(post.hold() for post in self._posts.values())
        posts = [self._post(name) for name in coordinators]
        found = await _all(post.port(name, post.address) for name, post in zip(coordinators, posts, strict=True))
        return {name: _joined(post.address, port) for name, post, port in zip(coordinators, posts, found, strict=True)}

    async def start(self, spec: ProcessSpec) -> Handle:
        post = self._post(spec.name)
        command = tuple(word.replace(NODE, _bracketed(post.address)) for word in spec.command)
        files = self._files(spec.kind, spec.name)
        return await post.start(msgspec.structs.replace(spec, command=command), files)

    async def watch(self, handle: Handle) -> Exit:
        return await self._post(handle.name).watch(handle)

    async def status(self, handle: Handle) -> Exit | None:
        return await self._post(handle.name).status(handle)

    async def stop(self, handle: Handle, grace_s: float) -> Exit:
        return await self._post(handle.name).stop(handle, grace_s)

    async def kill(self, handle: Handle) -> None:
        await self._post(handle.name).kill(handle)

    async def freeze(self, handle: Handle) -> None:
        await self._post(handle.name).freeze(handle)

    async def thaw(self, handle: Handle) -> None:
        await self._post(handle.name).thaw(handle)

    async def close(self) -> None:
        """Close; also end what an earlier launcher has left behind.

        Raises:
            ExternalFailureError: some machines do not answer: what runs there runs on.
        """
        found = await asyncio.gather(*(post.close() for post in self._posts.values()), return_exceptions=True)
        errors = [error for error in found if isinstance(error, BaseException)]
        if errors:
            told = "; ".join(str(error) for error in errors)
            raise ExternalFailureError(f"{told}: what runs there runs on until `snapline down` reaches it")

    async def sweep(self) -> list[str]:
        """End what launchers have left on machines where no launcher keeps it any more; return those machines.

        Raises:
            SnaplineError: some machines cannot be reached; the others are swept.
        """
        posts = [
            LaunchAgentClient(machine, self._holder, self._dialler(machine, "--must-run"), lambda note: None)
            for machine in self._posts
        ]
        return [machine for machine in await _all(_sweep(post) for post in posts) if machine]

    def _post(self, name: str) -> LaunchAgentClient:
        """h1 and c1 are on the first machine, h2 and c2 on the second …"""
        number = re.search(r"\d+", name)
        posts = list(self._posts.values())
        return posts[(int(number[0]) - 1 if number else 0) % len(posts)]

    def _dialler(self, machine: str, *more: str) -> Callable[[], Awaitable[LaunchAgentConnection]]:
        async def dial() -> LaunchAgentConnection:
            try:
                return await LaunchAgentConnection.open(self.command(machine, *more))
            except LaunchAgentMissingError as error:
                raise explain(machine, error.code, error.said, self._python) from error

        return dial

    def key(self, machine: str) -> str:
        """Return the name of the post there: machines may share their disks, and names of one machine may be several."""
        return f"{self._name} {self._data_dir} {machine}"

    def command(self, machine: str, *more: str) -> list[str]:
        """Return the command that joins us to the post of this machine."""
        options = [part for option in OPTIONS for part in ("-o", option)]
        what = ("bridge", self.key(machine), "--data-dir", self._data_dir, "--code", self._code, *more)
        there = ("-m", "snapline.deploy.launch_agent", *what)
        words = " ".join(shlex.quote(word) for word in there)
        return [*self._ssh, "-T", *options, machine, f"exec {_path(self._python)} {words}"]


def explain(machine: str, code: int, said: str, python: str) -> SnaplineError:
    """Return an error with advice on a machine on which no post has answered."""
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
    """Await all of them to their ends; then raise the first error, if there is one."""
    found = await asyncio.gather(*work, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _joined(address: str, port: int) -> str:
    return f"{_bracketed(address)}:{port}"


def _path(path: str) -> str:
    """Quote a path for a shell: `~/` keeps its meaning there."""
    home = "~/" if path.startswith("~/") else ""
    return home + shlex.quote(path.removeprefix(home))
