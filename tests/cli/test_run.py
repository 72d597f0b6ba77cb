"""`snapline run` with real processes: the whole way from MODULE:FLEET to the exit code."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit.command_line import Run

from snapline.cli import ui
from snapline.deploy.starting import FORK_SERVER

pytestmark = pytest.mark.processes

WAIT_S = 60.0
"""Everything here takes seconds; a busy machine may make it ten times as long."""

FLEET = '''
import os
import msgspec
import snapline

class Ball(snapline.Message):
    hits: int

class Hit(snapline.Message):
    hits: int

class Player(msgspec.Struct):
    opponent: str
    has_service: bool
    stop: str
    seen: int = 0
    highest: int = 0

class PingPong(snapline.Agent):
    """Hits a ball to and fro, with a short pause, until there is a file called `stop`."""

    state: Player

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.has_service:
            ctx.send(self.state.opponent, Ball(hits=1))

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        self.state.seen += 1
        self.state.highest = message.hits
        if not os.path.exists(self.state.stop):
            ctx.set_timer("hit", 0.02, Hit(hits=message.hits + 1))

    @snapline.handler
    async def on_hit(self, message: Hit, ctx: snapline.Context) -> None:
        ctx.send(self.state.opponent, Ball(hits=message.hits))

def make(stop: str) -> snapline.Fleet:
    players = {"ping": Player("pong", True, stop), "pong": Player("ping", False, stop)}
    return snapline.Fleet(
        "ball",
        agents={name: PingPong(player) for name, player in players.items()},
        triggers=[snapline.Every(seconds=0.2)],
        stop_when=lambda cut: cut.is_quiet,
    )
'''


class Launched:
    """A `snapline run` in the background, in the current folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "snapline", "run", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def children(self) -> dict[str, int]:
        """Process ids of the coordinator and the hosts, by name: children of the launcher, or forked for it."""
        found: dict[str, int] = {}
        for pid in self._below(self.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            other = "view" if "ui" in words else "coordinator"
            if FORK_SERVER not in words:
                found[words[words.index("--id") + 1] if "--id" in words else other] = pid
        return found

    def _below(self, pid: int) -> Iterator[int]:
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, listed.read_text().split()):
                yield child
                yield from self._below(child)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, err


@pytest.fixture
def launch(folder: Path) -> Iterator[Callable[..., Launched]]:
    (folder / "ball.py").write_text(FLEET)
    launched: list[Launched] = []

    def start(*arguments: str) -> Launched:
        launched.append(Launched(folder, *arguments))
        return launched[-1]

    yield start
    for one in launched:
        one.process.kill()  # its children go with it
        one.process.communicate()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.05)
    return found


BALL = ("ball:make", "--hosts", "2", "--data-dir", "data", "--arg", "stop=stop")


def address_of_view() -> str:
    """Where it listens, as soon as it does."""
    log = Path("data/logs/view.log")
    found: str = until(lambda: log.exists() and log.read_text().startswith("http://") and log.read_text().strip())
    return found


def has_epoch(run: Run, epoch: int = 1) -> Callable[[], bool]:
    def ask() -> bool:
        done = run("status", "--data-dir", "data")
        is_running = done.code == 0 and done.json["phase"] == "running"
        return is_running and bool(done.json["last_complete_epoch"] >= epoch)

    return ask


