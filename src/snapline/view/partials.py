"""Parts of a page that change while it is viewed: which of them a viewer has to be sent."""

from collections.abc import Iterable

import msgspec

from snapline.view.markup import Markup


class Partial(msgspec.Struct, frozen=True):
    """An element of a page, found by its id.

    Attributes:
        html: the element itself.
        key: it is sent again when this changes: of an element whose own pieces follow, all other content; "": its HTML.
    """

    id: str
    html: Markup
    key: str = ""


class ViewerState:
    """Pieces that one viewer has."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def changes(self, pieces: Iterable[Partial]) -> list[tuple[str, Markup]]:
        """Return the elements to replace, in order: those that hold others come before them."""
        changed = []
        for piece in pieces:
            key = piece.key or piece.html
            if self._keys.get(piece.id) != key:
                self._keys[piece.id] = key
                changed.append((piece.id, piece.html))
        return changed
