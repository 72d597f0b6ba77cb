"""What users rely on: a release may add names, options, keys and metrics, and takes none away that an earlier one has promised (docs/compatibility.md)."""

import ast
import copy
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
from docs import make_api, make_cli
from tests.compatibility import promises
from tests.compatibility.promises import OPTIONAL, Entry, Promises, broken
from tests.house.metrics_page import TABLES

import snapline
from snapline import errors
from snapline.cli.command import EXIT_CODES
from snapline.cli.main import app
from snapline.cli.settings import DEFAULTS
from snapline.gateway.app import openapi_of
from snapline.messages import answers
from snapline.telemetry.metrics import COUNTER

STORED = sorted(Path(__file__).parent.glob("*/promises.json"))


@pytest.fixture(scope="module")
def present() -> Promises:
    return promises.promises()


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.parent.name)
def test_promises_of_an_earlier_release_are_kept(stored: Path, present: Promises) -> None:
    assert broken(promises.read(stored), present) == []


def test_there_is_a_list_of_a_release_with_all_sections() -> None:
    assert STORED
    for stored in STORED:
        sections = promises.read(stored)
        assert {name: len(entries) > 3 for name, entries in sections.items()} == dict.fromkeys(promises.SECTIONS, True)


def test_what_is_hidden_is_kept_and_not_promised_again(present: Promises) -> None:
    assert "keep" in present["command"] and "--instance" in present["command"]["host run"].parameters
    stored = promises.read(STORED[-1])["command"]
    assert "keep" not in stored and "--instance" not in stored["host run"].parameters


def test_additions_break_nothing(present: Promises) -> None:
    new = copy.deepcopy(present)
    for entries in new.values():
        for entry in entries.values():
            entry.facts.append("added")
            entry.parameters["added"] = [OPTIONAL]
        entries["added"] = Entry()
    assert broken(present, new) == []


# -- mistakes, planted in the product -------------------------------------------------------------------------------


def command(words: str) -> Any:
    return next(each.command for each in make_cli.walk(typer.main.get_command(app)) if each.words == words)


def with_signature(patch: pytest.MonkeyPatch, owner: type, method: str, **changes: dict[str, Any] | None) -> None:
    """Give a method other parameters. `changes`: what is replaced of one, or None to drop it."""
    old = getattr(owner, method)
    signature = inspect.signature(old)
    kept = [
        each.replace(**changes.get(each.name) or {})
        for each in signature.parameters.values()
        if changes.get(each.name, {}) is not None
    ]

    def new(*values: object, **named: object) -> None: ...

    new.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # what inspect reads
    patch.setattr(owner, method, new)


def with_params(patch: pytest.MonkeyPatch, words: str, change: Callable[[Any], Any]) -> None:
    """Give a command other options. `change`: what becomes of each, or None to drop it."""
    changed = [change(copy.copy(one)) for one in command(words).params]
    patch.setattr(command(words), "params", [one for one in changed if one is not None])


def without_public_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapline, "__all__", [name for name in snapline.__all__ if name != "Manual"])


