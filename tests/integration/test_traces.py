"""Hosts trace, the command line merges: every checkpoint and every message of a fleet of real processes is there."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.cuts import check_bank
from tests.integration.processes import snapline

from snapline.deploy.local import LocalFleet
from snapline.examples import bank
from snapline.recovery.trace import CheckpointTaken, MessageReceived, MessageSent, read_trace

ARGUMENTS = {"agents": "6", "tokens": "50", "transfers": "60", "period": "0.2"}

TELLERS = {f"teller-{number}" for number in range(6)}


@pytest.mark.timeout(60)
async def test_the_traces_of_all_hosts_make_one_that_can_be_analysed(data_dir: Path) -> None:
    local = LocalFleet(
        data_dir=data_dir, fleet="snapline.examples.bank:fleet", hosts=3, arguments=ARGUMENTS, trace_every=1
    )
    async with local:
        ending = await local.wait(50)
    assert ending.outcome == "stopped"
    merged = data_dir / "merged.jsonl"
    done = await snapline("analyze", data_dir / "traces", "--merged", merged, "-o", "json")
    assert done.code == 0, done
    found: Any = done.json
    trace = read_trace(await asyncio.to_thread(lambda: merged.read_bytes().splitlines()))
    assert set(trace.agents) == TELLERS == set(found["agents"])
    taken = {event.agent for event in trace.events if isinstance(event, CheckpointTaken)}
    assert taken == TELLERS and found["checkpoints"]["basic"] >= ending.epoch * len(TELLERS)
    sent = {event.message for event in trace.events if isinstance(event, MessageSent)}
    received = {event.message for event in trace.events if isinstance(event, MessageReceived)}
    final = check_bank(data_dir, bank.fleet(**ARGUMENTS), tokens=300)[-1]
    passed = sum(60 - account.transfers_left for account in final.states.values() if isinstance(account, bank.Account))
    assert sent == received and len(sent) == passed > 100
    assert found["in_transit"] == [] and set(found["recovery_line"]) == TELLERS
