"""Fleets that run on recorded answers, under faults: each question gets exactly the answer of its occurrence in the agent's surviving history.

The oracle is the agent's own state: it counts what the agent has asked, and goes back with every recovery.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import snapline
from snapline.agent_runtime.durable import argument_digest, encode_result
from snapline.agent_runtime.host import durable_turns, plans, turn_ends
from snapline.agent_runtime.recorded_answers import AskedQuestions, Question
from snapline.agent_runtime.snapshots import answer_collection
from snapline.agent_runtime.snapshots.answer_collection import collect
from snapline.coordinator.service.store_keeper import LogSweeper
from snapline.sim.checking import Options, Subject
from snapline.sim.faults.content_faults import CONTENT_FAULTS, with_content_fault
from snapline.sim.pytest_plugin import Simulation
from snapline.sim.run import run
from snapline.sim.workloads.workload import user_workload
from snapline.sim.world.world import World
from snapline.storage.log.answer_files import RecordedAnswer, RecordedAnswers, encode_export
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, SavedTurn
from snapline.storage.store.store import Store

QUESTIONS, TURNS, OCCURRENCES = 3, 14, 50

NEW = 0
"""Answer of the stub, to which nothing is recorded."""


class Round(snapline.Message):
    """Ask these questions, those of one list at the same time."""

    groups: list[list[int]]


class Asked(msgspec.Struct):
    """State of an agent: how often it has asked each question, and the turns that are left."""

    counts: list[int]
    left: int
    wrong: list[str] = []


def ask(question: int) -> int:
    raise AssertionError("the simulator calls the stub")


def is_recorded(question: int, occurrence: int) -> bool:
    return occurrence % (4 + question) != 0 and occurrence < OCCURRENCES


class Asker(snapline.Agent):
    state: Asked
    retries = 200

    async def on_start(self, ctx: snapline.Context) -> None:
        self.again(ctx)

    def again(self, ctx: snapline.Context) -> None:
        if self.state.left:
            chosen = [int(ctx.random() * 1000) for _ in range(1 + int(ctx.random() * 3))]
            groups = [[(each // (3**place)) % QUESTIONS for place in range(1 + each % 4)] for each in chosen]
            other = "b" if ctx.agent == "a" and ctx.random() < 0.5 else "a"
            ctx.send(other, Round(groups))

    @snapline.handler(durable=True)
    async def on_round(self, message: Round, ctx: snapline.Context) -> None:
        counts = list(self.state.counts)
        for group in message.groups:
            if len(group) == 1:
                durability = "checkpoint" if sum(counts) % 2 else "log"
                found = [await ctx.step("ask", ask, group[0], retries=3, durability=durability)]
            elif sum(group) % 3 == 0:
                first, answer = await ctx.race(*[ctx.step("ask", ask, question, retries=3) for question in group])
                known = [question for question in group if is_recorded(question, counts[question] + 1)]
                if known and group[first] not in known:
                    self.state.wrong.append(f"{ctx.agent}: {group[first]} came before what is recorded, {known}")
                group, found = [group[first]], [answer]
            else:
                found = await ctx.gather(*[ctx.step("ask", ask, question, retries=3) for question in group])
            for question, answer in zip(group, found, strict=True):
                counts[question] += 1
                right = counts[question] if is_recorded(question, counts[question]) else NEW
                if answer != right:
                    self.state.wrong.append(f"{ctx.agent}: question {question}: {answer} instead of {right}")
        self.state.counts = counts
        self.state.left -= 1
        self.again(ctx)


def fleet(recovery: str) -> snapline.Fleet:
    return snapline.Fleet(
        "askers",
        agents={name: Asker(Asked([0] * QUESTIONS, TURNS)) for name in ("a", "b")},
        triggers=[snapline.Every(seconds=0.2)],
        simulate={"ask": lambda question: NEW},
        recovery=recovery,
    )


def nothing_is_wrong(cut: snapline.Cut) -> None:
    for state in cut.states.values():
        assert isinstance(state, Asked) and not state.wrong, state


@pytest.fixture
def answers(tmp_path: Path) -> str:
    """Return the path of recorded answers: the n-th to each question is n."""
    recorded = [
        RecordedAnswer(
            *(agent, "step", "ask", argument_digest("ask", (question,)), occurrence),
            *("done", encode_result("ask", occurrence)),
        )
        for agent in ("a", "b")
        for question in range(QUESTIONS)
        for occurrence in range(1, OCCURRENCES)
        if is_recorded(question, occurrence)
    ]
    file = tmp_path / "recorded.answers"
    file.write_bytes(encode_export(RecordedAnswers(recorded)))
    return str(file)


def check(
    simulation: Simulation, answers: str, recovery: str, *, seeds: int, faults: str, moves: int = 0, restores: int = 0
) -> None:
    simulation.check(
        functools.partial(fleet, recovery),
        seeds=seeds,
        invariant=nothing_is_wrong,
        allow_undecided=True,
        shrink_s=0,
        faults=faults,
        answers=answers,
        moves=moves,
        restores=restores,
        until="4s",
    )


@pytest.mark.parametrize("seeds", [3, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("recovery", ["global", "local"])
@pytest.mark.parametrize("faults", ["crashes", "swarm"])
def test_each_question_gets_the_answer_of_its_occurrence(
    snapline_sim: Simulation, answers: str, faults: str, recovery: str, seeds: int
) -> None:
    """The mutants below are found with the first seed."""
    check(snapline_sim, answers, recovery, seeds=seeds, faults=faults, moves=1)


def test_a_restored_fleet_asks_for_the_same_occurrences_again(snapline_sim: Simulation, answers: str) -> None:
    check(snapline_sim, answers, "global", seeds=4, faults="crashes", restores=2)


def count_by_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    def occurrence(
        self: AskedQuestions, question: Question, journal: list[JournalEntry], members: list[JournalEntry]
    ) -> int:
        return right(self, question, journal, [entry for entry in members if entry.outcome])

    right = AskedQuestions.occurrence
    monkeypatch.setattr(AskedQuestions, "occurrence", occurrence)


def forget_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "AskedQuestions", lambda saved: None)


def count_no_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_ends, "count_questions", lambda shared, agent, entries: None)


def count_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_turns, "count_questions", lambda shared, agent, entries: None)


@pytest.mark.parametrize("mutant", [count_by_completion, forget_counts, count_no_adopted, count_no_turns])
def test_the_oracle_finds_wrong_occurrences(
    snapline_sim: Simulation,
    answers: str,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """In single runs: `check` would run the one that fails three times more, for its report."""
    mutant(monkeypatch)
    asking = functools.partial(fleet, "global")
    options: Options = {"faults": "crashes", "answers": answers, "until": "4s"}
    results = (snapline_sim.run(asking, seed, invariant=nothing_is_wrong, **options) for seed in range(60))
    assert any("nothing_is_wrong" in violation.text for result in results for violation in result.violations)


def test_a_wrong_content_changes_the_longest_text() -> None:
    found = [with_content_fault(answer_of({"text": "a long answer", "n": 1}), how) for how in CONTENT_FAULTS]
    values = [msgspec.msgpack.decode(each.result) for each in found]
    assert values == [
        {"text": "a long", "n": 1},
        {"text_": "a long answer", "n": 1},
        {"text": "I cannot help with that.", "n": 1},
    ]
    assert with_content_fault(answer_of(7), CONTENT_FAULTS[0]) == answer_of(7), "there is no text in it"


class Texts(msgspec.Struct):
    left: int
    texts: list[str] = []


def write(number: int) -> str:
    raise AssertionError("all answers are recorded")


class Reader(snapline.Agent):
    state: Texts

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Round([]))

    @snapline.handler(durable=True)
    async def on_round(self, message: Round, ctx: snapline.Context) -> None:
        try:
            text = await ctx.step("write", write, self.state.left)
        except snapline.StepFailedError as error:
            text = error.error
        self.state.texts.append(text)
        self.state.left -= 1
        if self.state.left:
            ctx.send(ctx.agent, Round([]))


def reading_fleet() -> snapline.Fleet:
    return snapline.Fleet("readers", agents={"a": Reader(Texts(60))}, triggers=[snapline.Every(seconds=0.2)])


def test_a_run_with_wrong_contents_shows_them_to_the_agent(tmp_path: Path) -> None:
    file, right = tmp_path / "answers", "an answer in words"
    digests = [argument_digest("write", (left,)) for left in range(1, 61)]
    answers = [RecordedAnswer("a", "step", "write", each, 1, "done", encode_result("write", right)) for each in digests]
    file.write_bytes(encode_export(RecordedAnswers(answers)))
    scenario = Subject(reading_fleet, faults="quiet", until="5s", answers=str(file)).scenario(1)
    steps = msgspec.structs.replace(scenario.steps, wrong_per_mille=500)
    liveness = msgspec.structs.replace(scenario.liveness, heal="5s")
    scenario = msgspec.structs.replace(scenario, steps=steps, liveness=liveness)
    worlds: list[World] = []
    result = run(scenario, 1, workload=user_workload(reading_fleet()), on_world=worlds.append)
    assert result.verdict == "pass", (result.violations, result.error)
    store = worlds[0].shared.stores.reader
    epoch = store.epochs()[-1]
    checkpoint = store.read_checkpoint(store.read_manifest(store.read_ref(epoch), epoch=epoch), "a")
    texts = msgspec.msgpack.decode(checkpoint.state, type=Texts).texts
    assert set(texts) == {right, right[: len(right) // 2], "I cannot help with that.", "EncodingError"}


def answer_of(value: object) -> RecordedAnswer:
    return RecordedAnswer("a", "step", "ask", b"", 1, "done", msgspec.msgpack.encode(value))


# -- what a fleet keeps -----------------------------------------------------------------------------------------------


class Heard(msgspec.Struct):
    """State of an agent that keeps all answers: (question, answer)."""

    left: int
    items: list[tuple[int, int]] = []


class Hearer(snapline.Agent):
    state: Heard
    retries = 200

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.send(ctx.agent, Round([]))

    @snapline.handler(durable=True)
    async def on_round(self, message: Round, ctx: snapline.Context) -> None:
        for _ in range(1 + int(ctx.random() * 3)):
            group = [int(ctx.random() * QUESTIONS) for _ in range(1 + int(ctx.random() * 3))]
            found = await ctx.gather(*[ctx.step("ask", ask, question, retries=20) for question in group])
            self.state.items += zip(group, found, strict=True)
        self.state.left -= 1
        if self.state.left:
            ctx.send("b" if ctx.random() < 0.5 else "a", Round([]))


def keeping_fleet(numbers: Iterator[int]) -> snapline.Fleet:
    return snapline.Fleet(
        "hearers",
        agents={name: Hearer(Heard(40)) for name in ("a", "b")},
        triggers=[snapline.Every(seconds=0.1)],
        simulate={"ask": lambda question: next(numbers)},
        keep_answers=True,
    )


EPOCHS_COMPARED = 8


def heard(checkpoint: AgentCheckpoint) -> list[tuple[int, int]]:
    return msgspec.msgpack.decode(checkpoint.state, type=Heard).items


def check_kept(store: Store) -> int:
    """What is collected since a snapshot must be what the agents have heard since, by the newest snapshot. Returns how much that was."""
    epochs = store.epochs()
    newest, count = _heard_by(store, epochs[-1]), 0
    for epoch in epochs[:: 1 + len(epochs) // EPOCHS_COMPARED]:
        collected = collect(store, epoch)
        assert not collected.lost_batches
        for agent, items in _heard_by(store, epoch).items():
            if newest[agent][: len(items)] != items:
                continue  # a restore has gone back behind this snapshot
            since = newest[agent][len(items) :]
            for question in range(QUESTIONS):
                expected = [answer for asked, answer in since if asked == question]
                digest = argument_digest("ask", (question,))
                answers = [x for x in collected.answers if (x.agent, x.digest) == (agent, digest)]
                assert [x.occurrence for x in answers] == list(range(1, len(answers) + 1))
                values = [msgspec.msgpack.decode(x.result) for x in answers[: len(expected)]]
                assert values == expected, (epoch, agent, question)
                count += len(expected)
    return count


def _heard_by(store: Store, epoch: int) -> dict[str, list[tuple[int, int]]]:
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    return {each.agent: heard(each) for each in store.read_checkpoints(manifest)}


def run_keeping(seed: int) -> Store:
    numbers = itertools.count(1)
    scenario = Subject(functools.partial(keeping_fleet, numbers), faults="swarm", until="6s").scenario(seed)
    more = msgspec.structs.replace(scenario.run, snapshots_every="700ms", retention="last=3,manual=6", keep_epochs=2)
    worlds: list[World] = []
    scenario = msgspec.structs.replace(scenario, run=more)
    result = run(scenario, seed, workload=user_workload(keeping_fleet(numbers)), on_world=worlds.append)
    assert result.verdict in ("pass", "undecided"), (seed, result.violations, result.error)
    return worlds[0].shared.stores.reader


@pytest.fixture(scope="module")
def stores() -> list[Store]:
    """Stores of runs, which the tests only read."""
    return [run_keeping(seed) for seed in range(5)]


def test_what_is_collected_since_a_snapshot_is_what_the_agents_have_heard_since(stores: list[Store]) -> None:
    assert sum(map(check_kept, stores)) > 500 and sum(len(store.answer_files()) for store in stores) > 5


def of_all_runs(logged: list[LoggedEntry], begun: SavedTurn | None) -> list[JournalEntry]:
    return [each.entry for each in logged if each.entry.kind == "step"]


def test_the_oracle_finds_answers_of_other_runs_and_lost_ones(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(AssertionError):
        patched.setattr(answer_collection, "_run_of", of_all_runs)
        sum(map(check_kept, stores))
    with monkeypatch.context() as patched, pytest.raises(AssertionError):
        patched.setattr(LogSweeper, "_keep_answers", lambda self, garbage, plan: None)
        check_kept(run_keeping(0))