def with_another_exit_code(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(errors.LogError, "exit_code", 77)


def without_method(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(make_api.RUNTIME, "Context", (*make_api.RUNTIME["Context"], "emit"))


def with_renamed_parameter(patch: pytest.MonkeyPatch) -> None:
    with_signature(patch, snapline.Context, "send", message={"name": "note"})


def with_keyword_only_parameter(patch: pytest.MonkeyPatch) -> None:
    with_signature(patch, snapline.Context, "send", message={"kind": inspect.Parameter.KEYWORD_ONLY})


def without_default(patch: pytest.MonkeyPatch) -> None:
    with_signature(patch, snapline.SyncClient, "ask", reply_type={"default": inspect.Parameter.empty})


def without_parameter(patch: pytest.MonkeyPatch) -> None:
    with_signature(patch, snapline.SyncClient, "ask", timeout_s=None)


def without_option(patch: pytest.MonkeyPatch) -> None:
    with_params(patch, "agent send", lambda one: None if "--key" in one.opts else one)


def with_required_option(patch: pytest.MonkeyPatch) -> None:
    def change(one: Any) -> Any:
        one.required = one.required or "--key" in one.opts
        return one

    with_params(patch, "agent send", change)


def without_arguments(patch: pytest.MonkeyPatch) -> None:
    with_params(patch, "agent send", lambda one: None if one.param_type_name == "argument" and one.nargs == 1 else one)


def without_short_option(patch: pytest.MonkeyPatch) -> None:
    def change(one: Any) -> Any:
        one.opts = [name for name in one.opts if name != "-o"]
        return one

    with_params(patch, "agent send", change)


def without_command(patch: pytest.MonkeyPatch) -> None:
    group = command("agent")
    patch.setattr(group, "commands", {name: each for name, each in group.commands.items() if name != "send"})


def without_exit_code(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(promises, "EXIT_CODES", {code: text for code, text in EXIT_CODES.items() if code != 6})


def without_setting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(promises, "DEFAULTS", {name: value for name, value in DEFAULTS.items() if name != "image"})


def without_key(patch: pytest.MonkeyPatch) -> None:
    parse = make_api.parse_module

    def parsed(name: str) -> Any:
        source, tree = parse(name)
        tree = copy.deepcopy(tree)
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                call.keywords = [each for each in call.keywords if each.arg != "dead_letters"]
        return source, tree

    patch.setattr(make_api, "parse_module", parsed)


def with_struct(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Define RestorePreview with other types of fields, and without those that are None."""
    fields = [(each.name, changed.get(each.name, each.type)) for each in msgspec.structs.fields(answers.RestorePreview)]
    kept = [(name, kind) for name, kind in fields if kind is not None]
    patch.setattr(answers, "RestorePreview", msgspec.defstruct("RestorePreview", kept))


def without_field(patch: pytest.MonkeyPatch) -> None:
    with_struct(patch, created=None)


def with_another_type(patch: pytest.MonkeyPatch) -> None:
    with_struct(patch, created=int)


def without_path(patch: pytest.MonkeyPatch) -> None:
    def without(*arguments: Any, **options: Any) -> Any:
        made = openapi_of(*arguments, **options)
        del made["paths"]["/outputs/{topic}"]
        return made

    patch.setattr(promises, "openapi_of", without)


def with_another_kind_of_metric(patch: pytest.MonkeyPatch) -> None:
    title, families = next(iter(TABLES.items()))
    first = next(family for family in families if family.kind != COUNTER)
    patch.setitem(
        TABLES,
        title,
        tuple(msgspec.structs.replace(each, kind=COUNTER) if each is first else each for each in families),
    )


API = "but the API keeps all that has not warned with DeprecationWarning for one minor release until the next major release"
MISTAKES: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, list[str]]] = {
    without_public_name: ("API", [f"API Manual: it is gone, {API}"]),
    with_another_exit_code: ("API", [f"API LogError: it has lost “exit code {errors.LogError.exit_code}”, {API}"]),
    without_method: ("API", [f"API Context.emit: it is gone, {API}"]),
    with_renamed_parameter: ("API", ["it has lost message", "it demands note, which is new"]),
    with_keyword_only_parameter: ("API", ["API Context.send: message has lost “position 2”"]),
    without_default: ("API", ["API SyncClient.ask: reply_type has lost “optional”"]),
    without_parameter: ("API", ["API SyncClient.ask: it has lost timeout_s"]),
    without_option: ("command", ["command agent send: it has lost --key, but commands and options stay"]),
    with_required_option: ("command", ["command agent send: --key has lost “optional”"]),
    without_arguments: ("command", [f"command agent send: it has lost argument {number}" for number in (1, 2, 3)]),
    without_short_option: ("command", ["command agent send: it has lost -o"]),
    without_command: ("command", ["command agent send: it is gone"]),
    without_exit_code: ("exit code", ["exit code 6: it is gone, but exit codes stay"]),
    without_setting: ("setting", ["setting image: it is gone"]),
    without_key: ("JSON document", ["“key dead_letters”"] * 4),
    without_field: ("JSON struct", ["JSON struct RestorePreview: it has lost “created: string”"]),
    with_another_type: ("JSON struct", ["JSON struct RestorePreview: it has lost “created: string”"]),
    without_path: ("gateway", ["gateway get /outputs/{topic}: it is gone"]),
    with_another_kind_of_metric: ("metric", ["a metric keeps its name and meaning"]),
}
"""Mistake → the section in which it is found, and parts of its sentences."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], present: Promises, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, expected = MISTAKES[mistake]
    mistake(monkeypatch)
    found = broken({section: present[section]}, {section: dict(promises.SECTIONS[section].entries())})
    assert len(found) == len(expected), found
    for sentence, part in itertools.zip_longest(found, expected):
        assert part in sentence and sentence.endswith("until the next major release (docs/compatibility.md)")


def test_a_hidden_alias_is_enough(present: Promises, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command("agent send"), "hidden", True)
    assert broken({"command": present["command"]}, {"command": dict(promises.commands())}) == []
