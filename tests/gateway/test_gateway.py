"""The gateway: requests over HTTP reach agents by a real client and a real host's service, and every error has its status."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from tests.client.fake_fleet import fleet_and_client
from tests.client.fake_host import Book, Clerk, Closed, Paid
from tests.gateway.test_connections import serving

import snapline
from snapline import errors
from snapline.agent_runtime.message_encoding import Output, OutputsReverted, encode_message
from snapline.client.client import Client
from snapline.client.output_reader import OutputsRequest, requested_outputs
from snapline.client.sends_and_asks import ExternalMessage, Receipt
from snapline.gateway import app as app_module
from snapline.gateway.app import (
    NOTHING,
    PART_BYTES,
    STATUSES,
    BusyError,
    Gateway,
    Served,
    _Reader,
    clients_of_people,
    openapi_of,
    problem_of,
)
from snapline.gateway.http_server import check_exposure
from snapline.messages.answers import ReadOutputsReply, ReleasedOutput, ReleasedOutputs
from snapline.messages.approvals import OpenApproval
from snapline.messages.status import FleetStatus
from snapline.security.transport import Security

TOKEN = "a token that nobody guesses"
HERE = "http://127.0.0.1:8080"
FLEET = snapline.Fleet("books", agents={"a": Clerk(Book())})


@asynccontextmanager
async def gateway(
    client: Any, token: str = "", served: Served = NOTHING, base_url: str = HERE
) -> AsyncIterator[httpx.AsyncClient]:
    app = Gateway(client, token=token, openapi=openapi_of(FLEET, served), served=served).app()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url) as http:
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
        drawn = await http.post("/agents/a/Paid", json={"amount": 5})
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
        ("/agents/a/Payed", "{}", 403, "no public handler for messages of type 'Payed' (public are: Paid)"),
        ("/agents/a/Closed", "{}", 403, "@snapline.handler(public=True), or start the gateway with --serve a/Closed"),
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
        found = await http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert found.status_code == status and words in found.json()["detail"], found.json()


@pytest.mark.parametrize(
    "path", ["/outputs/%ff", f"/outputs/{'9' * 5000}", "/outputs?after=%1b", f"/outputs?after={'9' * 5000}.1"]
)
async def test_what_no_output_has_is_not_asked_for(path: str) -> None:
    async with fleet_and_client() as (_, client), gateway(client) as http:
        assert (await http.get(path)).status_code == 400


async def test_the_list_of_the_gateway_serves_handlers_that_are_not_public() -> None:
    async with fleet_and_client() as (_, client), gateway(client, served=Served(["[ab]/Cl*"])) as http:
        assert [(await http.post(f"/agents/{agent}/Closed")).status_code for agent in "abc"] == [202, 202, 403]
        assert (await http.post("/agents/a/Clothed")).status_code == 422, "the agent's own word"
        assert "/agents/{agent}/Closed" in (await http.get("/openapi.json")).json()["paths"]
    for pattern in ("Closed", "/Closed", "a/"):
        with pytest.raises(errors.UsageError, match="use AGENT/TYPE"):
            Served([pattern])


async def test_other_clients_reach_all_handlers() -> None:
    async with fleet_and_client() as (_, client):
        assert (await client.send("a", Closed())).number == 1
        with pytest.raises(errors.HandlerNotPublicError, match="no public handler"):
            await client.send("a", ExternalMessage("Closed", {}, public_only=True))


FOREIGN: dict[str, tuple[str, dict[str, str], int]] = {
    "a name that points here": ("http://evil.example:8080", {}, 421),
    "an address that is not ours": ("http://192.0.2.1:8080", {}, 421),
    "a page of another site": (HERE, {"Sec-Fetch-Site": "cross-site"}, 403),
    "a page of another port": (HERE, {"Sec-Fetch-Site": "same-site"}, 403),
    "an older browser": (HERE, {"Origin": "http://evil.example"}, 403),
    "an older browser and another port": (HERE, {"Origin": "http://127.0.0.1:9000"}, 403),
    "a page without an origin": (HERE, {"Origin": "null"}, 403),
    "a broken origin": (HERE, {"Origin": "http://["}, 403),
}


@pytest.mark.parametrize("case", FOREIGN)
async def test_without_a_token_no_web_page_of_another_site_is_obeyed(case: str) -> None:
    base_url, headers, status = FOREIGN[case]
    async with fleet_and_client() as (fleet, client), gateway(client, base_url=base_url) as http:
        found = await http.post("/agents/a/Paid", json={"amount": 5}, headers=headers)
        assert found.status_code == status and "without --token-file" in found.json()["detail"]
        for path in ("/outputs", "/openapi.json", "/health"):
            assert (await http.get(path, headers=headers)).status_code == status
        assert not fleet.books.taken["a"]
    async with fleet_and_client() as (_, client), gateway(client, TOKEN, base_url=base_url) as http:
        headers = {**headers, "Authorization": f"Bearer {TOKEN}"}
        found = await http.post("/agents/a/Paid", json={"amount": 5}, headers=headers)
        assert found.status_code == 202, "no page can bear the token"


@pytest.mark.parametrize("host", ["localhost", "[::1]", "127.0.0.2", "desk.localhost"])
async def test_programs_and_own_pages_of_this_machine_are_served(host: str) -> None:
    base_url = f"http://{host}:8080"
    async with fleet_and_client() as (_, client), gateway(client, base_url=base_url) as http:
        for headers in ({}, {"Origin": base_url, "Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
            assert (await http.post("/agents/a/Paid", json={"amount": 5}, headers=headers)).status_code == 202
            assert (await http.get("/health", headers=headers)).status_code == 200


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_that_a_page_of_another_site_can_send_is_refused(kind: str) -> None:
    async with fleet_and_client() as (fleet, client), gateway(client) as http:
        headers = {"Content-Type": kind} if kind else {}
        found = await http.post("/agents/a/Paid", content='{"amount": 5}', headers=headers)
        assert found.status_code == 415 and "Content-Type: application/json" in found.json()["detail"]
        assert not fleet.books.taken["a"]
        headers = {"Content-Type": "Application/JSON; charset=utf-8"}
        assert (await http.post("/agents/a/Paid", content='{"amount": 5}', headers=headers)).status_code == 202


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
        errors.UsageError, match=r"--listen 0\.0\.0\.0 can be reached from elsewhere: give --token-file"
    ):
        check_exposure("0.0.0.0", "")
    with pytest.raises(errors.UsageError, match="a token of 5 characters can be guessed"):
        check_exposure("127.0.0.1", "short")


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_one_agents_waiting_asks_are_bounded_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "AGENT_REQUESTS_MAX", 3)
    async with fleet_and_client() as (fleet, client), gateway(client) as http:
        for host in fleet.hosts.values():
            host.hold_asks = []
        asking = [asyncio.create_task(http.post("/agents/a/Paid?answer=final", json={"amount": 5})) for _ in range(3)]
        while sum(len(host.hold_asks or []) for host in fleet.hosts.values()) < 3:
            await asyncio.sleep(0.01)
        busy = await http.post("/agents/a/Paid", json={"amount": 5})
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1")
        assert busy.json()["detail"] == "agent a has 3 requests of this gateway under way"
        assert (await http.post("/agents/b/Paid", json={"amount": 5})).status_code == 202
        for host in fleet.hosts.values():
            held, host.hold_asks = host.hold_asks or [], None
            for let_go in held:
                let_go()
        assert [found.status_code for found in await asyncio.gather(*asking)] == [200] * 3
        assert (await http.post("/agents/a/Paid", json={"amount": 5})).status_code == 202


async def test_an_ask_ends_when_its_client_has_gone() -> None:
    async with fleet_and_client() as (fleet, client):
        for host in fleet.hosts.values():
            host.hold_asks = []
        made = Gateway(client, token="", openapi={})
        async with serving(made.app()) as place:
            _, writer = await asyncio.open_connection(*place)
            writer.write(
                b"POST /agents/a/Paid?answer=final HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            writer.write(b'Content-Length: 12\r\n\r\n{"amount":5}')
            async with asyncio.timeout(10):
                while not sum(len(host.hold_asks or []) for host in fleet.hosts.values()):
                    await asyncio.sleep(0.01)
                assert made._limits._requests["a"] == 1
                writer.close()
                while made._limits._requests["a"]:
                    await asyncio.sleep(0.01)


async def test_health_asks_the_coordinator_once_a_second() -> None:
    asked: list[int] = []

    class Standing(Client):
        def __init__(self) -> None: ...

        async def status(self) -> FleetStatus:
            asked.append(1)
            await asyncio.sleep(0.01)
            return FleetStatus(phase="running")

    async with gateway(Standing(), TOKEN) as http:
        found = await asyncio.gather(*[http.get("/health") for _ in range(20)])
    assert [each.json() for each in found] == [{"phase": "running"}] * 20 and len(asked) == 1


async def test_bodies_under_way_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "AGENT_BYTES_MAX", 30)
    monkeypatch.setattr(app_module, "BYTES_MAX", 40)
    counted = app_module.RequestLimits()
    with counted.request("a") as take_of_a, counted.request("a") as again, counted.request("b") as take_of_b:
        take_of_a(30)
        with pytest.raises(BusyError, match="agent a has 30 bytes of requests"), counted.request("a") as more:
            more(1)
        take_of_b(10)
        with pytest.raises(BusyError, match="this gateway has 40 bytes of requests"), counted.request("c") as more:
            more(1)
        again(0)
    with counted.request("a") as take_of_a:
        take_of_a(30)


async def test_a_body_becomes_no_objects_in_the_gateway() -> None:
    given: list[Any] = []

    class Taking(Client):
        def __init__(self) -> None: ...

        async def send(self, agent: str, message: Any, key: str | None = None, timeout_s: float = 1) -> Receipt:
            given.append(message.fields)
            return Receipt(agent, 1, "k")

    async with gateway(Taking()) as http:
        headers = {"Content-Type": "application/json"}
        assert (await http.post("/agents/a/Paid", content="[" + "[]," * 9 + "[]]", headers=headers)).status_code == 202
    assert isinstance(given[0], msgspec.Raw), "8 million empty lists in 16 MiB would take 500 MiB"


async def test_readers_of_outputs_are_bounded_and_one_that_goes_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "STREAMS_MAX", 2)
    client = Endless()
    async with gateway(client) as http:
        reading = [asyncio.create_task(http.get("/outputs")) for _ in range(2)]
        while client.readers < 2:
            await asyncio.sleep(0.01)
        busy = await http.get("/outputs/bills")
        assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1")
        assert busy.json()["detail"] == "this gateway has 2 readers of outputs"
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
        assert client.readers == 0
        async with gateway(Said(OUTPUTS)) as other:
            for _ in range(3):
                assert (await other.get("/outputs")).status_code == 200


async def test_a_large_output_goes_in_parts() -> None:
    reader = _Reader(Said([output_of({"note": "x" * 1_000_000})]).outputs())
    parts = [part async for part in reader.events()]
    assert max(len(part) for part in parts) == PART_BYTES and b"".join(parts).count(b"x") > 999_999


class Pages:
    """A coordinator that has a page of this output for ever. `count`: pages that were asked for."""

    def __init__(self, message: snapline.Message) -> None:
        self.message = message
        self.count = 0

    async def read_outputs(self, cursor: str, topic: str, wait_s: float, limit_s: float) -> ReadOutputsReply:
        self.count += 1
        output = ReleasedOutput("a", self.count, "bills", encode_message(self.message), 1, f"{self.count}.1")
        return ReadOutputsReply((ReleasedOutputs(self.count, None, (output,)),), output.cursor)


class Note(snapline.Message):
    text: str
    lists: tuple[list[int], ...] = ()


@pytest.mark.parametrize(
    ("message", "pages"),
    [
        (Note("x"), 2),
        (Note("x" * 2**22), 1),
        (Note("x" * (15 * 2**20)), 1),
        pytest.param(Note("", ([],) * 2**21), 2, marks=pytest.mark.slow),
    ],
    ids=["small", "4 MiB", "15 MiB", "2 million lists"],
)
async def test_a_reader_that_takes_nothing_costs_no_more_than_32_mib(message: Note, pages: int) -> None:
    made = Pages(message)
    wanted = OutputsRequest("", "", "", msgspec.Raw, True, 10.0)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        reader = _Reader(requested_outputs(lambda: made, wanted))  # type: ignore[arg-type, return-value]  # all that is asked of one
        events = reader.events()
        head, part = await anext(events), await anext(events)
        for _ in range(5):
            await asyncio.sleep(0)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert head.startswith(b"id: 1.1") and part and made.count == pages
    assert taken < 32 * 1024 * 1024, f"{taken:,} bytes"
    await reader.close()


# -- outputs -----------------------------------------------------------------------------------------------------------


class Said(Client):
    """A client whose coordinator has these outputs, and fails then."""

    def __init__(self, said: list[Output | OutputsReverted], error: Exception | None = None) -> None:
        self.said, self.error = said, error
        self.asked: list[tuple[str, str]] = []

    async def outputs(self, topic: str = "", *, after: str = "", **rest: Any) -> Any:
        self.asked.append((topic, after))
        for each in self.said:
            await asyncio.sleep(0)
            yield each
        if self.error is not None:
            raise self.error


class Endless(Client):
    """A client whose coordinator has nothing yet. `readers`: how many wait."""

    def __init__(self) -> None:
        self.readers = 0

    async def outputs(self, topic: str = "", *, after: str = "", **rest: Any) -> Any:
        self.readers += 1
        try:
            await asyncio.Event().wait()
            yield None
        finally:
            self.readers -= 1


def output_of(fields: object) -> Output:
    """As the gateway wants them: fields of MessagePack."""
    return Output("a", 1, "bills", {"type": "Paid", "fields": msgspec.Raw(msgspec.msgpack.encode(fields))}, "3.0", 3)


OUTPUTS: list[Output | OutputsReverted] = [
    output_of({"amount": 5}),
    OutputsReverted(2, (3,), "4."),
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
        assert set(found["paths"]) == {"/outputs/{topic}", "/agents/{agent}/Paid"}
        body = found["paths"]["/agents/{agent}/Paid"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        paid = found["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        assert paid["required"] == ["amount"] and paid["properties"]["amount"] == {"type": "integer"}
    assert "/agents/{agent}/{message}" in openapi_of(None)["paths"] and issubclass(Paid, snapline.Message)


# -- approvals ---------------------------------------------------------------------------------------------------------


class People(Client):
    """A client for a person, of a fleet that has one open approval."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.answers: list[tuple[str, str, bool, str]] = []
        self.error: Exception | None = None

    @asynccontextmanager
    async def open(self, token: str) -> AsyncIterator[Client]:
        self.tokens.append(token)
        yield self

    async def approvals(self) -> list[OpenApproval]:
        return [OpenApproval("a" * 32, "clerk", "h1", "refund", {"order": 17}, 90.0, 600.0)]

    async def answer_approval(
        self, agent: str, approval: str, *, is_granted: bool, note: str = "", timeout_s: float = 30.0
    ) -> str:
        if self.error is not None:
            raise self.error
        self.answers.append((agent, approval, is_granted, note))
        return "taken"


