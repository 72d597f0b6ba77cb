"""Pages of the documentation: all are in the navigation, links reach headings, and the site's own pages say what the code says."""

import re
from pathlib import Path

import pytest
from docs import site_pages
from docs.site_hooks import OUTSIDE, with_wide_lists, without_directives

from snapline.cli.command import EXIT_CODES
from snapline.cli.settings import DEFAULTS
from snapline.sim.faults.fault_kinds import FAILPOINTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return site_pages.pages()


def prose(page: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page, flags=re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """As GitHub makes them from headings, and as the site does: the first of several alike."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in texts}


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page(made: dict[str, str]) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    entries = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | set(made)
    numbered = {page for page in pages if re.match(r"decisions/\d", page)}
    assert sorted(entries) == sorted(pages - numbered)


def test_links_lead_to_headings_that_there_are(made: dict[str, str]) -> None:
    pages = {path.resolve(): path.read_text() for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]}
    known = {path: anchors(text) for path, text in pages.items()}
    offences = []
    for path, text in pages.items():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", prose(text)):
            if "://" in target:
                continue
            page = (path.parent / target).resolve() if target else path
            if anchor not in known.get(page, set()):
                offences.append(f"{path.relative_to(ROOT)} → {target}#{anchor}")
    assert not offences, "\n".join(offences)


def test_pages_of_the_site_alone_have_one_title_and_stay_out_of_the_repository(made: dict[str, str]) -> None:
    for name, text in made.items():
        assert len(re.findall(r"^# ", prose(text), re.MULTILINE)) == 1, name
        assert not (DOCS / name).exists(), name
    assert set(OUTSIDE.values()) < set(made)


def test_pages_made_from_code_have_every_code_setting_failpoint_and_call(made: dict[str, str]) -> None:
    assert all(f"\n| {code} | " in made["exit-codes.md"] for code in EXIT_CODES)
    assert "`DamagedDataError`" in made["exit-codes.md"]
    assert all(f"| `{key}` | `SNAPLINE_{key.upper()}` |" in made["configuration.md"] for key in DEFAULTS)
    assert all(f"- `{point}`" in made["faults.md"] for point in FAILPOINTS)
    calls = re.findall(r"rpc (\w+)\(", "".join(each.read_text() for each in (ROOT / site_pages.PROTOS).glob("*.proto")))
    assert len(calls) > 20 and all(f"| `{call}` |" in made["protos.md"] for call in calls)


def test_lists_are_indented_as_the_site_needs_them() -> None:
    page = "text:\n- a\n  - b\n  more\n\n  ```yaml\n  x:\n    - y\n  ```\n```\n  kept\n```\n1. c\n   - d\n"
    expected = "text:\n\n- a\n    - b\n    more\n\n    ```yaml\n    x:\n      - y\n    ```\n```\n  kept\n```\n"
    assert with_wide_lists(page) == expected + "\n1. c\n    - d\n"


def test_the_markdown_of_a_page_of_docstrings_names_what_it_describes(made: dict[str, str]) -> None:
    text = without_directives(made["adapters-api.md"])
    assert ":::" not in text and "`SnaplineSaver`" in text


def test_the_markdown_of_a_page_has_no_comments() -> None:
    assert without_directives("# a\n<!-- fmt: off -->\nb\n") == "# a\nb\n"
