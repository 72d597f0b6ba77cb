"""What hosts run on: reports, how they are compared, and what a fleet's definition may say about them."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapline
from snapline.agent_runtime import dependency_report as dependency_report_module
from snapline.agent_runtime.dependency_report import SOURCES_MAX, dependency_report
from snapline.errors import FleetDefinitionError
from snapline.messages.dependencies import (
    ENTRIES_MAX,
    KINDS,
    REPORT_BYTES_MAX,
    bounded_report,
    changes_between,
    describe_changes,
    describe_report,
    kind_of,
    merged,
    reports_in,
    values_of,
)
from snapline.storage.keys.key_files import Keys, generate_wrapping_key
from snapline.storage.store.store import Store

NAMES = st.sampled_from(["python", "numpy", "source:app", "variable:MODEL", "describes:model"])
VALUES = st.sampled_from(["k1:1", "k1:2", "k2:1", "k2:2"])
REPORTS = st.dictionaries(NAMES, VALUES)


@given(st.dictionaries(st.sampled_from(["h1", "h2", "h3"]), REPORTS))
def test_a_snapshot_contains_every_value_of_every_host_and_equal_ones_once(reports: dict[str, dict[str, str]]) -> None:
    stored = merged(reports)
    assert values_of(reports_in(stored)) == values_of(reports.values())
    for name in {name for report in reports.values() for name in report}:
        values = [report.get(name) for report in reports.values()]
        assert (name in stored) == (len(set(values)) == 1)
        assert sum(key.endswith(name) for key in stored) == (1 if name in stored else len([x for x in values if x]))


@given(st.lists(REPORTS, max_size=3), st.lists(REPORTS, max_size=3), st.sampled_from(["warn", "refuse", "ignore"]))
def test_a_change_is_a_value_that_was_not_in_use(
    before: list[dict[str, str]], now: list[dict[str, str]], policy: str
) -> None:
    """The oracle looks at one value at a time."""
    policies = {f"policy:{kind}": policy for kind in KINDS}
    expected = set[str]()
    for report in now:
        for name, value in report.items():
            known = [other[name] for other in before if name in other]
            if name == "variable:MODEL":
                known = [other for other in known if other.split(":")[0] == value.split(":")[0]]
            if known and value not in known:
                expected.add(name)
    changes = changes_between(before, [report | policies for report in now])
    assert {change.name for change in changes} == (set() if policy == "ignore" else expected)
    assert {change.is_refused for change in changes} <= {policy == "refuse"}


def test_the_strictest_policy_counts_and_warn_is_the_default() -> None:
    before = [{"numpy": "1", "source:app": "a"}]
    mixed = [{"numpy": "2", "policy:version": "ignore"}, {"numpy": "2", "source:app": "b", "policy:version": "refuse"}]
    assert [(x.name, x.is_refused) for x in changes_between(before, mixed)] == [("numpy", True), ("source:app", False)]


def test_a_change_is_described_without_digests() -> None:
    before = {"numpy": "1", "source:app": "aa", "variable:MODEL": "k:aa", "describes:model": "small", "python": "3"}
    now = {"numpy": "2", "source:app": "bb", "variable:MODEL": "k:bb", "describes:model": "large", "python": "3"}
    assert describe_changes(changes_between([before], [now])) == (
        "model large instead of small, numpy 2 instead of 1, another source of app, another value of variable MODEL"
    )
    assert (
        describe_report(merged({"h1": before, "h2": before | {"numpy": "2"}})) == "model small, python 3, numpy 1 and 2"
    )
    many = {f"package-{number:02}": "1" for number in range(10)}
    assert describe_changes(changes_between([many], [dict.fromkeys(many, "2")])).endswith(
        "package-07 2 instead of 1 and 2 more"
    )


def test_a_report_is_cut_to_what_a_log_entry_can_hold() -> None:
    large = {f"describes:{number}": "ä" * 100 for number in range(2 * ENTRIES_MAX)}
    kept = bounded_report(large)
    assert sum(len(name.encode()) + len(value.encode()) for name, value in kept.items()) <= REPORT_BYTES_MAX
    assert 0 < len(kept) < ENTRIES_MAX and list(kept) == list(large)[: len(kept)]
    assert len(bounded_report(dict.fromkeys(map(str, range(1000)), ""))) == ENTRIES_MAX


# -- reports ----------------------------------------------------------------------------------------------------------

MESSAGES = """
import snapline

class Go(snapline.Message):
    pass
"""

AGENTS = """
import functools
import msgspec
import snapline
from reported_messages import Go

class Count(msgspec.Struct):
    count: int = 0

class Agent(snapline.Agent):
    state: Count

    @snapline.handler
    async def on_go(self, message: Go, ctx: snapline.Context) -> None: ...

def make(count: int) -> Agent:
    return Agent(Count(count))

