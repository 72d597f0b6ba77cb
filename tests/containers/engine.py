"""podman without a registry: storage of its own, a base made by debootstrap, and snapline's image on it, of wheels that are made outside.

What is needed beside podman is said by `missing`; `make test-podman` installs it.
"""

import os
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.house.pages import commands_of, read_page

from snapline.deploy.conformance import LocalBench
from snapline.deploy.launching import Launcher
from snapline.deploy.podman_launcher import PodmanLauncher

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("podman", "runc", "catatonit", "debootstrap")

BASE = "SNAPLINE_CONTAINERS_BASE"
"""Names a tar of a Debian with python3-venv, where one lies about; otherwise one is made."""

NETAVARK = Path("/usr/lib/podman/netavark")
"""Makes networks on which containers know each other's names; the older way of podman does not."""

IMAGE = "snapline"

WHEELS, BUILD = [shlex.split(each.text) for each in commands_of(read_page("docs/deploy-containers.md", "The image"))]
"""Commands of the page that make the image, in a copy of the source."""

HERE = ("--network", "host", "--isolation", "chroot")
"""Options with which podman builds images where it may make no namespaces."""

FILES_MAX, PROCESSES_MAX = 1024, 4096
"""Limits of a container. podman's own may be above what this machine allows."""

STORAGE = """[storage]
driver = "overlay"
graphroot = "{folder}/root"
runroot = "{folder}/run"
"""

CONFIGURATION = """{network}
[containers]
netns = "host"
log_driver = "k8s-file"
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
"""


def missing() -> str:
    """Why no container can be made here; empty if they can."""
    if os.geteuid():
        return "debootstrap needs root"
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(lacking)} not installed: make test-podman" if lacking else ""


def podman(*arguments: str | Path) -> str:
    """Run podman to its end; its output."""
    done = subprocess.run(["podman", *map(str, arguments)], check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"podman {' '.join(map(str, arguments))}: {done.stderr}"
    return done.stdout


@contextmanager
def engine(folder: Path) -> Iterator[None]:
    """podman with nothing but our image, and all of it gone at the end."""
    folder.mkdir(parents=True)
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
    limits = {
        "files": min(FILES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        "processes": min(PROCESSES_MAX, resource.getrlimit(resource.RLIMIT_NPROC)[1]),
    }
    network = '[network]\nnetwork_backend = "netavark"' if NETAVARK.exists() else ""
    (folder / "containers.conf").write_text(CONFIGURATION.format(folder=folder, network=network, **limits))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        try:
            _build(folder)
            yield
        finally:
            podman("rm", "--all", "--force", "--volumes", "--time", "1")
            podman("rmi", "--all", "--force")
            shutil.rmtree(folder, ignore_errors=True)


def _build(folder: Path) -> None:
    podman("import", _base(folder), "snapline-base")
    version = podman(
        "run", "--rm", "snapline-base", "python3", "-c", "import sys; print(*sys.version_info[:2])"
    ).split()
    if version != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"Debian has Python {'.'.join(version)} here, and wheels that are made here are of another")
    source = folder / "source"  # building leaves files
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", "build"))
    _run(sys.executable, "-m", *WHEELS, cwd=source)
    _run(*BUILD, *HERE, "--build-arg", "BASE=localhost/snapline-base", cwd=source)
    shutil.rmtree(source)


def _base(folder: Path) -> Path:
    if BASE in os.environ:
        return Path(os.environ[BASE])
    tree, tar = folder / "base", folder / "base.tar"
    words = dict(line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines())
    _run("debootstrap", "--variant=minbase", "--include=python3,python3-venv", words["VERSION_CODENAME"], tree)
    shutil.rmtree(tree / "var/cache/apt")
    shutil.rmtree(tree / "var/lib/apt/lists")
    _run("tar", "--directory", tree, "--create", "--file", tar, ".")
    shutil.rmtree(tree)
    return tar


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run([*map(str, command)], check=False, cwd=cwd, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


class PodmanBench(LocalBench):
    """Containers on this machine: their processes can be seen from here."""

    def launcher(self) -> Launcher:
        self._places += 1
        return PodmanLauncher(self.folder.name, self._place, volumes=[self.folder])

    def remains(self) -> list[str]:
        """Processes, containers, secrets."""
        containers = podman("ps", "--all", "--format", "{{.Names}}").split()
        secrets = podman("secret", "ls", "--format", "{{.Name}}").split()
        return [*super().remains(), *names_of(self.folder.name, containers), *names_of(self.folder.name, secrets)]


def names_of(fleet: str, names: Sequence[str]) -> list[str]:
    """Those that bear the fleet's name."""
    return [name for name in names if name.startswith(fleet)]
