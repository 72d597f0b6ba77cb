"""Build HTML from values. Text that is not marked as HTML is escaped, so that text from a fleet cannot inject markup.

Text from a fleet may be malicious. Control characters are shown as Unicode symbols such as ␛. Characters that reverse, hide or join text
are shown as code points such as ‹202E›, so that an attacker cannot disguise text. Long texts are truncated, and a note states how many
characters were omitted.
"""

import re
from collections.abc import Iterable
from html import escape

TEXT_MAX = 10_000
"""Largest number of characters that a page shows of one text. The page states the number of omitted characters."""

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Markup(str):
    """HTML text, which is not escaped."""

    __slots__ = ()


Child = Markup | str | int | float | None | Iterable["Child"]
Attribute = str | int | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Return an HTML element.

    The attribute `class_` is written as `class`, and `data_age` as `data-age`. An attribute that is True is written without a value. An
    attribute that is None or False is omitted.
    """
    opening = "".join([_attribute(key, value) for key, value in attributes.items()])
    if name in _VOID:
        return Markup(f"<{name}{opening}>")
    return Markup(f"<{name}{opening}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Return the markup of all children, in order. Children that are None are ignored."""
    return Markup("".join([_content(child) for child in children]))


def shown(text: str, characters_max: int = TEXT_MAX) -> str:
    """Return the text with invisible characters made visible, limited to `characters_max` characters."""
    start = text[:characters_max]
    visible = _UNSEEN.sub(_visible, start) if _UNSEEN.search(start) else start
    return visible if len(text) <= characters_max else f"{visible}… {len(text) - characters_max:,} more characters"


def _content(child: Child) -> str:
    match child:
        case None:
            return ""
        case Markup():
            return child
        case str():
            return escape(shown(child), quote=False)
        case int() | float():
            return str(child)
    return join(child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(shown(str(value)))}"'


def _visible(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x20:
        return chr(0x2400 + number)
    return "␡" if number == 0x7F else f"‹{number:04X}›"
