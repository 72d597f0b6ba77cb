"""The research team on real processes, whose hosts are killed in the middle of plans of twenty steps."""

import os
from functools import partial
from pathlib import Path

import pytest
from tests.integration.running import running

from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.examples import research_team
from snapline.examples.language_model import Call, read_calls
from snapline.messages.status import FleetStatus
from snapline.storage.store.store import Store

STEPS = 20
CALLS = 2 * (STEPS + 1)
"""For two topics: a note on each article, and the summary."""

KILLED_AT = (9, 31)
"""Calls that have begun then."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", [pytest.param("chandy-lamport", marks=pytest.mark.slow), "hmnr"])
async def test_no_finished_call_of_the_model_is_made_again(data_dir: Path, protocol: str) -> None:
    arguments = {"topics": "checkpoint,effect", "protocol": protocol, "pause": "0.03"}
    await check_run(data_dir, arguments)


@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_the_model_itself_reads_foldoc(data_dir: Path) -> None:
    """`make test-llm`: a real model, a real dictionary. What it says is its own affair; that it is not asked twice is ours."""
    pytest.importorskip("xllamacpp")
    dictionary = os.environ.get("SNAPLINE_FOLDOC", "foldoc")
    arguments = {"topics": "checkpoint,protocol", "dictionary": dictionary, "model": "smollm2"}
    await check_run(data_dir, arguments)


async def check_run(data_dir: Path, arguments: dict[str, str]) -> None:
    """Both hosts are killed twice; each topic has its report in the end."""
    calls = data_dir.with_name("calls")
    calls.touch()
    arguments |= {"calls": str(calls)}
    async with running(data_dir, "snapline.examples.research_team:fleet", arguments, hosts=2) as fleet:
        for count in KILLED_AT:
            await fleet.until(partial(has_asked, calls, count), 500)
            await fleet.recovered_from("h1", "h2")
        await fleet.end(500)
        recoveries = len(await fleet.recoveries())  # more than ours, where loading a model keeps a host silent
    check_reports(data_dir, arguments)
    check_calls(read_calls(calls), recoveries)


def has_asked(calls: Path, count: int, now: FleetStatus) -> bool:
    return len(begun(read_calls(calls))) >= count


def begun(calls: list[Call]) -> list[str]:
    return [call.question for call in calls if not call.answer]


def check_reports(data_dir: Path, arguments: dict[str, str]) -> None:
    store = Store.open(data_dir / "store")
    state = load_cut(store, store.epochs()[-1], research_team.fleet(**arguments)).states["planner"]
    assert isinstance(state, research_team.Plans)
    assert list(state.reports) == state.topics
    for topic, report in state.reports.items():
        assert report.read[0] == topic and len(report.read) == len(set(report.read)) == STEPS
        assert report.text


def check_calls(calls: list[Call], recoveries: int) -> None:
    """Only what was under way at a failure may be asked again: one question, as the plan asks one at a time."""
    asked = begun(calls)
    assert len(set(asked)) == CALLS
    again = [number for number, question in enumerate(asked) if question in asked[:number]]
    assert all(asked[number] == asked[number - 1] for number in again), again
    assert len(again) <= recoveries
