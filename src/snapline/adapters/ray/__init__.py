"""Includes plain Ray actors in the cuts of a fleet (docs/ray-actors.md).

The modules are imported on demand, because importing gRPC and Ray is slow.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapline.adapters.ray.fleet_refs import ActorCallError as ActorCallError
    from snapline.adapters.ray.member_actor import actor_fleet as actor_fleet
    from snapline.adapters.ray.member_actor import changed as changed
    from snapline.adapters.ray.member_actor import in_fleet as in_fleet

_PLACES = {
    "ActorCallError": "fleet_refs",
    "actor_fleet": "member_actor",
    "changed": "member_actor",
    "in_fleet": "member_actor",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


__all__ = ["ActorCallError", "actor_fleet", "changed", "in_fleet"]
