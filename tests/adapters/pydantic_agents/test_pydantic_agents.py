"""Agents of Pydantic AI in durable turns: what a recovery runs again, what it finds, and what it costs nobody."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.turns import Turn
from tests.integration.cuts import store_of
from tests.integration.processes import snapline
from tests.integration.running import running

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed: make test-pydantic-ai")

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from tests.adapters.pydantic_agents import team

from snapline.adapters.pydantic_ai import SnaplineDurability, effect_key, run
from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.errors import StepFailedError

pytestmark = [pytest.mark.pydantic_ai, pytest.mark.timeout(240)]


def turn_of(agent: Agent[Any, Any], journal: Any = None, **options: Any) -> Turn:
    return Turn(lambda ctx: run(ctx, agent, "hello", **options), journal, reply=team.Report("the second"))


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "notes"
    path.touch()
    yield path


def test_requests_are_steps_and_tools_of_one_response_run_together(notes: Path) -> None:
    turn = turn_of(team.boss_of(str(notes)))
    assert turn.end().output == team.EXPECTED
    tool = "boss__function_toolset__<agent>.call_tool"
    assert turn.asked == [
        ["step boss__model.request"],
        [*[f"step {tool}:look"] * 3, "call reader"],
        ["step boss__model.request"],
        [f"effect {tool}:pay"],
        ["step boss__model.request"],
    ], "these names are in journals: whoever changes them breaks turns that are under way"
    assert "pay 30 outside" in notes.read_text()


def test_a_rerun_asks_nobody_and_ends_with_the_same_messages(notes: Path) -> None:
    first = turn_of(team.boss_of(str(notes)))
    result = first.end()
    before = notes.read_text()
    again = turn_of(team.boss_of(str(notes)), first.journal)
    repeated = again.end()
    assert again.asked == [] and notes.read_text() == before
    assert repeated.all_messages() == result.all_messages() and repeated.run_id == result.run_id


def test_a_rerun_from_anywhere_asks_for_each_thing_once(notes: Path) -> None:
    whole = turn_of(team.boss_of(str(notes)))
    result = whole.end()
    lines = sorted(notes.read_text().splitlines())
    for cut in range(1, len(whole.journal)):
        notes.write_text("")
        first = turn_of(team.boss_of(str(notes)))
        assert first.end(cut - 1) is None
        again = turn_of(team.boss_of(str(notes)), first.journal)
        assert again.end().output == result.output
        assert sorted(notes.read_text().splitlines()) == lines


def test_outside_of_a_turn_the_capability_changes_nothing(notes: Path) -> None:
    agent = team.reader_of(str(notes))
    assert agent.run_sync("hello").output == "the second"
    assert effect_key() == ""


class City(BaseModel):
    name: str
    size: int


def test_structured_outputs_and_tools_that_ask_for_another_try() -> None:
    tries: list[int] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(tries) < 2:
            return ModelResponse([ToolCallPart("look", {"n": len(tries)}, f"t{len(tries)}")])
        return ModelResponse([ToolCallPart(info.output_tools[0].name, {"name": "Oslo", "size": 7}, "out")])

    agent = Agent(FunctionModel(answer), name="r", output_type=City, capabilities=[SnaplineDurability()])

    @agent.tool_plain(retries=3)
    def look(n: int) -> str:
        tries.append(n)
        if n == 0:
            raise ModelRetry("look closer")
        return "seen"

    turn = turn_of(agent)
    assert turn.end().output == City(name="Oslo", size=7) and tries == [0, 1]
    again = turn_of(agent, turn.journal)
    assert again.end().output == City(name="Oslo", size=7) and tries == [0, 1]


def test_a_model_that_fails_fails_the_step_with_its_error() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(529, "m", "overloaded")

    agent = Agent(FunctionModel(answer), name="r", capabilities=[SnaplineDurability()])
    with pytest.raises(StepFailedError, match="ModelHTTPError: status_code: 529"):
        turn_of(agent).end()


def test_retries_of_steps_are_options_of_the_capability() -> None:
    agent = Agent(TestModel(), name="r", capabilities=[SnaplineDurability(model={"retries": 2, "timeout_s": 9})])
    end: Any = turn_of(agent).handler.send(None)
    assert (end.work.timeout_s, len(end.work.waits_s)) == (9, 2)


def test_an_agent_needs_a_name() -> None:
    with pytest.raises(Exception, match="unique `name` in order to be used with snapline"):
        Agent(TestModel(), capabilities=[SnaplineDurability()])


def test_instructions_and_dependencies_are_the_runs_own() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart(str(messages[0].instructions))])

    agent = Agent(FunctionModel(answer), name="r", deps_type=str, capabilities=[SnaplineDurability()])

    @agent.instructions
    def who(ctx: Any) -> str:
        return f"you speak for {ctx.deps}"

    assert turn_of(agent, deps="Ada").end().output == "you speak for Ada"


# -- a fleet of real processes ----------------------------------------------------------------------------------------------

KILLS = 6


@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_a_team_that_is_killed_reports_the_same_and_pays_once(tmp_path: Path, notes: Path, recovery: str) -> None:
    data_dir = tmp_path / "data"
    arguments = {"notes": str(notes), "recovery": recovery}
    name = "tests.adapters.pydantic_agents.team:fleet"
    async with running(data_dir, name, arguments, hosts=2) as fleet:
        await fleet.end_killed(KILLS, random.Random(7), 0.3)
    store = store_of(data_dir)
    state = load_cut(store, store.epochs()[-1], team.fleet(**arguments)).states["boss"]
    assert isinstance(state, team.Memory) and state.reports == [team.EXPECTED]
    keys = {line for line in notes.read_text().splitlines() if line.startswith("pay")}
    assert len(keys) == 1, "the service would see one key, however often it is asked"


@pytest.mark.parametrize("seed", range(8))
async def test_the_simulator_crashes_the_hosts_of_the_team(notes: Path, seed: int) -> None:
    """With the agents' own models and tools. Its oracles run each turn again by its journal."""
    name, argument = "tests.adapters.pydantic_agents.team:fleet", f"notes={notes}"
    outcome = await snapline("sim", "run", name, "--arg", argument, "--seed", str(seed), "--no-folder", "-o", "json")
    assert outcome.code == 0 and outcome.json["verdict"] == "pass", outcome.out + outcome.err
    assert sum(line.startswith("boss 5") for line in notes.read_text().splitlines()) >= 1
