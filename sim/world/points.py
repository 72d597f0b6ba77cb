"""Failpoints: named points of the code, and the actions armed there."""

from collections.abc import Callable


class Points:
    """Failpoints of a run: the armed action applies to the node that passes the point.

    Attributes:
        acting: node whose code is running.
    """

    def __init__(self) -> None:
        self.acting = ""
        self._armed: dict[str, list[tuple[int, Callable[[str], None]]]] = {}

    def passed(self, name: str) -> None:
        """Record that `acting` passes this point, and run the action armed here, which may raise."""
        armed = self._armed.get(name) if self._armed else None
        if not armed or not self.acting:
            return
        due = next((act for hit, act in armed if hit == 1), None)
        self._armed[name] = [(hit - 1, act) for hit, act in armed if hit > 1]
        if due is not None:
            due(self.acting)

    def arm(self, name: str, hit: int, act: Callable[[str], None]) -> None:
        """Arm an action for the node that passes the point for the `hit`-th time from now."""
        self._armed.setdefault(name, []).append((hit, act))

    def waits_at(self, name: str) -> bool:
        """Return whether an action is still armed at the point."""
        return bool(self._armed.get(name))

    def disarm(self) -> None:
        """Disarm all points."""
        self._armed.clear()
