"""The Helm chart: what it makes is what Kubernetes takes, and what a fleet needs; values that make no fleet are refused."""

import copy
from importlib import import_module
from typing import Any

import pytest
from tests.containers.chart import VALUES, Document, container, lint, missing, one, pods, render, with_values

from snapline.telemetry.health import ALIVE, READY

pytestmark = [pytest.mark.helm, pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]

VERSIONS = ("1.27.0", "1.31.0")
"""The oldest that the chart takes, and one of later."""

SETS = {"coordinator": "tills-coordinator", "host": "tills-host"}

GOOD: dict[str, Document] = {
    "the least": {},
    "one coordinator": {"coordinators": {"replicas": 1}},
    "five": {"coordinators": {"replicas": 5, "antiAffinity": "hard"}, "hosts": {"replicas": 9}},
    "plaintext": {"insecure": True, "tls": {"coordinators": "", "hosts": ""}},
    "a bucket": {
        "storeClaim": "",
        "store": "s3://snapshots/tills",
        "environmentFrom": [{"secretRef": {"name": "bucket"}}],
        "environment": [{"name": "AWS_REGION", "value": "eu-north-1"}],
    },
    "more": {
        "arguments": {"period": "0.5", "note": "a: b # c"},
        "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
        "hosts": {"resources": {"limits": {"memory": "1Gi"}}},
        "coordinators": {"storage": {"className": "fast"}, "resources": {"requests": {"cpu": "100m"}}},
        "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "shop"}}}]},
        "metrics": {"enabled": True, "readers": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]},
    },
}

BAD: dict[str, Document] = {
    "two coordinators": {"coordinators": {"replicas": 2}},
    "none": {"coordinators": {"replicas": 0}},
    "no host": {"hosts": {"replicas": 0}},
    "no fleet": {"fleet": ""},
    "a module only": {"fleet": "my_agents"},
    "no store": {"storeClaim": ""},
    "neither certificates nor plaintext": {"tls": {"coordinators": "", "hosts": ""}},
    "both": {"insecure": True},
    "hosts without": {"tls": {"hosts": ""}},
    "misspelt": {"coordinator": {"replicas": 3}},
    "misspelt below": {"hosts": {"replica": 3}},
    "an argument that is no text": {"arguments": {"period": 0.5}},
}


def validated(objects: list[Document]) -> None:
    validate = import_module("kubernetes_validate").validate
    for each in objects:
        for version in VERSIONS:
            validate(each, version, strict=True)


@pytest.mark.parametrize("name", GOOD)
def test_kubernetes_takes_what_it_makes(name: str) -> None:
    values = with_values(GOOD[name])
    assert lint(values) == []
    objects = render(values)
    validated(objects)
    validated([pod for kind in SETS.values() for pod in pods(one(objects, "StatefulSet", kind))])


def test_a_misspelt_field_would_be_seen() -> None:
    objects = copy.deepcopy(render(VALUES))
    container(one(objects, "StatefulSet", "tills-host"))["startupProbe"]["grpc"]["sevice"] = "alive"
    with pytest.raises(Exception, match="sevice"):
        validated(objects)


@pytest.mark.parametrize("name", BAD)
def test_values_that_make_no_fleet_are_refused(name: str) -> None:
    with pytest.raises(import_module("helm_python").HelmError):
        render(with_values(BAD[name]))


