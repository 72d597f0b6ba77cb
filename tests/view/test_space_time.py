"""The screen Space-time: of a fleet's last seconds and of a trace, for viewers with scripts and without."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.diagrams.test_scene import elements
from tests.diagrams.test_space_time import check_shiviz, shiviz_events
from tests.recovery.test_merge import files_of, play
from tests.view.parsed import parse
from tests.view.simulated import SimulatedFleet
from tests.view.test_app import TOKEN, view

from snapline.errors import NotFoundError
from snapline.messages.client_requests import RecentTrace
from snapline.protocols.names import CHANDY_LAMPORT
from snapline.view import space_time_page, space_time_requests
from snapline.view.space_time_requests import (
    EVENTS_MAX,
    EVERY_MAX,
    HELD_MAX,
    KEPT_S,
    SNAPSHOTS_KEPT,
    LiveEvents,
    ShownTrace,
)
from snapline.view.view_app import View

SECOND = 10**9
EVIL = "<script>alert(1)</script>"
PATHS = ("/space-time", "/space-time.svg", "/space-time.shiviz", "/events/space-time")


class TracingFleet(SimulatedFleet):
    """Hosts that have traced: `told` is what each says at the next question; `cursors` what it was asked with."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, list[dict[str, object]]] = {name: [] for name in self.names}
        self.silent: set[str] = set()
        self.missed = 0
        self.behind_s: dict[str, float] = {}
        self.asks: list[tuple[dict[str, str], int, int]] = []

    async def recent_traces(
        self, after: Mapping[str, str], *, every: int, most: int
    ) -> Mapping[str, RecentTrace | None]:
        self._answer("recent_traces")
        self.asks.append((dict(after), every, most))
        answers: dict[str, RecentTrace | None] = {}
        for host in self.names:
            lines = [msgspec.Raw(msgspec.json.encode(line)) for line in self.told[host]]
            self.told[host] = []
            cursor = f"1-1.{len(self.asks)}"
            now_ns = time.time_ns() - round(self.behind_s.get(host, 0.0) * SECOND)
            told = RecentTrace(host, cursor, every, self.missed, now_ns, lines)
            answers[host] = None if host in self.silent else told
        return answers

    def exchange(self, count: int, sender: str = "a", receiver: str = "b", at_ns: int = 0) -> None:
        """So many messages from h1 to h2."""
        at_ns = at_ns or time.time_ns() - SECOND
        plan: dict[str, object] = {"event": "plan", "plan": 1, "line": {}, "time_ns": at_ns}
        for host in ("h1", "h2"):
            self.told[host].append(plan)
        for number in range(1, count + 1):
            message = f"{sender}>{receiver}:{number}"
            at_ns += 10
            self.told["h1"].append(
                {"event": "send", "agent": sender, "message": message, "to": receiver, "time_ns": at_ns}
            )
            self.told["h2"].append({"event": "receive", "agent": receiver, "message": message, "time_ns": at_ns + 5})


def spots_in(page: str) -> list[int]:
    return [
        int(node.attributes["data-event"])
        for node in parse(page).find("circle", class_="spot")
        if "data-event" in node.attributes
    ]


@pytest.fixture(autouse=True)
def every_look_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views do not wait for a period: what is held is held by its number, not because it is the newest still."""
    monkeypatch.setattr("snapline.view.view_app.LiveEvents", lambda calls: LiveEvents(calls, 0.0))


# -- the fleet, live -----------------------------------------------------------------------------------------------------


async def test_what_hosts_told_is_shown_and_asked_on_from_there() -> None:
    fleet = TracingFleet()
    fleet.exchange(4)
    live = LiveEvents(fleet, 0.0)
    assert len((await live.look()).event_log) == 8
    fleet.exchange(3)
    assert len((await live.look()).event_log) == 14
    assert fleet.asks[0][0] == {} and fleet.asks[1][0] == dict.fromkeys(fleet.names, "1-1.1")


async def begun(fleet: TracingFleet) -> LiveEvents:
    """Hosts trace already."""
    live = LiveEvents(fleet, 0.0, 0.0)
    await live.look()
    return live


async def test_after_a_pause_nothing_old_is_joined_to_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts stop tracing when nobody asks: what they did in between is not known."""
    fleet = TracingFleet()
    live = await begun(fleet)
    fleet.exchange(3)
    assert len((await live.look()).event_log) == 6
    monkeypatch.setattr(space_time_requests, "GAP_S", 0.0)
    fleet.exchange(1)
    assert len((await live.look()).event_log) == 2


