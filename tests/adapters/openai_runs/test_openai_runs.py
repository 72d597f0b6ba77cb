"""Agents of the OpenAI Agents SDK in durable turns: what a recovery runs again, and what it finds."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.turns import Turn
from tests.integration.cuts import store_of
from tests.integration.processes import snapline
from tests.integration.running import running

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed: make test-adapters")

from agents import Agent
from tests.adapters.openai_runs import desk

from snapline.adapters.openai_agent_runs import run
from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.errors import StepFailedError, UsageError

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(240)]

OPTIONS: dict[str, Any] = {"effects": ("refund",), "in_turn": ("ask_boss",), "run_config": desk.CONFIG}
FLEET = "tests.adapters.openai_runs.desk:fleet"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


def turn_of(notes: Path, journal: Any = None) -> Turn:
    front = desk.front_of(str(notes))
    return Turn(lambda ctx: run(ctx, front, "hello", **OPTIONS), journal, reply=desk.Told("yes"))


def test_requests_of_all_agents_are_steps_and_tools_of_one_response_run_together(notes: Path) -> None:
    turn = turn_of(notes)
    assert turn.end().final_output == desk.EXPECTED
    assert turn.asked == [
        ["step front/model"],
        ["step clerk/model"],
        ["step clerk/look_up", "step clerk/look_up", "call boss"],
        ["step clerk/model"],
        ["effect clerk/refund"],
        ["step clerk/model"],
    ], "these names are in journals: whoever changes them breaks turns that are under way"
    assert "refund 30 outside" in notes.read_text()


def test_a_rerun_asks_nobody_and_ends_with_the_same_items(notes: Path) -> None:
    first = turn_of(notes)
    result, before = first.end(), notes.read_text()
    again = turn_of(notes, first.journal)
    repeated = again.end()
    assert again.asked == [] and notes.read_text() == before
    assert repeated.to_input_list() == result.to_input_list()
    assert repeated.context_wrapper.usage.input_tokens == result.context_wrapper.usage.input_tokens == 28


def test_a_rerun_from_anywhere_asks_for_each_thing_once(notes: Path) -> None:
    whole = turn_of(notes)
    whole.end()
    lines = sorted(notes.read_text().splitlines())
    for cut in range(1, len(whole.journal)):
        notes.write_text("")
        first = turn_of(notes)
        assert first.end(cut - 1) is None
        assert turn_of(notes, first.journal).end().final_output == desk.EXPECTED
        assert sorted(notes.read_text().splitlines()) == lines


def test_a_model_that_fails_fails_the_turn_with_its_error(notes: Path) -> None:
    agent: Agent[Any] = Agent("clerk", model=desk.Answering(str(notes), "clerk", {}))
    with pytest.raises(StepFailedError, match="step 'clerk/model' failed: KeyError"):
        Turn(lambda ctx: run(ctx, agent, "hello", run_config=desk.CONFIG)).end()


def test_unknown_tools_are_refused_in_a_sentence(notes: Path) -> None:
    front = desk.front_of(str(notes))
    with pytest.raises(UsageError, match="agent 'front' has no tool 'refnd'; its tools: ask_boss, look_up, refund"):
        Turn(lambda ctx: run(ctx, front, "hello", effects=("refnd",))).end()


@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_a_desk_that_is_killed_answers_the_same_and_pays_once(tmp_path: Path, notes: Path, recovery: str) -> None:
    data_dir = tmp_path / "data"
    arguments = {"notes": str(notes), "recovery": recovery}
    async with running(data_dir, FLEET, arguments, hosts=2) as fleet:
        await fleet.end_killed(6, random.Random(7), 0.3)
    store = store_of(data_dir)
    state = load_cut(store, store.epochs()[-1], desk.fleet(**arguments)).states["desk"]
    assert isinstance(state, desk.Book) and state.answers == [desk.EXPECTED]
    keys = {line for line in notes.read_text().splitlines() if line.startswith("refund")}
    assert len(keys) == 1, "the service would see one key, however often it is asked"


@pytest.mark.parametrize("seed", range(8))
async def test_the_simulator_crashes_the_hosts_of_the_desk(notes: Path, seed: int) -> None:
    outcome = await snapline(
        *("sim", "run", FLEET, "--arg", f"notes={notes}", "--seed", str(seed), "--no-folder", "-o", "json")
    )
    assert outcome.code == 0 and outcome.json["verdict"] == "pass", outcome.out + outcome.err
    assert "clerk 5" in notes.read_text()
