"""Operators act through the view, before a real coordinator whose hosts the test plays: what is shown, what is done, once, and by whom."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.coordinator.grpc_host import GrpcHost
from tests.coordinator.test_doors import Protected
from tests.coordinator.test_server import Running, close, start_fleet
from tests.view.simulated import SimulatedFleet

from snapline.errors import UsageError
from snapline.messages import coordinator_client
from snapline.messages.approvals import OpenApproval
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.wire import path_of
from snapline.security.rpc_authorization import RPC_RULES
from snapline.security.transport import Security
from snapline.storage.store.store import Store
from snapline.view import operator_actions as deeds_module
from snapline.view.action_requests import ROLES, Operators
from snapline.view.fleet_queries import open_fleet_queries
from snapline.view.operator_actions import ActionOutcome, Actions, Fields, ProposedAction
from snapline.view.view_app import View
from snapline.view.watch import FleetWatch

ORIGIN = "http://127.0.0.1:8088"
OURS = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}


class Acting:
    """A browser of an operator."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def form(self, path: str) -> tuple[str, dict[str, str]]:
        """A page of confirmation, and what its form holds."""
        page = await self.http.get(path)
        assert page.status_code == 200, page.text
        return page.text, dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text))

    async def send(self, form: dict[str, str], **fields: str) -> str:
        """Send it; what came of it, in the page's sentence."""
        sent = await self.http.post("/deeds", data={**form, **fields}, headers=OURS)
        assert sent.status_code == 303, sent.text
        page = (await self.http.get(sent.headers["Location"])).text
        found: list[str] = re.findall(r'<p class="strip[^>]*>(.*?)</p>', page)
        return found[0]

    async def refused(self, path: str) -> str:
        page = await self.http.get(path)
        assert page.status_code in (400, 403, 404, 503), page.text
        return page.text


@asynccontextmanager
async def acting(address: str, folder: Path | None = None, security: Security | None = None) -> AsyncIterator[Acting]:
    security = security or Security.loopback()
    async with open_fleet_queries(address, security, "view") as (questions, coordinator):
        operators = Operators(coordinator, folder, has_certificates=security.is_tls)
        view = View(questions, watch=FleetWatch(questions, 0.0), operators=operators)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(view.app()), base_url=ORIGIN) as http:
            yield Acting(http)
        await view.close()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path / "fleet")
    made.path.mkdir()
    yield made
    await made.stop()


async def test_a_snapshot_is_taken_once_however_often_its_form_comes(running: Running) -> None:
    address, client, hosts = await start_fleet(running)
    async with acting(address, running.path) as operator:
        assert 'href="/act/snapshot"' in (await operator.http.get("/act")).text
        page, form = await operator.form("/act/snapshot")
        assert "A snapshot of 4 agents on 2 hosts is taken now." in page
        both = await asyncio.gather(operator.send(form), operator.send(form))
        assert both[0] == both[1] == await operator.send(form) and both[0].startswith("Epoch 1 is complete, in ")
        assert (await client.status()).epochs_completed == 1
        listed = (await operator.http.get("/act")).text
        for link in ("restore?snapshot=1", "tag?snapshot=1", "fork?snapshot=1", "drain?host=h0", "kill?host=h1"):
            assert f'href="/act/{link}"' in listed
        assert 'href="/act/restore?snapshot=1"' in (await operator.http.get("/epochs/1")).text
    await close(client, hosts)


async def test_forms_that_are_not_ours_do_nothing(running: Running) -> None:
    address, client, hosts = await start_fleet(running)
    async with acting(address) as operator, acting(address) as other:
        _, form = await operator.form("/act/snapshot")
        _, others = await other.form("/act/snapshot")
        sent: list[tuple[dict[str, str], dict[str, str]]] = [
            (form, {"Origin": "http://evil.example"}),
            (form, {"Origin": "null"}),
            (form, {"Origin": "http://127.0.0.1:9"}),
            (form, {**OURS, "Sec-Fetch-Site": "cross-site"}),
            (form, {"Sec-Fetch-Site": "none"}),
            (form, {}),
            ({"key": form["key"]}, OURS),
            ({**form, "token": "0" * 64}, OURS),
            ({**form, "token": "ä"}, OURS),
            (others, OURS),
            ({**form, "more": "x" * 5000}, OURS),
        ]
        for data, headers in sent:
            found = await operator.http.post("/deeds", data=data, headers=headers)
            assert (found.status_code, "nothing has been done" in found.text) == (403, True), (data, headers)
        for key in ("", "x", others["key"]):
            found = await operator.http.post("/deeds", data={**form, "key": key}, headers=OURS)
            assert (found.status_code, "nothing has been done" in found.text) == (400, True)
        assert "not confirmed: nothing has been done" in await operator.refused(f"/deeds/{form['key']}")
        for path in ("/deeds", "/act/snapshot"):
            assert (await operator.http.request("PUT", path)).status_code == 405
        assert (await client.status()).epochs_begun == 0
    await close(client, hosts)


