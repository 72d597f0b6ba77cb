"""docs/four-ways.md is true: what it names exists, a traced fleet enters it in that order, and its figures are those of the page."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.processes

PAGE = "docs/four-ways.md"

STARS = (
    "agent_runtime/host/core.py",
    "agent_runtime/host/driver.py",
    "coordinator/leader/core.py",
    "coordinator/service/leader_driver.py",
    "coordinator/service/leadership.py",
)
"""The cores, and what carries their commands out: every way goes through them again and again."""

WITH_ROOMS = ("agent_runtime/host/", "coordinator/")
"""Rooms whose folders are rooms too."""

STEP = re.compile(r"^(\d+\.|   -) `([\w/]+\.py)` `([\w.]+)`: \S", re.MULTILINE)
FIGURES = re.compile(r"^\| \[(\d)\..*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)

WALK_S = 60


class Step(NamedTuple):
    """One line of a way. `is_asked`: it answers there and then, and the way goes on from the line above."""

    file: str
    function: str
    is_asked: bool

    @property
    def room(self) -> str:
        return str(Path(self.file).parent) if self.file.startswith(WITH_ROOMS) else self.file.partition("/")[0]

    def is_entered_by(self, call: str) -> bool:
        name = f"{self.file}:{self.function}"
        return call == name or call.startswith(f"{name}.<locals>.")


Leg = list[Step]


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / PAGE).read_text()


def ways_of(page: str) -> dict[str, list[Leg]]:
    """The legs of each way, by its number."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    ways = {section[0]: section for section in sections if section[0].isdigit()}
    return {number: list(legs_of(text)) for number, text in ways.items()}


def legs_of(text: str) -> Iterator[Leg]:
    """A leg begins with a line of its own in bold letters."""
    for leg in re.split(r"^\*\*.+\*\*$", text, flags=re.MULTILINE)[1:]:
        yield [Step(file, function, "-" in mark) for mark, file, function in STEP.findall(leg)]


def returns_of(leg: Leg, *, counts_asked: bool = False) -> list[str]:
    """The steps that go back into a room that the leg has left."""
    rooms: list[str] = []
    found = []
    for step in leg:
        if step.file in STARS or (step.is_asked and not counts_asked):
            continue
        if step.room in rooms[:-1] and step.room != rooms[-1]:
            found.append(f"{step.file} {step.function}")
        if rooms[-1:] != [step.room]:
            rooms.append(step.room)
    return found


@cache
def functions_in(path: Path) -> frozenset[str]:
    """Functions and methods of a file, by their qualified names."""
    return frozenset(names_in(ast.parse(path.read_text()), ""))


def names_in(scope: ast.AST, above: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield above + node.name
            yield from names_in(node, f"{above}{node.name}.")


def place_of(root: Path, file: str) -> Path:
    """Return the file of a path in the package."""
    return root / "src/snapline" / file


def test_what_the_page_names_exists(root: Path, page: str) -> None:
    steps = [step for legs in ways_of(page).values() for leg in legs for step in leg]
    missing = [
        f"{step.file} {step.function}" for step in steps if step.function not in functions_in(place_of(root, step.file))
    ]
    assert len(steps) > 100 and not missing, "\n".join(missing)


def test_no_line_of_a_way_is_written_otherwise(page: str) -> None:
    """A line that is not understood would not be looked at."""
    lines = [line for line in page.splitlines() if re.match(r"\s*(\d+\.|-) `", line)]
    assert [line for line in lines if not STEP.match(line)] == []


def test_no_way_goes_back_into_a_room_that_it_has_left(page: str) -> None:
    found = {f"way {way}: {step}" for way, legs in ways_of(page).items() for leg in legs for step in returns_of(leg)}
    assert found == set()


def figures(legs: list[Leg]) -> tuple[int, ...]:
    """Files, legs, and how often a leg goes back: along the numbered lines, and with what is asked."""
    files = {step.file for leg in legs for step in leg}
    back, asked = (sum(len(returns_of(leg, counts_asked=counts)) for leg in legs) for counts in (False, True))
    return len(files), len(legs), back, asked


def test_the_figures_are_counted(page: str) -> None:
    shown = {way: tuple(map(int, numbers)) for way, *numbers in FIGURES.findall(page)}
    assert shown == {way: figures(legs) for way, legs in ways_of(page).items()}


@pytest.fixture(scope="module")
def walked(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """What a traced fleet entered in each way, each time that it went it."""
    result = tmp_path_factory.mktemp("walk") / "ways.json"
    command = [sys.executable, "-m", "tests.house.walked_fleet", str(result)]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=WALK_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ways: dict[str, list[list[str]]] = json.loads(result.read_text())
    return ways


def first_missed(legs: list[Leg], calls: Iterable[str]) -> str:
    """The first line that is not entered behind those above it; between them the fleet may do other things."""
    entered = iter(calls)
    for number, leg in enumerate(legs, 1):
        for step in leg:
            if not any(step.is_entered_by(call) for call in entered):
                return f"leg {number}: {step.file} {step.function}"
    return ""


@pytest.mark.timeout(WALK_S + 10)
@pytest.mark.parametrize("way", ["1", "2", "3", "4"])
def test_a_fleet_goes_these_ways(page: str, walked: dict[str, list[list[str]]], way: str) -> None:
    """Each way was gone at least once as the page has it."""
    missed = [first_missed(ways_of(page)[way], calls) for calls in walked[way]]
    assert "" in missed, f"way {way} goes otherwise, from here on:\n" + "\n".join(missed)


LEGS = """
## 1. A way

**One leg**

1. `channels/a.py` `f`: goes out.
   - `storage/b.py` `f`: is asked.
2. `agent_runtime/host/core.py` `f`: is a core.
3. `agent_runtime/host/modes/c.py` `f`: is another room than host.
4. `agent_runtime/host/d.py` `f`: too.
5. `channels/a.py` `g`: is back.

**Another**

1. `channels/a.py` `f`: waits.
"""


def test_returns_are_found() -> None:
    one, other = ways_of(LEGS)["1"]
    assert returns_of(one) == ["channels/a.py g"] and returns_of(other) == []
    assert returns_of(one, counts_asked=True) == ["channels/a.py g"] and figures([one, other]) == (5, 2, 1, 1)
    assert [step.is_asked for step in one] == [False, True, False, False, False, False]


def test_a_way_that_goes_otherwise_is_found() -> None:
    legs = ways_of(LEGS)["1"]
    calls = [f"{step.file}:{step.function}" for leg in legs for step in leg]
    assert first_missed(legs, ["channels/z.py:f", *calls]) == ""
    assert first_missed(legs, [*calls[1:], calls[0]]) == "leg 1: storage/b.py f"
    assert first_missed(legs, calls[:-1]) == "leg 2: channels/a.py f"
