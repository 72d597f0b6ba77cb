"""Start a separate Slurm cluster on this machine, and test the Slurm launcher on it. Only tests use this module.

The cluster runs real daemons on the loopback interface: munged, slurmctld, and one slurmd per node. All files of the cluster are in one
folder. Each job reserves a whole node, so hosts and coordinators run on different nodes.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from snapline.deploy.conformance.bench import LIMIT_S, LOOK_S, LocalBench, commands_for_nodes, processes_naming
from snapline.deploy.launching import Commands
from snapline.deploy.slurm_launcher import SlurmLauncher

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun")

NODES = tuple(f"n{number}" for number in range(1, 9))
"""Names of eight nodes: three for hosts, three for coordinators, one for a replacement host, and one spare."""

OPTIONS = ("--exclusive",)
"""Options of sbatch that give each array element a node of its own."""

CONFIGURATION = """
ClusterName=snapline
SlurmctldHost={machine}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock,cred_expire=5
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes={names} Default=YES State=UP
"""
"""Slurm's configuration, with shorter limits than the defaults. `cred_expire` is two minutes by default, and a requeued job waits that
long. `SlurmdTimeout` is five minutes by default."""


def missing() -> str:
    """Return why no cluster can be started on this machine, or an empty string if one can be started."""
    if os.getuid() != 0:
        return "a cluster of our own needs root"
    absent = [program for program in PROGRAMS if _program(program) is None]
    return f"{', '.join(absent)} not installed: `make test-slurm` installs Debian's and runs this" if absent else ""


class Slurmds:
    """A running Slurm cluster.

    Attributes:
        config: path of the cluster's configuration file, for the environment variable SLURM_CONF.
    """

    def __init__(self, folder: Path) -> None:
        self.config = folder / "slurm.conf"
        self.folder = folder
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        (folder / "state").mkdir()
        folder.chmod(0o755)
        ports = _free_ports(len(NODES) + 1)
        self.config.write_text(_configuration(folder, ports))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._start_all()

    def start(self, node: str) -> None:
        """Start the slurmd of a node."""
        self._run(node, "slurmd", "-D", "-N", node, "-f", str(self.config))

    def kill(self, node: str, *, with_all: bool) -> None:
        """Send SIGKILL to the slurmd of a node. If `with_all` is set, also kill all of the node's jobs.

        With `with_all`, no process is left to report an exit, as after a machine failure.
        """
        jobs = self._processes(f"SLURMD_NODENAME={node}") if with_all else []
        daemons = {parent_of(pid) for pid in jobs}
        self._daemons[node].kill()
        self._daemons[node].wait()
        for pid in (*(daemon for daemon in daemons if name_of(daemon) == "slurmstepd"), *jobs):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Shut the cluster down."""
        subprocess.run(["scancel", "--user", "root"], check=False, env=self.environment(), capture_output=True)
        for name in reversed(list(self._daemons)):
            self._daemons[name].terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(10.0)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.remaining():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remaining(self) -> list[int]:
        """Return the process ids of this cluster's steps and jobs that remain because their slurmd was killed."""
        return self._processes()

    def _processes(self, *more: str) -> list[int]:
        """Return the cluster's processes whose environment contains all entries of `more`."""
        wanted = {word.encode() for word in (f"SLURM_CONF={self.config}", *more)}
        pids: list[int] = []
        for path in Path("/proc").iterdir():
            if path.name.isdecimal() and int(path.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if wanted <= set((path / "environ").read_bytes().split(b"\0")):
                        pids.append(int(path.name))
        return pids

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which Slurm programs use this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.config)}

    def _start_all(self) -> None:
        files = {"socket": "sock", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        options = [part for name, end in files.items() for part in (f"--{name}", f"{self.folder}/munge.{end}")]
        self._run("munged", "munged", "--foreground", "--force", *options)
        _until(lambda: (self.folder / "munge.sock").exists(), "munged")
        self._run("slurmctld", "slurmctld", "-D", "-f", str(self.config))
        for node in NODES:
            self.start(node)
        self.await_nodes(len(NODES))

    def await_nodes(self, count: int) -> None:
        """Wait until `count` nodes are idle."""
        _until(lambda: self._idle() >= count, f"{count} idle nodes")

    def _idle(self) -> int:
        command = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N %T"]
        done = subprocess.run(command, check=False, env=self.environment(), capture_output=True, text=True)
        return sum(line.split()[1] == "idle" for line in done.stdout.splitlines())

    def _run(self, name: str, program: str, *options: str) -> None:
        path = _program(program)
        assert path is not None
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [path, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment()
            )


def parent_of(pid: int) -> int:
    """Return the process id of the parent, or 0 if the process has exited."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def name_of(pid: int) -> str:
    """Return the name of the process's program, or an empty string if the process has exited."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def own_cluster(folder: Path) -> Iterator[Slurmds]:
    """Yield a cluster that is used by all Slurm programs that this process starts. Shut the cluster down afterwards."""
    cluster = Slurmds(folder)
    original = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(cluster.config)
    try:
        yield cluster
    finally:
        cluster.close()
        del os.environ["SLURM_CONF"]
        if original is not None:
            os.environ["SLURM_CONF"] = original


class SlurmBench(LocalBench):
    """A bench whose nodes all run on this machine, so this process can freeze their processes directly."""

    def launcher(self) -> SlurmLauncher:
        return SlurmLauncher(self.folder.name, data_dir=str(self.folder / "data"), options=OPTIONS)

    def commands(self, fleet: str, hosts: int, arguments: Mapping[str, str] | None = None) -> Commands:
        return commands_for_nodes(self, fleet, hosts, arguments)

    def remains(self) -> list[str]:
        """Describe the processes and jobs that remain after closing."""
        listed = ["squeue", "--noheader", "--format=%i %j %T"]
        done = subprocess.run(listed, check=True, capture_output=True, text=True)
        jobs = [line for line in done.stdout.splitlines() if f":{self.folder.name}:" in line]
        return [*processes_naming(str(self.folder)), *jobs]


def _configuration(folder: Path, ports: list[int]) -> str:
    machine = socket.gethostname().partition(".")[0]
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={machine} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    return CONFIGURATION.format(machine=machine, folder=folder, port=ports[0], nodes=nodes, names=",".join(NODES))


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _until(is_there: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_there():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no {what} within {LIMIT_S:g} s")
        time.sleep(LOOK_S)
