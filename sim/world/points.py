"""Named points of the code that nodes pass, and what is armed there."""

from collections.abc import Callable


class Points:
    """Failpoints: the node that passes an armed one suffers what is armed.

    Attributes:
        acting: the node whose code runs at this moment.
    """

    def __init__(self) -> None:
        self.acting = ""
        self._armed: dict[str, list[tuple[int, Callable[[str], None]]]] = {}

    def passed(self, name: str) -> None:
        """`acting` passes this point. Raises what was armed here."""
        armed = self._armed.get(name) if self._armed else None
        if not armed or not self.acting:
            return
        due = next((act for hit, act in armed if hit == 1), None)
        self._armed[name] = [(hit - 1, act) for hit, act in armed if hit > 1]
        if due is not None:
            due(self.acting)

    def arm(self, name: str, hit: int, act: Callable[[str], None]) -> None:
        """Let the node that passes it for the `hit`-th time from now suffer this."""
        self._armed.setdefault(name, []).append((hit, act))

    def waits_at(self, name: str) -> bool:
        """Return whether something is still armed there."""
        return bool(self._armed.get(name))

    def disarm(self) -> None:
        """Disarm all points: what has not happened yet never will."""
        self._armed.clear()
