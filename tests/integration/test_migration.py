"""A real fleet goes on under new code: its states are migrated, nothing is lost, and a forgotten step costs nothing."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.cuts import store_of
from tests.integration.processes import ROOT
from tests.integration.running import Running, running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.errors import UsageError

AGENTS = 4
MARBLES = 5
"""Of each agent at the start."""

BEFORE = """
class Bag(msgspec.Struct):
    stop: str
    marbles: int
    moves: list[int]
    weights: np.ndarray


class Player(snapline.Agent):
    state: Bag

    def take(self, count):
        self.state.marbles += count
        self.state.moves.append(count)

    @property
    def has_some(self):
        return self.state.marbles > 0


def bag(stop):
    return Bag(stop, 5, [], np.arange(3.0))
"""

AFTER = """
class Bag(msgspec.Struct):
    stop: str
    colours: dict[str, int]
    taken: int
    given: int
    weights: np.ndarray


class Player(snapline.Agent):
    state: Bag
    state_version = 2

    def take(self, count):
        self.state.colours["grey"] += count
        self.state.taken += count > 0
        self.state.given += count < 0

    @property
    def has_some(self):
        return self.state.colours["grey"] > 0


def bag(stop):
    return Bag(stop, {"grey": 5}, 0, 0, np.arange(3.0) * 2)
"""

STEPS = """
@snapline.migrates(Player, from_version=0)
def count_moves(state):
    moves = state.pop("moves")
    return {**state, "taken": moves.count(1), "given": moves.count(-1)}


@snapline.migrates(Player, from_version=1)
def colour(state):
    state["weights"] *= 2
    return {**state, "colours": {"grey": state.pop("marbles")}}
"""

PLAY = """
class Marble(snapline.Message):
    pass


class Tick(snapline.Message):
    pass


async def on_start(self, ctx):
    ctx.set_timer("tick", 0.01, Tick())


async def on_marble(self, message: Marble, ctx: snapline.Context):
    self.take(1)


async def on_tick(self, message: Tick, ctx: snapline.Context):
    if self.has_some:
        self.take(-1)
        ctx.send(f"p{(int(ctx.agent[1:]) + 1) % 4}", Marble())
    if not os.path.exists(self.state.stop):
        ctx.set_timer("tick", 0.01, Tick())


Player.on_start = on_start
Player.on_marble = snapline.handler(on_marble)
Player.on_tick = snapline.handler(on_tick)


def fleet(stop, protocol):
    agents = {f"p{i}": Player(bag(stop)) for i in range(4)}
    triggers = [snapline.Every(seconds=0.1)]
    return snapline.Fleet(
        "marbles", agents=agents, protocol=protocol, triggers=triggers, stop_when=lambda cut: cut.is_quiet
    )
"""

HEAD = "import os\n\nimport msgspec\nimport numpy as np\n\nimport snapline\n"


class Code:
    """The fleet's module, which changes between two runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "marbles").mkdir()
        (folder / "marbles" / "__init__.py").touch()

    def install(self, *parts: str) -> None:
        (self.folder / "marbles" / "agents.py").write_text("\n".join([HEAD, *parts, PLAY]))

    def fleet(self, arguments: dict[str, str]) -> Any:
        """The fleet as it is defined now."""
        for name in ("marbles", "marbles.agents"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("marbles.agents").fleet(**arguments)


@pytest.fixture
def code(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> Code:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Code(tmp_path)


async def play(players: Running, epochs: int = 2) -> int:
    """Let them play for a while; returns the newest complete epoch."""
    await players.until_more_epochs(epochs)
    return (await players.client.status()).last_complete_epoch


def counted(code: Code, data_dir: Path, arguments: dict[str, str], epoch: int) -> dict[str, tuple[int, int]]:
    """Each player's marbles, and how many it had taken, by the code before."""
    old: dict[str, Any] = dict(load_cut(store_of(data_dir), epoch, code.fleet(arguments)).states)
    return {agent: (bag.marbles, bag.moves.count(1)) for agent, bag in old.items()}


async def play_until_one_was_taken(code: Code, data_dir: Path, arguments: dict[str, str]) -> None:
    """And is in an epoch: on a busy machine some are complete before the first marble arrives."""
    has_taken = False
    while not has_taken:
        async with running(data_dir, "marbles.agents:fleet", arguments, hosts=1) as players:
            await play(players)
        newest = store_of(data_dir).epochs()[-1]
        has_taken = any(taken for _, taken in counted(code, data_dir, arguments, newest).values())


@pytest.mark.timeout(100)
@pytest.mark.parametrize("protocol", ["chandy-lamport", pytest.param("bcs", marks=pytest.mark.slow)])
async def test_a_fleet_goes_on_from_states_of_older_code(
    code: Code, data_dir: Path, tmp_path: Path, protocol: str
) -> None:
    stop = tmp_path / "stop"
    arguments = {"stop": str(stop), "protocol": protocol}
    code.install(BEFORE)
    await play_until_one_was_taken(code, data_dir, arguments)
    code.install(AFTER)
    async with running(data_dir, "marbles.agents:fleet", arguments, hosts=1) as players:
        with pytest.raises(UsageError, match=r"write @snapline.migrates\(Player, from_version=0\)"):
            await players.local.wait(60)

    code.install(AFTER, STEPS)
    async with running(data_dir, "marbles.agents:fleet", arguments, hosts=2) as players:
        recovery = await players.until_recovered()
        line = int(str(recovery["line_epoch"]))
        assert await play(players) > line
        stop.touch()
        ending = await players.end()

    code.install(BEFORE)
    before = counted(code, data_dir, arguments, line)
    code.install(AFTER, STEPS)
    fleet = code.fleet(arguments)
    migrated: dict[str, Any] = dict(load_cut(store_of(data_dir), line, fleet).states)
    assert {agent: (bag.colours["grey"], bag.taken) for agent, bag in migrated.items()} == before
    final = load_cut(store_of(data_dir), ending.epoch, fleet)
    bags: dict[str, Any] = dict(final.states)
    assert sum(bag.colours["grey"] for bag in bags.values()) == AGENTS * MARBLES
    for agent, bag in bags.items():
        assert bag.colours["grey"] == MARBLES + bag.taken - bag.given, "nothing is counted twice, nothing is lost"
        assert bag.taken > before[agent][1] and bag.weights.tolist() == [0, 2, 4]
