"""A state of an older version reaches its class by every step once, in order; or nothing of its line is touched.

The oracle for chains composes the functions by itself. Mutants of the code under test (a step left out, taken twice, taken
in another order, a line loaded while it is judged) show that the properties can fail.
"""

import functools
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from tests.agent_runtime.migrating import Plain, State, same, saved, worker
from tests.house.pages import files_of

import snapline
from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.fleet import REFUSALS_NAMED_MAX, Fleet, encode_state, plan_line
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.epoch_files import load_line
from snapline.agent_runtime.message_encoding import encode_body
from snapline.agent_runtime.migrations import (
    MigrationPlan,
    MigrationStep,
    check_steps,
    load_state,
    migrate,
    migrates,
    plain_of,
    plan_migration,
    state_of,
    steps_of,
)
from snapline.agent_runtime.snapshots.snapshot_cut import Cut
from snapline.errors import EncodingError, FleetDefinitionError
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage

# ---- registration -----------------------------------------------------------------------------------------------------


async def later(state: Plain) -> Plain:
    return state


def one_by_one(state: Plain) -> Iterable[Plain]:
    yield state


def without_state() -> Plain:
    return {}


def with_two(state: Plain, more: int) -> Plain:
    return state


@pytest.mark.parametrize(
    ("from_version", "function", "reason"),
    [
        (3, same, r"from version 3 leads beyond its state_version, 3: set state_version = 4"),
        (9, same, "set state_version = 10"),
        (-1, same, "from_version .* is -1: use 0 or more"),
        (True, same, "is True: use 0 or more"),
        ("1", same, "is '1': use 0 or more"),
        (1, later, "later of Worker must be a plain function"),
        (1, one_by_one, "one_by_one of Worker must be a plain function"),
        (1, without_state, "without_state of Worker must take one argument"),
        (1, with_two, "with_two of Worker must take one argument"),
        (1, 5, "mark a function"),
    ],
)
def test_what_cannot_be_a_step_is_refused_where_it_is_written(from_version: Any, function: Any, reason: str) -> None:
    made = worker(3)
    with pytest.raises(FleetDefinitionError, match=reason):
        migrates(made, from_version=from_version)(function)
    assert steps_of(made) == {}


@pytest.mark.parametrize("target", [State, "Worker", None, Agent(State())])
def test_only_classes_of_agents_migrate(target: Any) -> None:
    with pytest.raises(FleetDefinitionError, match="takes a class of agents"):
        migrates(target, from_version=0)


def test_two_functions_for_one_step_are_refused_and_the_first_stays() -> None:
    made = worker(3)
    migrates(made, from_version=1)(same)
    with pytest.raises(
        FleetDefinitionError, match=r"Worker has two migrations from version 1, same and <lambda>|.*same and"
    ):
        migrates(made, from_version=1)(lambda state: {})
    assert steps_of(made) == {1: same}


def test_the_marked_function_stays_what_it_was_and_may_serve_several_classes() -> None:
    one, other = worker(1), worker(2)
    assert migrates(one, from_version=0)(migrates(other, from_version=1)(same)) is same
    assert (steps_of(one), steps_of(other)) == ({0: same}, {1: same})


@pytest.mark.parametrize("version", [-1, "3", True, 1.0, None])
def test_a_version_is_a_whole_number(version: Any) -> None:
    with pytest.raises(FleetDefinitionError, match=r"Worker.state_version is .*: use a whole number from 0 on"):
        agent_type(worker(version))


def test_a_subclass_takes_part_in_the_count_of_its_base_and_may_override_a_step() -> None:
    base = worker(3)
    sub = type("Sub", (base,), {"__module__": __name__})
    migrates(base, from_version=1)(same)
    migrates(base, from_version=2)(same)
    assert steps_of(sub) == {1: same, 2: same}
    migrates(sub, from_version=2)(dict)
    assert (steps_of(sub), steps_of(base)) == ({1: same, 2: dict}, {1: same, 2: same})


def test_a_subclass_with_a_version_of_its_own_has_no_steps_of_its_base() -> None:
    """Its version 1 is not its base's: the step would read something else into its state."""
    base = worker(3)
    migrates(base, from_version=0)(same)
    sub = worker(1, base, name="Sub")
    assert steps_of(sub) == {}
    with pytest.raises(EncodingError, match=r"write @snapline.migrates\(Sub, from_version=0\)"):
        plan_migration(sub, saved(sub, State(), state_version=0))


