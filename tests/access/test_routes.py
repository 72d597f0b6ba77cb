"""Every route of HTTP by every caller, with a token and without, and metrics by every certificate, is as the table says."""

import asyncio
from urllib.parse import urlencode

import httpx
from tests.access.served import TOKEN
from tests.access.table import GATEWAY, METRICS_READERS, STRANGERS, VIEW, Route
from tests.access.world import SERVERS, World, read_metrics
from tests.integration.processes import LIMIT_S

WITH_TOKEN = {
    "nobody": {},
    "wrong": {"Authorization": "Bearer another token of that kind"},
    "ok": {"Authorization": f"Bearer {TOKEN}"},
}
WITHOUT = {
    "this_machine": {},
    "other_name": {"Host": "machine.example"},
    "other_site": {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"},
}
"""Caller, as a column of the table → what its requests bear."""


FORM, JSON = {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "application/json"}


async def status(http: httpx.AsyncClient, route: Route, headers: dict[str, str]) -> int:
    """Of one request; a stream is not read."""
    method, content = route.route.partition(" ")[0], b""
    if method == "POST" and route.example == "/agents/a/Paid":
        headers, content = headers | JSON, b'{"amount": 1}'
    if method == "POST" and route.example == "/approvals/none":
        headers, content = headers | JSON, b'{"is_granted": true}'
    if method == "POST" and route.example == "/sign-in" and headers == WITH_TOKEN["ok"]:
        headers, content = FORM, urlencode({"token": TOKEN}).encode()
    async with http.stream(method, route.example, headers=headers, content=content) as answer:
        return answer.status_code


async def differences(
    place: str, routes: tuple[Route, ...], callers: dict[str, dict[str, str]], ok: str = "ok"
) -> dict[tuple[str, str], tuple[int, int]]:
    """Route and caller → the status that it got, and the one of the table. `ok`: the column of who has the token."""
    asked = [(route, name) for route in routes for name in callers]
    async with httpx.AsyncClient(base_url=place, timeout=LIMIT_S) as http:
        found = await asyncio.gather(*(status(http, route, callers[name]) for route, name in asked))
    wanted = [getattr(route, ok if name == "ok" else name) or route.ok for route, name in asked]
    return {
        (route.route, name): (got, right)
        for (route, name), got, right in zip(asked, found, wanted, strict=True)
        if got != right
    }


async def test_the_gateway_and_the_view_serve_whom_the_table_says(secured: World, plain: World) -> None:
    found = await asyncio.gather(
        *(
            differences(world.places[name], routes, callers)
            for world, callers in ((secured, WITH_TOKEN), (plain, WITHOUT))
            for name, routes in (("gateway", GATEWAY), ("view of operator", VIEW))
        ),
        differences(secured.places["view of viewer"], VIEW, WITH_TOKEN, ok="as_viewer"),
    )
    assert found == [{}] * 5


# ---- metrics --------------------------------------------------------------------------------------------------------


async def test_metrics_are_for_whom_the_table_says(secured: World, plain: World) -> None:
    for name in SERVERS.values():
        assert await read_metrics(plain, plain.callers["plaintext"], name) == 200
        found = {
            each: await read_metrics(secured, caller, name)
            for each, caller in secured.callers.items()
            if not caller.token
        }
        readers = METRICS_READERS.split()
        assert found == {each: 0 if each in STRANGERS else 200 if each in readers else 403 for each in found}


async def test_approvals_are_for_people_with_tokens_of_the_fleet(secured: World) -> None:
    async with httpx.AsyncClient(base_url=secured.places["gateway"], timeout=LIMIT_S) as http:

        async def asks(caller: str) -> int:
            headers = WITH_TOKEN["ok"] | {"Snapline-Token": secured.callers[caller].token}
            return (await http.get("/approvals", headers=headers)).status_code

        readers = [f"{role} by token" for role in ("viewer", "approver", "operator", "admin")]
        assert [await asks(reader) for reader in readers] == [200] * 4
        assert await asks("revoked token") == 400
