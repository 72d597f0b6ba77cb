"""Parts of a page that change while it is viewed, and the changes to be sent to each viewer."""

from collections.abc import Iterable

import msgspec

from snapline.view.markup import Markup


class Partial(msgspec.Struct, frozen=True):
    """An element of a page, found by its id.

    Attributes:
        html: the element itself.
        key: the element is sent again when this changes; "": its HTML. For an element with pieces of its own: all other content.
    """

    id: str
    html: Markup
    key: str = ""


class ViewerState:
    """State of one viewer: the pieces that it has."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def changes(self, pieces: Iterable[Partial]) -> list[tuple[str, Markup]]:
        """Return the elements to replace, outer elements before inner ones."""
        changed = []
        for piece in pieces:
            key = piece.key or piece.html
            if self._keys.get(piece.id) != key:
                self._keys[piece.id] = key
                changed.append((piece.id, piece.html))
        return changed
