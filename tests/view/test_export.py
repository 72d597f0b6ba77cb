"""A file for a bug report: all in it, nothing from elsewhere, what is hostile is text, what is to be left out is left out."""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.view.parsed import Node, parse, value_in
from tests.view.simulated import SimulatedFleet

from snapline.errors import CoordinatorUnavailableError, StoreError, UsageError
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.view import html_export
from snapline.view.epoch_pages import cut_of
from snapline.view.html_export import (
    ExportedScreen,
    FleetExport,
    Redaction,
    check_free,
    cut_screen,
    export_page,
    standing,
    write_file,
)
from snapline.view.markup import Markup, tag

HOSTILE = '"><script>alert(1)</script><img src=https://evil.example/x onerror=alert(2)><!-- </style> \u202e'
SECRET = "the number of the card is 4111"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_export, "RATE_S", 0.0)


async def exported(fleet: SimulatedFleet, withheld: Redaction | None = None, snapshot: str = "latest") -> Node:
    name, screens = await FleetExport(fleet, snapshot, withheld).screens()
    return parse(export_page(name, screens, "about it"))


def busy_fleet(note: str) -> SimulatedFleet:
    """One that has something of everything, with this note wherever an agent may have written it."""
    fleet = SimulatedFleet()
    fleet.note = note
    fleet.page = 100
    fleet.outputs = [(7, "sales", {"note": note})]
    fleet.waiting_agents = [
        {"agent": "teller-1", "turn": "message", "sender": "teller-2", "problem": note, "waits_for": note}
    ]
    intent = EffectRecord("intent", note, 1, "pay", "outside", note)
    fleet.outputs.append((7, EFFECTS_TOPIC, intent))
    fleet.standing = [{"agent": "teller-0", "key": note, "generation": 1, "stands": "needs people"}]
    return fleet


# -- nothing from elsewhere ----------------------------------------------------------------------------------------------


def check_it_stands_alone(page: Node) -> None:
    ids = [each.attributes["id"] for each in page.all() if "id" in each.attributes]
    assert len(ids) == len(set(ids)), "an id stands twice"
    for each in page.all():
        assert each.name not in (
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "form",
            "input",
            "button",
            "base",
        ), each.name
        for name, value in each.attributes.items():
            assert not name.startswith("on") and name not in ("src", "srcset", "style", "action", "data", "poster"), (
                name
            )
            if name == "href":
                assert value[0] == "#" and value[1:] in ids, f"{value} leads nowhere"
            if "url(" in value:
                assert re.fullmatch(r"url\(#([\w-]+)\)", value) and value[5:-1] in ids
            if name in ("aria-labelledby", "for"):
                assert value in ids