async def test_however_many_look_hosts_are_asked_once_a_period() -> None:
    fleet = TracingFleet()
    live = LiveEvents(fleet, 60.0)
    looks = await asyncio.gather(*[live.look() for _ in range(20)])
    assert len(fleet.asks) == 2, "and once before, which has them begin"
    assert len({look.number for look in looks}) == 1


async def test_nobody_who_looks_elsewhere_makes_hosts_trace() -> None:
    async with view(fleet := TracingFleet()) as http:
        for path in ("/", "/epochs", "/waiting"):
            await http.get(path)
        assert fleet.asks == []
        await http.get("/space-time")
        assert len(fleet.asks) == 2


async def test_what_is_kept_is_bounded_by_time_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = TracingFleet()
    live = LiveEvents(fleet, 0.0)
    fleet.exchange(50, at_ns=time.time_ns() - round((KEPT_S + 5) * SECOND))
    fleet.exchange(7)
    assert len((await live.look()).event_log) == 14
    monkeypatch.setattr(space_time_requests, "EVENTS_MAX", 100)
    fleet.exchange(400)
    look = await live.look()
    assert 90 <= len(look.event_log) <= 100 and EVENTS_MAX > 100
    kept = sum(len(lines) for told in live._reported.values() for lines in told.lines.values())
    assert kept <= 100 + len(fleet.names), "a plan line more of each host"


async def test_of_a_fleet_that_does_too_much_fewer_messages_are_asked_for_and_later_more_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space_time_requests, "LINES_HIGH", 100)
    monkeypatch.setattr(space_time_requests, "LINES_LOW", 10)
    fleet = TracingFleet()
    live = await begun(fleet)
    fleet.asks.clear()
    for count in (100, 100, 20, 1, 1, 1):
        fleet.exchange(count)
        await live.look()
    assert [every for _, every, _ in fleet.asks] == [1, 4, 16, 16, 4, 1]
    fleet.missed = 1
    for _ in range(15):
        await live.look()
    assert fleet.asks[-1][1] == EVERY_MAX
    assert (await live.look()).is_missing


