"""Requests to the view: pages and their policy, who may look, what changes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.requests import Request
from tests.view.simulated import SimulatedFleet

from snapline.errors import CoordinatorUnavailableError
from snapline.gateway.http_server import is_this_machine
from snapline.view import view_app as app_module
from snapline.view.fleet_page import AgentSearch
from snapline.view.sign_in import COOKIE, SESSION_S, SESSIONS_MAX, Sessions
from snapline.view.view_app import STATIC, View
from snapline.view.watch import FleetWatch

TOKEN = "a token that nobody guesses"


@asynccontextmanager
async def view(
    fleet: SimulatedFleet | None = None, token: str = "", base_url: str = "http://127.0.0.1:8088"
) -> AsyncIterator[httpx.AsyncClient]:
    made = View(fleet or SimulatedFleet(), token=token)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(made.app()), base_url=base_url) as http:
        yield http
    await made.close()


async def test_every_answer_forbids_what_is_not_ours() -> None:
    async with view() as http:
        for path in ("/", "/agents/teller-1", "/agents/nobody", "/nothing", "/health", "/static/view.js", "/static/x"):
            headers = (await http.get(path)).headers
            policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
            assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'" == policy["style-src"]
            assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"


async def test_pages_have_nothing_that_their_policy_forbids() -> None:
    async with view() as http:
        for path in (
            "/",
            "/agents/teller-1",
            "/coordinators",
            "/epochs",
            "/epochs/7?to=6",
            "/recovery",
            "/waiting",
            "/space-time",
            "/nothing",
        ):
            page = (await http.get(path)).text
            assert page.startswith("<!DOCTYPE html>\n<html") and "<script src=" in page
            for forbidden in ("<style", " style=", " onclick", "javascript:", "http://", "https://"):
                assert forbidden not in page, (path, forbidden)
        for name in STATIC:
            found = await http.get(f"/static/{name}")
            assert found.status_code == 200 and "url(" not in found.text and "@import" not in found.text


async def test_hostile_content_is_text() -> None:
    fleet = SimulatedFleet()
    script = "<script>alert(1)</script>"
    fleet.more = {
        "fleet": script,
        "reason": script,
        "phase": "failed",
        "turn": {script: [script, "\u202eabc", "x" * 9999]},
    }
    async with view(fleet) as http:
        for path in ("/", "/agents/teller-1", f"/?q={script}&host={script}&state={script}", f"/agents/{script}"):
            page = (await http.get(path)).text
            assert "<script>" not in page and "\u202e" not in page and "&lt;script&gt;" in page
        assert "7,999 more characters" in (await http.get("/agents/teller-1")).text


async def test_what_is_not_there_and_what_fails_is_a_page_with_a_sentence() -> None:
    fleet = SimulatedFleet()
    async with view(fleet) as http:
        missing = await http.get("/agents/nobody")
        assert missing.status_code == 404 and "Agent 'nobody' is not in this fleet." in missing.text
        assert (await http.get("/nothing")).status_code == 404
        fleet.error = CoordinatorUnavailableError("no coordinator answers at x")
        found = await http.get("/")
        assert found.status_code == 200 and "No coordinator answers at x." in found.text
        assert (await http.get("/agents/teller-1")).status_code == 503


async def test_agents_are_searched_without_a_page_around_them() -> None:
    async with view() as http:
        found = (await http.get("/", params={"part": "found", "q": "teller-4"})).text
        assert found.startswith('<div id="found">') and found.count("/agents/") == 1


async def test_a_stream_says_what_changes() -> None:
    fleet = SimulatedFleet()
    made = View(fleet, watch=FleetWatch(fleet, 0.01))
    stream = made._fleet_stream(AgentSearch())
    first = dict(json.loads((await anext(stream)).removeprefix("data: ")))
    assert {"title", "figures", "hosts", "host-h1", "found"} <= set(first)
    fleet.states["h2"] = "lost"
    seen: dict[str, str] = {}
    while "host-h2" not in seen:
        event = await anext(stream)
        seen |= dict(json.loads(event.removeprefix("data: "))) if event.startswith("data") else {}
    assert "lost" in seen["host-h2"]
    await stream.aclose()


# -- who may look ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        *((name, True) for name in ("127.0.0.1", "127.9.9.9", "[::1]", "localhost", "a.localhost")),
        *(
            (name, False)
            for name in ("evil.example", "10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example", "")
        ),
    ],
)
def test_names_of_this_machine(host: str, is_ours: bool) -> None:
    assert is_this_machine(host) is is_ours


async def test_with_a_token_only_who_has_signed_in_may_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "WRONG_S", 0.0)
    async with view(token=TOKEN, base_url="http://machine.example") as http:
        assert (await http.get("/")).headers["Location"] == "/sign-in"
        assert (await http.get("/agents/teller-1", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200
        for wrong in ("", "x", TOKEN + "x", "x" * 100_000):
            found = await http.post("/sign-in", data={"token": wrong})
            assert found.status_code == 401 and COOKIE not in found.cookies and "That is not the token." in found.text
        found = await http.post("/sign-in", data={"token": TOKEN})
        cookie = found.headers["Set-Cookie"]
        assert found.headers["Location"] == "/" and "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert TOKEN not in cookie
        page = await http.get("/")
        assert page.status_code == 200 and "Sign out" in page.text
        await http.post("/sign-out")
        assert (await http.get("/")).status_code == 303


async def test_a_session_ends_and_there_are_so_many() -> None:
    now_s = 0.0
    sessions = Sessions(TOKEN, lambda: now_s)

    def may(name: str) -> bool:
        scope = {"type": "http", "headers": [(b"cookie", f"{COOKIE}={name}".encode())]}
        return sessions.may(Request(scope))

    first = sessions.begin()
    assert may(first) and not may("other")
    now_s = SESSION_S + 1
    assert not may(first)
    names = [sessions.begin() for _ in range(SESSIONS_MAX + 1)]
    assert not may(names[0]) and may(names[1]) and may(names[-1])


async def test_where_no_token_is_asked_for_nobody_signs_in() -> None:
    async with view() as http:
        assert (await http.get("/sign-in")).headers["Location"] == "/"
        assert (await http.post("/sign-in", data={"token": ""})).headers["Location"] == "/"
