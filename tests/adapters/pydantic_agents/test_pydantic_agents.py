"""Agents of Pydantic AI in durable turns: what a recovery runs again, what it finds, and what it costs nobody."""

import asyncio
import contextlib
import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime.test_durable import SEED, Clock
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
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import DONE, FAILED, SegmentEnd, TurnJournal, encode_error, encode_result
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.snapshots.snapshot_cut import load_cut
from snapline.errors import SnaplineError, StepFailedError
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn

pytestmark = [pytest.mark.pydantic_ai, pytest.mark.timeout(240)]


class Turn:
    """A turn that runs an agent; steps and effects are really run, and calls are answered."""

    def __init__(self, agent: Agent[Any, Any], journal: list[JournalEntry] | None = None, **options: Any) -> None:
        begun = SavedTurn("message", "z", b"", SEED, "", journal) if journal is not None else None
        ctx = Context("a", 1, "z", Clock())
        ctx.begin(journal=TurnJournal(SEED, begun))
        self.handler: Any = run(ctx, agent, "hello", **options)
        self.journal: list[JournalEntry] = list(journal or ())
        self.asked: list[list[str]] = []

    def end(self, limit: int = 1000) -> Any:
        """Run to the end, or until so many entries are in the journal (None then)."""
        found: Any = None
        while True:
            try:
                end = self.handler.send(found)
            except StopIteration as over:
                return over.value
            assert isinstance(end, SegmentEnd)
            self.journal += end.entries
            requests, first = end.members or [end.waits], len(self.journal)
            self.asked.append([f"{each.kind} {each.name}" for each in requests])
            works: dict[int, Any] = {**end.works} or {first: end.work}
            entries = [_done(request, works.get(first + n)) for n, request in enumerate(requests)]
            self.journal += entries
            if len(self.journal) > limit:
                self.handler.close()
                return None
            found = entries if end.members else entries[0]


def _done(request: JournalEntry, work: Any) -> JournalEntry:
    if request.kind == "call":
        return JournalEntry(request.kind, request.name, request.digest, DONE, encode_message(team.Report("the second")))
    function = work.function
    key = {"key": "outside"} if request.kind == "effect" else {}
    try:
        result = function(**key)
        value = asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
        return JournalEntry(request.kind, request.name, request.digest, DONE, encode_result(request.name, value))
    except Exception as error:
        return JournalEntry(request.kind, request.name, request.digest, FAILED, encode_error(error))


async def _awaited(found: Any) -> Any:
    return await found


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "notes"
    path.touch()
    yield path


def test_requests_are_steps_and_tools_of_one_response_run_together(notes: Path) -> None:
    turn = Turn(team.boss_of(str(notes)))
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
    first = Turn(team.boss_of(str(notes)))
    result = first.end()
    before = notes.read_text()
    again = Turn(team.boss_of(str(notes)), first.journal)
    repeated = again.end()
    assert again.asked == [] and notes.read_text() == before
    assert repeated.all_messages() == result.all_messages() and repeated.run_id == result.run_id


def test_a_rerun_from_anywhere_asks_for_each_thing_once(notes: Path) -> None:
    whole = Turn(team.boss_of(str(notes)))
    result = whole.end()
    lines = sorted(notes.read_text().splitlines())
    for cut in range(1, len(whole.journal)):
        notes.write_text("")
        first = Turn(team.boss_of(str(notes)))
        assert first.end(cut - 1) is None
        again = Turn(team.boss_of(str(notes)), first.journal)
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

    turn = Turn(agent)
    assert turn.end().output == City(name="Oslo", size=7) and tries == [0, 1]
    again = Turn(agent, turn.journal)
    assert again.end().output == City(name="Oslo", size=7) and tries == [0, 1]


def test_a_model_that_fails_fails_the_step_with_its_error() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(529, "m", "overloaded")

    agent = Agent(FunctionModel(answer), name="r", capabilities=[SnaplineDurability()])
    with pytest.raises(StepFailedError, match="ModelHTTPError: status_code: 529"):
        Turn(agent).end()


def test_retries_of_steps_are_options_of_the_capability() -> None:
    agent = Agent(TestModel(), name="r", capabilities=[SnaplineDurability(model={"retries": 2, "timeout_s": 9})])
    end: Any = Turn(agent).handler.send(None)
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

    assert Turn(agent, deps="Ada").end().output == "you speak for Ada"


# -- a fleet of real processes ----------------------------------------------------------------------------------------------

KILLS = 6


@pytest.mark.parametrize("recovery", ["global", "local"])
async def test_a_team_that_is_killed_reports_the_same_and_pays_once(tmp_path: Path, notes: Path, recovery: str) -> None:
    data_dir, chosen = tmp_path / "data", random.Random(7)
    arguments = {"notes": str(notes), "recovery": recovery}
    name = "tests.adapters.pydantic_agents.team:fleet"
    async with running(data_dir, name, arguments, hosts=2) as fleet:
        for _ in range(KILLS):
            await fleet.until(lambda now: now.phase != "recovering")
            await asyncio.sleep(chosen.random() * 0.3)
            with contextlib.suppress(SnaplineError, ProcessLookupError, KeyError):
                fleet.local.kill(chosen.choice(["h1", "h2"]))
        await fleet.end()
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