@given(version=st.integers(0, 8), known=st.sets(st.integers(0, 7)))
def test_steps_that_do_not_lead_to_the_class_are_refused_by_the_fleet(version: int, known: set[int]) -> None:
    """From the first step on there is every one: then what is between any two versions was not forgotten."""
    made = worker(version)
    known = {each for each in known if each < version}
    for each in sorted(known, reverse=True):
        migrates(made, from_version=each)(same)
    gaps = [each for each in range(version) if each not in known and any(other < each for other in known)]
    if not gaps:
        check_steps(made)
        Fleet("f", agents={"a": made(State())})
        return
    expected = rf"none from {gaps[0]} to {gaps[0] + 1}, .*@snapline.migrates\(Worker, from_version={gaps[0]}\)"
    with pytest.raises(FleetDefinitionError, match=expected):
        check_steps(made)
    with pytest.raises(FleetDefinitionError, match=expected):
        Fleet("f", agents={"a": made(State())})
    with pytest.raises(FleetDefinitionError, match=expected):
        Fleet("f", agents={"a": lambda: made(State())}).make("a")


def test_dates_as_versions_are_refused_at_once() -> None:
    """Versions count by one; a gap of ten thousand is not walked through."""
    made = worker(2**62)
    migrates(made, from_version=1)(same)
    with pytest.raises(FleetDefinitionError, match="none from 2 to 3"):
        check_steps(made)


# ---- planning ---------------------------------------------------------------------------------------------------------


@given(version=st.integers(0, 6), before=st.integers(0, 8), known=st.sets(st.integers(0, 5)))
def test_there_is_a_plan_exactly_if_each_step_of_the_way_is_known(version: int, before: int, known: set[int]) -> None:
    made = worker(version)
    for each in known:
        if each < version:
            migrates(made, from_version=each)(same)
    checkpoint = saved(made, State(), state_version=before)
    place = before
    while place < version and place in known:
        place += 1
    if place == version:
        assert [step.from_version for step in plan_migration(made, checkpoint).steps] == list(range(before, version))
        return
    with pytest.raises(
        EncodingError, match=rf"agent 'a' \(Worker\) was saved with state version {before}, .*{version}"
    ) as caught:
        plan_migration(made, checkpoint)
    is_named = f"write @snapline.migrates(Worker, from_version={place})" in str(caught.value)
    assert is_named is (before < version) and ("newer code" in str(caught.value)) is (before > version)


FIELDS = {"value": "int", "log": "list[int]"}


@pytest.mark.parametrize("before", [1, 5])
def test_a_refusal_shows_how_the_fields_differ(before: int) -> None:
    checkpoint = saved(worker(before), State(), state_fields={"value": "str", "gone": "bool"})
    with pytest.raises(EncodingError, match=r"\(gone: bool is gone; log: list\[int\] is new; value: str became int\)"):
        plan_migration(worker(3), checkpoint)


def test_other_fields_under_the_same_version_are_refused_even_if_there_are_steps() -> None:
    made = worker(3)
    for each in range(3):
        migrates(made, from_version=each)(same)
    checkpoint = saved(made, State(), state_fields={"value": "str", "log": "list[int]"})
    with pytest.raises(
        EncodingError, match=r"value: str became int\), state_version is 3 as before.*set state_version = 4"
    ):
        plan_migration(made, checkpoint)


def test_fields_of_an_older_version_may_be_anything() -> None:
    made = worker(1)
    migrates(made, from_version=0)(lambda state: {"value": len(state["name"])})
    checkpoint = saved(made, {"name": "four"}, state_version=0, state_fields={"name": "str"})
    assert load_state(plan_migration(made, checkpoint), checkpoint).state == State(4)


# ---- chains -----------------------------------------------------------------------------------------------------------

Chain = list[tuple[int, int]]
"""One entry for each step: it makes `value` `factor * value + term`, so the order matters, and notes itself in `log`."""

chains = st.lists(st.tuples(st.integers(2, 5), st.integers(1, 9)), min_size=1, max_size=6)


def chain_class(chain: Chain) -> type[Agent]:
    made = worker(len(chain))
    for version, (factor, term) in enumerate(chain):

        def step(state: Plain, version: int = version, factor: int = factor, term: int = term) -> Plain:
            state["log"].append(version)  # what it is given is its own
            return {**state, "value": factor * state["value"] + term}

        migrates(made, from_version=version)(step)
    return made


def expected_of(chain: Chain, first: int, value: int) -> State:
    """The oracle: the functions composed, on a state of the class itself."""
    steps = [lambda x, f=factor, t=term: f * x + t for factor, term in chain[first:]]
    return State(functools.reduce(lambda x, step: step(x), steps, value), list(range(first, len(chain))))


