"""One agent, as its host says that it stands."""

from snapline.view.markup import Child, Markup, join, tag
from snapline.view.tones import pill
from snapline.view.tree import leaf, tree

HEAD = ("apiVersion", "kind", "agent", "agent_kind", "host", "incarnation", "life")


def agent_body(document: dict[str, object]) -> Markup:
    """The page of what `Client.describe` tells."""
    facts = [(name, document.get(name)) for name in document if name not in HEAD]
    about = f"{document.get('agent_kind')} on {document.get('host')}, incarnation {document.get('incarnation')}"
    title = tag(
        "div",
        tag("h1", str(document.get("agent", ""))),
        pill("agent", str(document.get("life", ""))),
        tag("p", about, class_="quiet"),
        class_="title",
    )
    rows = [tag("div", tag("dt", name.replace("_", " ")), tag("dd", _value(value))) for name, value in facts]
    return join([title, tag("dl", *rows, class_="facts")])


def _value(value: object) -> Child:
    return tree(value) if isinstance(value, dict | list) and value else leaf(value)
