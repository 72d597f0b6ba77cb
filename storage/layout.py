"""Where the files of a store lie, and how a store is named.

    snapline-store                          identity: which store this is
    packs/<writer>/<epoch>.<random>         checkpoints of one host for one epoch
    manifests/<root>.<generation>           what belongs to one epoch, and where it lies
    refs/epochs/<number>                    the root of a complete epoch
    probes/<random>                         shows that two processes see the same store
    temporary/<epoch>-<random>              only where the file system has no unnamed files

Paths are relative to the store, with `/`. Names that come from elsewhere (a host's report) are checked here before they
are opened.
"""

import re
import urllib.parse
from pathlib import Path

import msgspec

from snapline.errors import MisuseError
from snapline.ids import check_id

IDENTITY = "snapline-store"
PACKS = "packs"
MANIFESTS = "manifests"
REFS = "refs"
EPOCH_REFS = "refs/epochs"
PROBES = "probes"
TEMPORARY = "temporary"

DIRECTORIES = (PACKS, MANIFESTS, REFS, EPOCH_REFS, PROBES)
"""In the order of creation: parents first."""

ROOT_DIRECTORIES = frozenset({PACKS, MANIFESTS, REFS, PROBES, TEMPORARY, "lost+found"})
"""What may lie beside the identity; the last one where the store is a file system of its own."""

EPOCH_MAX = 2**63 - 1

_EPOCH = r"(0|[1-9][0-9]{0,18})"
_PACK = re.compile(rf"packs/([A-Za-z0-9_.-]{{1,128}})/{_EPOCH}\.([0-9a-f]{{32}})")
_MANIFEST = re.compile(r"manifests/([0-9a-f]{64})\.0")
_REF = re.compile(rf"refs/epochs/{_EPOCH}")
_PROBE = re.compile(r"probes/[0-9a-f]{32}")
_TEMPORARY = re.compile(rf"temporary/{_EPOCH}-[0-9a-f]{{32}}")
_ROOT = re.compile(r"[0-9a-f]{64}")


class PackName(msgspec.Struct, frozen=True, gc=False):
    """What a pack's path says."""

    writer: str
    epoch: int
    pack_id: str


def parse_location(url: str) -> Path:
    """Return the directory that a `file:///…` URL or a plain path names.

    Raises:
        MisuseError: another scheme, or a URL of another machine.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        if not url:
            raise MisuseError("the store's path is empty: give a directory or a file:///… URL")
        return Path(url)
    if scheme.lower() != "file":
        raise MisuseError(
            f"stores of scheme {scheme}:// come with a later version: use a directory that all hosts share, "
            "as file:///… URL or plain path"
        )
    machine, slash, path = rest.partition("/")
    if machine not in ("", "localhost") or not slash or "?" in path or "#" in path:
        raise MisuseError(f"{url!r} names no local directory: write file:///… with three slashes")
    return Path("/" + urllib.parse.unquote(path))


def check_epoch(epoch: int) -> int:
    """Return `epoch` if it can be one; MisuseError otherwise."""
    if not 0 <= epoch <= EPOCH_MAX:
        raise MisuseError(f"{epoch} is no epoch number: they count from 0")
    return epoch


def check_writer(writer: str) -> str:
    """Return `writer` if it is an id and safe as a directory's name; MisuseError otherwise."""
    if writer in (".", ".."):
        raise MisuseError(f"{writer!r} cannot name a writer: it is a directory's own name")
    return check_id(writer, "writer")


def check_root(root: str) -> str:
    """Return `root` if it is 64 hexadecimal digits; MisuseError otherwise."""
    if _ROOT.fullmatch(root) is None:
        raise MisuseError(f"{root!r} is no root: they have 64 hexadecimal digits")
    return root


def pack_path(name: PackName) -> str:
    """Return the path of the pack called `name`."""
    return f"{PACKS}/{name.writer}/{name.epoch}.{name.pack_id}"


def manifest_path(root: str) -> str:
    """Return the path of the manifest with `root`, first generation."""
    return f"{MANIFESTS}/{check_root(root)}.0"


def ref_path(epoch: int) -> str:
    """Return the path of the ref of `epoch`."""
    return f"{EPOCH_REFS}/{check_epoch(epoch)}"


def parse_pack_path(path: str) -> PackName | None:
    """Return what the path says; None if no pack can have it."""
    match = _PACK.fullmatch(path)
    if match is None or match[1] in (".", "..") or int(match[2]) > EPOCH_MAX:
        return None
    return PackName(match[1], int(match[2]), match[3])


def parse_manifest_path(path: str) -> str | None:
    """Return the root; None if no manifest can have this path."""
    match = _MANIFEST.fullmatch(path)
    return None if match is None else match[1]


def parse_ref_path(path: str) -> int | None:
    """Return the epoch; None if no ref can have this path."""
    match = _REF.fullmatch(path)
    return None if match is None or int(match[1]) > EPOCH_MAX else int(match[1])


def parse_temporary_path(path: str) -> int | None:
    """Return the epoch a temporary file was opened for; None if it is no temporary file."""
    match = _TEMPORARY.fullmatch(path)
    return None if match is None else int(match[1])


def is_probe_path(path: str) -> bool:
    """Return whether a probe can have this path."""
    return _PROBE.fullmatch(path) is not None
