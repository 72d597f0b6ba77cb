"""Coordinator and hosts started one by one, with mutual TLS; who does not belong here is told why, and ends."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.certificates import Authority
from tests.integration.cuts import check_bank
from tests.integration.fleets import paced_bank
from tests.integration.processes import LIMIT_S, Outcome, Process, ended, snapline, start, together

pytestmark = pytest.mark.timeout(120)

FLEET = "tests.integration.fleets.paced_bank:fleet"


class ByHand:
    """One coordinator that waits for two hosts, and what starts hosts beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.stop = folder / "stop"
        self.authority = Authority(folder / "certificates")
        self.address = ""
        self.processes: list[Process] = []

    async def start_coordinator(self) -> Process:
        options = ("--data-dir", self.folder / "coordinator", "--store", self.store, "--hosts", "2")
        trust = self.authority.options("coordinator", "coordinator")
        process = await self.start("coordinator", "run", "--listen", "127.0.0.1:0", *options, *trust)
        async with asyncio.timeout(LIMIT_S):
            while not self.address:
                with contextlib.suppress(FileNotFoundError):
                    content = (self.folder / "coordinator" / "coordinator.json").read_bytes()
                    self.address = json.loads(content)["address"]
                await asyncio.sleep(0.02)
        return process

    def host_command(
        self, host: str, *, trust: tuple[str | Path, ...] = (), store: Path | None = None, agents: str = "9"
    ) -> tuple[str | Path, ...]:
        trust = trust or self.authority.options("host", host)
        options = ("--coordinator", self.address, "--id", host, "--store", store or self.store, "--fleet", FLEET)
        return ("host", "run", *options, "--arg", f"stop={self.stop}", "--arg", f"agents={agents}", *trust)

    async def start(self, *command: str | Path) -> Process:
        self.processes.append(await start(*command))
        return self.processes[-1]


@pytest.fixture
async def by_hand(tmp_path: Path) -> AsyncIterator[ByHand]:
    made = ByHand(tmp_path)
    yield made
    for process in made.processes:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def last_line(outcome: Outcome) -> str:
    return outcome.err.strip().splitlines()[-1]


async def test_a_fleet_with_certificates_runs_and_turns_strangers_away(by_hand: ByHand, tmp_path: Path) -> None:
    coordinator = await by_hand.start_coordinator()
    first = await by_hand.start(*by_hand.host_command("h1"))
    second = await by_hand.start(*by_hand.host_command("h2"))
    operator = ("--coordinator", by_hand.address, *by_hand.authority.options("operator", "olga"))
    viewer = ("--coordinator", by_hand.address, *by_hand.authority.options("viewer", "victor"))
    created = await snapline("snapshot", "create", *operator)
    while created.code != 0 and coordinator.returncode is None:  # it has not formed yet
        created = await snapline("snapshot", "create", *operator)
    assert created.json["is_complete"] is True

    (tmp_path / "elsewhere").mkdir()
    stranger, other_fleet, other_store, forbidden, status, plaintext = await together(
        by_hand.host_command("h3", trust=by_hand.authority.options("host", "h4")),
        by_hand.host_command("h3", agents="8"),
        by_hand.host_command("h3", store=tmp_path / "elsewhere"),
        ("snapshot", "create", *viewer),
        ("status", *viewer),
        ("status", "--coordinator", by_hand.address),
    )
    assert (stranger.code, other_fleet.code, other_store.code) == (2, 2, 2)
    assert "the certificate says host h4, the caller says host h3" in last_line(stranger)
    assert "host h3 has another definition of fleet 'paced-bank'" in last_line(other_fleet)
    assert "host h3 does not see the coordinator's store" in last_line(other_store)
    assert "--store must be the same shared directory for all" in last_line(other_store)
    assert (forbidden.code, "this certificate may not do that" in forbidden.err) == (2, True)
    assert (status.code, status.json["phase"]) == (0, "running")
    assert (plaintext.code, "speaks TLS, and no certificates are given here" in plaintext.err) == (2, True)

    by_hand.stop.touch()
    codes = [(await ended(process)).code for process in (first, second, coordinator)]
    assert codes == [0, 0, 0]
    check_bank(by_hand.folder, paced_bank.fleet(stop=str(by_hand.stop)), tokens=450)


async def test_who_is_of_another_authority_ends_with_5(by_hand: ByHand, tmp_path: Path) -> None:
    """A host tries for as long as a rotation may need to reach everybody; a person's command says it at once. The fleet has not formed."""
    coordinator = await by_hand.start_coordinator()
    own, foreign = by_hand.authority, Authority(tmp_path / "foreign")
    operator = ("--coordinator", by_hand.address, *own.options("operator", "olga"))
    created, forming = await together(("snapshot", "create", *operator), ("status", *operator))
    assert (created.code, created.json["epoch"], created.json["is_complete"]) == (1, 0, False)
    assert created.json["reason"]
    assert (forming.json["phase"], forming.json["hosts"]) == ("forming", [])
    hosts = [
        by_hand.host_command("h1", trust=foreign.options("host", "h1")),
        by_hand.host_command("h2", trust=foreign.options("host", "h2", authority=own.path)),
        by_hand.host_command("h3", trust=own.options("host", "h3", authority=foreign.path)),
    ]
    asked = ("status", "--coordinator", by_hand.address, *foreign.options("viewer", "victor", authority=own.path))
    *ended_hosts, status = await together(*hosts, asked)
    assert [outcome.code for outcome in (*ended_hosts, status)] == [5] * 4
    for outcome in (*ended_hosts, status):
        assert f"the coordinator at {by_hand.address} and" in last_line(outcome)
        assert "have one authority sign both certificates" in last_line(outcome)
    whys = ["its certificate is not trusted here", "it does not trust ours", "its certificate is not trusted here"]
    assert [why in last_line(outcome) for why, outcome in zip(whys, ended_hosts, strict=True)] == [True] * 3
    coordinator.terminate()
    assert "joins from" not in (await ended(coordinator)).err


@pytest.mark.parametrize(
    "command",
    [
        ("coordinator", "run", "--data-dir", "c", "--store", "s", "--hosts", "1"),
        (
            "host",
            "run",
            "--coordinator",
            "127.0.0.1:1",
            "--id",
            "h1",
            "--store",
            "s",
            "--fleet",
            "snapline.examples.hello:fleet",
        ),
    ],
    ids=["coordinator", "host"],
)
async def test_nobody_listens_to_a_network_without_certificates(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = await snapline(*command, "--listen", "0.0.0.0:0")
    assert outcome.code == 2
    assert last_line(outcome).startswith("snapline: listening on 0.0.0.0:0 without certificates would let anybody")
