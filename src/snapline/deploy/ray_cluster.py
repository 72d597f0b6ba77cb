"""Connect to a Ray cluster (extra `snapline[ray]`). Only this module uses Ray, which is imported on first use.

Ray's types exist only where Ray is installed, so this module declares Ray's objects as `Any`.
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
"""Time limit to connect. Ray itself tries for minutes if nothing listens."""

PLACE_TIMEOUT_S = 60.0
"""Time limit to reserve nodes for all hosts. Reserving existing nodes takes a second; on a cluster that scales up, users may have to repeat
`up`."""

ROOM_TIMEOUT_S = 10.0
"""Time limit if too few nodes have the resources that hosts need. A node may just be joining, and the cluster may scale up."""

NAMESPACE_PREFIX = "snapline-"


class WorkerLostError(ExternalFailureError):
    """Ray reports that an actor or its node is gone or unreachable."""


def load_ray() -> Any:
    """Import and return Ray's module.

    Raises:
        UsageError: Ray is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise UsageError("Ray is not installed: pip install 'snapline[ray]'") from error


class RayCluster:
    """A connection to a Ray cluster, in the namespace of one fleet."""

    def __init__(self, fleet: str, address: str, runtime: Mapping[str, object] | None = None) -> None:
        """Connect to the cluster, or use the connection that this process already has.

        Args:
            fleet: name of the fleet on this cluster; part of the namespace of its actors.
            address: HOST:PORT, or "auto" for this machine's cluster or RAY_ADDRESS.
            runtime: Ray's runtime environment for all actors, such as the folder with the fleet's code.

        Raises:
            UsageError: Ray is not installed, or there is no cluster on this machine.
            ExternalFailureError: no cluster answers at `address` within some seconds.
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
        """Return the addresses of the nodes that have the resources in `node`, whether these are in use or not."""
        return [
            str(ray_node["NodeManagerAddress"])
            for ray_node in self._ray.nodes()
            if ray_node["Alive"]
            and all(ray_node["Resources"].get(resource, 0.0) >= amount for resource, amount in node.items())
        ]

    async def spread(self, count: int, node: Mapping[str, float]) -> None:
        """Reserve the resources of `node` on each of `count` nodes; keep an existing reservation.

        Raises:
            ExternalFailureError: the cluster has fewer nodes with these resources free.
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
        """Return the fleet's actor of this name; None if there is none."""
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
        """Create a detached actor: it survives this process, and Ray restarts it, on any suitable node, when it or its node dies.

        Ray never repeats its calls. `bundle`: number of the reserved place to run on; None: any node. `runtime`: its runtime
        environment, if it differs from this process's.
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
        """End an actor permanently."""
        self._ray.kill(actor, no_restart=True)

    def leave(self, *, is_over: bool) -> None:
        """Disconnect; `is_over`: also release the reserved places."""
        if is_over:
            util = import_module("ray.util")
            with contextlib.suppress(ValueError):  # no reservation exists
                util.remove_placement_group(self._group or util.get_placement_group(self.namespace))
        if self._is_ours:
            self._ray.shutdown()


def _is_unrelated_warning(record: logging.LogRecord) -> bool:
    """Drop Ray's warning that an actor ends with its placement group: here both end together on purpose."""
    return "placement group is not recommended" not in record.getMessage()


def node_here() -> tuple[str, str]:
    """Return the id and address of the node of the calling actor."""
    context = import_module("ray").get_runtime_context()
    return str(context.get_node_id()), str(import_module("ray.util").get_node_ip_address())


def runtime_here() -> dict[str, Any]:
    """Return the runtime environment of the calling actor, such as Ray's copy of the folder with the fleet's code."""
    return dict(import_module("ray").get_runtime_context().runtime_env)


async def answer(reference: Any) -> Any:
    """Wait for the result of an actor's call.

    Raises:
        WorkerLostError: the actor is gone or cannot be reached; the call may have run.
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
        except OSError as error:  # also raised for a name that DNS does not know yet
            if time.monotonic() > deadline_s:
                reason = error.strerror or error
                raise ExternalFailureError(
                    f"no Ray cluster answers at {address} ({reason}): `ray start --head` makes one"
                ) from error
        time.sleep(PORT_POLL_S)
