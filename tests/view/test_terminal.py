"""The fleet in a terminal: what stands there, within its height, and as it was said."""

import io

from rich.console import Console
from tests.view.simulated import SimulatedFleet

from snapline.errors import CoordinatorUnavailableError
from snapline.view.terminal import bars, draw
from snapline.view.watch import FleetWatch, LatestStatus


def shown(heard: LatestStatus, *, lines: int = 50, width: int = 160) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(draw(heard, lines=lines, width=width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


async def test_what_stands_on_the_screen() -> None:
    fleet = SimulatedFleet()
    fleet.states["h2"] = "lost"
    fleet.figures["h1"] = {
        "dead_letters": 2,
        "parked": 5,
        "busy": [{"agent": "teller-0", "elapsed_ns": 12_300_000_000}],
        "is_drained": True,
    }
    fleet.more["concerns"] = [{"kind": "host", "text": "host h2 [red]is[/red] missing", "remedy": "start it"}]
    lines = shown(await FleetWatch(fleet).now())
    assert lines[0] == "bank  running  chandy-lamport  plan 1  led by c1"
    assert "6 agents on 2 of 3 hosts" in lines
    (concern,) = [line for line in lines if line.startswith("!")]
    assert concern.startswith("! host h2 [red]is[/red] missing, since ") and concern.endswith(". To do: start it")
    assert any("parked 5  2 dead letters" in line for line in lines)
    rows = {line.split()[0]: line.split() for line in lines if line.startswith("h")}
    assert rows["h1"][1:4] == ["alive", "drained", "2"] and rows["h2"][1] == "lost"
    assert lines[-1] == "teller-0 on h1: in one turn for 12.3 s"


async def test_texts_of_a_fleet_move_no_cursor() -> None:
    fleet, evil = SimulatedFleet(), "\x1b[2J\u202egnp\x9bA"
    fleet.figures["h1"] = {"busy": [{"agent": evil, "elapsed_ns": 1}]}
    fleet.more["concerns"] = [{"kind": "host", "text": evil, "remedy": evil}]
    screen = "\n".join(shown(await FleetWatch(fleet).now()))
    assert not set(screen) & {"\x1b", "\u202e", "\x9b"} and screen.count(r"\x1b[2J\u202egnp\u009bA") == 3


async def test_more_hosts_than_lines() -> None:
    fleet = SimulatedFleet(hosts=100, agents=1000)
    fleet.states["h77"] = "lost"
    lines = shown(await FleetWatch(fleet).now(), lines=24)
    assert len(lines) <= 24 and any(line.startswith("h77 ") for line in lines)
    assert lines[-1].startswith("and ") and lines[-1].endswith(" hosts more")


async def test_nobody_answers() -> None:
    fleet = SimulatedFleet()
    watch = FleetWatch(fleet, period_s=0.0)
    fleet.error = CoordinatorUnavailableError("nobody answers at 127.0.0.1:1")
    assert shown(await watch.now()) == ["nobody answers at 127.0.0.1:1"]
    fleet.error = None
    await watch.now()
    fleet.error = CoordinatorUnavailableError("nobody answers")
    lines = shown(await watch.now())
    assert "! nobody answers; this is how it stood before" in lines and lines[0].startswith("bank")


def test_bars() -> None:
    assert bars(()) == "" and bars((0.0, 0.0)) == "▁▁" and bars((0.0, 1.0, 2.0)) == "▁▅█"
    assert len(bars(tuple(range(200)))) == 40


async def test_a_narrow_terminal_leaves_out_columns_and_shortens_none() -> None:
    fleet = SimulatedFleet()
    fleet.figures["h1"] = {"is_drained": True}
    heard = await FleetWatch(fleet).now()
    headings = {
        width: next(line for line in shown(heard, width=width) if line.startswith("HOST")) for width in (40, 80, 160)
    }
    assert headings[40].split() == ["HOST", "STATE", "AGENTS", "TURNS/S"]
    assert headings[80].startswith("HOST") and "DEAD LETTERS" in headings[80] and "ADDRESS" not in headings[80]
    assert headings[160].split()[-2:] == ["START", "ADDRESS"]
    assert "…" not in "".join(shown(heard, width=40)[1:]), "the title alone is cut"