async def test_a_kill_is_of_the_run_that_was_shown(running: Running) -> None:
    """Two operators look at the same host; the second one's word must not end the process that has taken its place."""
    address, client, hosts = await start_fleet(running)
    await client.create_snapshot(10)
    async with acting(address) as operator:
        page, first = await operator.form("/act/kill?host=h1")
        assert "The process of host h1 (start 1) ends at once" in page and "2 agents live there" in page
        assert "go back if host h1 fails" in page and "They go back to epoch 1." in page
        _, second = await operator.form("/act/kill?host=h1")
        assert await operator.send(first) == "Start 1 of host h1 is ended: the fleet recovers."
        await hosts[1].until(lambda x: x.HasField("turned_away"))
        await hosts[1].drop()
        hosts[1] = GrpcHost("h1", address, running.open_store(), instance="again")
        await hosts[1].connect()
        await hosts[1].until(lambda x: x.HasField("plan"))
        told = await operator.send(second)
        assert told == "That was not done: start 1 of host h1 is over already: it runs as start 2."
        assert "turned_away" not in hosts[1].kinds()
        assert "No host 'h9' in this fleet" in await operator.refused("/act/kill?host=h9")
        assert (await operator.http.get("/act/tag?snapshot=1")).status_code == 404, "its store is not here"
    await close(client, hosts)


async def test_what_becomes_of_a_snapshot_between_page_and_form(running: Running) -> None:
    address, client, hosts = await start_fleet(running)
    for _ in range(2):
        await client.create_snapshot(10)
    async with acting(address, running.path) as operator:
        page, tag = await operator.form("/act/tag?snapshot=1")
        assert "Epoch 1 was taken 20" in page and "4 agents" in page and "4 messages in transit" in page
        _, again = await operator.form("/act/tag?snapshot=2")
        _, bad = await operator.form("/act/tag?snapshot=2")
        assert await operator.send(tag, name="good") == "Epoch 1 is called good."
        assert "tag good exists already" in await operator.send(again, name="good")
        assert "is no valid tag id" in await operator.send(bad, name="<b>")
        _, untag = await operator.form("/act/untag?name=good")
        _, late = await operator.form("/act/untag?name=good")
        assert await operator.send(untag) == "Epoch 1 is not called good any more."
        _, moved = await operator.form("/act/tag?snapshot=2")
        await operator.send(moved, name="good")
        assert "somebody has moved or removed it" in await operator.send(late), "it names another epoch now"
        for verb, told in (("pin", "Epoch 2 is pinned."), ("unpin", "Epoch 2 is not pinned any more.")):
            assert await operator.send((await operator.form(f"/act/{verb}?snapshot=2"))[1]) == told
        _, pin = await operator.form("/act/pin?snapshot=1")
        running.open_store().delete_epoch(1)
        assert (await operator.send(pin)).startswith("That was not done: epoch 1 is not in the store")
        assert "There is no snapshot" in await operator.refused("/act/pin?snapshot=1")
    await close(client, hosts)


async def test_the_fleet_goes_back_once_and_only_from_where_it_was_shown(running: Running) -> None:
    address, client, hosts = await start_fleet(running)
    for _ in range(3):
        await client.create_snapshot(10)
    async with acting(address) as operator:
        page, form = await operator.form("/act/restore?snapshot=2")
        assert "All 4 agents of the fleet go back" in page and "Epoch 3 is discarded then." in page
        _, second = await operator.form("/act/restore?snapshot=1")
        told = await operator.send(form, reason="<b>wrong</b>", inputs="drop")
        assert told == "The fleet goes back to epoch 2 by plan 2; epoch 3 is void."
        assert await operator.send(form) == told and (await client.status()).plan == 2
        assert "runs by plan 2 meanwhile" in await operator.send(second)
        assert "epoch 3 is void" in (await operator.refused("/act/restore?snapshot=3")).lower()
        history: Any = (await client.recovery_history())["recoveries"]
        assert history[-1]["reason"] == "back to epoch 2 on purpose: asked for in a browser <b>wrong</b>"
        assert "<b>wrong" not in (await operator.http.get("/recovery")).text
    await close(client, hosts)


