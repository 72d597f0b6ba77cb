"""docs/session-stores.md runs as it is shown, each framework where it is installed."""

import importlib.util
from pathlib import Path

import pytest
from tests.house.pages import commands_of, files_of
from tests.kit.shown_page import matches, run_on_terminal

PAGE = (Path(__file__).parents[3] / "docs" / "session-stores.md").read_text()
NEEDS = {"talk.py": "msgspec", "double.py": "agent_framework", "plan.py": "workflows", "bills.py": "crewai"}

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(300)]


def test_every_program_of_the_page_is_run() -> None:
    assert files_of(PAGE).keys() == NEEDS.keys()


@pytest.mark.parametrize("file", [name for name in NEEDS if name != "bills.py"])
def test_the_page_prints_what_it_shows(file: str, tmp_path: Path) -> None:
    _skip_without(file)
    (tmp_path / file).write_text(files_of(PAGE)[file])
    commands = [command for command in commands_of(PAGE) if command.text == f"python {file}"]
    assert len(commands) == 2
    for command in commands:
        code, out, err = run_on_terminal(command.text, tmp_path)
        assert code == 0, err
        assert matches(command.output, out), out


def test_the_flow_goes_on(tmp_path: Path) -> None:
    """CrewAI prints more than its program."""
    _skip_without("bills.py")
    (tmp_path / "bills.py").write_text(files_of(PAGE)["bills.py"])
    for count in (1, 2):
        code, out, err = run_on_terminal(
            f"HOME={tmp_path} CREWAI_DISABLE_TELEMETRY=true OTEL_SDK_DISABLED=true python bills.py", tmp_path
        )
        assert code == 0, err
        assert out[-1] == f"paid {count}", out


def _skip_without(file: str) -> None:
    if importlib.util.find_spec(NEEDS[file]) is None:
        pytest.skip(f"needs {NEEDS[file]}: make test-adapters, make test-crewai")