@asynccontextmanager
async def answering(people: People) -> AsyncIterator[httpx.AsyncClient]:
    app = Gateway(people, token="", openapi=openapi_of(None, has_approvals=True), people=people.open).app()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE) as http:
        yield http


async def test_people_list_and_answer_approvals_by_their_tokens() -> None:
    people = People()
    async with answering(people) as http:
        listed = (await http.get("/approvals", headers={"Snapline-Token": "ours"})).json()["approvals"]
        assert (listed[0]["id"], listed[0]["details"], listed[0]["expires_s"]) == ("a" * 32, {"order": 17}, 600.0)
        path = f"/approvals/{listed[0]['id']}"
        given = await http.post(path, json={"is_granted": False, "note": "no"}, headers={"Snapline-Token": "mine"})
        assert given.json() == {"id": "a" * 32, "agent": "clerk", "status": "taken"}
        assert people.answers == [("clerk", "a" * 32, False, "no")] and people.tokens == ["ours", "mine"]
        assert {"/approvals", "/approvals/{id}"} <= set((await http.get("/openapi.json")).json()["paths"])
        people.error = errors.UsageError("it is decided already: granted by ada")
        late = await http.post(path, json={"is_granted": True})
        assert (late.status_code, late.json()["detail"]) == (400, "it is decided already: granted by ada")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/approvals/none", {"is_granted": True}, 404),
        (f"/approvals/{'a' * 32}", {}, 400),
        (f"/approvals/{'a' * 32}", {"is_granted": "yes"}, 400),
        (f"/approvals/{'a' * 32}", {"is_granted": True, "other": 1}, 400),
        (f"/approvals/{'a' * 32}?timeout_s=x", {"is_granted": True}, 400),
    ],
)
async def test_bad_answers_get_one_sentence(path: str, body: dict[str, object], status: int) -> None:
    people = People()
    async with answering(people) as http:
        found = await http.post(path, json=body)
        assert found.status_code == status and found.json()["detail"] and not people.answers


async def test_requests_about_approvals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "PEOPLE_MAX", 0)
    async with answering(People()) as http:
        assert (await http.get("/approvals")).status_code == 503


async def test_a_gateway_that_was_not_told_so_serves_no_approvals() -> None:
    async with gateway(People()) as http:
        assert (await http.get("/approvals")).status_code == 404


@pytest.mark.parametrize("token", ["", "x", "snapline_short", "snapline_" + "a" * 43 + "\u00e9"])
async def test_with_certificates_a_token_of_the_fleet_is_asked_for(token: str) -> None:
    security = Security.tls(authority="ca.crt", certificate="c.crt", key="c.key")
    with pytest.raises(errors.UsageError, match="send your token of the fleet in the header Snapline-Token"):
        async with clients_of_people("127.0.0.1:1", security)(token):
            pass
