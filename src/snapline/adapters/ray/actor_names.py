"""Names of actors: Ray knows actors by ids, which are others when an actor is made anew; a cut knows them by their names."""

import contextlib
from collections.abc import Iterable
from typing import Any

from snapline.deploy.ray_cluster import load_ray


class ActorNames:
    """The actors of one fleet, in the namespace of this process's job. Ray is asked once for each actor that is met."""

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
        found = self._handles.get(name)
        if found is None:
            found = self._handles[name] = load_ray().get_actor(name)
            self._known[found._actor_id] = name
        return found

    def forget(self, name: str) -> None:
        """Forget an actor that has ended permanently: another may have its name later."""
        self._handles.pop(name, None)

    def renew(self) -> None:
        """Look all handles up again, after a recovery. An owner of a handle of an actor that was made anew is known by its name still."""
        self._handles.clear()

    def name_of(self, handle: Any) -> str | None:
        """Return its name in the fleet; None: it is not in the fleet."""
        actor_id = handle._actor_id
        if actor_id not in self._known:
            for name in self._names:
                self._look(name)
        return self._known.get(actor_id)

    def _look(self, name: str) -> None:
        with contextlib.suppress(ValueError):  # it is not there yet, or no more
            self._known[load_ray().get_actor(name)._actor_id] = name
