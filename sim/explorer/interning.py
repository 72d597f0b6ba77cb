"""Small numbers for large values: equal values get one number, so that a global state is a short tuple of integers."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec

ValueT = TypeVar("ValueT", bound=Hashable)
KeyT = TypeVar("KeyT", bound=Hashable)
ResultT = TypeVar("ResultT")
CoreT = TypeVar("CoreT")


class Interner(Generic[ValueT]):
    """Numbers values 0, 1, 2 … in the order in which they come.

    Attributes:
        values: by number.
    """

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self.values: list[ValueT] = []
        self._numbers: dict[ValueT, int] = {}

    def of(self, value: ValueT) -> int:
        """The number of `value`."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Memo(dict[KeyT, ResultT]):
    """A dictionary that works out what it lacks: a hit costs no more than a dictionary's."""

    __slots__ = ("_work_out",)

    def __init__(self, work_out: Callable[[KeyT], ResultT]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, key: KeyT) -> ResultT:
        result = self[key] = self._work_out(key)
        return result


def key_of(event: msgspec.Struct) -> bytes:
    """A hashable stand-in for an event that may hold dictionaries; its tag tells the types apart."""
    return msgspec.msgpack.encode(event)


class CoreMemo(Generic[CoreT]):
    """The cores of one agent: (image, what is done) → (image, result), each worked out once on the real core.

    Attributes:
        images: all that have been met.
    """

    def __init__(self, freeze: Callable[[CoreT], Hashable], restore: Callable[[Any], CoreT]) -> None:
        """`freeze` also validates."""
        self.images: Interner[Any] = Interner()
        self._freeze, self._restore = freeze, restore
        self._results: dict[tuple[int, Hashable], tuple[int, Any]] = {}

    def enter(self, core: CoreT) -> int:
        """The number of the core's image."""
        return self.images.of(self._freeze(core))

    def run(self, image: int, key: Hashable, act: Callable[[CoreT], ResultT]) -> tuple[int, ResultT]:
        """Let a core with this image do `act`, which `key` names: its next image and what `act` returned."""
        found = self._results.get((image, key))
        if found is None:
            core = self._restore(self.images.values[image])
            result = act(core)
            found = self._results[image, key] = (self.enter(core), result)
        return found