async def test_what_all_have_told_up_to_is_shown_or_receives_would_stand_before_their_sends() -> None:
    """The sender's host has answered a second earlier: what its receiver did since then is for the next look."""
    fleet = TracingFleet()
    live = await begun(fleet)
    fleet.behind_s = {"h1": 1.0}
    fleet.exchange(3, at_ns=time.time_ns() - SECOND // 2)
    fleet.told["h1"] = []
    assert len((await live.look()).event_log) == 0
    fleet.behind_s = {}
    assert len((await live.look()).event_log) == 3
    fleet.behind_s = {"h1": 60.0}
    fleet.exchange(3, at_ns=time.time_ns() - 4 * SECOND)
    assert len((await live.look()).event_log) >= 3, "a clock that is a minute behind is not waited for"


async def test_a_host_that_is_silent_is_named_and_what_it_told_stays() -> None:
    fleet = TracingFleet()
    live = LiveEvents(fleet, 0.0)
    fleet.exchange(2)
    await live.look()
    fleet.silent = {"h2"}
    look = await live.look()
    assert look.silent == ("h2",) and len(look.event_log) == 4
    async with view(fleet) as http:
        assert "Not told by h2." in (await http.get("/space-time")).text


async def test_what_somebody_studies_stays_and_the_rest_goes() -> None:
    live = LiveEvents(fleet := TracingFleet(), 0.0)
    fleet.exchange(1)
    first = await live.look()
    live.hold(first)
    for _ in range(SNAPSHOTS_KEPT + 5):
        look = await live.look()
    assert live.held(first.number) is first
    with pytest.raises(NotFoundError, match="not kept any more"):
        live.held(first.number + 1)
    for number in range(HELD_MAX):
        live.hold(await live.look())
        assert number < HELD_MAX
    for _ in range(SNAPSHOTS_KEPT + 1):
        await live.look()
    with pytest.raises(NotFoundError):
        live.held(first.number)
    assert len(live._snapshots) <= SNAPSHOTS_KEPT and len(live._held) <= HELD_MAX and look.number > 0


# -- pages ---------------------------------------------------------------------------------------------------------------


async def test_the_screen_works_without_scripts() -> None:
    """Each event is a link to a page that tells about it, of the look that was seen; moving and zooming are links too."""
    fleet = TracingFleet()
    fleet.exchange(30)
    async with view(fleet) as http:
        page = parse((await http.get("/space-time")).text)
        picture = page.find("div", id="picture")[0]
        link = picture.find("a")[-1].attributes["href"]
        fleet.exchange(30)  # the fleet goes on
        told = parse((await http.get(link)).text)
        (section,) = told.find("section", id="event")
        assert "vector clock" in section.text and "b receives message 30 of a" in section.text
        assert len(spots_in((await http.get(link)).text)) == 60 == len(told.find("ol", class_="events")[0].child("li"))
        moves = {a.text.strip(): a.attributes["href"] for a in told.find("nav", class_="moves")[0].find("a")}
        closer = (await http.get(moves["+ Zoom in"])).text
        assert len(spots_in(closer)) == 30
        earlier = {a.text.strip(): a.attributes["href"] for a in parse(closer).find("nav", class_="moves")[0].find("a")}
        assert max(spots_in((await http.get(earlier["← Earlier"])).text)) < max(spots_in(closer))


async def test_downloads_are_of_exactly_the_window_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the fleet has gone on so far that a view has forgotten what stood there."""
    monkeypatch.setattr(space_time_requests, "EVENTS_MAX", 50)
    fleet = TracingFleet()
    fleet.exchange(40)
    async with view(fleet) as http:
        text = (await http.get("/space-time", params={"count": "13"})).text
        page = parse(text)
        links = {a.text.strip(): a.attributes["href"] for a in page.find("nav", class_="moves")[0].find("a")}
        fleet.exchange(40, "c", "d")
        svg, log = await http.get(links["SVG"]), await http.get(links["ShiViz"])
        assert (
            svg.headers["Content-Type"].startswith("image/svg+xml")
            and "attachment" in svg.headers["Content-Disposition"]
        )
        assert [int(dot.get("data-event", "")) for dot in elements(svg.text, "spot")] == spots_in(text)
        assert "<style>" in svg.text and "<a " not in svg.text and "<script" not in svg.text
        events = shiviz_events(log.text)
        check_shiviz(events)
        listed = [row.find("a")[0].text for row in page.find("ol", class_="events")[0].child("li")]
        assert [words for _, _, words in events] == listed and len(events) == 13


async def test_hostile_names_are_text() -> None:
    fleet = TracingFleet()
    fleet.exchange(3, EVIL, "\u202eb\x1b")
    async with view(fleet) as http:
        page = (await http.get("/space-time", params={"agents": EVIL, "event": "1"})).text
        assert "<script>" not in page and "\u202e" not in page and "\x1b" not in page and "&lt;script&gt;" in page
        for forbidden in ("<style", " style=", " onclick", "javascript:"):
            assert forbidden not in page
        svg = (await http.get("/space-time.svg")).text
        assert "<script>" not in svg and "\u202e" not in svg
        check_shiviz(shiviz_events((await http.get("/space-time.shiviz")).text))


@pytest.mark.parametrize(
    "wrong",
    [
        "first=x",
        "event=99999999",
        "rows=elephants",
        "source=trace",
        f"count={'9' * 99}",
        "first=9&end=3",
        "event=-1",
        "count=²",
    ],
)
async def test_a_request_that_cannot_be_is_a_sentence(wrong: str) -> None:
    async with view(fleet := TracingFleet()) as http:
        fleet.exchange(2)
        for path in ("/space-time", "/space-time.svg", "/space-time.shiviz"):
            found = await http.get(f"{path}?{wrong}")
            assert found.status_code == 400 and "Traceback" not in found.text
        gone = await http.get("/space-time", params={"held": "7"})
        assert gone.status_code == 404 and "not kept any more" in gone.text


async def test_a_page_has_so_many_events_and_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_time_page, "SHOWN_MAX", 50)
    fleet = TracingFleet()
    fleet.exchange(200)
    async with view(fleet) as http:
        for asked in ({"count": "10000"}, {"first": "0", "end": "400"}):
            assert len(spots_in((await http.get("/space-time", params=asked)).text)) == 50
        many = {"agents": ",".join([f"nobody{number}" for number in range(5000)])}
        assert (await http.get("/space-time", params=many)).status_code == 200


async def test_what_is_held_stands_still_and_the_present_does_not() -> None:
    async with view(TracingFleet()) as http:
        live = parse((await http.get("/space-time?rows=hosts")).text).find("body")[0]
        assert live.attributes["data-events"] == "/events/space-time"
        held = await http.get("/space-time", params={"held": "1"})
        assert "data-events" not in parse(held.text).find("body")[0].attributes


# -- who may look --------------------------------------------------------------------------------------------------------


async def test_only_who_may_look_sees_it() -> None:
    async with view(fleet := TracingFleet(), base_url="http://evil.example") as http:
        assert [(await http.get(path)).status_code for path in PATHS] == [421] * 4
    async with view(fleet, token=TOKEN) as http:
        assert [(await http.get(path)).status_code for path in PATHS] == [401] * 4
        assert fleet.asks == [], "nobody's request makes hosts trace"
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert [(await http.get(path, headers=bearer)).status_code for path in PATHS[:3]] == [200] * 3


# -- a trace -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the hosts of a fleet with recoveries have traced."""
    made = tmp_path_factory.mktemp("traces")
    for name, lines in files_of(play(1, CHANDY_LAMPORT, steps=800), is_lossy=True).items():
        (made / name).write_bytes(b"".join(lines))
    return made


async def test_a_trace_is_shown_without_a_fleet(folder: Path) -> None:
    made = View(None, trace=folder)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(made.app()), base_url="http://127.0.0.1", follow_redirects=True
    ) as http:
        page = (await http.get("/")).text
        assert "Space-time" in page and len(spots_in(page)) > 20
        assert "data-events" not in parse(page).find("body")[0].attributes
        last = max(spots_in(page))
        chosen = parse((await http.get("/space-time", params={"event": str(last)})).text)
        assert chosen.find("section", id="event") and "/epochs/" not in str([a.attributes for a in chosen.find("a")])
        check_shiviz(shiviz_events((await http.get("/space-time.shiviz", params={"count": "300"})).text))
        assert (await http.get("/epochs")).status_code == 404
        assert (await http.get("/space-time", params={"source": "live"})).status_code == 400
    await made.close()


