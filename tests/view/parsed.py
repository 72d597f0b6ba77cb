"""A page as a browser sees it, by the standard library's parser: what the tests of the view look into. It shares nothing with what makes pages."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

VOID = {"br", "hr", "img", "input", "link", "meta"}


class Node:
    """An element; `children` are elements and texts."""

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name = name
        self.attributes = attributes
        self.children: list[Node | str] = []

    @property
    def text(self) -> str:
        """All text in it."""
        return "".join([each if isinstance(each, str) else each.text for each in self.children])

    def all(self) -> "Iterator[Node]":
        """It, and every element in it."""
        yield self
        for each in self.children:
            if isinstance(each, Node):
                yield from each.all()

    def find(self, name: str = "", **attributes: str) -> "list[Node]":
        """Elements in it of this name, with these words in these attributes."""
        return [
            each
            for each in self.all()
            if name in ("", each.name)
            and all(word in each.attributes.get(key.rstrip("_"), "").split() for key, word in attributes.items())
        ]

    def child(self, name: str) -> "list[Node]":
        """Elements directly in it."""
        return [each for each in self.children if isinstance(each, Node) and each.name == name]


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Node("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].name == tag, f"</{tag}> closes <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def parse(page: str) -> Node:
    """The page; AssertionError: an element is not closed, or another one is."""
    builder = _Builder()
    builder.feed(page)
    builder.close()
    assert len(builder._open) == 1, "not all is closed"
    return builder.root


def value_in(node: Node) -> object:
    """The value that a tree of the view shows: what stands in a `dd`, read back."""
    for each in node.all():
        if each.name == "ul":
            rows = each.child("li")
            keys = [row.child("span")[0].text for row in rows]
            values = [value_in(_after_key(row)) for row in rows]
            is_list = keys == [str(number) for number in range(len(keys))]
            return values if is_list else dict(zip(keys, values, strict=True))
        if "value" in each.attributes.get("class", "").split():
            return _leaf(each)
    raise AssertionError(f"no value: {node.text[:80]}")


def _after_key(row: Node) -> Node:
    made = Node("dd", {})
    made.children = row.children[1:]
    return made


def _leaf(node: Node) -> object:
    text, kind = node.text, node.attributes["class"].split()[-1]
    match kind:
        case "digits":
            return float(text) if re.search(r"[.en]", text) else int(text)
        case "word":
            return text == "true"
        case "none":
            return {"null": None, "{ }": {}, "[ ]": []}[text]
    return "" if text == "“”" else text
