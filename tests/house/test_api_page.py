"""docs/api.md is what the docstrings say, and has every public name."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import snapline


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "api.md").read_text()


def make_api(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", root / "docs" / "make_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(root: Path, page: str) -> None:
    assert make_api(root).make_page() == page, "run `make docs`"


@pytest.mark.parametrize("name", sorted(snapline.__all__))
def test_every_public_name_is_on_the_page_and_says_what_it_is(page: str, name: str) -> None:
    if issubclass(kind, Exception) if isinstance(kind := getattr(snapline, name), type) else False:
        assert re.search(rf"^\| `{name}` \| [A-Z].* \| \d+ \|$", page, re.MULTILINE)
        return
    (about,) = re.findall(rf"^### `{name}`\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", about, flags=re.MULTILINE | re.DOTALL)
    assert re.search(r"\w+ .*[.:]$", prose, re.MULTILINE), f"{name} has no docstring"


def test_what_users_may_call_is_on_the_page(page: str) -> None:
    for name in ("Context.send", "Context.step", "Agent.on_start", "SnapshotStore.snapshot", "snapline_sim.check"):
        assert f"#### `{name}`\n" in page
    for word in ("stop_when:", "retries:", "invariant:", "Cut.is_quiet", "exit_code", "`dead_letters`:"):
        assert word in page, word
    assert "_world" not in page and "AgentCheckpoint" not in page, "what the runtime alone uses"


def test_a_name_without_a_topic_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_api(root)
    monkeypatch.setitem(module.TOPICS, "Fleets", ("Fleet",))
    with pytest.raises(SystemExit, match="Adaptive, Every, EveryMessages, Manual: give them a topic"):
        module.make_page()