def test_a_fleet_from_its_start_to_its_end(launch: Callable[..., Launched], run: Run, folder: Path) -> None:
    launched = launch(*BALL, "--ui")
    address = address_of_view()
    assert address.startswith("http://127.0.0.1:")
    until(has_epoch(run))
    second = run("run", *BALL)
    assert second.code == 11 and "another fleet runs in data" in second.err

    status = run("status", "--data-dir", "data")
    assert (status.json["apiVersion"], status.json["kind"]) == ("snapline/v1", "FleetStatus")
    assert [(host["host"], host["state"]) for host in status.json["hosts"]] == [("h1", "alive"), ("h2", "alive")]
    assert "h2" in run("status", "--data-dir", "data", "-o", "table").out

    created = run("snapshot", "create", "--data-dir", "data")
    assert (created.code, created.json["is_complete"]) == (0, True)
    tagged = run("snapshot", "tag", "looked-at", "latest", "--data-dir", "data")  # newer ones do not end it
    assert tagged.code == 0 and tagged.json["epoch"] >= created.json["epoch"]
    epoch = tagged.json["epoch"]
    assert epoch in [row["epoch"] for row in run("snapshot", "list", "--data-dir", "data").json["snapshots"]]
    shown = run("snapshot", "show", str(epoch), "--data-dir", "data").json
    assert (shown["root"], len(shown["agents"])) == (tagged.json["root"], 2)
    at_rest = run("snapshot", "show", str(epoch), "--store", folder / "data" / "store").json
    assert shown == at_rest, "asked or read, it is the same"
    assert run("snapshot", "verify", "--data-dir", "data").code == 0
    line = run("recovery", "line", "--failed", "host:h2", "--data-dir", "data")
    assert line.json["kind"] == "RecoveryLine" and line.json["epoch"] >= epoch
    assert run("recovery", "line", "--failed", "nobody", "--data-dir", "data").code == 4
    assert run("recovery", "history", "--data-dir", "data").json["recoveries"] == []
    assert "no recoveries yet" in run("recovery", "history", "--data-dir", "data", "-o", "table").out
    assert run("recovery", "report", "--data-dir", "data").code == 4

    kill(launched.children()["h2"])
    until(lambda: has_epoch(run, epoch + 1)() and run("recovery", "history", "--data-dir", "data").json["recoveries"])
    recovery = run("recovery", "history", "--data-dir", "data").json["recoveries"][0]
    assert recovery["lost_hosts"] == ["h2"] and recovery["line_epoch"] >= epoch
    assert "h2" in run("recovery", "history", "--data-dir", "data", "-o", "table").out
    report = run("recovery", "report", str(recovery["plan"]), "--data-dir", "data").json
    assert report["recovery"]["line_epoch"] == recovery["line_epoch"] and report["effects"] == []
    assert "h2" in run("recovery", "report", "--data-dir", "data", "-o", "table").out

    with urllib.request.urlopen(f"{address}/events/fleet", timeout=WAIT_S) as looking:  # nobody waits for who looks on
        assert "ball" in looking.readline().decode()
        pid = launched.children()["view"]
        until(lambda: os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, launched.process.pid))
        (folder / "stop").touch()
        code, out, err = launched.end()
    assert code == 0, err
    result = json.loads(out)
    assert (result["kind"], result["outcome"], result["data_dir"]) == ("RunResult", "stopped", "data")
    assert "h2 ended (SIGKILL), starting it again" in err and "finished" in err
    assert f"the fleet in a browser: {address}\n" in err and f"the view at {address} has ended with the fleet\n" in err
    assert not Path(f"/proc/{pid}").exists()
    check_every_ball_was_seen_once(run)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def check_every_ball_was_seen_once(run: Run) -> None:
    """Balls are numbered 1, 2, 3…: each player has seen every other one, whatever was killed meanwhile (G3)."""
    assert run("snapshot", "verify", "--store", "data/store").code == 0
    states = [row["state"] for row in run("snapshot", "show", "--store", "data/store").json["agents"]]
    assert sum(state["seen"] for state in states) == max(state["highest"] for state in states) > 0


def test_ctrl_c_ends_all_and_the_same_folder_continues_without_its_view(
    launch: Callable[..., Launched], run: Run, folder: Path
) -> None:
    arguments = (*BALL, "--quiet")
    launched = launch(*arguments)
    until(has_epoch(run, 2))
    children = launched.children()
    assert sorted(children) == ["coordinator", "h1", "h2"]
    launched.process.send_signal(signal.SIGINT)
    code, out, err = launched.end()
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert not [pid for pid in children.values() if Path(f"/proc/{pid}").exists()]
    at_rest = run("snapshot", "list", "--data-dir", "data")
    assert at_rest.code == 8 and "--store data/store" in at_rest.err
    epoch = run("snapshot", "show", "--store", "data/store").json["epoch"]

    launched = launch(*arguments, "--ui")
    address_of_view()
    kill(launched.children()["view"])
    until(has_epoch(run, epoch + 1))
    until(has_epoch(run, run("status", "--data-dir", "data").json["last_complete_epoch"] + 1))
    (folder / "stop").touch()
    code, out, err = launched.end()
    assert code == 0, err
    assert json.loads(out)["epoch"] > epoch
    assert "the view has ended (SIGKILL); the fleet goes on" in err and "ui serve --data-dir data" in err
    check_every_ball_was_seen_once(run)


