"""Pins, tags and guarded deletion of an opened store: `pins.py` with the store's own disk and randomness."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from snapline.storage.retention import pins
from snapline.storage.retention.pins import Pin, Tag
from snapline.storage.store.store import Store

_TOKEN_BYTES = 16
"""Size of a random name: 128 bits, so names never collide."""


class Holds:
    """Pins, tags and guarded deletion of one store, with its disk and randomness. `pins.py` describes each."""

    def __init__(self, store: Store, *, now_s: Callable[[], float]) -> None:
        """Create the holds. `now_s` returns seconds since 1970."""
        self._store = store
        self._disk = store.disk
        self._id = store.store_id
        self._now_s = now_s

    def pin(self, epoch: int) -> Pin:
        """Pin a snapshot."""
        return self._pin(epoch, self._token())

    @contextlib.contextmanager
    def holding(self, epoch: int) -> Iterator[Pin]:
        """Pin a snapshot for the duration of the block. If the process dies meanwhile, the pin stays: `unpin` removes it."""
        token = self._token()
        made = self._pin(epoch, token)
        try:
            yield made
        finally:
            pins.unpin_own(self._disk, epoch, token)

    def unpin(self, epoch: int) -> bool:
        """Remove all pins of an epoch."""
        return pins.unpin(self._disk, epoch)

    def tag(self, name: str, epoch: int) -> Tag:
        """Tag a snapshot."""
        token, now_s = self._token(), self._now_s()
        return self._store.confirm_damage(lambda: pins.tag(self._disk, self._id, name, epoch, token=token, now_s=now_s))

    def untag(self, name: str) -> bool:
        """Remove a tag."""
        return pins.untag(self._disk, name)

    def pins(self) -> list[Pin]:
        """All pins."""
        return pins.list_pins(self._disk, self._id)

    def pinned(self) -> list[int]:
        """Return the epochs that are pinned, ascending; damaged pins count."""
        return pins.pinned_epochs(self._disk)

    def tags(self) -> list[Tag]:
        """All tags."""
        return pins.list_tags(self._disk, self._id)

    def held(self) -> dict[int, str]:
        """Return epoch → the reason to keep it."""
        return pins.held_epochs(self._disk, self._id)

    def delete(
        self, epochs: Sequence[int], delete: Callable[[int], list[str]] | None = None
    ) -> dict[int, list[str] | None]:
        """Delete those of `epochs` that are not held, with `delete` or by default `Store.delete_epoch`."""
        delete = delete or self._store.delete_epoch
        return pins.guarded_delete(self._disk, self._id, epochs, delete, tokens=self._token, now_s=self._now_s())

    def clear_leftovers(self, *, is_alone: bool = False) -> list[str]:
        """Remove the pins and intents of dead processes."""
        return pins.clear_leftovers(self._disk, self._id, now_s=self._now_s(), is_alone=is_alone)

    def _pin(self, epoch: int, token: str) -> Pin:
        now_s = self._now_s()
        return self._store.confirm_damage(lambda: pins.pin(self._disk, self._id, epoch, token=token, now_s=now_s))

    def _token(self) -> str:
        return self._store._random_bytes(_TOKEN_BYTES).hex()
