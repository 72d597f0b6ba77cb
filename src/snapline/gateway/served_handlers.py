"""Handlers that a gateway is configured to serve although they are not marked public: patterns of agents and message types."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from snapline.errors import UsageError


class Served:
    """`patterns`: patterns AGENT/TYPE, with `*` for any characters, such as `desk-*/Order`.

    Raises:
        UsageError: a pattern is invalid.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [tuple(pattern.rpartition("/")[::2]) for pattern in patterns]
        for pattern, (agent, name) in zip(patterns, self._patterns, strict=True):
            if not agent or not name:
                raise UsageError(f"--serve {pattern}: use AGENT/TYPE, such as 'desk-*/Order'")

    def has(self, agent: str, message_type: str) -> bool:
        """Return whether a pattern matches messages of this type for this agent."""
        return any(fnmatchcase(agent, of) and fnmatchcase(message_type, name) for of, name in self._patterns)


NOTHING = Served()
