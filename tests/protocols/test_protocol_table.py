"""The table of docs/protocols.md: its script runs and drives the rules as a fleet does; the page holds what it makes."""

import importlib.util
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from tests.protocols.executions import BASIC, RECEIVE, SEND, Event, Graph

from snapline.protocols.index_based import BcsRule
from snapline.protocols.rules import RULES
from snapline.recovery.trace import Trace
from snapline.recovery.trace_analysis import redecide

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "protocol_table.py"
PAGE = ROOT / "docs" / "protocols.md"

Table = dict[str, dict[str, dict[str, list[str]]]]
"""By the title of a pattern, by protocol, by column: one value for each number of agents."""

INDUCED = [name for name in RULES if name != "uncoordinated"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("protocol_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def quick() -> Table:
    """What `--quick` prints."""
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick"], capture_output=True, encoding="utf-8", timeout=100, check=True
    )
    return parse(run.stdout)


@pytest.fixture(scope="module")
def on_page(script: ModuleType) -> str:
    """What stands between the markers."""
    page = PAGE.read_text("utf-8")
    assert page.count(script.BEGIN) == page.count(script.END) == 1
    return page.partition(script.BEGIN)[2].partition(script.END)[0]


def parse(markdown: str) -> Table:
    found: Table = {}
    heads: list[str] = []
    for line in markdown.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("**"):
            rows = found[line.split("**")[1]] = {}
        elif line.startswith("| protocol"):
            heads = cells[1:]
        elif line.startswith("| ") and not line.startswith("| ---"):
            rows[cells[0]] = dict(zip(heads, (cell.split(" / ") for cell in cells[1:]), strict=True))
    return found


def numbers(table: Table, pattern: str, protocol: str, column: str = "forced : basic") -> list[float]:
    return [float(value.strip(" %<>")) for value in table[pattern][protocol][column]]


def check(script: ModuleType, table: Table) -> None:
    """What must hold whatever the seeds.

    Raises:
        AssertionError: it does not.
    """
    assert list(table) == [pattern.title for pattern in script.PATTERNS.values()]
    for pattern in script.PATTERNS.values():
        rows = table[pattern.title]
        assert list(rows) == list(RULES)
        for columns in rows.values():
            assert list(columns) == list(script.COLUMNS)
            assert {len(values) for values in columns.values()} == {len(pattern.sizes)}
        for protocol in INDUCED:
            assert set(rows[protocol]["useless"]) == {"0 %"}, f"{pattern.title}: {protocol} has useless checkpoints"
            forced = numbers(table, pattern.title, protocol)
            if protocol != "cas":  # all others force before receives only
                most = numbers(table, pattern.title, "cbr")
                assert all(one <= other for one, other in zip(forced, most, strict=True)), (pattern.title, protocol)
        assert set(rows["uncoordinated"]["forced : basic"]) == {"0"}
        assert min(numbers(table, pattern.title, "uncoordinated", "useless")) > 0
        assert set(rows["cas"]["depth"]) == {"0"}, "a checkpoint after the sends: no send is ever undone"
        for silent in ("uncoordinated", "nras", "cbr", "cas"):
            assert set(rows[silent]["bytes a message"]) == {"0"}
    check_order(
        table, "Random point to point", ["hmnr", "bcs"], ["bhmr", "fdas", "fdi", "cbr"], ["fdas", "nras", "cbr"]
    )
    check_order(table, "Client and server", ["hmnr", "bcs"])


def check_order(table: Table, pattern: str, *orders: list[str]) -> None:
    for order in orders:
        for protocol, other in pairwise(order):
            fewer, more = numbers(table, pattern, protocol), numbers(table, pattern, other)
            assert all(one <= two for one, two in zip(fewer, more, strict=True)), (
                pattern,
                protocol,
                fewer,
                other,
                more,
            )


@pytest.mark.slow
def test_a_few_seeds_show_what_must_hold(script: ModuleType, quick: Table) -> None:
    check(script, quick)


def test_the_page_shows_what_must_hold(script: ModuleType, on_page: str) -> None:
    check(script, parse(on_page))


def test_the_page_is_up_to_date(script: ModuleType, on_page: str) -> None:
    """Judged by the smallest of the patterns, with all its seeds."""
    made = script.table(script.measure_all(["domino"], script.SEEDS))
    assert made in on_page, "run `.venv/bin/python benchmarks/protocol_table.py --write`"


@pytest.mark.parametrize(
    ("protocol", "column", "value"),
    [("hmnr", "forced : basic", "99"), ("bcs", "useless", "<1 %"), ("cas", "depth", "1")],
)
def test_a_wrong_table_is_found(script: ModuleType, on_page: str, protocol: str, column: str, value: str) -> None:
    table = parse(on_page)
    table["Random point to point"][protocol][column][0] = value
    with pytest.raises(AssertionError):
        check(script, table)


@pytest.mark.parametrize("pattern", ["point_to_point", "ring", "client_server", "turns", "domino"])
def test_scripts_are_fifo_and_made_again_the_same(script: ModuleType, pattern: str) -> None:
    agents = script.PATTERNS[pattern].sizes[0]
    turns = script.make_script(pattern, agents, 7)
    assert turns == script.make_script(pattern, agents, 7) != script.make_script(pattern, agents, 8) or agents == 2
    under_way: dict[tuple[int, int], list[int]] = {}
    receiver_of: dict[int, tuple[int, int]] = {}
    for turn in turns:
        if turn.received is not None:
            channel = receiver_of.pop(turn.received)
            assert channel[1] == turn.agent and under_way[channel].pop(0) == turn.received
        for message, to in turn.sends:
            assert to != turn.agent and 0 <= to < agents
            receiver_of[message] = (turn.agent, to)
            under_way.setdefault((turn.agent, to), []).append(message)


@pytest.mark.parametrize("pattern", ["point_to_point", "client_server", "domino"])
@pytest.mark.parametrize("protocol", list(RULES))
def test_protocols_are_driven_as_the_analysis_drives_them(script: ModuleType, pattern: str, protocol: str) -> None:
    """In turns with one send, where `cas` means the same with and without turns."""
    turns = script.make_script(pattern, 3 if pattern != "domino" else 2, 5)
    bare = script.Driven("uncoordinated", 3, turns)
    driven = script.Driven(protocol, 3, turns)
    assert redecide(Trace(bare.names, bare.events), protocol)[0].events == driven.events


def test_without_its_forced_checkpoints_a_protocol_has_useless_ones(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the zeros of the table are news."""
    monkeypatch.setattr(BcsRule, "forces", lambda *_: False)
    scripts = [script.make_script("point_to_point", 3, seed) for seed in range(3)]
    assert script.measure("bcs", 3, scripts).useless_share > 0


def test_the_staircase_falls_to_the_bottom(script: ModuleType) -> None:
    """V3 of the vectors: without a protocol one failure undoes everything, one checkpoint a round."""
    turns = script.make_script("domino", 2, 0)
    exchanges = len(turns) // 4
    figures = script.measure("uncoordinated", 2, [turns])
    assert [failure.undone_each for failure in figures.failures] == [2 * exchanges] * 2
    assert sorted(failure.depth for failure in figures.failures) == [2 * exchanges - 1, 2 * exchanges]


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.0001, "<1 %"), (0.33, "33 %"), (0.999, ">99 %"), (1, "100 %")]
)
def test_almost_nothing_is_not_nothing(script: ModuleType, share: float, text: str) -> None:
    """A single useless checkpoint among ten thousand must not be rounded away."""
    assert script.percent(share) == text


@pytest.mark.parametrize("pattern", ["point_to_point", "ring", "client_server", "turns", "domino"])
def test_useless_checkpoints_are_those_of_the_oracle(script: ModuleType, pattern: str) -> None:
    """Counted by code that shares nothing with the product."""
    agents = script.PATTERNS[pattern].sizes[1]
    turns = script.make_script(pattern, agents, 3)
    histories: list[list[Event]] = [[] for _ in range(agents)]
    for turn in turns:
        history = histories[turn.agent]
        if turn.is_basic:
            history.append(Event(BASIC))
        if turn.received is not None:
            history.append(Event(RECEIVE, turn.received))
        history += [Event(SEND, message) for message, _ in turn.sends]
    useless = len(Graph(histories).useless())
    assert useless > 0
    basic = sum(turn.is_basic for turn in turns)
    assert script.measure("uncoordinated", agents, [turns]).useless_share == useless / basic
