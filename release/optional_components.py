"""Lists of the packages that extras bring, made from pip's installation reports: nothing is installed, since some extras exclude each other.

A report is what `pip install --dry-run --report` writes. Packages that the list of the runtime has already are left out.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

Report = Mapping[str, Any]


class Component(NamedTuple):
    """A package in one version. `extras`: those that bring it."""

    name: str
    version: str
    licence: str
    page: str
    sha256: str
    extras: list[str]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{normal(self.name)}@{self.version}"


def normal(name: str) -> str:
    """Return the name of a package as package indexes write it."""
    return name.lower().replace("_", "-").replace(".", "-")


def components(reports: Mapping[str, Report], listed: Collection[str]) -> list[Component]:
    """Return the packages that the extras' reports add to those that are `listed`, which are purls."""
    found: dict[str, Component] = {}
    for extra, report in sorted(reports.items()):
        for package in report["install"]:
            made = _component(package)
            if made.purl not in listed and made.name != "snapline":
                found.setdefault(made.purl, made).extras.append(extra)
    return [found[purl] for purl in sorted(found)]


def _component(package: Mapping[str, Any]) -> Component:
    metadata = package["metadata"]
    hashes = package.get("download_info", {}).get("archive_info", {}).get("hashes", {})
    pages = [metadata.get("home_page") or "", *(each.partition(", ")[2] for each in metadata.get("project_url", ()))]
    page = next((each for each in pages if each.startswith("http")), "")
    return Component(metadata["name"], metadata["version"], _licence(metadata), page, hashes.get("sha256", ""), [])


def _licence(metadata: Mapping[str, Any]) -> str:
    """Return the licence: the declared expression, else the classifiers, else the first line of the free text."""
    classifiers = [
        each.rpartition(" :: ")[2] for each in metadata.get("classifier", ()) if each.startswith("License ::")
    ]
    text = (metadata.get("license") or "").strip().partition("\n")[0]
    return metadata.get("license_expression") or "; ".join(classifiers) or text or "UNKNOWN"


def bill(found: Iterable[Component], version: str, covers: str) -> dict[str, Any]:
    """Return a CycloneDX document. `covers`: a sentence on what is in it."""
    snapline = {"type": "library", "bom-ref": "snapline", "name": "snapline", "version": version}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": snapline, "properties": [{"name": "snapline:covers", "value": covers}]},
        "components": [
            {
                "type": "library",
                "bom-ref": each.purl,
                "name": each.name,
                "version": each.version,
                "purl": each.purl,
                "scope": "optional",
                "licenses": [{"license": {"name": each.licence}}],
                **({"hashes": [{"alg": "SHA-256", "content": each.sha256}]} if each.sha256 else {}),
                "properties": [{"name": "snapline:extra", "value": extra} for extra in each.extras],
            }
            for each in found
        ],
    }


def licences(found: Iterable[Component], covers: str) -> str:
    """Return a table in Markdown."""
    rows = [(each.name, each.version, each.licence, each.page, ", ".join(each.extras)) for each in found]
    table = itertools.chain([("Name", "Version", "License", "URL", "Extras"), ("---",) * 5], rows)
    return f"{covers}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in table)