async def test_a_file_needs_nothing_else_and_runs_nothing() -> None:
    page = await exported(busy_fleet("as usual"))
    check_it_stands_alone(page)
    (style,) = page.find("style")
    assert "@import" not in style.text and "url(" not in style.text
    (policy,) = [each.attributes["content"] for each in page.find("meta") if "http-equiv" in each.attributes]
    digest = base64.b64encode(hashlib.sha256(style.text.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


async def test_its_screens_are_reached_within_it() -> None:
    page = await exported(busy_fleet("as usual"))
    links = {each.text: each.attributes["href"] for each in page.find("nav")[0].find("a")}
    screens = ("fleet", "coordinators", "epochs", "snapshot", "recovery", "waiting")
    assert links == {name.title(): f"#{name}" for name in screens}
    targets = {each.attributes["href"] for each in page.find("a")}
    assert {"#snapshot-agent-teller-4", "#fleet-agents"} <= targets
    assert not [each for each in page.find("a") if each.text == "6"], "an epoch that is not in the file is no link"
    assert [each.text for each in page.find("h1")] == [
        "bank",
        "Coordinators",
        "Epochs",
        "Epoch 7",
        "Recovery",
        "Waiting",
    ]


async def test_hostile_content_is_text() -> None:
    fleet = busy_fleet(HOSTILE)
    fleet.more = {"fleet": HOSTILE, "reason": HOSTILE, "phase": "failed"}
    page = await exported(fleet)
    check_it_stands_alone(page)
    assert page.text.count("<script>alert(1)</script>") > 8 and "\u202e" not in page.text and "‹202E›" in page.text
    assert not [each for each in page.all() if "evil" in "".join([*each.attributes, each.attributes.get("href", "")])]


def test_what_no_page_of_ours_holds_is_refused() -> None:
    """A second lock: even a page that is wrong puts nothing into a file that could fetch or run something."""
    for bad in (
        *(
            "<script>x</script>",
            '<img src="x">',
            "<a <b>",
            "1 < 2",
            '<p style="x">y</p>',
            '<p onclick="x">y</p>',
            "<p class='x'>y</p>",
        ),
        *(
            '<svg href="x"><image x="1"></image></svg>',
            "<style>p{}</style>",
            '<iframe src="x"></iframe>',
            "<p id=x>y</p>",
        ),
    ):
        with pytest.raises(ValueError):
            standing(Markup(bad), "s", lambda _: None, set())


def test_a_link_to_what_is_not_there_is_text() -> None:
    links = tag("p", tag("a", "here", href="#x"), tag("a", "there", href="https://evil.example"), tag("a", "nowhere"))
    assert (
        standing(links, "s", lambda _: None, {"s-x"})
        == '<p><a href="#s-x">here</a><span>there</span><span>nowhere</span></p>'
    )


# -- what is in it -------------------------------------------------------------------------------------------------------


def contents(page: Node) -> tuple[dict[str, object], list[object]]:
    """Of each agent its state; and messages in transit."""
    (screen,) = page.find("article", id="snapshot")
    cards = {each.find("b")[0].text: each for each in screen.find("details", class_="card")}
    rows = [
        each.child("td")[-1] for each in screen.find("section", id="snapshot-transit")[0].find("tbody")[0].child("tr")
    ]
    return {agent: value_in(card.find("dd")[0]) for agent, card in cards.items()}, [value_in(row) for row in rows]


async def test_contents_are_those_of_the_document() -> None:
    fleet = SimulatedFleet()
    fleet.note = "two\nlines & <a tag>"
    document: Any = await fleet.snapshot_at("7")
    document["agents"][2]["state"] = {"list": [1, 2.5, [], {}, None, True, ""], "nested": {"a": {"b": [{"c": -3}]}}}
    page = parse(export_page("bank", [cut_screen(cut_of(document), None)], ""))
    states, messages = contents(page)
    assert states == {each["agent"]: each["state"] for each in document["agents"]}
    in_transit = [each for channel in document["channels"] for each in channel["in_transit"]]
    assert messages == [{each["message"]["type"]: each["message"]["fields"]} for each in in_transit] != []


async def test_the_snapshot_that_was_asked_for_is_in_it() -> None:
    page = await exported(SimulatedFleet(), snapshot="6")
    assert "Epoch 6" in [each.text for each in page.find("h1")] and contents(page)[0]["teller-0"] == {
        "balance": 60,
        "note": "as usual",
    }


async def test_what_cannot_be_had_is_a_sentence_and_the_rest_is_there() -> None:
    class Damaged(SimulatedFleet):
        async def snapshot_at(self, snapshot: str) -> dict[str, object]:
            raise StoreError("the pack is gone")

        async def lines_of_each(self) -> dict[str, object]:
            return {"lines": "of another release"}

    page = await exported(Damaged())
    (snapshot,) = page.find("article", id="snapshot")
    (recovery,) = page.find("article", id="recovery")
    assert "This could not be had: the pack is gone." in snapshot.text and "This could not be had: " in recovery.text
    assert "alive" in page.find("article", id="fleet")[0].text
    assert not [each for each in page.find("article", id="waiting") if "could not be had" in each.text]
    check_it_stands_alone(page)


async def test_a_fleet_that_does_not_answer_is_no_file() -> None:
    fleet = SimulatedFleet()
    fleet.error = CoordinatorUnavailableError("no coordinator answers at x")
    with pytest.raises(CoordinatorUnavailableError, match="answers at x"):
        await exported(fleet)


async def test_ages_are_times() -> None:
    fleet = SimulatedFleet()
    fleet.history = {
        "protocol": "x",
        "epochs": [{"epoch": 7, "status": "complete", "begun_s": 1_767_225_600.5, "took_s": 1.0}],
    }
    page = await exported(fleet)
    assert "2026-01-01 00:00:00.500" in [each.text for each in page.find("time")]


# -- bounds ----------------------------------------------------------------------------------------------------------------


def large(agents: int) -> dict[str, object]:
    states = [
        {"agent": f"a-{n}", "kind": "x:X", "state": {str(k): "x" * 1500 for k in range(30)}} for n in range(agents)
    ]
    return {"epoch": 3, "agents": states, "channels": []}


def test_a_large_snapshot_is_shown_in_part_and_the_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_export, "CUT_CHARACTERS_MAX", 600_000)
    body = cut_screen(cut_of(large(90)), None).body
    assert len(body) <= 600_000 and body.count('<details class="card"') == 90
    assert "Contents of all but the first 11 agents are left out" in body
    assert body.count("left out: 4") == 90 - 11
    assert "left out" not in cut_screen(cut_of(large(3)), None).body


def test_what_is_too_large_in_any_case_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_export, "CUT_CHARACTERS_MAX", 100)
    assert "It is too large for a file" in cut_screen(cut_of(large(3)), None).body


