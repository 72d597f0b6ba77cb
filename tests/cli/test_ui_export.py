"""`snapline ui export`: a store at rest in a file, the same as `snapshot show` tells; and what the command refuses."""

from pathlib import Path

import pytest
from tests.kit.command_line import Run
from tests.view.parsed import Node, parse, value_in


def parts(page: Node) -> dict[str, Node]:
    return {each.attributes["id"]: each for each in page.find("article")}


def test_a_store_at_rest_is_in_the_file_as_far_as_it_knows(run: Run, store: Path) -> None:
    done = run("ui", "export", "fleet.html", "--store", store)
    assert (done.code, done.json["kind"], done.json["epoch"], done.json["has_states"]) == (0, "UiExport", 2, True), (
        done.err
    )
    assert done.json["size_bytes"] == Path("fleet.html").stat().st_size
    screens = parts(parse(Path("fleet.html").read_text()))
    assert list(screens) == ["store", "epochs", "snapshot", "recovery", "waiting"]
    rows = screens["store"].find("tbody")[0].child("tr")
    assert [[cell.text for cell in row.children if isinstance(cell, Node)][:2] for row in rows] == [
        ["2", "2025-01-02 00:00:00"],
        ["1", "2025-01-01 00:00:00"],
    ]
    assert [each.attributes["href"] for each in rows[0].find("a")] == ["#snapshot"] and not rows[1].find("a")
    assert "coordinator's log" in screens["epochs"].text and "coordinator's log" in screens["recovery"].text

    shown = run("snapshot", "show", "2", "--store", store).json
    for agent in shown["agents"]:
        (card,) = screens["snapshot"].find(id=f"snapshot-agent-{agent['agent']}")
        told = {row.child("dt")[0].text: value_in(row.child("dd")[0]) for row in card.find("dl")[0].child("div")}
        names = ("timers", "outbox", "dead_letters")
        rest = {name.replace("_", " "): agent[name] for name in names if agent[name]}
        assert told == {"state": agent["state"], **rest}
    (message,) = screens["snapshot"].find("section", id="snapshot-transit")[0].find("tbody")[0].child("tr")
    assert value_in(message.child("td")[-1]) == {"Coins": {"amount": 30}}


def test_an_older_snapshot_without_contents(run: Run, store: Path) -> None:
    done = run("ui", "export", "fleet.html", "--store", store, "--snapshot", "1", "--no-states", "-o", "table")
    assert done.code == 0 and done.out.startswith("fleet.html: epoch 1, without contents, "), done.err
    page = Path("fleet.html").read_text()
    assert "Epoch 1<" in page and "balance" not in page and "amount" not in page and "debt" not in page
    assert "bytes of JSON, digest" in page


def test_what_is_not_there_is_said_in_the_file(run: Run, store: Path) -> None:
    done = run("ui", "export", "fleet.html", "--store", store, "--snapshot", "77")
    assert (done.code, done.json["epoch"]) == (0, 0)
    assert "This could not be had: " in Path("fleet.html").read_text()


def test_a_file_that_is_there_stays_unless_it_may_go(run: Run, store: Path) -> None:
    Path("fleet.html").write_text("mine")
    refused = run("ui", "export", "fleet.html", "--store", store)
    assert refused.code == 2 and "--force" in refused.err and Path("fleet.html").read_text() == "mine"
    assert run("ui", "export", "fleet.html", "--store", store, "--force").code == 0
    assert Path("fleet.html").read_text().startswith("<!DOCTYPE html>") and [
        each.name for each in Path().iterdir()
    ] == ["fleet.html"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--store", "nowhere"], 10),
        (["--store", "nowhere", "--data-dir", "x"], 2),
        (["--data-dir", "x"], 2),
        (["--coordinator", "127.0.0.1:1"], 8),
        ([], 2),
    ],
)
def test_nothing_to_export_is_no_file(run: Run, arguments: list[str], code: int) -> None:
    done = run("ui", "export", "fleet.html", *arguments)
    assert done.code == code and not Path("fleet.html").exists() and len(done.err.splitlines()) == 1, done.err
