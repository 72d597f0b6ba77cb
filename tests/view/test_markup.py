"""What a fleet holds is shown as text, whatever it is."""

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.view.markup import TEXT_MAX, Markup, shown, tag
from snapline.view.page_elements import DEPTH_MAX, ITEMS_MAX, NODES_MAX, tree

HOSTILE = "<script>alert(1)</script>'\"&lt;"


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", HOSTILE, tag("b", 1), None, ["a", [2]], class_="x") == (
        '<p class="x">&lt;script&gt;alert(1)&lt;/script&gt;\'"&amp;lt;<b>1</b>a2</p>'
    )
    assert tag("input", value='"><script>', required=True, hidden=False) == (
        '<input value="&quot;&gt;&lt;script&gt;" required>'
    )


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\x00b\x1b[31m", "a␀b␛[31m"),
        ("\x7f\x85", "␡‹0085›"),
        ("evil\u202egnp.exe", "evil‹202E›gnp.exe"),
        ("\u2066a\u2069\u200b\ufeff", "‹2066›a‹2069›‹200B›‹FEFF›"),
        ("\ud800", "‹D800›"),
        ("\U000e0041", "‹E0041›"),
        ("a\tb\nc \u05d0 é 😀", "a\tb\nc \u05d0 é 😀"),
    ],
)
def test_what_cannot_be_seen_is_made_visible(text: str, seen: str) -> None:
    assert shown(text) == seen


def test_a_long_text_is_cut_and_says_so() -> None:
    found = shown("x" * 50_000_000)
    assert found == "x" * TEXT_MAX + "… 49,990,000 more characters"


@given(st.text(st.characters()), st.text(st.characters()))
def test_no_text_becomes_an_element_or_an_attribute(text: str, value: str) -> None:
    made = tag("p", text, title=value)
    assert re.findall(r"<[^>]*>", made)[1:] == ["</p>"] and "<" not in made[1:-4]
    assert html.unescape(made[made.index(">") + 1 : -4]) == shown(text)
    made.encode()


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner))


@given(_VALUES)
def test_a_tree_is_whole_whatever_it_shows(value: object) -> None:
    made = tree(value)
    assert isinstance(made, Markup)
    opened, closed = re.findall(r"<(\w+)", made), re.findall(r"</(\w+)", made)
    assert sorted(opened) == sorted(closed)
    assert set(opened) <= {"div", "details", "summary", "ul", "li", "span"}


def test_a_tree_ends() -> None:
    deep: object = 1
    for _ in range(10_000):
        deep = [deep]
    assert f"<ul>{''}" in tree(deep) and "too deep to show" in tree(deep) and tree(deep).count("<details") == DEPTH_MAX
    assert f"… and {1_000_000 - ITEMS_MAX:,} more" in tree(list(range(1_000_000)))
    wide = tree([[[n] * 150 for n in range(150)] for _ in range(150)])
    assert wide.count("<li>") <= NODES_MAX + 10
