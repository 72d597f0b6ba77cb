"""Convert a screen, the output of `markup.tag`, for a static file, without parts that need a server.

Ids get the screen's name as a prefix, since several screens share one page. A link leads to its target in the file, or becomes text if the
file does not have the target. Forms are removed, and ages become times. Unknown markup is an error, so a file cannot fetch, run or send
anything.
"""

import re
from collections.abc import Callable, Collection, Iterator
from html import escape, unescape

from snapline.view.markup import Markup

_TAG = re.compile(r'<(/?)([a-zA-Z][a-zA-Z0-9]*)((?: [a-zA-Z-]+(?:="[^"<>]*")?)*)>')
_ATTRIBUTE = re.compile(r' ([a-zA-Z-]+)(?:="([^"<>]*)")?')
_ID = re.compile(r'<[^<>]* id="([^"<>]*)"')

_ELEMENTS = """
a article b br code dd details div dl dt h1 h2 h3 i li ol p pre section small span summary table tbody td th thead time tr ul
circle defs g line marker path polygon polyline rect svg text title tspan
"""
_ATTRIBUTES = """
class colspan datetime hidden open role rowspan scope tabindex title
cx cy d dx dy fill height points r rx ry transform width x x1 x2 y y1 y2 viewBox preserveAspectRatio text-anchor
stroke stroke-width stroke-dasharray markerHeight markerWidth orient refX refY
"""
ELEMENTS, ATTRIBUTES = frozenset(_ELEMENTS.split()), frozenset(_ATTRIBUTES.split())
"""Allowed elements and attributes. Also allowed: `aria-…`, `id`, and attributes that refer to an id."""

REMOVED_ELEMENTS = frozenset({"form"})
"""Elements that are removed, with their content."""

REMOVED_PREFIXES = ("data-",)
"""Prefixes of removed attributes, which only scripts read."""

IDS = frozenset({"aria-labelledby", "aria-describedby"})
ARROWHEADS = frozenset({"marker-end", "marker-start"})

Place = Callable[[str], str | None]
"""Function from the address of a link to the id in the file, or None."""


def ids_of(markup: Markup, screen: str) -> set[str]:
    """Return the ids that it has in a file."""
    return {f"{screen}-{unescape(id_)}" for id_ in _ID.findall(markup)}


def standing(markup: Markup, screen: str, place: Place, ids: Collection[str]) -> Markup:
    """Return the screen for a file. `place`: finds a link's target in the file; `ids`: ids of the whole file.

    Raises:
        ValueError: the screen has markup that is not allowed in a file.
    """
    return Markup("".join(_parts(markup, screen, place, ids)))


def _parts(markup: str, screen: str, place: Place, ids: Collection[str]) -> Iterator[str]:
    end, removed, moment = 0, "", ""
    links: list[str] = []
    for match in _TAG.finditer(markup):
        text, end = markup[end : match.start()], match.end()
        if "<" in text:
            raise ValueError(f"no markup of ours: {text[:80]!r}")
        closing, name, attributes = match.groups()
        if removed:
            removed = "" if closing and name == removed else removed
            continue
        yield moment or text
        moment = ""
        if name in REMOVED_ELEMENTS:
            removed = name
            continue
        if name not in ELEMENTS:
            raise ValueError(f"no element for a file: {name}")
        if closing:
            yield f"</{links.pop() if name == 'a' else name}>"
            continue
        kept = _attributes(attributes, screen)
        if name == "a":
            href = kept.pop("href", None)
            target = None if href is None else _target(href, screen, place, ids)
            links.append("span" if target is None else "a")
            kept |= {} if target is None else {"href": f"#{target}"}
            name = links[-1]
        if name == "time" and " data-age" in attributes:
            moment = escape(_moment(kept.get("datetime") or ""), quote=False)
        yield f"<{name}{''.join(_written(kept))}>"
    if "<" in markup[end:]:
        raise ValueError(f"no markup of ours: {markup[end : end + 80]!r}")
    yield markup[end:]


def _attributes(attributes: str, screen: str) -> dict[str, str | None]:
    """Return the attributes by name; None: no value."""
    kept: dict[str, str | None] = {}
    for match in _ATTRIBUTE.finditer(attributes):
        name, value = match[1], None if match[2] is None else unescape(match[2])
        if name.startswith(REMOVED_PREFIXES):
            continue
        if name == "id" or name in IDS:
            value = f"{screen}-{value}"
        elif name in ARROWHEADS:
            value = re.sub(r"^url\(#(.*)\)$", rf"url(#{screen}-\1)", value or "")
        elif name != "href" and name not in ATTRIBUTES and not name.startswith("aria-"):
            raise ValueError(f"no attribute for a file: {name}")
        kept[name] = value
    return kept


def _target(href: str, screen: str, place: Place, ids: Collection[str]) -> str | None:
    target = f"{screen}-{href[1:]}" if href.startswith("#") else place(href)
    return target if target in ids else None


def _moment(datetime: str) -> str:
    """Return `2026-01-01 12:00:00.000`: a static file cannot show an age."""
    return datetime.replace("T", " ").removesuffix("+00:00")


def _written(attributes: dict[str, str | None]) -> Iterator[str]:
    for name, value in attributes.items():
        yield f" {name}" if value is None else f' {name}="{escape(value)}"'