async def test_a_fork_is_made_beside_the_fleet_and_nowhere_else(running: Running) -> None:
    address, client, hosts = await start_fleet(running)
    await client.create_snapshot(10)
    async with acting(address, running.path) as operator:
        names = {
            "../../evil": "is no valid fork id",
            "..": "choose another name",
            running.path.name: "is there already",
        }
        for name, why in names.items():
            _, form = await operator.form("/act/fork?snapshot=1")
            assert why in await operator.send(form, name=name)
        assert [each.name for each in running.path.parent.iterdir()] == [running.path.name]
        told = await operator.send((await operator.form("/act/fork?snapshot=1"))[1], name="what-if")
        beside = running.path.with_name("what-if")
        assert (
            told
            == f"Fork what-if is made in {beside}: 4 agents, 4 messages in transit. Run it with --data-dir {beside}."
        )
        assert Store.open(str(beside / "store")).epochs() == [1]
    await close(client, hosts)


async def test_agents_leave_a_host_and_never_the_last_one(running: Running) -> None:
    address, client, hosts = await start_fleet(running)
    async with acting(address) as operator:
        page, form = await operator.form("/act/drain?host=h0")
        assert "2 agents of host h0 move to h1" in page
        _, other = await operator.form("/act/drain?host=h1")
        assert (
            await operator.send(form)
            == "Host h0 is marked, and its agents leave it: the fleet's page shows when it has none."
        )
        assert [x.is_drained for x in (await client.status()).hosts] == [True, False]
        assert "no other host would be left" in await operator.send(other), "two operators at once"
        assert "No other host would be left" in await operator.refused("/act/drain?host=h1")
        await operator.send((await operator.form("/act/resume?host=h0"))[1])
        assert [x.is_drained for x in (await client.status()).hosts] == [False, False]
    await close(client, hosts)


async def test_when_nobody_answers_nothing_is_said_to_be_done(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_client, "PATIENCE_S", 0.0)
    address, client, hosts = await start_fleet(running)
    async with acting(address) as operator:
        _, form = await operator.form("/act/snapshot")
        await close(client, hosts)
        await running.stop()
        told = await operator.send(form)
        assert told.startswith("Nobody knows whether that was done: no coordinator answers at")
        assert "no coordinator answers" in (await operator.refused("/act/snapshot")).lower()


async def test_a_view_acts_as_far_as_its_own_role_goes_and_the_book_has_it(running: Running, tmp_path: Path) -> None:
    fleet = Protected(running, tmp_path)
    await fleet.start()
    async with acting(fleet.address, running.path, fleet.security("viewer", "victor")) as viewer:
        assert "Actions" not in (await viewer.http.get("/")).text
        for path in ("/act", "/act/snapshot"):
            found = await viewer.http.get(path)
            assert found.status_code == 403 and "this view is viewer to the fleet" in found.text.lower()
        sent = await viewer.http.post("/deeds", data={"token": "x", "key": "x"}, headers=OURS)
        assert sent.status_code == 403
    async with acting(fleet.address, None, fleet.security("operator", "olga")) as operator:
        assert 'href="/act"' in (await operator.http.get("/")).text
        _, form = await operator.form("/act/snapshot")
        assert (await operator.send(form)).startswith("No epoch has begun: "), "no host has come"
    admin = CoordinatorClient(fleet.address, fleet.security("admin", "ada"))
    assert [(x.name, x.call) for x in (await admin.read_audit(10)).calls] == [("olga", "CreateSnapshot")]
    await admin.close()


def test_the_roles_that_act_are_those_of_the_doors() -> None:
    for call in ("CreateSnapshot", "Restore", "MoveAgents", "EndHost"):
        assert RPC_RULES[path_of(call)].roles == ROLES


async def test_a_view_that_was_not_told_so_has_no_actions() -> None:
    view = View(SimulatedFleet())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(view.app()), base_url=ORIGIN) as http:
        assert "Actions" not in (await http.get("/")).text
        for path in ("/act", "/act/snapshot", "/deeds/x"):
            assert (await http.get(path)).status_code == 404
        assert (await http.post("/deeds", headers=OURS)).status_code == 404
    await view.close()


async def test_hostile_names_are_text_in_what_is_asked_and_told() -> None:
    fleet, script = SimulatedFleet(), "<script>alert(1)</script>"
    fleet.more = {
        "fleet": script,
        "hosts": [{"host": script, "state": "alive", "agents": 1}, {"host": "b", "state": "alive"}],
    }
    coordinator = CoordinatorClient("127.0.0.1:1")
    view = View(fleet, operators=Operators(coordinator, None, has_certificates=False))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(view.app()), base_url=ORIGIN) as http:
        for path in ("/act/snapshot", f"/act/drain?host={script}", f"/act/kill?host={script}x", f"/act/{script}"):
            page = (await http.get(path)).text
            assert "<script>" not in page and "&lt;script&gt;" in page
    await view.close()
    await coordinator.close()


# -- what was proposed -------------------------------------------------------------------------------------------------


def counting(done: list[Fields]) -> ProposedAction:
    async def do(fields: Fields) -> ActionOutcome:
        done.append(fields)
        return ActionOutcome("done")

    return ProposedAction("t", "b", (), do)


