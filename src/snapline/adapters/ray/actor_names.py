"""Names of actors. A restarted actor gets a new id in Ray, so a cut identifies actors by name."""

import contextlib
from collections.abc import Iterable
from typing import Any

from snapline.deploy.ray_cluster import load_ray


class ActorNames:
    """The actors of one fleet, in the namespace of this process's job. Each actor is looked up in Ray once."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._handles: dict[str, Any] = {}
        self._known: dict[Any, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def handle(self, name: str) -> Any:
        """Return a handle of this actor.

        Raises:
            ValueError: Ray knows no actor of this name now.
        """
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = load_ray().get_actor(name)
            self._known[handle._actor_id] = name
        return handle

    def forget(self, name: str) -> None:
        """Forget an actor that has ended permanently: its name may be reused later."""
        self._handles.pop(name, None)

    def renew(self) -> None:
        """Look up all handles again, after a recovery. Handles of a former actor still map to its name."""
        self._handles.clear()

    def name_of(self, handle: Any) -> str | None:
        """Return the actor's name in the fleet; None if it is not in the fleet."""
        actor_id = handle._actor_id
        if actor_id not in self._known:
            for name in self._names:
                self._look(name)
        return self._known.get(actor_id)

    def _look(self, name: str) -> None:
        with contextlib.suppress(ValueError):  # the actor does not exist now
            self._known[load_ray().get_actor(name)._actor_id] = name