def fleet(**options: object) -> snapline.Fleet:
    return snapline.Fleet("reported", agents={"a": Agent(Count()), "b": functools.partial(make, 2)}, **options)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reported_messages.py").write_text(MESSAGES)
    (tmp_path / "reported_agents.py").write_text(AGENTS)
    for name in ("reported_agents", "reported_messages"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def report_of(fleet: snapline.Fleet, store: Store | None = None) -> Mapping[str, str]:
    def open_store() -> Store:
        assert store is not None, "only variables need the store"
        return store

    return dependency_report(fleet.agents, fleet.declared, open_store)


def make_fleet(**options: object) -> snapline.Fleet:
    made: snapline.Fleet = importlib.import_module("reported_agents").fleet(**options)
    return made


def test_modules_of_agents_states_messages_and_functions_are_reported(modules: Path) -> None:
    report = report_of(make_fleet())
    assert [name for name in report if kind_of(name) == "source"] == [
        "source:reported_agents",
        "source:reported_messages",
    ]
    assert {"python", "snapline", "msgspec", "grpcio", "numpy"} == {
        name for name in report if kind_of(name) == "version"
    }
    (modules / "reported_messages.py").write_text(MESSAGES + "\n# another\n")
    after = report_of(make_fleet())
    assert [x.name for x in changes_between([report], [after])] == ["source:reported_messages"]


def test_declared_dependencies_and_descriptions_are_reported_and_missing_ones_said_so(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet(
        dependencies=["hypothesis", "no-such-package"], describes={"model": "large"}, on_change={"version": "refuse"}
    )
    report = report_of(fleet)
    monkeypatch.setattr(dependency_report_module, "ALWAYS", ("snapline", "no-such-library"))
    assert "no-such-library" not in report_of(fleet), "nobody has declared it"
    assert report["hypothesis"][0].isdigit() and report["no-such-package"] == "missing"
    assert report["describes:model"] == "large" and report["policy:version"] == "refuse"
    assert "policy:source" not in report, "the default"


def test_many_modules_are_reported_as_one(modules: Path) -> None:
    agents = {}
    for number in range(SOURCES_MAX + 20):
        (modules / f"reported_{number:03}.py").write_text(f"def make():\n    return {number}\n")
        agents[f"a{number}"] = importlib.import_module(f"reported_{number:03}").make
    fleet = snapline.Fleet("many", agents=agents)
    before = report_of(fleet)
    assert len([name for name in before if kind_of(name) == "source"]) == SOURCES_MAX
    (modules / f"reported_{SOURCES_MAX + 19:03}.py").write_text("def make():\n    return -1\n")
    assert [x.describe() for x in changes_between([before], [report_of(fleet)])] == [
        "another source of 21 more modules"
    ]


def test_variables_are_keyed_digests_and_only_in_an_encrypted_store(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = make_fleet(variables=["REPORTED_PIN", "REPORTED_UNSET"])
    monkeypatch.setenv("REPORTED_PIN", "1234")
    assert not [name for name in report_of(fleet, Store.create(tmp_path / "plain")) if kind_of(name) == "variable"]
    assert "encrypt the store" in caplog.text
    stores = [
        Store.create(tmp_path / name, keys=Keys((generate_wrapping_key(tmp_path / f"{name}.key"),)))
        for name in ("a", "b")
    ]
    first, same, other = (report_of(fleet, store) for store in (stores[0], stores[0], stores[1]))
    assert first == same and "1234" not in str(first)
    assert first["variable:REPORTED_PIN"] != other["variable:REPORTED_PIN"]
    assert changes_between([first], [other]) == (), "digests with another key cannot be compared"
    monkeypatch.setenv("REPORTED_PIN", "1235")
    assert [x.name for x in changes_between([first], [report_of(fleet, stores[0])])] == ["variable:REPORTED_PIN"]
    monkeypatch.setenv("REPORTED_UNSET", "")
    assert len(changes_between([first], [report_of(fleet, stores[0])])) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dependencies": "numpy"}, "dependencies is a list: write dependencies=['numpy']"),
        ({"variables": [7]}, "variables has 7: use printable text"),
        ({"describes": {"model": "a\nb"}}, "describes has 'a\\nb'"),
        ({"describes": {"model": ""}}, "describes has ''"),
        (
            {"on_change": "stop"},
            "on_change has 'version': 'stop': use version, source, variable, description, and warn",
        ),
        ({"on_change": {"sources": "warn"}}, "on_change has 'sources': 'warn'"),
        ({"describes": {str(number): "x" for number in range(100)}}, "more than 84 entries"),
    ],
)
def test_a_wrong_declaration_is_refused(modules: Path, options: dict[str, object], problem: str) -> None:
    with pytest.raises(FleetDefinitionError) as refused:
        make_fleet(**options)
    assert problem in str(refused.value)


def test_a_declaration_does_not_change_the_definition(modules: Path) -> None:
    """Hosts with another one may join: what it leads to is up to its policy."""
    declared = make_fleet(dependencies=["numpy"], describes={"model": "large"}, on_change="refuse")
    assert declared.definition_digest() == make_fleet().definition_digest()
