"""The units that `snapline unit` prints, as systemd reads them, and what a host and a coordinator tell it. Nothing is booted."""

import asyncio
import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.adapters.grpc_services.meshes import free_ports
from tests.kit.command_line import invoke
from tests.kit.shown_page import end_processes_in, shown

from snapline.cli.main import app

KINDS = ("coordinator", "host")

EXPOSURE_MAX = 20
"""In tenths: 60 is what many call acceptable."""

ENVIRONMENT = {
    "SNAPLINE_LISTEN": "127.0.0.1:0",
    "SNAPLINE_HOSTS": "1",
    "SNAPLINE_COORDINATOR": "127.0.0.1:1",
    "SNAPLINE_FLEET": "snapline.deploy.conformance.token_fleet:fleet",
    "SNAPLINE_OPTIONS": "",
}

LIMIT_S = 60.0

analyses = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze: `make test-systemd` installs it"
)


def unit(kind: str) -> str:
    return invoke(app, "unit", kind).out


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("units")
    paths = [folder / f"snapline-{kind}@.service" for kind in KINDS]
    for kind, path in zip(KINDS, paths, strict=True):
        path.write_text(unit(kind))
    return paths


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)], check=False, capture_output=True, text=True, timeout=LIMIT_S
    )


@pytest.mark.systemd
@analyses
def test_systemd_has_nothing_against_the_units(units: list[Path]) -> None:
    done = analyze("verify", "--man=no", *units)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.systemd
@analyses
def test_a_word_that_systemd_does_not_know_would_be_found(units: list[Path], tmp_path: Path) -> None:
    wrong = tmp_path / units[0].name
    wrong.write_text(units[0].read_text().replace("RestartSec=", "RestartSecs="))
    assert "RestartSecs" in analyze("verify", "--man=no", wrong).stderr


@pytest.mark.systemd
@analyses
@pytest.mark.parametrize("number", range(len(KINDS)))
def test_little_is_exposed(number: int, units: list[Path]) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", units[number])
    assert done.returncode == 0, done.stdout


def command_of(text: str, name: str, values: Mapping[str, str]) -> list[str]:
    """What systemd would run, with what it fills in: `${X}` is one word, `$X` as many as it holds."""
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    found: list[str] = []
    for word in line.removeprefix("ExecStart=").replace("%i", name).split():
        if word.startswith("${"):
            found.append(values[word[2:-1]])
        else:
            found += shlex.split(values.get(word[1:], "")) if word.startswith("$") else [word]
    return found


@pytest.mark.parametrize(("kind", "name"), [("coordinator", "c1"), ("host", "h1")])
async def test_a_unit_starts_what_says_that_it_is_ready_lives_and_stops(kind: str, name: str, tmp_path: Path) -> None:
    """A host is ready although its coordinator is not there: the machine may have started them in this order."""
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as heard:
        heard.bind(str(address))
        values = {**ENVIRONMENT, "STATE_DIRECTORY": str(tmp_path / "state"), "SNAPLINE_STORE": str(tmp_path / "store")}
        environment = {**os.environ, "NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "300000"}
        process = await asyncio.create_subprocess_exec(
            *command_of(unit(kind), name, values), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            assert await next_word(heard) == "READY=1"
            assert [await next_word(heard) for _ in range(3)] == ["WATCHDOG=1"] * 3
            process.send_signal(signal.SIGTERM)
            while (word := await next_word(heard)) == "WATCHDOG=1":
                pass
            assert word == "STOPPING=1"
            async with asyncio.timeout(LIMIT_S):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def next_word(heard: socket.socket) -> str:
    async with asyncio.timeout(LIMIT_S):
        return (await asyncio.get_running_loop().sock_recv(heard, 4096)).decode()


class Systemctl:
    """Does what a page asks of systemctl, by the units in a folder: systemd itself runs only as the first process of a machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, words: Sequence[str]) -> None:
        match words:
            case ["daemon-reload"]:
                for path in self._folder.glob("etc/systemd/system/*.service"):
                    assert shutil.which("systemd-analyze") is None or analyze("verify", "--man=no", path).stderr == ""
            case ["enable", "--now", *units]:
                for unit in units:
                    self._start(unit)
            case ["kill", "--signal=KILL", unit]:
                self._running[unit].kill()
                self._running[unit].wait()
                self._start(unit)
            case ["stop", *units]:
                for unit in units:
                    self._running[unit].terminate()
                assert {self._running.pop(unit).wait(LIMIT_S) for unit in units} == {0}
            case _:
                raise AssertionError(f"systemctl {' '.join(words)}: teach this test what it does")

    def _start(self, unit: str) -> None:
        kind, _, name = unit.removeprefix("snapline-").partition("@")
        own = self._folder / "etc" / "snapline" / f"{kind}-{name}.env"
        values = dict(line.split("=", 1) for line in own.read_text().splitlines() if not line.startswith("#"))
        state = self._folder / "state" / f"{kind}-{name}"
        state.mkdir(parents=True, exist_ok=True)
        text = (self._folder / "etc" / "systemd" / "system" / f"snapline-{kind}@.service").read_text()
        command = command_of(text, name, {**values, "STATE_DIRECTORY": str(state)})
        self._running[unit] = subprocess.Popen(command, cwd=state, env={**os.environ, **values})


@pytest.mark.timeout(200)
def test_the_page_runs_as_it_is_shown(tmp_path: Path) -> None:
    """With other folders and ports, and without a user of its own."""
    folder = tmp_path / "bank"
    folder.mkdir()
    (tmp_path / "etc" / "systemd" / "system").mkdir(parents=True)
    swapped = {
        "/etc/": f"{tmp_path}/etc/",
        "/srv/": f"{tmp_path}/srv/",
        "-o snapline": "",
        "useradd --system --user-group snapline": "true",
    }
    swapped |= dict(zip(("7400", "7501", "7502"), map(str, free_ports(3)), strict=True))
    systemctl = Systemctl(tmp_path)
    try:
        with shown(
            "docs/deploy-systemd.md", folder, swapped, files_from="docs/first-fleet.md", limit_s=LIMIT_S
        ) as page:
            for command in page.all_commands():
                if command.text.startswith("systemctl "):
                    systemctl.run(command.text.split()[1:])
                else:
                    page.run_command(command)
    finally:
        end_processes_in(tmp_path)
