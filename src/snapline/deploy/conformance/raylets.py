"""Real raylets on this machine, and the bench that tests the Ray launcher on them. Only tests and benchmarks need it.

`ray.cluster_utils.Cluster` starts Ray's own processes: a head with its control store, and nodes that can be killed. All are on 127.0.0.1
here, which Ray allows only where it takes itself to be on a machine without a network; so nothing of it is reachable from outside.
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

from snapline.deploy.commands import Commands
from snapline.deploy.conformance.bench import LocalBench, commands_for_nodes
from snapline.deploy.launching import Launcher
from snapline.deploy.ray_cluster import RayCluster
from snapline.deploy.ray_launcher import RayLauncher

NOT_NICE = {"worker_niceness": 0}
"""Ray's own name, which may change. Its workers are nice to others (15) by default, and so is what they start: on a machine that has
other things to do heartbeats would come late."""

QUICK = {
    **NOT_NICE,
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""Settings under which Ray takes some two seconds to declare a node dead."""

SPOT = {"agenthost": 1.0}
"""Resource that a node has one of, so that it takes one host."""

STORE_BYTES = 80 << 20
"""Ray's object store on each node: nothing of ours goes through it."""

_SWEEPER = Path(__file__).with_name("sweeper.py")


class Raylets:
    """A head and some nodes; each node takes one host."""

    def __init__(self, nodes: int, config: Mapping[str, int]) -> None:
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": dict(config)}  # Ray writes into it
        cluster = import_module("ray.cluster_utils").Cluster
        self._cluster: Any = cluster(  # Any: Ray has its types only where it is installed
            initialize_head=True,
            head_node_args={**head, "node_ip_address": "127.0.0.1", "object_store_memory": STORE_BYTES},
        )
        self._nodes: list[Any] = []
        for _ in range(nodes):
            self.add()
        self.address = str(self._cluster.address)

    def add(self) -> None:
        """One more node."""
        self._nodes.append(
            self._cluster.add_node(
                num_cpus=2, resources=SPOT, node_ip_address="127.0.0.1", object_store_memory=STORE_BYTES
            )
        )

    def nodes(self) -> list[str]:
        """Ids of the nodes that take hosts."""
        return [node.node_id for node in self._nodes]

    def kill(self, node_id: str) -> None:
        """SIGKILL to the raylet of this node; what it has started ends with it."""
        node = next(each for each in self._nodes if each.node_id == node_id)
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End all of it."""
        import_module("ray").shutdown()
        self._cluster.shutdown()


@contextlib.contextmanager
def raylets(nodes: int, paths: Sequence[str] = (), config: Mapping[str, int] = QUICK) -> Iterator[Raylets]:
    """A cluster whose workers can import what lies in `paths`. `config`: Ray's system configuration.

    Its processes and files are gone afterwards, also where this process is killed: a sweeper stays until then.
    """
    constants: Any = import_module("ray._private.ray_constants")  # Any: not for us to know
    worker: Any = import_module("ray._private.worker")
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(_swept_folder())
        stack.enter_context(_environment(_wanted(scratch, paths)))
        # Read from the environment when Ray was imported.
        stack.enter_context(_changed(constants, "ENABLE_RAY_CLUSTER", False))
        # Pages about each node that died, which is on purpose here.
        stack.enter_context(_changed(worker, "print_to_stdstream", lambda *_, **__: None))
        made = Raylets(nodes, config)
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def _changed(module: Any, name: str, value: object) -> Iterator[None]:
    was = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, was)


def _wanted(scratch: str, paths: Sequence[str]) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_TMPDIR": scratch,
    }


@contextlib.contextmanager
def _swept_folder() -> Iterator[str]:
    """A folder that goes, with the processes that use it, when the block ends or this process does."""
    scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # Ray's sockets need a short path
    sweeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_SWEEPER), scratch], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield scratch
    finally:
        sweeper.communicate()


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    was = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in was.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class RayBench(LocalBench):
    """Nodes of this machine: processes can be frozen from here."""

    def __init__(self, folder: Path, address: str, hosts: int = 3) -> None:
        super().__init__(folder)
        self._address = address
        self._hosts = hosts

    def launcher(self) -> Launcher:
        cluster = RayCluster(self.folder.name, self._address)
        return RayLauncher(cluster, data_dir=str(self.folder / "data"), hosts=self._hosts, node=SPOT)

    def commands(self, fleet: str, hosts: int, arguments: Mapping[str, str] | None = None) -> Commands:
        return commands_for_nodes(self, fleet, hosts, arguments)

    def remains(self) -> list[str]:
        """Processes and actors."""
        cluster = RayCluster(self.folder.name, self._address)
        actors = cluster.names()
        cluster.leave(is_over=False)
        return [*super().remains(), *actors]
