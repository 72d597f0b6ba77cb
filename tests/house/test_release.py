"""A release is what its commit says: one version everywhere, the same bytes at each build, every change in the changelog, every extra tested and listed."""

import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

from release.build import EXTRAS, OF_CHECKOUT, differences, with_fixed_times
from release.optional_components import bill, components, licences
from release.smoke_extras import CHECKS

import snapline


def test_the_version_is_the_same_everywhere(root: Path) -> None:
    """`snapline.__version__`, the package, the chart, and the citation."""
    chart = (root / "src/snapline/deploy/helm/snapline/Chart.yaml").read_text()
    named = re.findall(r'^(?:version|appVersion): "?([^"\n]+)', chart, re.MULTILINE)
    named += re.findall(r"^version: (.+)", (root / "CITATION.cff").read_text(), re.MULTILINE)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert {snapline.__version__, *named} == {project["version"]}


def test_changes_have_names_that_the_changelog_takes(root: Path) -> None:
    """Others would be left out without a word."""
    names = [path.name for path in (root / "changes").glob("*") if not path.name.startswith(".")]
    assert not [name for name in names if not re.fullmatch(r"\+[a-z0-9-]+\.(added|changed|fixed)\.md", name)]


def packed(folder: Path, *, name: str, time_s: int) -> Path:
    made = folder / name
    member = folder / f"{name}.txt"
    member.write_text("the same")
    with tarfile.open(made, "w:gz") as tar:
        entry = tar.gettarinfo(member, "snapline/file.txt")
        entry.mtime, entry.uname, entry.mode = time_s, name, 0o664
        with member.open("rb") as content:
            tar.addfile(entry, content)
    return made


def test_an_sdist_does_not_depend_on_time_owner_or_umask(tmp_path: Path) -> None:
    one, other = packed(tmp_path, name="one.tar.gz", time_s=1), packed(tmp_path, name="other.tar.gz", time_s=2)
    for each in (one, other):
        with_fixed_times(each, 7)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as tar:
        (entry,) = tar.getmembers()
        assert (entry.mtime, entry.uname, entry.mode) == (7, "", 0o644)
        content = tar.extractfile(entry)
        assert content is not None and content.read() == b"the same"


def test_builds_that_differ_are_found(tmp_path: Path) -> None:
    for folder, files in (("first", {"same": "1", "other": "1", "one": ""}), ("second", {"same": "1", "other": "2"})):
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    assert differences(tmp_path / "first", tmp_path / "second") == ["one", "other"]


def test_every_extra_is_tested_from_the_wheel(root: Path) -> None:
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert sorted([*EXTRAS, *OF_CHECKOUT, *CHECKS]) == sorted(extras)


def package(name: str, version: str, **metadata: Any) -> dict[str, Any]:
    archive = {"archive_info": {"hashes": {"sha256": "ab" * 32}}}
    return {"metadata": {"name": name, "version": version, **metadata}, "download_info": archive}


REPORTS = {
    "crewai": {
        "install": [package("snapline", "1"), package("openai", "2.1", license="MIT\ntext"), package("rich", "15")]
    },
    "openai-agents": {
        "install": [
            package("Open_AI", "3.0", license_expression="MIT", license="x", project_url=["Home, https://home"]),
            package("typing_x", "1", classifier=["License :: OSI Approved :: BSD License", "Typing :: Typed"]),
        ]
    },
    "torch": {"install": [package("typing_x", "1")]},
}


def test_what_extras_bring_is_listed_with_their_names() -> None:
    """Each version that one of them brings; what the runtime has already is left out."""
    found = components(REPORTS, {"pkg:pypi/rich@15"})
    assert [(each.purl, each.licence, each.page, each.extras) for each in found] == [
        ("pkg:pypi/open-ai@3.0", "MIT", "https://home", ["openai-agents"]),
        ("pkg:pypi/openai@2.1", "MIT", "", ["crewai"]),
        ("pkg:pypi/typing-x@1", "BSD License", "", ["openai-agents", "torch"]),
    ]
    made = bill(found, "0.1.0", "All of it.")
    assert made["metadata"]["properties"] == [{"name": "snapline:covers", "value": "All of it."}]
    assert [each["scope"] for each in made["components"]] == ["optional"] * 3
    assert [each["value"] for each in made["components"][2]["properties"]] == ["openai-agents", "torch"]
    table = licences(found, "All of it.").splitlines()
    assert table[0] == "All of it." and table[-1] == "| typing_x | 1 | BSD License |  | openai-agents, torch |"
