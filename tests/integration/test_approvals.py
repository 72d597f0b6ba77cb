"""People decide on what agents of real processes ask, by the command line, while hosts and leaders are killed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.fleets import approving
from tests.integration.processes import Outcome, snapline
from tests.integration.running import running
from tests.integration.secured import running_secured

from snapline.client.client import Certificates, Client

pytestmark = pytest.mark.timeout(240)

FLEET = "tests.integration.fleets.approving:fleet"


class Answer(msgspec.Struct):
    """The clerk's answer, as a client gets it."""

    type: str
    fields: approving.Decided


Command = Callable[..., Any]


async def the_open_one(command: Command) -> dict[str, Any]:
    """Wait until one approval is open, and return it."""
    while True:
        listed: Outcome = await command("list", "-o", "json")
        assert listed.code == 0, listed.err
        if listed.rows("approvals"):
            (found,) = listed.rows("approvals")
            return found
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_an_approval_outlives_its_host_and_is_decided_once(data_dir: Path, recovery: str) -> None:
    notes = data_dir.with_name("notes")
    notes.touch()

    async def command(*arguments: str) -> Outcome:
        return await snapline("approval", *arguments, "--data-dir", data_dir)

    arguments = {"notes": str(notes), "recovery": recovery}
    async with running(data_dir, FLEET, arguments, hosts=2) as fleet:
        await fleet.until(lambda now: now.phase == "running")
        async with await Client.connect(data_dir=data_dir) as client:
            asking = asyncio.create_task(client.ask("clerk0", approving.Refund(17, 1200), timeout_s=120))
            first = await the_open_one(command)
            assert (first["agent"], first["title"]) == ("clerk0", "refund above 1,000")
            assert first["details"] == {"order": 17, "amount": 1200} and 3500 < first["expires_s"] <= 3600
            await fleet.until_more_epochs()
            await fleet.recovered_from("h1")
            again = await the_open_one(command)
            assert again["id"] == first["id"], "the same question of the same history"
            wrong = await command("grant", "0123456789")
            assert (wrong.code, "no agent waits for approval" in wrong.err) == (4, True)
            answers = [
                command("grant", first["id"][:12], "--by", "ada", "--note", "fine"),
                command("deny", first["id"], "--by", "bob"),
            ]
            outcomes = await asyncio.gather(*answers)
            granted = outcomes[0].code == 0
            assert sorted(outcome.code for outcome in outcomes) in ([0, 2], [0, 4])
            loser = outcomes[granted]
            assert "decided already" in loser.err or "no agent waits" in loser.err
            await fleet.recovered_from("h1", "h2")
            reply = (await asking).message
            expected = approving.Decided(True, "ada", "fine") if granted else approving.Decided(False, "bob", "")
            assert msgspec.convert(reply, Answer).fields == expected
            assert (await client.approvals()) == []
    assert notes.read_text().splitlines() == (["17"] if granted else [])


@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_an_answer_is_final_before_the_agent_has_handled_its_earlier_inputs(
    data_dir: Path, recovery: str
) -> None:
    notes = data_dir.with_name("notes")
    notes.touch()

    async def command(*arguments: str) -> Outcome:
        return await snapline("approval", *arguments, "--data-dir", data_dir)

    async with running(data_dir, FLEET, {"notes": str(notes), "recovery": recovery}, hosts=1) as fleet:
        await fleet.until(lambda now: now.phase == "running")
        async with await Client.connect(data_dir=data_dir) as client:
            for order in (17, 18, 19):
                await client.send("clerk0", approving.Refund(order, 1200), f"refund-{order}")
            for _ in range(3):
                found = await the_open_one(command)
                answered = await command("grant", found["id"], "--timeout", "20")
                assert answered.code == 0, answered.err
            reply = await client.ask("clerk0", approving.Refund(20, 1), "refund-20", timeout_s=60)
            assert reply.message
    assert notes.read_text().splitlines() == ["17", "18", "19", "20"]


async def test_with_certificates_approvers_answer_and_viewers_do_not_while_the_leader_dies(data_dir: Path) -> None:
    certificates, notes = data_dir.with_name("certificates"), data_dir.with_name("notes")
    notes.touch()

    def trust(owner: str) -> list[str]:
        own = f"{certificates}/{owner}"
        return ["--tls-cert", f"{own}.crt", "--tls-key", f"{own}.key", "--tls-ca", f"{certificates}/ca.crt"]

    async def command(*arguments: str, role: str = "approver") -> Outcome:
        return await snapline("approval", *arguments, "--data-dir", data_dir, *trust(f"{role}-{role}"))

    async with running_secured(data_dir, certificates, FLEET, {"notes": str(notes)}, hosts=1, coordinators=3) as fleet:
        own = Certificates(
            certificates / "client-client.crt", certificates / "client-client.key", certificates / "ca.crt"
        )
        await fleet.until(lambda now: now.phase == "running")
        async with await Client.connect(data_dir=data_dir, tls=own) as client:
            asking = asyncio.create_task(client.ask("clerk0", approving.Refund(18, 5000), timeout_s=120))
            found = await the_open_one(command)
            refused = await command("grant", found["id"], role="viewer")
            assert (
                refused.code == 2
                and "effects and dead letters needs the role approver or operator or admin" in refused.err
            )
            leader = await fleet.until_led()
            answering = asyncio.create_task(command("grant", found["id"], "--by", "somebody"))
            fleet.local.kill(leader)
            answered = await answering
            assert answered.code == 0, answered.err
            reply = (await asking).message
            assert "approver" in str(reply) and "somebody" not in str(reply), "the name is that of the certificate"
    assert notes.read_text().splitlines() == ["18"]
