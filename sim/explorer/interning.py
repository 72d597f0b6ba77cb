"""Interning of large values as small numbers: equal values get one number, so a global state is a short tuple of integers."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec

ValueT = TypeVar("ValueT", bound=Hashable)
KeyT = TypeVar("KeyT", bound=Hashable)
ResultT = TypeVar("ResultT")
CoreT = TypeVar("CoreT")


class Interner(Generic[ValueT]):
    """Interner that numbers values 0, 1, 2 … in the order of their first use.

    Attributes:
        values: values by number.
    """

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self.values: list[ValueT] = []
        self._numbers: dict[ValueT, int] = {}

    def of(self, value: ValueT) -> int:
        """Return the number of `value`."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Memo(dict[KeyT, ResultT]):
    """Dictionary that computes missing values. A hit costs no more than in a plain dictionary."""

    __slots__ = ("_work_out",)

    def __init__(self, work_out: Callable[[KeyT], ResultT]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, key: KeyT) -> ResultT:
        result = self[key] = self._work_out(key)
        return result


def key_of(event: msgspec.Struct) -> bytes:
    """Return a hashable key for an event that may hold dictionaries. The tag distinguishes types."""
    return msgspec.msgpack.encode(event)


class CoreMemo(Generic[CoreT]):
    """Memo of one agent's cores: (image, action) → (next image, result), each computed once on the real core.

    Attributes:
        images: all images seen so far.
    """

    def __init__(self, freeze: Callable[[CoreT], Hashable], restore: Callable[[Any], CoreT]) -> None:
        """`freeze` also validates."""
        self.images: Interner[Any] = Interner()
        self._freeze, self._restore = freeze, restore
        self._results: dict[tuple[int, Hashable], tuple[int, Any]] = {}

    def enter(self, core: CoreT) -> int:
        """Return the number of the core's image."""
        return self.images.of(self._freeze(core))

    def run(self, image: int, key: Hashable, act: Callable[[CoreT], ResultT]) -> tuple[int, ResultT]:
        """Apply `act`, identified by `key`, to a core with this image. Return the next image and the result of `act`."""
        memoised = self._results.get((image, key))
        if memoised is None:
            core = self._restore(self.images.values[image])
            result = act(core)
            memoised = self._results[image, key] = (self.enter(core), result)
        return memoised
