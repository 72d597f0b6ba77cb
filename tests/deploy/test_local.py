"""The launcher alone: stub processes for coordinator and hosts, a stub client for the coordinator's answers."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from snapline.deploy import running_fleet as launched
from snapline.deploy import supervisor as keeper
from snapline.deploy.data_directory import DirectoryInUseError, choose_addresses, read_address
from snapline.deploy.launching import SnaplineCommands
from snapline.deploy.local import Ending, LocalFleet, OnFailure
from snapline.errors import (
    CoordinatorUnavailableError,
    ExternalFailureError,
    NotFoundError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.messages.host_messages import TurnDeath
from snapline.messages.status import HOSTS_MAX, FleetStatus, StoreStatus

LIMIT_S = 20.0


RUNNING = FleetStatus(phase="running", leader="c2", store=StoreStatus(state="ok"))


@dataclass
class StubClient:
    """Answers as the coordinator would; `is_up = False` plays an unreachable one."""

    answer: FleetStatus = RUNNING
    is_up: bool = True
    exits: list[tuple[str, str, str]] = field(default_factory=list)
    is_closed: bool = False

    async def status(self, *, unconfirmed: bool = False) -> FleetStatus:
        self._check()
        return self.answer

    async def report_host_exit(
        self, host: str, instance: str, reason: str, *, died_in: Sequence[TurnDeath] = ()
    ) -> None:
        self._check()
        self.exits.append((host, instance, reason))

    async def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if not self.is_up:
            raise CoordinatorUnavailableError("no coordinator answers")


@dataclass
class StubCommands:
    """Every process runs `code`, which finds its name in `sys.argv[1]` and the count of its starts in `sys.argv[2]`."""

    code: dict[str, str] = field(default_factory=dict)
    default: str = "import time; time.sleep(60)"
    starts: list[tuple[str, str]] = field(default_factory=list)
    members: list[dict[str, str]] = field(default_factory=list)

    def coordinator(self, address: str, name: str, members: Mapping[str, str]) -> list[str]:
        self.members.append(dict(members))
        return self._command(name, address)

    def host(self, address: str, host: str, instance: str) -> list[str]:
        return self._command(host, instance)

    def count(self, name: str) -> int:
        return sum(started == name for started, _ in self.starts)

    def _command(self, name: str, detail: str) -> list[str]:
        self.starts.append((name, detail))
        return [sys.executable, "-I", "-c", self.code.get(name, self.default), name, str(self.count(name))]


@dataclass
class World:
    client: StubClient
    commands: StubCommands
    notes: list[str]
    make: Callable[..., Awaitable[LocalFleet]]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    client, commands = StubClient(), StubCommands()
    notes: list[str] = []
    fleets: list[LocalFleet] = []

    async def make(hosts: int = 2, on_failure: OnFailure = "restart", coordinators: int = 1) -> LocalFleet:
        fleet = LocalFleet(
            commands,
            data_dir=tmp_path / "data",
            hosts=hosts,
            coordinators=coordinators,
            on_failure=on_failure,
            connect=lambda address: client,
            on_note=notes.append,
        )
        fleets.append(fleet)
        try:
            await fleet.start()
        except UsageError:
            await fleet.stop()
            raise
        return fleet

    yield World(client, commands, notes, make)
    for fleet in fleets:
        await fleet.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def all_up(fleet: LocalFleet) -> None:
    await all_of(fleet, *fleet.hosts, *fleet.coordinators)


async def all_of(fleet: LocalFleet, *names: str) -> None:
    await until(lambda: all(fleet.pid(name) for name in names))


async def test_it_starts_every_process_and_stop_leaves_none(world: World) -> None:
    fleet = await world.make(hosts=2, coordinators=3)
    await all_up(fleet)
    assert sorted(name for name, _ in world.commands.starts) == ["c1", "c2", "c3", "h1", "h2"]
    pids = [fleet.pid(name) for name in (*fleet.hosts, *fleet.coordinators)]
    await fleet.stop()
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert world.client.is_closed


async def test_a_killed_host_is_reported_and_comes_back_as_a_new_instance(world: World) -> None:
    fleet = await world.make()
    await all_up(fleet)
    before = fleet.pid("h2")
    fleet.kill("h2")
    await until(lambda: fleet.pid("h2") not in (None, before))
    instances = [detail for name, detail in world.commands.starts if name == "h2"]
    assert world.client.exits == [("h2", instances[0], "SIGKILL")]
    assert len(set(instances)) == 2
    assert world.commands.count("h1") == 1, "the others are left alone"


async def test_with_move_the_fleet_fails_when_the_last_host_has_died(world: World) -> None:
    world.client.answer = msgspec.structs.replace(RUNNING, last_complete_epoch=4)
    fleet = await world.make(on_failure="move")
    await all_up(fleet)
    await asyncio.sleep(2 * launched.POLL_S)
    fleet.kill("h1")
    fleet.kill("h2")
    assert await fleet.wait(LIMIT_S) == Ending(outcome="failed", reason="every host has died", epoch=4)


async def test_a_host_that_was_started_wrongly_ends_a_fleet_that_has_ended_already_too(world: World) -> None:
    """Its folder belongs to another fleet, which stopped as it should: that is no success of this one."""
    world.commands.code["h2"] = "import sys, time; time.sleep(.5); print('snapline: another fleet'); sys.exit(2)"
    world.commands.code["h1"] = "import time; time.sleep(.5)"
    world.client.answer = FleetStatus(phase="finished", reason="done")
    fleet = await world.make()
    with pytest.raises(UsageError, match=r"^another fleet$"):
        await fleet.wait(LIMIT_S)


async def test_it_says_once_that_the_coordinator_is_silent_and_once_that_it_answers_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SILENCE_S", 0.3)
    monkeypatch.setattr(launched, "POLL_S", 0.02)
    fleet = await world.make(coordinators=3)
    await all_up(fleet)
    for name in ("c1", "c3"):
        fleet.kill(name, is_kept_down=True)
    await until(lambda: fleet.pid("c1") is fleet.pid("c3") is None)
    world.client.is_up = False
    await until(lambda: any("does not answer" in note for note in world.notes))
    world.client.is_up = True
    await until(lambda: world.notes[-1] == "the coordinator answers again")
    assert [note for note in world.notes if "answer" in note] == [
        "the coordinator does not answer: 2 of its 3 replicas are down (c1, c3), and it takes 2 to decide",
        "the coordinator answers again",
    ]


async def test_a_host_that_is_kept_down_returns_only_when_told(world: World) -> None:
    fleet = await world.make()
    await all_up(fleet)
    fleet.kill("h1", is_kept_down=True)
    await until(lambda: fleet.pid("h1") is None)
    await asyncio.sleep(3 * keeper.RESTART_PAUSE_S)
    assert fleet.pid("h1") is None
    fleet.restart("h1")
    await until(lambda: fleet.pid("h1"))


async def test_a_dead_coordinator_comes_back_on_the_same_port(world: World) -> None:
    fleet = await world.make()
    await all_up(fleet)
    fleet.kill("coordinator")
    await until(lambda: world.commands.count("coordinator") == 2)
    addresses = {detail for name, detail in world.commands.starts if name == "coordinator"}
    assert addresses == {fleet.address} and world.commands.members == [{}, {}]
    assert await fleet.leader() == "coordinator"


async def test_replicas_know_one_another_and_each_comes_back_on_its_own_port(world: World) -> None:
    fleet = await world.make(coordinators=3)
    await all_up(fleet)
    assert fleet.coordinators == ("c1", "c2", "c3")
    members = dict(zip(fleet.coordinators, fleet.address.split(","), strict=True))
    assert world.commands.members == [members] * 3 and len(set(members.values())) == 3
    before = {name: fleet.pid(name) for name in fleet.coordinators}
    fleet.kill("c2")
    await until(lambda: fleet.pid("c2") not in (None, before["c2"]))
    assert [detail for name, detail in world.commands.starts if name == "c2"] == [members["c2"]] * 2
    assert (fleet.pid("c1"), fleet.pid("c3")) == (before["c1"], before["c3"])
    assert await fleet.leader() == "c2"
    world.client.is_up = False
    assert await fleet.leader() == ""


async def test_a_host_that_keeps_failing_is_given_up_with_its_last_words(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "RESTART_PAUSE_S", 0.01)
    monkeypatch.setattr(keeper, "RESTARTS_MAX", 2)
    world.commands.code["h1"] = "raise SystemExit('no disk left')"
    fleet = await world.make()
    with pytest.raises(ExternalFailureError, match=r"h1 ended 3 times in a row, .*exit code 1: no disk left"):
        await fleet.wait(LIMIT_S)
    assert world.commands.count("h1") == 3


def test_pauses_grow_to_a_limit(tmp_path: Path) -> None:
    pauses = [keeper.restart_pause_s(failures) for failures in range(1, keeper.RESTARTS_MAX + 1)]
    assert pauses[0] == keeper.RESTART_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == keeper.RESTART_PAUSE_S_MAX


async def test_a_misused_host_ends_the_fleet_at_once(world: World) -> None:
    world.commands.code["h2"] = "import sys; print('snapline: there is no module nowhere'); sys.exit(2)"
    fleet = await world.make()
    with pytest.raises(UsageError, match=r"^there is no module nowhere$"):
        await fleet.wait(LIMIT_S)
    assert world.commands.count("h2") == 1


@pytest.mark.parametrize(("phase", "outcome", "code"), [("finished", "stopped", 0), ("failed", "failed", 1)])
async def test_it_ends_with_the_fleet_and_starts_no_host_again(
    world: World, phase: str, outcome: str, code: int
) -> None:
    """Hosts of a fleet that failed end with 1 too; that is no reason to start them again."""
    world.commands.default = f"import sys, time; time.sleep(0.3); sys.exit({code})"
    world.commands.code["coordinator"] = "import time; time.sleep(60)"
    world.client.is_up = False
    fleet = await world.make()
    await all_up(fleet)
    world.client.is_up = True
    world.client.answer = FleetStatus(phase=phase, reason="because", last_complete_epoch=7)
    assert await fleet.wait(LIMIT_S) == Ending(outcome=outcome, reason="because", epoch=7)  # type: ignore[arg-type]  # parameter
    await asyncio.sleep(3 * keeper.RESTART_PAUSE_S)
    assert (world.commands.count("h1"), world.commands.count("h2")) == (1, 1)


async def test_a_coordinator_that_does_not_answer_is_no_end(world: World) -> None:
    world.client.is_up = False
    fleet = await world.make()
    with pytest.raises(UnknownOutcomeError, match=r"has not ended after 0.3 s"):
        await fleet.wait(0.3)
    fleet.kill("h1")
    await until(lambda: world.commands.count("h1") == 2)


async def test_two_launchers_never_share_a_folder(world: World) -> None:
    await world.make()
    with pytest.raises(DirectoryInUseError, match="another fleet runs in"):
        await world.make()


async def test_the_same_folder_gives_the_same_address_again(world: World) -> None:
    first = await world.make()
    await first.stop()
    second = await world.make()
    assert second.address == first.address
    written = json.loads((second.data_dir / "coordinator.json").read_text())
    assert written == {"apiVersion": "snapline/v1", "kind": "CoordinatorAddress", "address": second.address}


async def test_a_port_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    first = choose_addresses(tmp_path, 3)
    host, _, port = first[1].rpartition(":")
    server = await asyncio.start_server(lambda reader, writer: None, host, int(port))
    async with server:
        second = choose_addresses(tmp_path, 3)
    assert [second[0], second[2]] == [first[0], first[2]] and second[1] not in first


async def test_a_fleet_keeps_its_number_of_coordinators(world: World) -> None:
    """A member more, or less, would have no votes, or a majority without those it needs."""
    first = await world.make(coordinators=3)
    await first.stop()
    (first.data_dir / "coordinator").mkdir()
    with pytest.raises(UsageError, match="has 3 coordinators, and keeps them: give --coordinators 3"):
        await world.make(coordinators=1)
    again = await world.make(coordinators=3)
    assert again.address == first.address


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"address": 3}', '{"address": "no port"}', '{"address": "a:0"}', '{"address": "a:1,b"}'],
)
def test_an_unreadable_address_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "coordinator.json").write_text(content)
    assert read_address(tmp_path) is None


async def test_who_is_not_there_is_named(world: World) -> None:
    fleet = await world.make()
    with pytest.raises(NotFoundError, match="no host 'h9' here; there are h1, h2"):
        fleet.kill("h9")


@pytest.mark.parametrize("hosts", [0, -1, HOSTS_MAX + 1])
def test_the_number_of_hosts_is_bounded(tmp_path: Path, hosts: int) -> None:
    with pytest.raises(UsageError, match=f"not {hosts}"):
        LocalFleet(StubCommands(), data_dir=tmp_path, hosts=hosts)


@pytest.mark.parametrize("coordinators", [0, 2, 4, 7])
def test_replicas_are_one_three_or_five(tmp_path: Path, coordinators: int) -> None:
    with pytest.raises(UsageError, match=f"1, 3 or 5 coordinators, not {coordinators}"):
        LocalFleet(StubCommands(), data_dir=tmp_path, hosts=1, coordinators=coordinators)


def test_the_command_lines_of_snapline_itself(tmp_path: Path) -> None:
    commands = SnaplineCommands(
        data_dir=tmp_path, fleet="a.b:make", hosts=2, arguments={"size": "3", "note": "x=y"}, on_failure="move"
    )
    coordinator = commands.coordinator("127.0.0.1:20000", "coordinator", {})
    assert coordinator[:5] == [sys.executable, "-m", "snapline", "coordinator", "run"]
    assert coordinator[coordinator.index("--rejoin-grace") + 1] == "0.3"
    assert coordinator[coordinator.index("--data-dir") + 1] == str(tmp_path / "coordinator")
    assert "--peers" not in coordinator
    assert "--begin-anew" not in coordinator
    replica = commands.coordinator("x:2", "c2", {"c1": "x:1", "c2": "x:2", "c3": "x:3"})
    options = dict(zip(replica[5:-1:2], replica[6::2], strict=True))
    assert (options["--id"], options["--peers"], options["--listen"]) == ("c2", "c1=x:1,c2=x:2,c3=x:3", "x:2")
    assert options["--data-dir"] == str(tmp_path / "coordinator" / "c2")
    host = commands.host("127.0.0.1:20000", "h1", "abc")
    assert host[-4:] == ["--arg", "size=3", "--arg", "note=x=y"]
    assert host[host.index("--instance") + 1] == "abc"
    assert host[host.index("--marks") + 1] == str(tmp_path / "marks" / "h1.marks")
    other = SnaplineCommands(
        data_dir=tmp_path, fleet="a:b", hosts=1, arguments={}, on_failure="restart", trace_every=25, begin_anew=True
    )
    assert "--begin-anew" in other.coordinator("127.0.0.1:20000", "coordinator", {})
    traced = other.host("127.0.0.1:20000", "h1", "abc")
    assert traced[-4:] == ["--trace", str(tmp_path / "traces"), "--trace-every", "25"]


async def test_stop_right_after_start_is_safe(world: World) -> None:
    fleet = await world.make()
    await asyncio.sleep(0)
    await fleet.stop()
    assert all(fleet.pid(name) is None for name in (*fleet.hosts, "coordinator"))


async def test_cancelling_the_launcher_ends_its_children(world: World) -> None:
    """Ctrl-C reaches the program as a cancellation."""
    fleets: list[LocalFleet] = []

    async def program() -> None:
        fleet = await world.make()
        fleets.append(fleet)
        try:
            await fleet.wait()
        finally:
            await fleet.stop()

    task = asyncio.create_task(program())
    await until(lambda: fleets and fleets[0].pid("h1"))
    pid = fleets[0].pid("h1")
    assert pid is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def test_renewing_asks_for_every_process_that_runs_and_starts_none(world: World) -> None:
    """A launcher's `start` brings certificates along, also where the process runs; who is down has them when it starts."""
    fleet = await world.make(hosts=2, coordinators=3, on_failure="move")
    await all_up(fleet)
    fleet.kill("h2", is_kept_down=True)
    await until(lambda: fleet.pid("h2") is None)
    running = ("h1", "c1", "c2", "c3")
    pids = {name: fleet.pid(name) for name in running}
    await fleet.renew()
    assert {name: fleet.pid(name) for name in running} == pids and fleet.pid("h2") is None
    assert {name: world.commands.count(name) for name in (*running, "h2")} == {**dict.fromkeys(running, 2), "h2": 1}
    await until(lambda: world.client.is_closed)
