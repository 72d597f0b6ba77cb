"""docs/agent-sdks.md runs as it is shown, each SDK where it is installed."""

import importlib.util
import re
from pathlib import Path

import pytest
from tests.house.test_texts import end_processes_in, run_as_shown

PAGE = Path(__file__).parents[2] / "docs" / "agent-sdks.md"
PARTS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL))

pytestmark = pytest.mark.timeout(120)


def needs(module: str, target: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs {module}: make {target}")


@pytest.mark.parametrize(
    ("heading", "commands"),
    [
        pytest.param("Pydantic AI", 8, marks=[pytest.mark.pydantic_ai, needs("pydantic_ai", "test-pydantic-ai")]),
        pytest.param("OpenAI Agents SDK", 6, marks=[pytest.mark.adapters, needs("agents", "test-adapters")]),
    ],
)
def test_the_program_of_an_sdk_runs_and_prints_what_the_page_shows(heading: str, commands: int, tmp_path: Path) -> None:
    (tmp_path / PAGE.name).write_text(PARTS[heading])
    try:
        assert run_as_shown(tmp_path / PAGE.name, tmp_path) == commands
    finally:
        end_processes_in(tmp_path)
