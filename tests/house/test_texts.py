"""Texts hold what they say: commands of the README run, links lead somewhere, no file knows one person's machine."""

import re
import shutil
from pathlib import Path

import pytest
from tests.kit.shown_page import COMMAND_S, shown

from snapline.chaos.preload import reason_against

pytestmark = pytest.mark.processes

SLOW = (pytest.mark.slow,)
PAGES = (
    "README.md",
    "docs/clients.md",
    "docs/dead-letters.md",
    "docs/dependencies.md",
    "docs/does-not-end.md",
    "docs/durable-turns.md",
    "docs/effects.md",
    "docs/examples.md",
    "docs/first-fleet.md",
    "docs/forks.md",
    "docs/going-back.md",
    "docs/recorded-answers.md",
    "docs/tutorial.md",
    pytest.param("docs/crash-kit.md", marks=pytest.mark.skipif(bool(reason_against()), reason=reason_against())),
    pytest.param("docs/testing.md", marks=SLOW),
)
"""Pages whose commands run, each in an empty folder with its files; those that wait for long, with `make test-slow`."""

ELSEWHERE = {"README.md": ["--on ray"], "docs/examples.md": ["@snapline.handler", "support_team:fleet", "$ make demo"]}
"""Blocks that tests of the launcher and of the examples run: parts of their text."""


@pytest.mark.timeout(COMMAND_S + 10)
@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run_and_print_what_it_shows(tmp_path: Path, name: str) -> None:
    with shown(name, tmp_path) as page:
        for part in ELSEWHERE.get(name, []):
            page.take(part)
        assert page.run_all(), f"{name} shows no commands"


def test_a_newcomer_sees_install_and_code_in_the_first_thirty_lines(root: Path) -> None:
    top = "\n".join((root / "README.md").read_text().splitlines()[:30])
    for word in (
        "`pip install .`",
        "Python 3.11",
        "](#next)",
        "# ping.py",
        "@snapline.handler",
        "fleet = snapline.Fleet(",
    ):
        assert word in top, word
    assert top.endswith("\n```"), "the whole example"


def test_links_between_our_pages_lead_somewhere(root: Path, files: list[Path]) -> None:
    offences = []
    for page in (path for path in files if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists():
                offences.append(f"{page.relative_to(root)} → {target}")
    assert not offences, "\n".join(offences)


def test_no_file_knows_the_machine_it_was_written_on(root: Path, files: list[Path]) -> None:
    places = {Path.home().as_posix(), *("/" + name for name in ("work", "root"))}
    if len(root.parts) > 2:
        places.add(root.parent.as_posix())
    personal = re.compile(
        rf"(?<![\w.}}])(?:{'|'.join(re.escape(place) for place in sorted(places) if len(place) > 1)}|/(?:home|Users)/\w+)/"
    )
    offences = []
    for path in files:
        if path.is_symlink():
            assert not path.readlink().is_absolute(), path
            continue
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        name = path.relative_to(root)
        offences += [
            f"{name}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if personal.search(line)
        ]
    assert not offences, "\n".join(offences)


def test_the_tools_of_these_tests_are_there() -> None:
    assert shutil.which("bash") and shutil.which("curl") and shutil.which("git")