Migrate = Callable[[MigrationPlan, object], object]


def check_chain(migrate_plain: Migrate, chain: Chain, first: int, value: int) -> None:
    made = chain_class(chain)
    checkpoint = saved(made, State(value), state_version=first)
    for _ in range(2):  # a second recovery finds the checkpoint as the first one did
        plan = plan_migration(made, checkpoint)
        assert state_of(plan, migrate_plain(plan, plain_of(plan, checkpoint))) == expected_of(chain, first, value)
    assert load_state(plan_migration(made, checkpoint), checkpoint).state == expected_of(chain, first, value)


@given(chain=chains, data=st.data(), value=st.integers(-1000, 1000))
def test_every_step_is_taken_once_and_in_order(chain: Chain, data: st.DataObject, value: int) -> None:
    check_chain(migrate, chain, data.draw(st.integers(0, len(chain))), value)


def _altered(alter: Callable[[tuple[MigrationStep, ...]], tuple[MigrationStep, ...]]) -> Migrate:
    return lambda plan, plain: migrate(msgspec.structs.replace(plan, steps=alter(plan.steps)), plain)


MUTANTS = {
    "the first step is left out": _altered(lambda steps: steps[1:]),
    "the last step is left out": _altered(lambda steps: steps[:-1]),
    "a step in the middle is left out": _altered(lambda steps: steps[:1] + steps[2:]),
    "the last step is taken twice": _altered(lambda steps: (*steps, *steps[-1:])),
    "all are taken twice": _altered(lambda steps: steps * 2),
    "backwards": _altered(lambda steps: steps[::-1]),
    "none is taken": lambda plan, plain: plain,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_property_finds(mutant: str) -> None:
    with pytest.raises(AssertionError):
        check_chain(MUTANTS[mutant], [(2, 1), (3, 5), (5, 2)], 0, 7)


# ---- a line is judged as a whole --------------------------------------------------------------------------------------

taken: list[str] = []
"""What the step below was run on."""


class Counting(Agent):
    """Its step tells that it ran."""

    state: State
    state_version = 1


@migrates(Counting, from_version=0)
def _count(state: Plain) -> Plain:
    taken.append("step")
    return {**state, "value": state["value"] + 1}


class Forgotten(Agent):
    """Nobody wrote its steps."""

    state: State
    state_version = 2


class Older(Agent):
    """The checkpoint is newer."""

    state: State
    state_version = 1


fleet = Fleet("line", agents={"a": lambda: Counting(State())})
Load = Callable[[Fleet, list[AgentCheckpoint]], dict[str, object]]


def load(fleet: Fleet, checkpoints: list[AgentCheckpoint]) -> dict[str, object]:
    plans = plan_line(fleet, checkpoints)
    return {each.agent: load_state(plans[each.agent], each).state for each in checkpoints if each.agent in plans}


def load_while_judging(fleet: Fleet, checkpoints: list[AgentCheckpoint]) -> dict[str, object]:
    """The mutant: one after the other, as it was before there were plans."""
    return {each.agent: load_state(plan_line(fleet, [each])[each.agent], each).state for each in checkpoints}


def line_with(position: int, bad: AgentCheckpoint) -> list[AgentCheckpoint]:
    line = [saved(Counting, State(place), f"a{place}", state_version=0) for place in range(4)]
    return [*line[:position], bad, *line[position:]]


def check_nothing_is_touched(load_all: Load, line: list[AgentCheckpoint], reason: str) -> None:
    taken.clear()
    with pytest.raises(EncodingError, match=reason):
        load_all(fleet, line)
    assert taken == []


BAD = {
    r"'bad' \(Forgotten\).*from 0 to 1: write @snapline.migrates\(Forgotten, from_version=0\)": saved(
        Forgotten, State(), "bad", state_version=0
    ),
    r"'bad' \(Older\).*newer code": saved(Older, State(), "bad", state_version=3),
    "value: str became int": saved(Older, State(), "bad", state_fields={**FIELDS, "value": "str"}),
    "there is no agent class 'nowhere:Gone'": saved(Older, State(), "bad", kind="nowhere:Gone"),
}


@pytest.mark.parametrize("reason", BAD)
@pytest.mark.parametrize("position", range(5))
def test_a_line_that_cannot_be_loaded_is_refused_before_any_step_runs(reason: str, position: int) -> None:
    check_nothing_is_touched(load, line_with(position, BAD[reason]), reason)


def test_a_line_that_is_loaded_while_it_is_judged_is_found() -> None:
    with pytest.raises(AssertionError):
        check_nothing_is_touched(load_while_judging, line_with(2, next(iter(BAD.values()))), "write @snapline")


def test_a_line_names_one_agent_of_each_class_and_version_and_no_more_than_a_few() -> None:
    line = [saved(Forgotten, State(), f"f{i}", state_version=i % 2) for i in range(10)]
    with pytest.raises(EncodingError) as caught:
        plan_line(fleet, line)
    text = str(caught.value)
    assert "'f0'" in text and "'f1'" in text and "'f2'" not in text and text.count("migrates(") == 2
    gone = [saved(Older, State(), f"g{i}", kind=f"nowhere:Gone{i}") for i in range(REFUSALS_NAMED_MAX + 2)]
    with pytest.raises(EncodingError, match=r"Gone2'.*; and 2 more classes or versions$"):
        plan_line(fleet, gone)


def test_an_unborn_agent_has_no_state_to_migrate() -> None:
    line = line_with(4, AgentCheckpoint(agent="unborn", kind="", epoch=1, is_unborn=True))
    assert load(fleet, line) == {f"a{place}": State(place + 1) for place in range(4)}


class Shelf:
    """A store with one line in it."""

    def __init__(self, line: list[AgentCheckpoint]) -> None:
        self.line = {checkpoint.agent: checkpoint for checkpoint in line}

    def read_manifest(self, root: str, *, epoch: int) -> None:
        """It needs none."""

    def read_checkpoint(self, manifest: None, agent: str) -> AgentCheckpoint:
        return self.line[agent]

    def part_reader(self, manifest: None) -> "Shelf":
        return self

    def read(self, agent: str, parts: object) -> list[bytearray]:
        return []


def load_from(line: list[AgentCheckpoint]) -> dict[str, Agent]:
    places = tuple(ev.Placement(checkpoint.agent, "", "h", 2) for checkpoint in line)
    shelf: Any = Shelf(line)  # load_line reads only
    return load_line(shelf, fleet, ev.LoadAgents(2, 1, "root", places)).objects


def test_a_host_loads_a_line_after_it_was_judged_as_a_whole() -> None:
    made = load_from(line_with(4, AgentCheckpoint(agent="unborn", kind="", epoch=1, is_unborn=True)))
    assert {agent: each.state for agent, each in made.items()} == {f"a{i}": State(i + 1) for i in range(4)}
    assert all(isinstance(each, Counting) for each in made.values())
    check_nothing_is_touched(lambda _, line: dict(load_from(line)), line_with(4, next(iter(BAD.values()))), "write @")


def test_a_cut_of_older_states_shows_them_as_they_would_be_restored() -> None:
    line = {checkpoint.agent: checkpoint for checkpoint in line_with(0, saved(Counting, State(9), "new"))}
    assert Cut(1, line, fleet).states == {"new": State(9)} | {f"a{i}": State(i + 1) for i in range(4)}


# ---- messages ---------------------------------------------------------------------------------------------------------


class Order(snapline.Message):
    """As it is now: `note` is new, `colour` is gone."""

    amount: int
    note: str = ""


class Shop(Agent):
    state: State

    @snapline.handler
    async def on_order(self, message: Order, ctx: snapline.Context) -> None: ...


def test_a_message_in_transit_decodes_if_new_fields_have_defaults() -> None:
    """Messages have no version: what a field is called and what it holds is what they promise (docs/migrations.md)."""
    decoder = agent_type(Shop).handlers["Order"].decoder
    assert decoder.decode(encode_body({"amount": 3, "colour": "red"})) == Order(3)
    waiting = saved(
        Shop, State(), in_transit={"b": [InTransitMessage(1, 0, b"\x05Order" + encode_body({"amount": 4}))]}
    )
    (message,) = Cut(1, {"a": waiting}, fleet).in_transit
    assert message.message == Order(4)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrations.md"


# ---- the page ---------------------------------------------------------------------------------------------------------


def test_the_code_of_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(PAGE.read_text())
    assert list(files) == ["shelf_before.py", "shelf.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    before, after = (importlib.import_module(name.removesuffix(".py")) for name in files)
    old = before.Shelf(before.Stock({"apple": 3}, ["a", "b"]))
    checkpoint = saved(before.Shelf, old.state, kind=agent_type(after.Shelf).kind)
    assert encode_state("a", old, agent_type(before.Shelf)) == checkpoint.state
    shelves = Fleet("shelves", agents={"a": after.Shelf(after.Stock())})
    assert load(shelves, [checkpoint]) == {"a": after.Stock([after.Item("apple", 3)], 2)}
