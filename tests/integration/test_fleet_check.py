"""`snapline fleet check --data-dir`: a fleet stops while a turn is open, its code changes, and the check says what the changed code does not fit.

What really happens is the oracle: the fleet then runs with the changed code.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytestmark = pytest.mark.timeout(240)

CLERK = """
import msgspec
import snapline

class Ask(snapline.Message):
    order: int

class Note(snapline.Message):
    text: str

class Tick(snapline.Message):
    pass

class Book(msgspec.Struct):
    count: int = 0
    texts: list[str] = []

def price_of(order: int) -> int:
    return order * 10

def refund(order: int, *, key: str) -> int:
    return order

def take_back(order: int, *, key: str) -> None: ...

class Clerk(snapline.Agent):
    state: Book

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send("clerk", Ask(1))
        ctx.send("clerk", Note("hello"))
        ctx.set_timer("tick", 3600, Tick())

    @snapline.handler(durable=True)
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        price = await ctx.step("price", price_of, message.order)
        await ctx.effect("refund", refund, message.order, compensate=(take_back, message.order))
        stock, tax = await ctx.gather(ctx.step("stock", price_of, 2), ctx.step("tax", price_of, 3))
        decision = await ctx.approval("pay?", {"price": price + stock + tax}, expires_s=EXPIRES)
        self.state.count += price

    @snapline.handler
    async def on_note(self, message: Note, ctx: snapline.Context) -> None:
        self.state.texts.append(message.text)

    @snapline.handler
    async def on_tick(self, message: Tick, ctx: snapline.Context) -> None: ...

def has_stopped(cut: snapline.Cut) -> bool:
    return STOPS

EXPIRES = 3600
fleet = snapline.Fleet(
    "clerks",
    agents={"clerk": Clerk(Book())},
    triggers=[snapline.Every(seconds=0.1)],
    stop_when=has_stopped,
)
"""

MIGRATION = """EXPIRES = 3600

@snapline.migrates(Clerk, from_version=0)
def renamed(old: dict[str, object]) -> dict[str, object]:
    return {"sum": old["count"], "texts": old["texts"]}
