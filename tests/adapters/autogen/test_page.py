"""docs/autogen.md runs as it is shown."""

from pathlib import Path

from tests.adapters.autogen.environment import needed
from tests.house.test_texts import commands_of, files_of, matches, run_on_terminal

pytestmark = needed

PAGE = (Path(__file__).parents[3] / "docs" / "autogen.md").read_text()


def test_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    for file, text in files_of(PAGE).items():
        (tmp_path / file).write_text(text)
    commands = list(commands_of(PAGE))
    assert len(commands) == 2
    for command in commands:
        code, out, err = run_on_terminal(command.text, tmp_path)
        assert code == 0, err
        assert matches(command.output, out), out