# -- what is left out --------------------------------------------------------------------------------------------------------


async def test_without_states_nothing_that_an_agent_wrote_is_in_the_file() -> None:
    page = await exported(busy_fleet(SECRET), Redaction())
    assert "could not be had" not in page.text and "needs people: 1" in page.text
    whole = page.text + "".join([value for each in page.all() for value in each.attributes.values()])
    assert SECRET in (await exported(busy_fleet(SECRET))).text
    history = f"h1 is lost: {SECRET}"  # a reason, which stays
    assert history in whole and SECRET not in whole.replace(history, "")
    states, messages = contents(page)
    assert set(states) == {f"teller-{number}" for number in range(6)}
    told = [str(each) for each in (*states.values(), *messages)]
    assert all(re.fullmatch(r"left out: \d+ bytes of JSON, digest [0-9a-f]{12}", each) for each in told)
    assert states["teller-2"] == states["teller-3"] != states["teller-0"], "what is alike has one digest"


def test_digests_say_nothing_to_who_tries_them_all() -> None:
    one, other = Redaction(), Redaction()
    assert one.replacement_of({"pin": 7}) == one.replacement_of({"pin": 7}) != other.replacement_of({"pin": 7})
    assert (
        one.replacement_of({"a": 1, "b": 2})
        == one.replacement_of({"b": 2, "a": 1})
        != one.replacement_of({"a": 1, "b": 3})
    )
    assert hashlib.sha256(b'{"pin":7}').hexdigest()[:12] not in one.replacement_of({"pin": 7})


# -- the file ----------------------------------------------------------------------------------------------------------------


def left(folder: Path) -> Sequence[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_file_is_written_whole_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "fleet.html"
    assert write_file(path, "ä", is_forced=False) == 2
    assert path.read_text() == "ä" and path.stat().st_mode & 0o777 == 0o600 and left(tmp_path) == ["fleet.html"]


def test_no_file_is_replaced_unless_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "fleet.html"
    path.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        check_free(path, is_forced=False)
    with pytest.raises(UsageError, match="--force"):
        write_file(path, "other", is_forced=False)
    assert path.read_text() == "mine" and left(tmp_path) == ["fleet.html"]
    check_free(path, is_forced=True)
    write_file(path, "other", is_forced=True)
    assert path.read_text() == "other" and left(tmp_path) == ["fleet.html"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write_file(tmp_path / "nowhere" / "fleet.html", "x", is_forced=False)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_file(tmp_path / "folder", "x", is_forced=True)
    assert left(tmp_path) == ["folder"]


def test_screens_of_one_name_do_not_meet() -> None:
    screens = [ExportedScreen(id, id, tag("p", tag("a", "x", href="#here"), id="here")) for id in ("a", "b")]
    page = parse(export_page("bank", screens, ""))
    check_it_stands_alone(page)
    assert [each.attributes["href"] for each in page.find("main")[0].find("a")] == ["#a-here", "#b-here"]
