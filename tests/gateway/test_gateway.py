"""The gateway: requests over HTTP reach agents by a real client and a real host's service, and every error has its status."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.client.fake_fleet import fleet_and_client
from tests.client.fake_host import Book, Clerk, Paid

import snapline
from snapline import errors
from snapline.agent_runtime.reading import Output, Undone
from snapline.client.client import Client
from snapline.gateway.app import Gateway
from snapline.gateway.openapi import openapi_of
from snapline.gateway.problems import STATUSES, problem_of
from snapline.gateway.serving import check_exposure

TOKEN = "a token that nobody guesses"
FLEET = snapline.Fleet("books", agents={"a": Clerk(Book())})


@asynccontextmanager
async def gateway(client: Any, token: str = "") -> AsyncIterator[httpx.AsyncClient]:
    app = Gateway(client, token=token, openapi=openapi_of(FLEET)).app()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        yield http


async def test_a_request_is_taken_once_under_its_key() -> None:
    async with fleet_and_client() as (fleet, client), gateway(client) as http:
        key = {"Idempotency-Key": "order-1"}
        first = await http.post("/agents/a/Paid", json={"amount": 5}, headers=key)
        assert (first.status_code, first.json()["number"], first.json()["is_repeated"]) == (202, 1, False)
        again = await http.post("/agents/a/Paid", json={"amount": 5}, headers=key)
        assert (again.status_code, again.json()["number"], again.json()["is_repeated"]) == (202, 1, True)
        other = await http.post("/agents/a/Paid", json={"amount": 6}, headers=key)
        assert other.status_code == 422 and other.json()["error"] == "InputRefusedError"
        assert other.headers["content-type"] == "application/problem+json"
        drawn = await http.post("/agents/a/Closed")
        assert drawn.status_code == 202 and drawn.headers["Idempotency-Key"] == drawn.json()["key"]
        assert len(fleet.books.taken["a"]) == 2


@pytest.mark.parametrize("answer", ["early", "final"])
async def test_an_answer_is_waited_for(answer: str) -> None:
    async with fleet_and_client() as (_, client), gateway(client) as http:
        found = await http.post(f"/agents/a/Paid?answer={answer}", json={"amount": 5}, headers={"Idempotency-Key": "k"})
        assert found.status_code == 200 and found.json() == {
            "agent": "a",
            "number": 1,
            "key": "k",
            "is_early": answer == "early",
            "message": {"type": "Taken", "fields": {"number": 1, "photo": ""}},
        }


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/agents/a/Payed", "{}", 422, "has no handler for messages of type 'Payed'"),
        ("/agents/a/Paid", '{"amount": "five"}', 422, "Expected `int`, got `str` - at `$.amount`"),
        ("/agents/a/Paid", "{", 400, "the body is no JSON"),
        ("/agents/a/Paid", b'{"amount": 5, "note": "\xff"}', 400, "the body is no JSON: it is not UTF-8"),
        ("/agents/a/Paid", "[" * 100_000, 400, "nested too deep"),
        ("/agents/a/Paid", '{"amount": NaN}', 400, "NaN is no number of JSON"),
        ("/agents/a/Paid", '{"amount": 1e999}', 400, "1e999 is too large"),
        ("/agents/a/Paid", '{"amount": 99999999999999999999}', 400, "more than 64 bits"),
        ("/agents/a/Paid", '{"amount": 5, "amount": 6}', 400, "'amount' stands twice"),
        ("/agents/a/Paid?timeout_s=nan", "{}", 400, "timeout_s=nan is no number of seconds"),
        ("/agents/%ff/Paid", "{}", 400, "is no valid agent id"),
        ("/agents/nobody/Paid", '{"amount": 1}', 404, "nobody"),
        ("/agents/a/Paid?answer=maybe", "{}", 400, "answer=maybe is none of none, early, final"),
        ("/agents/a/Paid?timeout_s=soon", "{}", 400, "timeout_s=soon is no number of seconds"),
        ("/agents/a/Paid?timeout_s=-1", "{}", 400, "timeout_s=-1 is no number of seconds"),
        ("/agents/a/Paid", '"' + "x" * 17_000_000 + '"', 413, "16,777,216 bytes at most"),
    ],
)
async def test_bad_requests_get_one_sentence(path: str, body: str | bytes, status: int, words: str) -> None:
    async with fleet_and_client() as (_, client), gateway(client) as http:
        found = await http.post(path, content=body)
        assert found.status_code == status and words in found.json()["detail"], found.json()


@pytest.mark.parametrize(
    "path", ["/outputs/%ff", f"/outputs/{'9' * 5000}", "/outputs?after=%1b", f"/outputs?after={'9' * 5000}.1"]
)
async def test_what_no_output_has_is_not_asked_for(path: str) -> None:
    async with fleet_and_client() as (_, client), gateway(client) as http:
        assert (await http.get(path)).status_code == 400


async def test_what_is_not_taken_in_time_may_come_again() -> None:
    async with fleet_and_client() as (fleet, client), gateway(client) as http:
        fleet.states = {
            host: "lost" for host in fleet.hosts
        }  # so nothing is ever under way, however slow this machine is
        found = await http.post("/agents/a/Paid?timeout_s=0.3", json={"amount": 5}, headers={"Idempotency-Key": "k"})
        assert found.status_code == 503 and found.headers["Retry-After"] == "1"
        assert (found.json()["agent"], found.json()["key"]) == ("a", "k")


def test_every_error_of_a_client_has_a_status() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SnaplineError)
    ]
    for kind in kinds:
        answer = problem_of(kind("why"))
        wanted = next((status for known, status in STATUSES if issubclass(kind, known)), 500)
        assert answer.status_code == wanted and json.loads(bytes(answer.body))["detail"] == "why"


async def test_with_a_token_only_those_who_bear_it_may() -> None:
    async with fleet_and_client() as (fleet, client), gateway(client, TOKEN) as http:
        for headers in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {TOKEN}"},
        ):
            for call in (
                http.post("/agents/a/Paid", json={"amount": 5}, headers=headers),
                http.get("/openapi.json", headers=headers),
            ):
                found = await call
                assert found.status_code == 401 and found.headers["WWW-Authenticate"] == "Bearer"
        assert not fleet.books.taken["a"]
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await http.post("/agents/a/Paid", json={"amount": 5}, headers=right)).status_code == 202


def test_beyond_loopback_a_token_is_asked_for() -> None:
    check_exposure("127.0.0.1", "")
    check_exposure("::1", "")
    check_exposure("0.0.0.0", TOKEN)
    with pytest.raises(
        errors.MisuseError, match=r"--listen 0\.0\.0\.0 can be reached from elsewhere: give --token-file"
    ):
        check_exposure("0.0.0.0", "")
    with pytest.raises(errors.MisuseError, match="a token of 5 characters can be guessed"):
        check_exposure("127.0.0.1", "short")


# -- outputs -----------------------------------------------------------------------------------------------------------


class Said(Client):
    """A client whose coordinator has these outputs, and fails then."""

    def __init__(self, said: list[Output | Undone], error: Exception | None = None) -> None:
        self.said, self.error = said, error
        self.asked: list[tuple[str, str]] = []

    async def outputs(self, topic: str = "", *, after: str = "", **rest: Any) -> Any:
        self.asked.append((topic, after))
        for each in self.said:
            await asyncio.sleep(0)
            yield each
        if self.error is not None:
            raise self.error


OUTPUTS: list[Output | Undone] = [
    Output("a", 1, "bills", {"type": "Paid", "fields": {"amount": 5}}, "3.0", 3),
    Undone(2, (3,), "4."),
]


async def test_outputs_are_events_whose_ids_are_cursors() -> None:
    client = Said(OUTPUTS)
    async with gateway(client) as http:
        found = await http.get("/outputs/bills", headers={"Last-Event-ID": "2.7"})
        assert client.asked == [("bills", "2.7")] and found.headers["content-type"].startswith("text/event-stream")
        events = [
            dict(line.split(": ", 1) for line in event.splitlines()) for event in found.text.split("\n\n") if event
        ]
        assert [(each.get("id"), each["event"]) for each in events] == [
            ("3.0", "output"),
            ("4.", "undone"),
            (None, "end"),
        ]
        assert json.loads(events[0]["data"])["message"]["fields"] == {"amount": 5}
        await http.get("/outputs?after=1.1")
        assert client.asked[1] == ("", "1.1")


async def test_what_fails_at_once_is_no_stream_and_what_fails_later_is_an_event() -> None:
    async with gateway(Said([], errors.NotFoundError("deleted"))) as http:
        found = await http.get("/outputs")
        assert (found.status_code, found.json()["detail"]) == (404, "deleted")
    async with gateway(Said(OUTPUTS, errors.CoordinatorUnavailableError("gone"))) as http:
        assert (await http.get("/outputs")).text.endswith('event: failure\ndata: {"detail":"gone"}\n\n')


# -- about itself ------------------------------------------------------------------------------------------------------


async def test_the_document_names_what_the_fleet_takes() -> None:
    async with fleet_and_client() as (_, client), gateway(client) as http:
        found = (await http.get("/openapi.json")).json()
        assert set(found["paths"]) == {"/outputs/{topic}", "/agents/{agent}/Paid", "/agents/{agent}/Closed"}
        body = found["paths"]["/agents/{agent}/Paid"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        paid = found["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        assert paid["required"] == ["amount"] and paid["properties"]["amount"] == {"type": "integer"}
    assert "/agents/{agent}/{message}" in openapi_of(None)["paths"] and issubclass(Paid, snapline.Message)
