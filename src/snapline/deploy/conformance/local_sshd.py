"""Start a separate sshd on this machine, and test the ssh launcher on it. Only tests use this module.

The sshd listens on a loopback port and has its own keys. The sshd is reachable under several names, and the launcher treats each name as a
separate machine.
"""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from snapline.deploy.conformance.bench import LIMIT_S, LOOK_S, LocalBench, commands_for_nodes
from snapline.deploy.launch_agent import runtime_folder
from snapline.deploy.launching import Commands, Launcher
from snapline.deploy.ssh_launcher import SshLauncher

MACHINES = ("m1", "m2", "m3")

PRIVILEGE_FOLDER = Path("/run/sshd")
"""Folder that must exist before root can run an sshd."""


def find_sshd() -> str | None:
    """Return the path of sshd, or None if it is not installed or cannot run."""
    path = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    is_ready = os.getuid() != 0 or PRIVILEGE_FOLDER.is_dir()
    return path if is_ready and shutil.which("ssh") and shutil.which("ssh-keygen") else None


class Sshd:
    """A running sshd.

    Attributes:
        config: configuration file for the option `-F` of ssh. The file defines the hosts in MACHINES. It also defines a host `stranger`,
            for which the user key is not authorized, and a host `unknown`, whose host key is unknown.
        log: the server's log file.
    """

    def __init__(self, folder: Path, program: str) -> None:
        self.config = folder / "config"
        self.log = folder / "sshd.log"
        self._folder = folder
        self._program = program
        self._port = _free_port()
        for name in ("host", "user", "stranger"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        (folder / "authorized").write_text((folder / "user.pub").read_text())
        (folder / "known").write_text(f"[127.0.0.1]:{self._port} {(folder / 'host.pub').read_text()}")
        (folder / "empty").touch()
        self._write()
        self._process = self._start()

    def close(self) -> None:
        """Stop the server and close its connections."""
        self._process.terminate()
        self._process.wait()

    def _write(self) -> None:
        (self._folder / "sshd_config").write_text(
            f"Port {self._port}\nListenAddress 127.0.0.1\nHostKey {self._folder}/host\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {self._folder}/authorized\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "UsePAM no\nPermitRootLogin yes\nMaxStartups 100\nPrintMotd no\n"
        )
        shared = f"  HostName 127.0.0.1\n  Port {self._port}\n  User {getpass.getuser()}\n  IdentitiesOnly yes\n"
        names = {" ".join(MACHINES): ("user", "known"), "stranger": ("stranger", "known"), "unknown": ("user", "empty")}
        self.config.write_text(
            "".join(
                f"Host {name}\n{shared}  IdentityFile {self._folder}/{key}\n  UserKnownHostsFile {self._folder}/{known}\n"
                for name, (key, known) in names.items()
            )
        )

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [self._program, "-D", "-f", str(self._folder / "sshd_config"), "-E", str(self.log)],
            stdin=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1.0):
                return process
            time.sleep(LOOK_S)
        process.kill()
        raise RuntimeError(f"sshd does not listen: {self.log.read_text() if self.log.exists() else ''}")


@contextlib.contextmanager
def own_sshd(folder: Path, program: str) -> Iterator[Sshd]:
    """Yield a running sshd, and stop it afterwards."""
    server = Sshd(folder, program)
    try:
        yield server
    finally:
        server.close()


class SshBench(LocalBench):
    """A bench whose machine names all refer to this machine, so this process can freeze their processes directly."""

    def __init__(self, folder: Path, sshd: Sshd) -> None:
        super().__init__(folder)
        self._ssh = ("ssh", "-F", str(sshd.config))

    def launcher(self) -> SshLauncher:
        return SshLauncher(
            self.folder.name, MACHINES, data_dir=str(self.folder / "data"), ssh=self._ssh, python=sys.executable
        )

    def commands(self, fleet: str, hosts: int, arguments: Mapping[str, str] | None = None) -> Commands:
        return commands_for_nodes(self, fleet, hosts, arguments)

    def remains(self) -> list[str]:
        """Describe the processes that remain, and the remaining folders that contain sockets or keys."""
        return [*super().remains(), *remaining_runtime_folders(self.launcher())]


def remaining_runtime_folders(launcher: Launcher) -> list[str]:
    """Return the runtime folders that this launcher's launch agents left behind."""
    assert isinstance(launcher, SshLauncher)
    folders = [runtime_folder(launcher.key(machine)) for machine in MACHINES]
    return [str(folder) for folder in folders if folder.exists()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
