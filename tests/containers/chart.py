"""src/snapline/deploy/helm/snapline, rendered by Helm's own engine, and what a cluster's controllers would make of it."""

import importlib.util
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

CHART = Path(__file__).resolve().parents[2] / "src" / "snapline" / "deploy" / "helm" / "snapline"
TOOLS = ("helm_python", "kubernetes_validate", "yaml")

Document = dict[str, Any]
"""One object of Kubernetes; Any: whatever YAML holds."""

VALUES: Document = {
    "fleet": "snapline.deploy.conformance.token_fleet:fleet",
    "storeClaim": "snapshots",
    "tls": {"coordinators": "tills-coordinators", "hosts": "tills-hosts"},
}
"""The least that must be said."""


def missing() -> str:
    """Which tools are not here."""
    lacking = [tool for tool in TOOLS if importlib.util.find_spec(tool) is None]
    return f"{', '.join(lacking)} not installed: make test-helm" if lacking else ""


def with_values(more: Mapping[str, Any]) -> Document:
    """VALUES and these; one level down too."""
    found = dict(VALUES)
    for key, value in more.items():
        found[key] = {**found[key], **value} if isinstance(value, dict) and isinstance(found.get(key), dict) else value
    return found


def render(values: Mapping[str, Any], name: str = "tills") -> list[Document]:
    """All objects of a release.

    Raises:
        helm_python.HelmError: the values are refused.
    """
    with import_module("helm_python").Chart.load(str(CHART)) as chart:
        chart.validate_schema(dict(values))
        made = chart.render(dict(values), name=name, namespace="shop")
    texts = [text for path, text in made.items() if path.endswith(".yaml")]
    return [each for text in texts for each in import_module("yaml").safe_load_all(text) if each]


def lint(values: Mapping[str, Any]) -> list[str]:
    """What Helm finds that is worse than a hint."""
    report = import_module("helm_python").lint(str(CHART), dict(values))
    return [*report["errors"], *(each["error"] for each in report["messages"] if each["severity"] > 1)]


def one(objects: list[Document], kind: str, name: str) -> Document:
    """The object of this kind and name."""
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def container(stateful_set: Document) -> Document:
    """The one of its pods."""
    (found,) = stateful_set["spec"]["template"]["spec"]["containers"]
    return dict(found)


def pods(stateful_set: Document) -> list[Document]:
    """What the controller of stateful sets makes: a pod for each ordinal, with claims of its own."""
    spec, made = stateful_set["spec"], []
    for ordinal in range(spec["replicas"]):
        name = f"{stateful_set['metadata']['name']}-{ordinal}"
        claims = [
            {
                "name": template["metadata"]["name"],
                "persistentVolumeClaim": {"claimName": f"{template['metadata']['name']}-{name}"},
            }
            for template in spec.get("volumeClaimTemplates", [])
        ]
        template = spec["template"]
        pod_spec = {**template["spec"], "volumes": [*template["spec"]["volumes"], *claims]}
        metadata = {"name": name, "labels": template["metadata"]["labels"]}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec})
    return made
