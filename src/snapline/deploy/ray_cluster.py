"""Adapter for Ray, in one place: the extra `snapline[ray]`, imported when it is needed and not before.

Ray's own types are only there where it is installed, so what comes from it is `Any` here, and nowhere else.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from snapline.channels.listening import PORT_LOOK_S, PORT_WAIT_S
from snapline.errors import ExternalFailureError, UsageError

CONNECT_TIMEOUT_S = 10.0
"""Time limit to connect. Ray itself tries for minutes where nothing listens."""

PLACE_TIMEOUT_S = 60.0
"""Time limit for a cluster to find nodes for all hosts: one that has them takes a second; one that scales up may need `up` again."""

ROOM_TIMEOUT_S = 10.0
"""Time limit where no more nodes have what hosts need, whatever runs there: for a node that just joins, and for a cluster to learn that more are
needed."""

NAMESPACE_PREFIX = "snapline-"


class WorkerLostError(ExternalFailureError):
    """An actor, or its node, is gone or cannot be reached: by Ray's word."""


def load_ray() -> Any:
    """Ray's module.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise UsageError("Ray is not installed: pip install 'snapline[ray]'") from error


class RayCluster:
    """A connection to a Ray cluster, in the namespace of one fleet."""

    def __init__(self, fleet: str, address: str, runtime: Mapping[str, object] | None = None) -> None:
        """Join the cluster, unless this process is in one already; then that is taken.

        Args:
            fleet: its name on this cluster; the namespace of its actors.
            address: HOST:PORT, or "auto" for that of this machine or of RAY_ADDRESS.
            runtime: Ray's runtime environment, such as the folder with the fleet's code; all that is made here has it.

        Raises:
            UsageError: Ray is not installed, or there is no cluster on this machine.
            ExternalFailureError: no cluster answers at `address`, for some seconds.
        """
        self.namespace = NAMESPACE_PREFIX + fleet
        self._ray = load_ray()
        self._is_ours = not self._ray.is_initialized()
        self._group: Any = None
        if self._is_ours:
            _check_reachable(address)
            try:
                self._ray.init(
                    address=address,
                    namespace=self.namespace,
                    runtime_env=dict(runtime or {}),
                    log_to_driver=False,
                    configure_logging=False,
                )
            except ConnectionError as error:
                raise UsageError(f"no Ray cluster answers at {address}: `ray start --head` makes one") from error

    def nodes_for(self, node: Mapping[str, float]) -> list[str]:
        """Return addresses of the nodes with the resources of `node`, in use or not."""
        return [
            str(each["NodeManagerAddress"])
            for each in self._ray.nodes()
            if each["Alive"] and all(each["Resources"].get(what, 0.0) >= amount for what, amount in node.items())
        ]

    async def spread(self, count: int, node: Mapping[str, float]) -> None:
        """Take `count` places on as many nodes, each with the resources of `node`; those of before, if they are still there.

        Raises:
            ExternalFailureError: the cluster has not so many nodes with that to spare.
        """
        util = import_module("ray.util")
        try:
            self._group = util.get_placement_group(self.namespace)
            return
        except ValueError:
            bundles = [dict(node)] * count
        group = util.placement_group(bundles, strategy="STRICT_SPREAD", lifetime="detached", name=self.namespace)
        self._group = group
        has_room = len(self.nodes_for(node)) >= count
        try:
            async with asyncio.timeout(PLACE_TIMEOUT_S if has_room else ROOM_TIMEOUT_S):
                await answer(group.ready())
        except TimeoutError:
            util.remove_placement_group(group)
            self._group = None
            alive = sum(bool(each["Alive"]) for each in self._ray.nodes())
            suited = len(self.nodes_for(node))
            wanted = ", ".join(f"{amount:g} {what}" for what, amount in node.items())
            raise ExternalFailureError(
                f"the Ray cluster has not {count} nodes with {wanted} to spare (it has {alive} nodes, {suited} of them with as much in all): "
                f"add nodes, or ask for fewer --hosts or --cpus"
            ) from None

    def actor(self, name: str) -> Any | None:
        """The fleet's actor of this name; None if there is none."""
        try:
            return self._ray.get_actor(name, namespace=self.namespace)
        except ValueError:
            return None

    def names(self) -> list[str]:
        """Names of all of the fleet's actors, sorted."""
        found = import_module("ray.util").list_named_actors(all_namespaces=True)
        return sorted(str(each["name"]) for each in found if each["namespace"] == self.namespace)

    def make_actor(
        self,
        kind: type,
        name: str,
        bundle: int | None,
        *arguments: object,
        runtime: Mapping[str, object] | None = None,
    ) -> Any:
        """Make an actor that stays when we go, and that Ray starts again, here or on another node, when it or its node dies.

        Its calls are never repeated by Ray. `bundle`: which of the places it sits on; None: on any node. `runtime`: its runtime
        environment, if that is not ours.
        """
        options: dict[str, Any] = {
            "name": name,
            "namespace": self.namespace,
            "lifetime": "detached",
            "max_restarts": -1,
            "max_task_retries": 0,
            "num_cpus": 0,
        }
        if runtime:
            options["runtime_env"] = dict(runtime)
        if bundle is not None:
            strategies = import_module("ray.util.scheduling_strategies")
            options["scheduling_strategy"] = strategies.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=bundle
            )
        quiet = logging.getLogger("ray.actor")
        quiet.addFilter(_is_no_advice)
        try:
            return self._ray.remote(kind).options(**options).remote(*arguments)
        finally:
            quiet.removeFilter(_is_no_advice)

    def end_actor(self, actor: Any) -> None:
        """End an actor permanently."""
        self._ray.kill(actor, no_restart=True)

    def leave(self, *, is_over: bool) -> None:
        """Go; `is_over`: the fleet's places are given back."""
        if is_over:
            util = import_module("ray.util")
            with contextlib.suppress(ValueError):  # there is none
                util.remove_placement_group(self._group or util.get_placement_group(self.namespace))
        if self._is_ours:
            self._ray.shutdown()


def _is_no_advice(record: logging.LogRecord) -> bool:
    """Ray warns that an actor ends with its placement group: here both end together, and on purpose."""
    return "placement group is not recommended" not in record.getMessage()


def node_here() -> tuple[str, str]:
    """Return the id and address of the node of the calling actor."""
    context = import_module("ray").get_runtime_context()
    return str(context.get_node_id()), str(import_module("ray.util").get_node_ip_address())


def runtime_here() -> dict[str, Any]:
    """Return the runtime environment of the calling actor, such as the folder with the fleet's code as Ray has kept it."""
    return dict(import_module("ray").get_runtime_context().runtime_env)


async def answer(reference: Any) -> Any:
    """Return the answer of an actor.

    Raises:
        WorkerLostError: it is gone, or cannot be reached; whether the call was made is unknown.
    """
    errors = import_module("ray.exceptions")
    try:
        return await asyncio.wrap_future(reference.future())
    except errors.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except errors.RayError as error:
        raise WorkerLostError(_in_words(error)) from error


def _in_words(error: Exception) -> str:
    name = type(error).__name__
    if name == "ActorDiedError":
        return "Ray says that its actor or node died"
    return f"Ray cannot reach its actor or node ({name})"


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    deadline_s = time.monotonic() + PORT_WAIT_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:  # also a name that DNS does not know yet
            if time.monotonic() > deadline_s:
                reason = error.strerror or error
                raise ExternalFailureError(
                    f"no Ray cluster answers at {address} ({reason}): `ray start --head` makes one"
                ) from error
        time.sleep(PORT_LOOK_S)
