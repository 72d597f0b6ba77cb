"""Connection to a Ray cluster, which requires the extra `snapline[ray]`. Only this module uses Ray, which it imports on first use.

Ray's types exist only if Ray is installed, so this module annotates Ray's objects as `Any`.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from snapline.channels.servers import PORT_POLL_S, PORT_WAIT_S
from snapline.errors import ExternalFailureError, UsageError

CONNECT_TIMEOUT_S = 10.0
"""Time limit in seconds for connecting to a cluster. Ray itself retries for minutes if nothing listens at the address."""

PLACE_TIMEOUT_S = 60.0
"""Time limit in seconds for reserving nodes for all hosts. Reserving existing nodes takes a second. If the cluster must scale up first,
users may have to repeat `snapline up`."""

ROOM_TIMEOUT_S = 10.0
"""Time limit in seconds for reserving nodes if too few nodes have the resources that hosts need. A node may be about to join, and the
cluster may scale up."""

NAMESPACE_PREFIX = "snapline-"


class WorkerLostError(ExternalFailureError):
    """Ray has reported that an actor or its node has died or is unreachable."""


def load_ray() -> Any:
    """Import and return Ray's module.

    Raises:
        UsageError: If Ray is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise UsageError("Ray is not installed: pip install 'snapline[ray]'") from error


class RayCluster:
    """A connection to a Ray cluster, in the namespace of one fleet."""

    def __init__(self, fleet: str, address: str, runtime: Mapping[str, object] | None = None) -> None:
        """Connect to the cluster, or reuse this process's existing connection.

        Args:
            fleet: name of the fleet on this cluster. The name is part of the namespace of the fleet's actors.
            address: HOST:PORT, or "auto" for the cluster in RAY_ADDRESS or else on this machine.
            runtime: Ray's runtime environment for all actors, for example with the folder that contains the fleet's code.

        Raises:
            UsageError: If Ray is not installed, or no cluster runs on this machine.
            ExternalFailureError: If no cluster replies at `address` within a few seconds.
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
        """Return the addresses of all nodes that have the resources in `node`, even if these resources are in use."""
        return [
            str(ray_node["NodeManagerAddress"])
            for ray_node in self._ray.nodes()
            if ray_node["Alive"]
            and all(ray_node["Resources"].get(resource, 0.0) >= amount for resource, amount in node.items())
        ]

    async def spread(self, count: int, node: Mapping[str, float]) -> None:
        """Reserve the resources in `node` on each of `count` nodes. If the fleet already has a reservation, do not change it.

        Raises:
            ExternalFailureError: If fewer than `count` nodes have these resources free.
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
            alive = sum(bool(ray_node["Alive"]) for ray_node in self._ray.nodes())
            suitable = len(self.nodes_for(node))
            wanted = ", ".join(f"{amount:g} {resource}" for resource, amount in node.items())
            raise ExternalFailureError(
                f"the Ray cluster has fewer than {count} nodes with {wanted} free (it has {alive} nodes, {suitable} of them with this much in total): "
                f"add nodes, or ask for fewer --hosts or --cpus"
            ) from None

    def actor(self, name: str) -> Any | None:
        """Return the fleet's actor with this name, or None if it does not exist."""
        try:
            return self._ray.get_actor(name, namespace=self.namespace)
        except ValueError:
            return None

    def names(self) -> list[str]:
        """Return the names of all actors of the fleet, sorted."""
        actors = import_module("ray.util").list_named_actors(all_namespaces=True)
        return sorted(str(actor["name"]) for actor in actors if actor["namespace"] == self.namespace)

    def make_actor(
        self,
        kind: type,
        name: str,
        bundle: int | None,
        *arguments: object,
        runtime: Mapping[str, object] | None = None,
    ) -> Any:
        """Create a detached actor and return its handle.

        The actor continues to exist after this process exits. If the actor or its node dies, Ray restarts the actor on any suitable node,
        but does not repeat its calls.

        Args:
            name: the actor's name in the fleet's namespace.
            bundle: index of the reserved node for the actor, or None for any node.
            runtime: the actor's runtime environment, or None for the environment of this process.
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
        ray_logger = logging.getLogger("ray.actor")
        ray_logger.addFilter(_is_unrelated_warning)
        try:
            return self._ray.remote(kind).options(**options).remote(*arguments)
        finally:
            ray_logger.removeFilter(_is_unrelated_warning)

    def end_actor(self, actor: Any) -> None:
        """End an actor permanently, without a restart by Ray."""
        self._ray.kill(actor, no_restart=True)

    def leave(self, *, is_over: bool) -> None:
        """Disconnect from the cluster. If `is_over` is set, also release the nodes that are reserved for the fleet."""
        if is_over:
            util = import_module("ray.util")
            with contextlib.suppress(ValueError):  # no reservation exists
                util.remove_placement_group(self._group or util.get_placement_group(self.namespace))
        if self._is_ours:
            self._ray.shutdown()


def _is_unrelated_warning(record: logging.LogRecord) -> bool:
    """Suppress Ray's warning that an actor ends together with its placement group, which is intended."""
    return "placement group is not recommended" not in record.getMessage()


def node_here() -> tuple[str, str]:
    """Return the id and address of the node on which the calling actor is running."""
    context = import_module("ray").get_runtime_context()
    return str(context.get_node_id()), str(import_module("ray.util").get_node_ip_address())


def runtime_here() -> dict[str, Any]:
    """Return the calling actor's runtime environment, for example with Ray's copy of the folder that contains the fleet's code."""
    return dict(import_module("ray").get_runtime_context().runtime_env)


async def answer(reference: Any) -> Any:
    """Wait for the result of an actor call, and return it.

    Raises:
        WorkerLostError: If the actor has died or is unreachable. The call may or may not have been executed.
    """
    errors = import_module("ray.exceptions")
    try:
        return await asyncio.wrap_future(reference.future())
    except errors.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except errors.RayError as error:
        raise WorkerLostError(_describe_error(error)) from error


def _describe_error(error: Exception) -> str:
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
        except OSError as error:  # also raised for a name that DNS does not resolve yet
            if time.monotonic() > deadline_s:
                reason = error.strerror or error
                raise ExternalFailureError(
                    f"no Ray cluster answers at {address} ({reason}): `ray start --head` makes one"
                ) from error
        time.sleep(PORT_POLL_S)
