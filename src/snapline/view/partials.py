"""Parts of a page that change while somebody looks at it: which of them a viewer has to be sent."""

from collections.abc import Iterable

import msgspec

from snapline.view.markup import Markup


class Piece(msgspec.Struct, frozen=True):
    """An element of a page, found by its id.

    Attributes:
        html: the element itself.
        key: it is sent again when this changes: of an element whose own pieces follow, what they do not say; "": its HTML.
    """

    id: str
    html: Markup
    key: str = ""


class ViewerCopy:
    """What one viewer has."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def changes(self, pieces: Iterable[Piece]) -> list[tuple[str, Markup]]:
        """The elements to replace, in order: those that hold others come before them."""
        changed = []
        for piece in pieces:
            key = piece.key or piece.html
            if self._keys.get(piece.id) != key:
                self._keys[piece.id] = key
                changed.append((piece.id, piece.html))
        return changed
