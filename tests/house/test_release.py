"""A release is what its commit says: one version everywhere, the same bytes at each build, every change in the changelog."""

import re
import tarfile
import tomllib
from pathlib import Path

from release.build import differences, with_fixed_times

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