@pytest.mark.parametrize("part", SETS)
def test_only_who_is_not_alive_is_killed(part: str) -> None:
    """A majority that is lost must not have the rest killed, nor a handler that blocks its host; a pod that is not ready must be found all the same."""
    objects = render(VALUES)
    made = container(one(objects, "StatefulSet", SETS[part]))
    asked = {probe: said["grpc"] for probe, said in made.items() if probe.endswith("Probe")}
    (port,) = [each["containerPort"] for each in made["ports"] if each["name"] == "health"]
    assert f"--health=0.0.0.0:{port}" in made["args"]
    assert {probe: (one["service"], one["port"]) for probe, one in asked.items()} == {
        "startupProbe": (ALIVE, port),
        **({"livenessProbe": (ALIVE, port)} if part == "coordinator" else {}),
        "readinessProbe": (READY, port),
    }
    service = one(objects, "Service", SETS[part])["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
    assert one(objects, "StatefulSet", SETS[part])["spec"]["podManagementPolicy"] == "Parallel"
    assert one(objects, "PodDisruptionBudget", SETS[part])["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("part", SETS)
def test_pods_may_nothing_that_they_need_not(part: str) -> None:
    """The restricted profile of Kubernetes' pod security standards, and a file system that cannot be written."""
    pod = one(render(VALUES), "StatefulSet", SETS[part])["spec"]["template"]["spec"]
    assert (
        pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    assert pod["automountServiceAccountToken"] is False
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"secret", "emptyDir", "persistentVolumeClaim"}
    (made,) = pod["containers"]
    assert made["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_replicas_are_called_what_their_pods_are(replicas: int) -> None:
    objects = render(with_values({"coordinators": {"replicas": replicas}}))
    coordinators = one(objects, "StatefulSet", "tills-coordinator")
    names = [pod["metadata"]["name"] for pod in pods(coordinators)]
    addresses = [f"{name}.tills-coordinator:7400" for name in names]
    given = options(container(coordinators))
    if replicas > 1:
        assert given["--peers"] == ",".join(f"{name}={where}" for name, where in zip(names, addresses, strict=True))
    assert ("--peers" in given) == ("lifecycle" in container(coordinators)) == (replicas > 1)
    assert options(container(one(objects, "StatefulSet", "tills-host")))["--coordinator"] == ",".join(addresses)


def test_pods_of_hosts_drain_before_they_end_and_have_the_time_for_it() -> None:
    hosts = one(render(with_values({"hosts": {"lastSnapshotSeconds": 45}})), "StatefulSet", "tills-host")
    assert options(container(hosts))["--last-snapshot-s"] == "45"
    assert hosts["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 75
    *_, command = container(hosts)["lifecycle"]["preStop"]["exec"]["command"]
    assert command.startswith("kill -TERM 1"), "the signal has the host wait for a last snapshot"


def test_a_policy_lets_in_the_fleet_and_named_clients_to_one_port_each() -> None:
    clients = [{"podSelector": {"matchLabels": {"app": "shop"}}}]
    objects = render(with_values({"networkPolicy": {"clients": clients}}))
    own = {"app.kubernetes.io/name": "snapline", "app.kubernetes.io/instance": "tills"}
    for part, port in {"coordinator": 7400, "host": 7500}.items():
        policy = one(objects, "NetworkPolicy", SETS[part])["spec"]
        labels = one(objects, "StatefulSet", SETS[part])["spec"]["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items() and own.items() <= labels.items()
        (rule,) = policy["ingress"]
        assert rule["from"] == [{"podSelector": {"matchLabels": own}}, *clients]
        assert rule["ports"] == [{"port": port, "protocol": "TCP"}]


@pytest.mark.parametrize("part", SETS)
def test_metrics_are_said_to_named_readers_and_only_if_somebody_wants_them(part: str) -> None:
    readers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    quiet = container(one(render(VALUES), "StatefulSet", SETS[part]))
    assert "--metrics" not in options(quiet) and "metrics" not in {port["name"] for port in quiet["ports"]}
    objects = render(with_values({"metrics": {"enabled": True, "readers": readers}}))
    made = container(one(objects, "StatefulSet", SETS[part]))
    (port,) = [each["containerPort"] for each in made["ports"] if each["name"] == "metrics"]
    assert options(made)["--metrics"] == f"0.0.0.0:{port}"
    _, rule = one(objects, "NetworkPolicy", SETS[part])["spec"]["ingress"]
    assert rule == {"from": readers, "ports": [{"port": port, "protocol": "TCP"}]}


def options(made: dict[str, Any]) -> dict[str, str]:
    """Those of a container's arguments that are written in one word."""
    return dict(each.split("=", 1) for each in made["args"] if each.startswith("--") and "=" in each)
