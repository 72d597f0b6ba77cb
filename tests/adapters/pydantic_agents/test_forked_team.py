"""Forks of a run of the support team, on its recorded answers: no model is called unless something else is asked."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.running import running
from tests.integration.victims import Program

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed: make test-pydantic-ai")

from tests.adapters.pydantic_agents.counted_team import fleet as counted_fleet
from tests.adapters.pydantic_agents.test_support_team import decide, is_paid

import snapline
from snapline.agent_runtime.snapshots.snapshot_forks import Fork, ForkAnswers, ForkRequest, fork_snapshot
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.examples.payments import Book, read_entries
from snapline.examples.support_team import Lead
from snapline.storage.store.store import Store

pytestmark = [pytest.mark.pydantic_ai, pytest.mark.timeout(240)]

TEAM = "tests.adapters.pydantic_agents.counted_team:fleet"
COMPLAINTS = 12


class Team:
    """Runs of the team, each with a folder of its own, and the payment service of all of them."""

    def __init__(self, folder: Path, service: str) -> None:
        self.folder = folder
        self.service = service

    def calls(self, name: str) -> Counter[str]:
        file = self.folder / f"{name}.calls"
        return Counter(file.read_text().split("\n")[:-1] if file.exists() else [])

    def paid(self) -> int:
        return sum(len(entries) for entries in Book(read_entries(self.folder / "payments.jsonl")).standing.values())

    async def run(self, name: str, kills: int = 0, **arguments: str) -> int:
        """Run the team to its end; returns the epoch of a snapshot that was taken meanwhile."""
        given = {"service": self.service, "calls": str(self.folder / f"{name}.calls"), **arguments}
        async with running(self.folder / name, TEAM, {"complaints": str(COMPLAINTS), **given}, hosts=2) as fleet:
            await fleet.until(lambda now: now.phase == "running")
            created = await fleet.client.create_snapshot()
            async with await snapline.Client.connect(data_dir=self.folder / name) as client:
                deciding = asyncio.create_task(decide(client))
                try:
                    for _ in range(kills):
                        await fleet.recovered_from("h1")
                    await fleet.end()
                finally:
                    deciding.cancel()
                    await asyncio.wait([deciding])
        return created.epoch

    def fork(self, epoch: int, name: str, answers: ForkAnswers, *, is_live: bool = False) -> Fork:
        source = Store.open(self.folder / "parent" / "store")
        request = ForkRequest(name=name, answers=answers, is_live=is_live)
        return fork_snapshot(source, epoch, str(self.folder / name / "store"), request)

    def answers(self, name: str) -> dict[int, str]:
        state: Any = open_store(self.folder / name / "store", fleet=counted_fleet("", "", "1")).snapshot("latest")
        found = state.agents["lead"].state
        assert isinstance(found, Lead)
        return found.answers


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    service = Program("snapline.examples.payment_service", tmp_path / "payments.jsonl", serves="--port")
    await service.start()
    try:
        yield Team(tmp_path, service.address)
    finally:
        await service.end()


async def test_a_fork_on_recorded_answers_calls_no_model_and_ends_the_same(team: Team) -> None:
    epoch = await team.run("parent")
    calls, paid = team.calls("parent"), team.paid()
    assert calls["auditor"] == calls["inspector"] == calls["lead 1"] == COMPLAINTS

    fork = team.fork(epoch, "same", "only")
    assert fork.answers > COMPLAINTS and not fork.lost_batches and not fork.effects_refused
    await team.run("same", kills=2)
    assert not team.calls("same") and team.paid() == paid, "nobody was asked, and nobody was paid"
    assert team.answers("same") == team.answers("parent")
    ledger: Any = open_store(team.folder / "same" / "store").outputs("@effects")
    assert {record.message["fields"]["stage"] for record in ledger} == {"recorded"}

    team.fork(epoch, "changed", "parent", is_live=True)
    await team.run("changed", auditor="head of audits")
    changed, answers = team.calls("changed"), team.answers("changed")
    assert changed["auditor"] and not changed["inspector"] and not changed["lead 1"], "it asks only from there on"
    assert sum("Rule 4 applies." in text for text in answers.values()) == changed["auditor"]
    assert team.paid() - paid <= sum(is_paid(order) for order in answers), "and pays anew"