async def test_a_page_that_is_not_known_any_more_does_nothing() -> None:
    deeds, done = Actions(kept_max=2), list[Fields]()
    keys = [deeds.propose("me", counting(done)) for _ in range(3)]
    with pytest.raises(UsageError, match="too old"):
        await deeds.do("me", keys[0], {})
    with pytest.raises(UsageError, match="not made for you"):
        await deeds.do("you", keys[1], {})
    await deeds.do("me", keys[1], {"not asked for": "x"})
    assert done == [{}]
    deeds.propose("me", counting(done))
    with pytest.raises(UsageError, match="too old"):
        await deeds.do("me", keys[1], {})
    assert len(done) == 1, "what was done and forgotten is not done again"


async def test_what_takes_long_is_under_way_and_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deeds_module, "WAIT_S", 0.0)
    deeds, gate, begun = Actions(kept_max=1), asyncio.Event(), list[int]()

    async def do(_fields: Fields) -> ActionOutcome:
        begun.append(1)
        await gate.wait()
        return ActionOutcome("done")

    key = deeds.propose("", ProposedAction("t", "b", (), do))
    for _ in range(2):
        await deeds.do("", key, {})
    assert deeds.outcome("", key)[1] is None
    with pytest.raises(UsageError, match="1 actions are under way"):
        deeds.propose("", ProposedAction("t", "b", (), do))
    gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    found = deeds.outcome("", key)[1]
    assert found == ActionOutcome("done") and begun == [1]


# -- approvals ---------------------------------------------------------------------------------------------------------


class People:
    """Approvals that agents ask, and the answers that were given."""

    def __init__(self) -> None:
        script = "<script>alert(1)</script>"
        self.open = [
            OpenApproval("a" * 32, "clerk", "h1", f"refund {script}", {"order": 17, "to": script}, 90.0, 600.0),
            OpenApproval("b" * 32, "clerk2", "h1", "close the books", None, 5.0),
        ]
        self.answers: list[tuple[str, str, bool, str]] = []

    async def approvals(self) -> list[OpenApproval]:
        return self.open

    async def answer_approval(self, agent: str, approval: str, *, is_granted: bool, note: str) -> str:
        self.answers.append((agent, approval, is_granted, note))
        self.open = [each for each in self.open if each.id != approval]
        return "kept" if agent == "clerk2" else "taken"


@asynccontextmanager
async def answering(people: People, role: str = "") -> AsyncIterator[Acting]:
    """A view that answers approvals, of a fleet that calls it by this role."""
    fleet, coordinator = SimulatedFleet(), CoordinatorClient("127.0.0.1:1")
    fleet.more = {"caller_role": role}
    fleet.approvals = msgspec.to_builtins(people.open)
    operators = Operators(coordinator, None, has_certificates=bool(role), people=people)
    view = View(fleet, watch=FleetWatch(fleet, 0.0), operators=operators)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(view.app()), base_url=ORIGIN) as http:
        yield Acting(http)
    await view.close()
    await coordinator.close()


@pytest.mark.parametrize("role", ["", "approver", "operator"])
async def test_an_approval_is_answered_once_with_what_was_seen(role: str) -> None:
    people = People()
    async with answering(people, role) as person:
        listed = (await person.http.get("/waiting")).text
        assert "<script>alert" not in listed and "close the books" in listed and "10 min" in listed
        assert f'href="/act/grant?id={"a" * 32}"' in listed and f'href="/act/deny?id={"b" * 32}"' in listed
        page, form = await person.form(f"/act/grant?id={'a' * 32}")
        assert "<dt>order</dt><dd>17</dd>" in page and "<script>alert" not in page
        _, denial = await person.form(f"/act/deny?id={'b' * 32}")
        both = await asyncio.gather(person.send(form, note="fine"), person.send(form, note="again"))
        assert both[0] == both[1] == "Granted: agent clerk goes on with that."
        assert (await person.send(denial)).endswith("when it asks again, after a recovery.")
        assert people.answers == [("clerk", "a" * 32, True, "fine"), ("clerk2", "b" * 32, False, "")]
        assert "No agent waits for that any more" in await person.refused(f"/act/grant?id={'a' * 32}")


async def test_an_approver_answers_and_does_nothing_else_and_a_viewer_not_even_that() -> None:
    async with answering(People(), "approver") as person:
        assert "This view is approver to the fleet" in await person.refused("/act/snapshot")
        assert "This view is approver to the fleet" in await person.refused("/act")
    async with answering(People(), "viewer") as person:
        assert "/act/" not in (await person.http.get("/waiting")).text
        assert "takes approver or operator or admin" in await person.refused(f"/act/grant?id={'a' * 32}")
