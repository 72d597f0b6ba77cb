"""docs/agent-sdks.md runs as it is shown, each SDK where it is installed."""

import importlib.util
from pathlib import Path

import pytest
from tests.kit.shown_page import shown

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
    with shown("docs/agent-sdks.md", tmp_path, section=heading) as page:
        page.take("pip install")
        assert page.run_all() == commands
