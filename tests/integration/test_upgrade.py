"""A rolling upgrade from the wheel of a commit to the present one, with tokens on their way and SIGKILL at random moments: `make test-upgrade`."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

import msgspec
import pytest
from tests.integration.cuts import check_paced_bank
from tests.integration.fleets import paced_bank
from tests.integration.processes import marked

ROOT = Path(__file__).resolve().parents[2]

FLEET = "tests.integration.fleets.paced_bank:fleet"

COMMIT = os.environ.get("SNAPLINE_UPGRADE_FROM", "HEAD~1")

TOKENS = 450

KILL_PAUSE_S = 4.0
"""Longest pause between two kills: a process starts in a second or two."""

UPGRADE_S = 420
"""Limit of the upgrade. Each kill lets the running `restart` fail, at worst, and the next one has less to do."""

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1200)]


def run(*words: object, **variables: str) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def exported(folder: Path, commit: str) -> Path:
    """Return a folder with the sources of a commit."""
    archive = folder.with_suffix(".tar")
    run("git", "archive", "--output", archive, commit)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def copied(folder: Path) -> Path:
    """Return a folder with the sources of the working tree."""
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def wheel_of(sources: Path, label: str) -> Path:
    """Return a wheel whose version ends with `label`, so that processes say which build they run."""
    package = sources / "src" / "snapline" / "__init__.py"
    package.write_text(package.read_text().replace('__version__ = "', f'__version__ = "{label}-', 1))
    made = sources.with_name(f"{label}-wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", made, sources)
    return next(made.glob("*.whl"))


class Environment:
    """A virtual environment with a wheel of snapline, and the dependencies of this one."""

    def __init__(self, folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.python = folder / "bin" / "python"
        site = next(folder.glob("lib/*/site-packages"))
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def install(self, wheel: Path) -> None:
        """Put a wheel in place of the installed one, as an operator does while the fleet runs."""
        words = ("install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", wheel)
        run(sys.executable, "-m", "pip", "--python", self.python, *words)

    async def snapline(self, *words: object, limit_s: float = 180) -> tuple[int, str]:
        """Return exit code and output of a command."""
        process = await asyncio.create_subprocess_exec(
            *map(str, (self.python, "-m", "snapline", *words)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await asyncio.wait_for(process.communicate(), limit_s)
        assert process.returncode is not None
        return process.returncode, out.decode()


def members(mark: str) -> dict[int, str]:
    """Return hosts and replicas of the fleet: process id → command line."""
    return {pid: line for pid, line in marked(mark).items() if " host run " in line or " coordinator run " in line}


async def kill_at_random(mark: str, chosen: random.Random, kills: list[str]) -> None:
    """Kill a random host or replica again and again."""
    while True:
        await asyncio.sleep(chosen.uniform(0.5, KILL_PAUSE_S))
        running = members(mark)
        if running:
            pid = chosen.choice(sorted(running))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills.append(running[pid])


async def upgrade(environment: Environment, data_dir: Path, mark: str, old: set[int]) -> None:
    """Restart the fleet until no process of the old build is left; each attempt may fail because of a kill."""
    end = time.monotonic() + UPGRADE_S
    said = ""
    while old & set(members(mark)):
        assert time.monotonic() < end, f"old processes are left: {said}"
        _, said = await environment.snapline("restart", "--within", 60, "--data-dir", data_dir, "-o", "json")


async def until(environment: Environment, data_dir: Path, epochs: int) -> int:
    """Wait until the fleet runs and has so many complete epochs; return the number."""
    end = time.monotonic() + 120
    while True:
        code, said = await environment.snapline("status", "--data-dir", data_dir, "-q", "-o", "json")
        if code == 0:
            status = msgspec.json.decode(said)
            if status["phase"] == "running" and status["epochs_completed"] >= epochs:
                return int(status["epochs_completed"])
        assert time.monotonic() < end, said
        await asyncio.sleep(0.3)


@pytest.mark.parametrize(("seed", "recovery"), [(1, "global"), (2, "local"), (3, "global")])
async def test_a_fleet_is_upgraded_while_it_works_and_processes_die(
    data_dir: Path, tmp_path: Path, mark: str, seed: int, recovery: str
) -> None:
    """Old and new hosts and replicas work together meanwhile; every snapshot holds all tokens, in the end too."""
    old = await asyncio.to_thread(lambda: wheel_of(exported(tmp_path / "old", COMMIT), "old"))
    new = await asyncio.to_thread(lambda: wheel_of(copied(tmp_path / "new"), "new"))
    environment, stop = Environment(tmp_path / "venv"), data_dir.with_name("stop")
    environment.install(old)
    arguments = {"stop": str(stop), "agents": "9", "period": "0.5", "recovery": recovery}
    words = [word for name, value in arguments.items() for word in ("--arg", f"{name}={value}")]
    places = ("--hosts", 3, "--coordinators", 3, "--data-dir", data_dir)
    code, said = await environment.snapline("up", FLEET, *places, *words, "-o", "json")
    assert code == 0, said
    kills: list[str] = []
    try:
        done = await until(environment, data_dir, 2)
        before = set(members(mark))
        assert len(before) == 6
        killing = asyncio.create_task(kill_at_random(mark, random.Random(seed), kills))
        await asyncio.to_thread(environment.install, new)
        await upgrade(environment, data_dir, mark, before)
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
        await until(environment, data_dir, done + 3)
        assert "snapline new-" in (await environment.snapline("--version"))[1]
        stop.touch()
        end = time.monotonic() + 120
        while members(mark):
            assert time.monotonic() < end, "the fleet does not end by itself"
            await asyncio.sleep(0.3)
    finally:
        await environment.snapline("down", "--data-dir", data_dir, limit_s=300)
    assert any(" host run " in line for line in kills) and any(" coordinator run " in line for line in kills), kills
    check_paced_bank(data_dir, paced_bank.fleet(**arguments), tokens=TOKENS)
