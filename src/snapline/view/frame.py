"""Frame of every screen: head, navigation, and the notice about problems."""

import msgspec

from snapline.view.markup import Child, Markup, join, tag
from snapline.view.number_format import age

SCREENS = (
    ("fleet", "/", "Fleet"),
    ("epochs", "/epochs", "Epochs"),
    ("recovery", "/recovery", "Recovery"),
    ("waiting", "/waiting", "Waiting"),
)
"""Id, address and name of each screen of a fleet, in the order of the navigation."""

SPACE_TIME = ("space-time", "/space-time", "Space-time")
"""Screen of a fleet, or of a trace."""

ACT = ("act", "/act", "Actions")
"""Screen for those who may act."""

SIMULATION = ("simulation", "/simulation", "Simulation")
"""Screen where reports of simulations are shown."""


class PageHead(msgspec.Struct, frozen=True):
    """Head of a page, around its screen.

    Attributes:
        screen: id of the screen.
        title: title of the browser's tab.
        fleet: name of the fleet, if known.
        events: address of the stream that keeps the page current; "": the page is static.
        is_signed_in: the viewer has signed in, and may sign out.
        screens: available screens, in the order of the navigation.
    """

    screen: str
    title: str
    fleet: str = ""
    events: str = ""
    is_signed_in: bool = False
    screens: tuple[tuple[str, str, str], ...] = ()


def page(frame: PageHead, *body: Child) -> Markup:
    """A whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{frame.title} · {frame.fleet or 'snapline'}"),
        tag("link", rel="icon", href="/static/icon.svg"),
        tag("link", rel="stylesheet", href="/static/view.css"),
        tag("script", src="/static/view.js", defer=True),
    )
    main = tag("main", *body, id="main", tabindex="-1")
    content = tag("body", _skip(), _top(frame), main, data_events=frame.events or None)
    return join([Markup("<!DOCTYPE html>\n"), tag("html", head, content, lang="en")])


def _skip() -> Markup:
    return tag("a", "Skip to content", href="#main", class_="skip")


def _top(frame: PageHead) -> Markup:
    links = [
        tag("a", name, href=address, aria_current="page" if screen == frame.screen else None)
        for screen, address, name in frame.screens
    ]
    sign_out = tag("form", tag("button", "Sign out"), method="post", action="/sign-out") if frame.is_signed_in else None
    live = tag("span", "live", id="live", class_="live", role="status") if frame.events else None
    return tag(
        "header",
        tag("a", "snapline", href="/", class_="brand"),
        tag("nav", *links, aria_label="Screens"),
        tag("span", live, sign_out, class_="aside"),
        class_="top",
    )


def trouble(sentence: str, updated_s: float = 0.0) -> Markup | None:
    """Draw a strip at the top: the page may be out of date."""
    if not sentence:
        return None
    since = (" What is shown was heard ", age(updated_s), ".") if updated_s else None
    return tag("p", f"{sentence[:1].upper()}{sentence[1:]}.", since, class_="strip bad", role="alert")


def section(id: str, heading: Child, *body: Child, aside: Child = None) -> Markup:
    """A part of a screen under a heading."""
    head = tag("div", tag("h2", heading, id=f"{id}-heading"), aside, class_="section-head")
    return tag("section", head, *body, id=id, aria_labelledby=f"{id}-heading")


def table(columns: "tuple[tuple[str, str], ...]", rows: Child, *, label: str, id: str | None = None) -> Markup:
    """Draw a table that scrolls if it is wide. Columns: heading and class."""
    heads = [tag("th", name, class_=kind or None, scope="col") for name, kind in columns]
    inner = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", rows), aria_label=label)
    return tag("div", inner, class_="table", tabindex="0", role="region", aria_label=label, id=id)
