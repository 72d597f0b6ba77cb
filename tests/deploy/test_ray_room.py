"""What a Ray cluster has room for, by what Ray says of its nodes. Ray is not needed."""

import socket
from types import SimpleNamespace

import pytest

from snapline.deploy import ray_cluster
from snapline.deploy.ray_cluster import RayCluster
from snapline.errors import ExternalFailureError


def node(address: str, *, is_alive: bool = True, **resources: float) -> dict[str, object]:
    return {"NodeManagerAddress": address, "Alive": is_alive, "Resources": resources}


def test_nodes_count_by_what_they_have_in_all() -> None:
    cluster = RayCluster.__new__(RayCluster)
    nodes = [node("a", CPU=4.0), node("b", CPU=1.0, GPU=1.0), node("c", CPU=4.0, is_alive=False), node("d")]
    cluster._ray = SimpleNamespace(nodes=lambda: nodes)
    found = {wanted: cluster.nodes_for(dict(wanted)) for wanted in ((("CPU", 1.0),), (("CPU", 1.0), ("GPU", 1.0)), ())}
    assert list(found.values()) == [["a", "b"], ["b"], ["a", "b", "d"]]


@pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid"])
def test_a_cluster_that_does_not_answer_is_waited_for_and_the_worlds_fault(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "PORT_WAIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ExternalFailureError, match=rf"no Ray cluster answers at {host}:{port} \(.*`ray start --head`"):
        ray_cluster._check_reachable(f"{host}:{port}")
