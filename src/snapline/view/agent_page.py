"""Page of one agent: its state, and its host's report on it."""

import msgspec

from snapline.messages.views import AgentState
from snapline.view.frame import section
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.tones import pill
from snapline.view.tree import DEPTH_MAX, leaf, tree

HEAD = ("apiVersion", "kind", "agent", "agent_kind", "host", "incarnation", "life")

OPEN_BYTES_MAX = 2_000
"""Largest state, as JSON, that is shown open: the fields of a larger one are folded."""


def agent_body(document: dict[str, object], state: AgentState | None = None, problem: str = "") -> Markup:
    """Draw what `Client.describe` returns, and the state; `problem`: reason why the state is not the live one, or is unknown."""
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
    listed = section("stands", "How it stands", tag("dl", *rows, class_="facts"))
    return join([title, _state(state, problem), listed])


def saved_body(agent: str, state: AgentState, problem: str) -> Markup:
    """Draw the page while no host can describe the agent; `problem`: the reason."""
    title = tag(
        "div", tag("h1", agent), tag("p", f"{state.kind}, last on {state.host}", class_="quiet"), class_="title"
    )
    return join([title, _state(state, problem)])


def _state(state: AgentState | None, problem: str) -> Markup:
    why = tag("p", f"{problem[:1].upper()}{problem[1:]}.", class_="strip warn") if problem else None
    if state is None:
        return section("state", "State", why)
    about: Child = f"As it was at {state.time}, between two turns; a recovery may undo it."
    if not state.is_live:
        epoch = tag("a", f"epoch {state.epoch}", href=f"/epochs/{state.epoch}")
        about = ["As of ", epoch, f", {state.time}."]
    value = _opened(state.state) if not state.is_unborn else tag("p", "It is not born yet.", class_="quiet")
    return section("state", "State", why, tag("p", about, class_="quiet"), value)


def _opened(state: object) -> Markup:
    is_small = len(msgspec.json.encode(state)) <= OPEN_BYTES_MAX
    return tree(state, open_levels=DEPTH_MAX if is_small else 1)


def _value(value: object) -> Child:
    return tree(value) if isinstance(value, dict | list) and value else leaf(value)
