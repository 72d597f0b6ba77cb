"""Start a real Ray cluster on this machine, and test the Ray launcher on it.

Only tests and benchmarks use this module.

`ray.cluster_utils.Cluster` starts Ray's own processes: a head node with the control store, and worker nodes that can be killed. All of
these processes listen on 127.0.0.1, so other machines cannot reach them. Ray uses this address only if it believes that the machine has no
network.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from snapline.deploy.conformance.bench import LocalBench, commands_for_nodes
from snapline.deploy.launching import Commands, Launcher
from snapline.deploy.ray_cluster import RayCluster
from snapline.deploy.ray_fleet import RayLauncher

NORMAL_PRIORITY = {"worker_niceness": 0}
"""An internal setting of Ray, whose name may change. By default Ray's workers and their children run at niceness 15, so their heartbeats
would be late on a busy machine."""

QUICK = {
    **NORMAL_PRIORITY,
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""Settings with which Ray declares a node dead after about two seconds."""

HOST_RESOURCE = {"agenthost": 1.0}
"""Custom Ray resource of which each node has one unit, so that each node runs one host."""

STORE_BYTES = 80 << 20
"""Size in bytes of Ray's object store on each node. snapline does not use the object store."""

_SWEEPER = Path(__file__).with_name("sweeper.py")


class Raylets:
    """A Ray cluster with a head node and several nodes, each of which can run one host."""

    def __init__(self, nodes: int, config: Mapping[str, int]) -> None:
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": dict(config)}  # Ray modifies this dict
        cluster = import_module("ray.cluster_utils").Cluster
        self._cluster: Any = cluster(  # Any: Ray's types exist only where Ray is installed
            initialize_head=True,
            head_node_args={**head, "node_ip_address": "127.0.0.1", "object_store_memory": STORE_BYTES},
        )
        self._nodes: list[Any] = []
        for _ in range(nodes):
            self.add()
        self.address = str(self._cluster.address)

    def add(self) -> None:
        """Add a node to the cluster."""
        self._nodes.append(
            self._cluster.add_node(
                num_cpus=2, resources=HOST_RESOURCE, node_ip_address="127.0.0.1", object_store_memory=STORE_BYTES
            )
        )

    def nodes(self) -> list[str]:
        """Return the ids of the nodes that can run hosts."""
        return [node.node_id for node in self._nodes]

    def kill(self, node_id: str) -> None:
        """Send SIGKILL to the raylet of this node. The kernel kills the raylet's child processes with it."""
        node = next(candidate for candidate in self._nodes if candidate.node_id == node_id)
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """Shut the cluster down."""
        import_module("ray").shutdown()
        self._cluster.shutdown()


@contextlib.contextmanager
def raylets(nodes: int, paths: Sequence[str] = (), config: Mapping[str, int] = QUICK) -> Iterator[Raylets]:
    """Yield a cluster whose workers can import modules from `paths`. `config` is Ray's system configuration.

    A separate process removes the cluster's processes and files afterwards, even if this process is killed.
    """
    constants: Any = import_module("ray._private.ray_constants")  # Any: a private module of Ray
    worker: Any = import_module("ray._private.worker")
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(_swept_folder())
        stack.enter_context(_environment(_wanted(scratch, paths)))
        # Ray has already read this setting from the environment when it was imported.
        stack.enter_context(_changed(constants, "ENABLE_RAY_CLUSTER", False))
        # Suppress Ray's long messages about dead nodes, because these tests kill nodes on purpose.
        stack.enter_context(_changed(worker, "print_to_stdstream", lambda *_, **__: None))
        cluster = Raylets(nodes, config)
        try:
            yield cluster
        finally:
            cluster.close()


@contextlib.contextmanager
def _changed(module: Any, name: str, value: object) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


def _wanted(scratch: str, paths: Sequence[str]) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_TMPDIR": scratch,
    }


@contextlib.contextmanager
def _swept_folder() -> Iterator[str]:
    """Yield a temporary folder. When the block or this process ends, a separate process removes the folder and kills the processes that use
    it."""
    scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the path must be short, because Ray puts sockets there
    sweeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_SWEEPER), scratch], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield scratch
    finally:
        sweeper.communicate()


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    original = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in original.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class RayBench(LocalBench):
    """A bench whose nodes all run on this machine, so this process can freeze their processes directly."""

    def __init__(self, folder: Path, address: str, hosts: int = 3) -> None:
        super().__init__(folder)
        self._address = address
        self._hosts = hosts

    def launcher(self) -> Launcher:
        cluster = RayCluster(self.folder.name, self._address)
        return RayLauncher(cluster, data_dir=str(self.folder / "data"), hosts=self._hosts, node=HOST_RESOURCE)

    def commands(self, fleet: str, hosts: int, arguments: Mapping[str, str] | None = None) -> Commands:
        return commands_for_nodes(self, fleet, hosts, arguments)

    def remains(self) -> list[str]:
        """Describe the processes and actors that remain after closing."""
        cluster = RayCluster(self.folder.name, self._address)
        actors = cluster.names()
        cluster.leave(is_over=False)
        return [*super().remains(), *actors]
