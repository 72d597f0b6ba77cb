"""Connect to a Ray cluster, which requires the extra `snapline[ray]`. Only this module uses Ray, which it imports on first use.

Ray's types exist only if Ray is installed, so this module declares Ray's objects as `Any`.
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
    """Ray has reported that an actor or its node is gone or unreachable."""


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
    """A connection to a Ray cluster that uses one fleet's namespace."""

    def __init__(self, fleet: str, address: str, runtime: Mapping[str, object] | None = None) -> None:
        """Connect to the cluster, or use this process's existing connection.

        Args:
            fleet: name of the fleet on this cluster. The namespace of the fleet's actors contains this name.
            address: HOST:PORT, or "auto" to use RAY_ADDRESS or this machine's cluster.
            runtime: Ray's runtime environment for all actors. For example, it names the folder with the fleet's code.

        Raises:
            UsageError: If Ray is not installed, or there is no cluster on this machine.
            ExternalFailureError: If no cluster answers at `address` within some seconds.
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
        """Return the addresses of the nodes that have the resources in `node`, even if these resources are in use."""
        return [
            str(ray_node["NodeManagerAddress"])
            for ray_node in self._ray.nodes()
            if ray_node["Alive"]
            and all(ray_node["Resources"].get(resource, 0.0) >= amount for resource, amount in node.items())
        ]

    async def spread(self, count: int, node: Mapping[str, float]) -> None:
        """Reserve the resources in `node` on each of `count` nodes. If the fleet already has a reservation, keep it unchanged.

        Raises:
            ExternalFailureError: If these resources are free on fewer than `count` nodes.
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
        """Return the fleet's actor with this name, or None if there is no such actor."""
        try:
            return self._ray.get_actor(name, namespace=self.namespace)
        except ValueError:
            return None

    def names(self) -> list[str]:
        """Return the sorted names of all actors of the fleet."""
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

        The actor survives this process. If the actor or its node dies, Ray restarts the actor on any suitable node, but never repeats
        calls.

        Args:
            kind: the actor's class.
            name: the actor's name in the fleet's namespace.
            bundle: number of the reserved node to run on, or None for any node.
            arguments: arguments for the actor's constructor.
            runtime: the actor's runtime environment, or None for this process's.
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
        """End an actor permanently, so that Ray does not restart it."""
        self._ray.kill(actor, no_restart=True)

    def leave(self, *, is_over: bool) -> None:
        """Disconnect from the cluster. If `is_over` is set, also release the fleet's reserved nodes."""
        if is_over:
            util = import_module("ray.util")
            with contextlib.suppress(ValueError):  # no reservation exists
                util.remove_placement_group(self._group or util.get_placement_group(self.namespace))
        if self._is_ours:
            self._ray.shutdown()


def _is_unrelated_warning(record: logging.LogRecord) -> bool:
    """Suppress Ray's warning that an actor ends with its placement group, because here both end together on purpose."""
    return "placement group is not recommended" not in record.getMessage()


def node_here() -> tuple[str, str]:
    """Return the id and address of the node on which the calling actor runs."""
    context = import_module("ray").get_runtime_context()
    return str(context.get_node_id()), str(import_module("ray.util").get_node_ip_address())


def runtime_here() -> dict[str, Any]:
    """Return the calling actor's runtime environment. For example, it names Ray's copy of the folder with the fleet's code."""
    return dict(import_module("ray").get_runtime_context().runtime_env)


async def answer(reference: Any) -> Any:
    """Wait for the result of a call to an actor, and return the result.

    Raises:
        WorkerLostError: If the actor is gone or unreachable. The call may or may not have run.
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
