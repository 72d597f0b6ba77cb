"""Inputs bring the trace in which their caller stands: by a real client, a real gateway, and a real host's service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.client.fake_fleet import fleet_and_client
from tests.client.fake_host import Book, Clerk, Paid

import snapline
from snapline.agent_runtime.message_encoding import (
    Traceparent,
    encode_message,
    read_tail,
    tail_of,
    with_tail,
    without_tail,
)
from snapline.client.sends_and_asks import current_tail
from snapline.gateway.app import Gateway, openapi_of

PLAIN = encode_message(Paid(5))
CALLER = Traceparent(0xA, 0xB)


@contextmanager
def within(flags: int) -> Iterator[None]:
    """A span of the caller's."""
    trace = pytest.importorskip("opentelemetry.trace", reason="needs OpenTelemetry: pip install 'snapline[otel]'")
    context = trace.SpanContext(CALLER.trace, CALLER.span, False, trace.TraceFlags(flags))
    with trace.use_span(trace.NonRecordingSpan(context)):
        yield


def payload_of(fleet: Any, key: str) -> bytes:
    _, payload = fleet.books.taken["a"][key]
    assert isinstance(payload, bytes)
    return payload


@pytest.mark.parametrize("message", [Paid(5), ("Paid", {"amount": 5})])
async def test_an_input_brings_its_callers_trace(message: object) -> None:
    async with fleet_and_client() as (fleet, client):
        with within(flags=1):
            await client.send("a", message, "followed")
        with within(flags=0):
            await client.send("a", message, "not sampled")
        await client.send("a", message, "of nobody")
    assert payload_of(fleet, "followed") == with_tail(PLAIN, CALLER.tail())
    assert payload_of(fleet, "not sampled") == payload_of(fleet, "of nobody") == PLAIN


HEADER = f"00-{CALLER.trace:032x}-{CALLER.span:016x}-"


@pytest.mark.parametrize(("header", "is_followed"), [(HEADER + "01", True), (HEADER + "00", False), ("odd", False)])
async def test_a_request_over_http_brings_its_header(header: str, is_followed: bool) -> None:
    openapi = openapi_of(snapline.Fleet("books", agents={"a": Clerk(Book())}))
    async with fleet_and_client() as (fleet, client):
        app = Gateway(client, token="", openapi=openapi).app()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            headers = {"traceparent": header, "Idempotency-Key": "k"}
            found = await http.post("/agents/a/Paid", json={"amount": 5}, headers=headers)
            assert found.status_code == 202
            await http.post("/agents/a/Paid", json={"amount": 5}, headers={"Idempotency-Key": "next"})
    payload = payload_of(fleet, "k")
    assert without_tail(payload) == PLAIN == payload_of(fleet, "next")
    assert read_tail(tail_of(payload)) == (CALLER if is_followed else None)


def test_a_program_without_opentelemetry_says_nothing() -> None:
    assert current_tail() == b""