async def test_a_trace_is_shown_beside_a_fleet(folder: Path) -> None:
    made = View(TracingFleet(), trace=folder)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(made.app()), base_url="http://127.0.0.1") as http:
        live, trace = (await http.get("/space-time")).text, (await http.get("/space-time?source=trace")).text
        assert spots_in(live) == [] and len(spots_in(trace)) > 20
    await made.close()


async def test_a_trace_is_read_again_when_it_has_grown_and_its_beginning_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [json.dumps({"event": "send", "agent": "a", "message": f"m{number}", "to": "b"}) for number in range(9)]
    file.write_text("\n".join(lines[:4]) + "\n")
    shown = ShownTrace(file)
    first = await shown.event_log()
    assert len(first) == 4 and await shown.event_log() is first
    file.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("snapline.view.space_time_requests.TRACE_EVENTS_MAX", 5)
    again = await shown.event_log()
    assert (len(again), shown.omitted, again.is_whole) == (5, 4, False)


async def test_a_trace_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    for place, lines in (("broken.jsonl", "{}\n{}\n"), ("empty", "")):
        path = tmp_path / place
        path.write_text(lines) if lines else path.mkdir()
        made = View(None, trace=path)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(made.app()), base_url="http://127.0.0.1") as http:
            found = await http.get("/space-time")
            assert found.status_code in (400, 503) and str(path) in found.text
        await made.close()


async def test_a_pictures_colours_are_those_of_the_page() -> None:
    """They are told by an element around the picture: a name that is told where it is read would be told by itself, and black."""
    async with view(TracingFleet()) as http:
        style = (await http.get("/static/view.css")).text
        assert ".picture { --snapline-paper: var(--paper); --snapline-ink: var(--ink);" in style
        for selector, rule in re.findall(r"([^{}]+)\{([^{}]*)\}", style):
            assert ".snapline-spacetime" not in selector or not re.search(r"--snapline-[a-z]+\s*:", rule), selector
        assert parse((await http.get("/space-time")).text).find("div", class_="picture")[0].find("svg")
