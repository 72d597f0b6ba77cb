"""Includes plain gRPC services in a fleet's consistent cuts (docs/grpc.md). The modules are imported on demand, because importing gRPC is
slow."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapline.adapters.grpc.member import Member as Member
    from snapline.adapters.grpc.service_agent import CutService as CutService
    from snapline.adapters.grpc.service_agent import ServiceAgent as ServiceAgent
    from snapline.adapters.grpc.threaded_member import ThreadedMember as ThreadedMember

_PLACES = {
    "Member": "member",
    "CutService": "service_agent",
    "ServiceAgent": "service_agent",
    "ThreadedMember": "threaded_member",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


__all__ = ["CutService", "Member", "ServiceAgent", "ThreadedMember"]