def test_a_fleet_whose_last_host_died_has_failed(launch: Callable[..., Launched], run: Run) -> None:
    launched = launch("ball:make", "--hosts", "1", "--data-dir", "data", "--arg", "stop=stop", "--on-failure", "move")
    until(has_epoch(run))
    kill(launched.children()["h1"])
    code, out, _ = launched.end()
    assert (code, json.loads(out)["outcome"], json.loads(out)["reason"]) == (1, "failed", "every host has died")


def test_a_wrong_fleet_is_one_sentence(run: Run, folder: Path) -> None:
    (folder / "ball.py").write_text(FLEET)
    done = run("run", "ball:make", "--arg", "start=1", "--hosts", "2", "--data-dir", "data", "--quiet")
    assert (done.code, done.out) == (2, "")
    assert "--arg does not fit ball:make" in done.err and len(done.err.splitlines()) == 1


def test_a_fleet_with_three_coordinators_goes_on_without_their_leader(
    launch: Callable[..., Launched], run: Run, folder: Path
) -> None:
    launched = launch(*BALL, "--coordinators", "3")
    until(has_epoch(run))
    assert sorted(launched.children()) == ["c1", "c2", "c3", "h1", "h2"]

    status = run("status", "--data-dir", "data").json
    assert status["replicas"] == ["c1", "c2", "c3"]
    members = run("coordinator", "members", "--data-dir", "data").json["members"]
    assert [row["id"] for row in members if row["leads"]] == [status["leader"]]
    addresses = {row["id"]: row["address"] for row in members}
    follower = next(name for name in addresses if name != status["leader"])
    asked = ("--coordinator", addresses[follower])
    assert run("coordinator", "status", *asked).json["node"] == follower
    assert "snapline_raft_is_leader 0\n" in run("coordinator", "status", "--metrics", *asked).out
    assert run("status", "--stale", *asked).json["fleet"] == "ball"
    assert run("recovery", "history", "--stale", *asked).json["recoveries"] == []

    moved = run("coordinator", "transfer-leader", "--to", follower, "--data-dir", "data")
    assert (moved.code, moved.json["leader"]) == (0, follower), moved.err
    assert run("coordinator", "transfer-leader", "--to", "c9", "--data-dir", "data").code == 2
    assert run("coordinator", "backup", "file", "--data-dir", "data").json["fleet"] == "ball"
    assert run("coordinator", "backup", "file", "--data-dir", "data").code == 2, "it is there already"
    in_use = ("--data-dir", "data/coordinator/c1", "--store", "data/store")
    assert run("coordinator", "restore-backup", "file", *in_use).code == 2

    until(has_epoch(run))
    before = run("status", "--data-dir", "data").json
    kill(launched.children()[before["leader"]])
    until(has_epoch(run, before["last_complete_epoch"] + 1))
    assert run("status", "--data-dir", "data").json["term"] > before["term"]
    (folder / "stop").touch()
    code, _, err = launched.end()
    assert code == 0, err
    assert f"{before['leader']} ended (SIGKILL), starting it again" in err
    check_every_ball_was_seen_once(run)

    code, _, err = launch(*BALL, "--coordinators", "1").end()
    assert code == 2 and "give --coordinators 3" in err


def test_where_the_view_cannot_listen_nothing_is_started(run: Run, folder: Path) -> None:
    (folder / "ball.py").write_text(FLEET)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("run", *BALL, "--ui-port", port)
    assert (done.code, done.out) == (1, "") and len(done.err.splitlines()) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.err
    assert not Path("data").exists()


@pytest.mark.parametrize("command", [(*BALL,), ("demo", "--data-dir", "data")])
def test_without_the_extra_nothing_is_started(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    (folder / "ball.py").write_text(FLEET)
    monkeypatch.setattr(ui, "LIBRARIES", ("a_library_that_nobody_has",))
    done = run(*(("run",) if command[0] != "demo" else ()), *command, "--ui")
    assert done.code == 2 and "--ui needs 'a_library_that_nobody_has': pip install 'snapline[ui]'" in done.err
    assert not Path("data").exists()