"""

RUN = [sys.executable, "-m", "snapline", "run", "clerks:fleet", "--data-dir", "run", "--hosts", "1"]


def environment() -> dict[str, str]:
    """Python would take compiled code for that of another text of the same second and the same size."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def snapline(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "snapline", *arguments]
    options: dict[str, Any] = {"cwd": folder, "env": environment(), "timeout": 120}
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def check(folder: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    done = snapline(folder, "fleet", "check", "clerks:fleet", "--data-dir", "run", "-o", "json", *arguments)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["snapshot"]


def check_now(folder: Path) -> tuple[int, dict[str, object]]:
    """Check a fleet that may not have started yet. Without a store, or a coordinator, nothing was checked."""
    done = snapline(folder, "fleet", "check", "clerks:fleet", "--data-dir", "run", "-o", "json")
    return done.returncode, json.loads(done.stdout)["snapshot"] if done.stdout else {}


def rows(found: dict[str, object]) -> list[dict[str, str]]:
    return msgspec.convert(found["incompatibilities"], list[dict[str, str]])


@contextlib.contextmanager
def started(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the fleet in the background. Its processes end with it."""
    with (
        (folder / "said").open("wb") as said,
        subprocess.Popen(RUN, cwd=folder, env=environment(), stdout=said, stderr=said) as fleet,
    ):
        try:
            yield fleet
        finally:
            fleet.kill()


def question(folder: Path) -> str:
    """Wait until the clerk asks for its approval, and return the approval's id."""
    while True:
        listed = snapline(folder, "approval", "list", "--data-dir", "run", "-o", "json")
        if not listed.returncode and (found := json.loads(listed.stdout)["approvals"]):
            return str(found[0]["id"])


def written(folder: Path, *changes: tuple[str, str], stops: str = "False") -> None:
    code = CLERK
    for before, after in changes:
        assert before in code
        code = code.replace(before, after)
    (folder / "clerks.py").write_text(code.replace("return STOPS", f"return {stops}"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fleet that has stopped while its clerk waits for an approval."""
    folder = tmp_path_factory.mktemp("stopped")
    written(folder)
    with started(folder) as fleet:
        question(folder)
        assert snapline(folder, "snapshot", "create", "--data-dir", "run").returncode == 0
        fleet.kill()
    return folder


CHANGES = {
    "another step": (
        ('ctx.step("price"', 'ctx.step("cost"'),
        "turn",
        "is step 'price', and now the handler asks for step 'cost'",
    ),
    "other arguments": (("price_of, message.order)", "price_of, message.order + 1)"), "turn", "with other arguments"),
    "another group": (('ctx.step("tax", price_of, 3)', 'ctx.step("tax", price_of, 4)'), "turn", "with other arguments"),
    "another question": (
        ('{"price": price', '{"cost": price'),
        "turn",
        "asks for approval 'pay?' with other arguments",
    ),
    "an end": (("decision = await", "return\n        decision = await"), "turn", "and now the handler has ended"),
    "an error": (
        ("price = await", "raise ValueError('no')\n        price = await"),
        "turn",
        "on_ask raises ValueError: no",
    ),
    "another field of the turn's message": (("order: int\n\n", "order: str\n\n"), "turn", "Expected `str`, got `int`"),
    "a plain handler": (("(durable=True)", ""), "turn", "a turn is open, and on_ask is not durable any more"),
    "another result": (("-> int:\n    return order * 10", "-> str:\n    return str(order)"), "turn", "step 'price'"),
    "another field of a message": (("text: str", "text: int"), "message", "Expected `int`, got `str`"),
    "no handler": (
        ("    @snapline.handler\n    async def on_tick", "    async def on_tick"),
        "timer",
        "no handler for messages of type 'Tick'",
    ),
    "another field of the state": (
        ("count: int", "sum: int"),
        "state",
        "write @snapline.migrates(Clerk, from_version=0)",
    ),
    "no compensation": (
        ("def take_back", "def give_back"),
        "compensation",
        "take_back, and there is no such function any more",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_check_names_what_does_not_fit(stopped: Path, name: str) -> None:
    change, part, reason = CHANGES[name]
    written(stopped, change)
    code, found = check(stopped)
    incompatible = [each for each in rows(found) if each["part"] == part]
    assert code == 2 and [each["agent"] for each in incompatible] == ["clerk"]
    assert reason in incompatible[0]["reason"], incompatible


FITTING = {
    "the same code": [],
    "another line": [("price = await", "print('hello')\n        price = await")],
    "another function of a step that has ended": [("return order * 10", "return order * 20")],
    "more after the wait": [
        ("self.state.count += price", "await ctx.step('more', price_of, 9)\n        self.state.count += 1")
    ],
    "a message that a turn may receive": [
        ("    @snapline.handler\n    async def on_tick", "    async def on_tick"),
        ("self.state.count += price", "await ctx.receive(Tick)"),
    ],
    "a migration": [
        ("count: int", "sum: int"),
        ("state.count", "state.sum"),
        ("state: Book", "state: Book\n    state_version = 1"),
        ("EXPIRES = 3600", MIGRATION),
    ],
}


@pytest.mark.parametrize("name", FITTING)
def test_the_check_accepts_what_fits(stopped: Path, name: str) -> None:
    written(stopped, *FITTING[name])
    code, found = check(stopped)
    assert (code, rows(found)) == (0, []), found
    assert (found["agents"], found["messages"], found["turns"]) == (1, 2, 1)


SELDOM = ("seconds=0.1", "seconds=3600")
"""No snapshot is taken by itself, so the clerk's turn waits at its effect."""


def test_a_running_fleet_is_checked_as_it_is_now(tmp_path: Path) -> None:
    change, _, reason = CHANGES["another step"]
    written(tmp_path, SELDOM)
    with started(tmp_path):
        while not check_now(tmp_path)[1].get("turns"):  # until the turn has begun
            pass
        written(tmp_path, SELDOM, change)
        code, found = check(tmp_path)
        assert code == 2 and reason in rows(found)[0]["reason"] and found["is_taken"]
        taken = found["epoch"]
        for options in (["--no-snapshot"], ["--at", str(taken)]):
            code, found = check(tmp_path, *options)
            assert (code, found["epoch"], found["is_taken"]) == (2, taken, False), "no new one"
        address = json.loads((tmp_path / "run" / "coordinator.json").read_bytes())["address"]
        asked = ["clerks:fleet", "-o", "table", "--store", "run/store", "--coordinator", address]
        done = snapline(tmp_path, "fleet", "check", *asked)
        assert done.returncode == 2 and f"snapshot {int(str(taken)) + 1}, taken now, does not fit" in done.stdout, done
        other = Path(shutil.copytree(tmp_path / "run" / "store", tmp_path / "other"))
        done = snapline(tmp_path, "fleet", "check", "clerks:fleet", "--store", str(other), "--coordinator", address)
        assert done.returncode == 2 and "to another store than" in done.stderr, done
        assert snapline(tmp_path, "fleet", "check", *asked[:-2]).returncode == 2, (
            "a store by itself names no coordinator"
        )


def test_a_coordinator_that_is_named_must_answer(stopped: Path) -> None:
    written(stopped)
    done = snapline(stopped, "fleet", "check", "clerks:fleet", "--store", "run/store", "--coordinator", "127.0.0.1:1")
    assert done.returncode != 0 and "no coordinator answers at 127.0.0.1:1" in done.stderr
    done = snapline(stopped, "fleet", "check", "clerks:fleet", "--data-dir", "run")
    assert done.returncode == 0 and "no coordinator of run answers, so the latest snapshot was checked" in done.stderr


def test_a_snapshot_that_is_not_there_is_one_sentence(stopped: Path) -> None:
    written(stopped)
    done = snapline(stopped, "fleet", "check", "clerks:fleet", "--data-dir", "run", "--at", "99999")
    assert done.returncode == 4 and len(done.stderr.splitlines()) == 1


def copied(stopped: Path, folder: Path) -> Path:
    """Other tests look at the fleet as it has stopped."""
    return Path(shutil.copytree(stopped, folder / "copy"))


def test_a_fleet_refuses_code_that_cannot_read_its_states(stopped: Path, tmp_path: Path) -> None:
    folder = copied(stopped, tmp_path)
    change, _, reason = CHANGES["another field of the state"]
    written(folder, change)
    done = snapline(folder, *RUN[3:])
    assert done.returncode != 0 and reason in done.stderr


def test_a_turn_stands_with_code_from_which_it_departs_and_goes_on_with_code_that_fits(
    stopped: Path, tmp_path: Path
) -> None:
    folder = copied(stopped, tmp_path)
    change, _, reason = CHANGES["another step"]
    written(folder, change)
    with started(folder):
        while reason not in snapline(folder, "status", "--data-dir", "run", "-o", "json").stdout:
            pass
    written(folder, *FITTING["more after the wait"], stops='cut.states["clerk"].count > 0')
    with started(folder) as fleet:
        granted = snapline(folder, "approval", "grant", question(folder), "--data-dir", "run")
        # The fleet ends with this turn, perhaps before the command has asked for the outcome.
        assert granted.returncode == 0 or "the fleet has ended" in granted.stderr, granted.stderr
        assert fleet.wait(60) == 0
