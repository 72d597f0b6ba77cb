"""`snapline fleet check`, and what else finds a mistake before anything is started."""

from pathlib import Path

import pytest
from tests.kit.command_line import Run

FLEETS = """
import threading
from typing import Any
import msgspec
import snapline

class Ping(snapline.Message):
    pass

class Held(msgspec.Struct):
    count: int = 0
    lock: Any = None

class Holder(snapline.Agent):
    state: Held

    @snapline.handler
    async def on_ping(self, message: Ping, ctx: snapline.Context) -> None: ...

def make(agents="2"):
    return snapline.Fleet("held", agents={f"a{n}": Holder(Held()) for n in range(int(agents))})

good = make()
locked = snapline.Fleet("locked", agents={"a": Holder(Held(lock=threading.Lock()))})
mistyped = snapline.Fleet("mistyped", agents={"a": Holder(Held(count="none"))})
stateless = snapline.Fleet("stateless", agents={"a": Holder()})
failing = snapline.Fleet("failing", agents={"a": Holder(Held()), "b": lambda: 1 / 0})
"""


@pytest.fixture
def module(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder; its name is the test's own, as modules stay imported."""
    name = f"checked_{abs(hash(request.node.nodeid))}"
    (folder / f"{name}.py").write_text(FLEETS)
    monkeypatch.syspath_prepend(folder)
    return name


def test_a_good_fleet_is_described_and_nothing_is_started(run: Run, folder: Path, module: str) -> None:
    done = run("fleet", "check", f"{module}:make", "--arg", "agents=3")
    assert (done.code, done.err) == (0, "")
    assert (done.json["kind"], done.json["fleet"], done.json["agents"]) == ("FleetCheck", "held", 3)
    (found,) = done.json["classes"]
    assert (found["class"], found["agents"], found["handles"]) == (f"{module}:Holder", 3, {"Ping": "on_ping"})
    table = run("fleet", "check", f"{module}:good", "-o", "table").out
    assert "Holder" in table and "it has no stop_when: it runs until it is interrupted" in table
    assert [path.name for path in folder.iterdir() if path.suffix not in (".py", "") and path.is_dir()] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("locked", "the state of agent 'a' (Held) cannot be saved: state.lock is a lock"),
        ("mistyped", "the state of agent 'a' does not come back as declared (Held): Expected `int`, got `str`"),
        ("stateless", "agent 'a' has no state: pass one, such as Holder(Held(…))"),
        ("failing", "the function for agent 'b' raised ZeroDivisionError: division by zero"),
        ("nothing", "has no 'nothing'"),
    ],
)
def test_what_is_wrong_is_one_sentence(run: Run, module: str, name: str, words: str) -> None:
    for command in (["fleet", "check"], ["sim", "run", "--no-folder"], ["sim", "sweep"]):
        done = run(*command, f"{module}:{name}")
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done
        assert words in done.err
