"""Plain values as a tree that opens and closes: states, messages, documents.

A value may be arbitrarily large and deep, so a tree has limits: `NODES_MAX` values, `ITEMS_MAX` items of one list, `DEPTH_MAX` levels,
`TEXT_MAX` characters of one text. At each limit it shows the number of omitted items.
"""

from collections.abc import Iterable, Mapping

from snapline.view.formatting import plural
from snapline.view.markup import Child, Markup, shown, tag

NODES_MAX = 2_000
ITEMS_MAX = 200
DEPTH_MAX = 24
TEXT_MAX = 2_000
LINE_MAX = 60
"""Largest length, in characters, of a small value that is shown in one line."""


def tree(value: object, *, open_levels: int = 1, nodes_max: int = NODES_MAX) -> Markup:
    """Draw the value, with this number of open levels."""
    return tag("div", _Tree(nodes_max).node(value, 0, open_levels), class_="tree")


class _Tree:
    def __init__(self, nodes_max: int) -> None:
        self._left = nodes_max

    def node(self, value: object, depth: int, open_levels: int) -> Markup:
        self._left -= 1
        match value:
            case Mapping() if value:
                items = ((str(key), item) for key, item in value.items())
                return self._branch(items, len(value), "field", depth, open_levels, "{}")
            case list() | tuple() if value:
                items = ((str(index), item) for index, item in enumerate(value))
                return self._branch(items, len(value), "item", depth, open_levels, "[]")
        return leaf(value)

    def _branch(
        self, items: Iterable[tuple[str, object]], count: int, word: str, depth: int, open_levels: int, ends: str
    ) -> Markup:
        if depth >= DEPTH_MAX:
            return tag("span", f"{ends[0]} {plural(count, word)}, too deep to show {ends[1]}", class_="quiet")
        rows: list[Child] = []
        for number, (key, value) in enumerate(items):
            if number >= ITEMS_MAX or self._left <= 0:
                rows.append(tag("li", f"… and {count - number:,} more", class_="quiet"))
                break
            rows.append(tag("li", tag("span", key, class_="key"), self.node(value, depth + 1, open_levels)))
        summary = tag("summary", f"{ends[0]} {plural(count, word)} {ends[1]}", class_="quiet")
        return tag("details", summary, tag("ul", rows), open=depth < open_levels)


def leaf(value: object) -> Markup:
    """A value that holds no others."""
    match value:
        case None:
            return tag("span", "null", class_="value none")
        case bool():
            return tag("span", "true" if value else "false", class_="value word")
        case int() | float():
            return tag("span", shown(str(value), TEXT_MAX), class_="value digits")
        case str():
            return tag("span", shown(value, TEXT_MAX) if value else "“”", class_="value text")
        case Mapping():
            return tag("span", "{ }", class_="value none")
        case list() | tuple():
            return tag("span", "[ ]", class_="value none")
    return tag("span", shown(str(value), TEXT_MAX), class_="value text")
