"""Paths of a store's files, and the rules for the names in these paths.

    snapline-store                          identity: the store's id
    fork                                    record of the parent fleet, if the fleet is a fork (`store_files.py`)
    packs/<writer>/<epoch>.<random>         checkpoints of one host for one epoch
    checkpoints/<writer>/<plan>.<random>    checkpoints that agents of one host took independently, under one plan
    manifests/<root>.<generation>           contents of one epoch, and the locations of these contents
    refs/epochs/<number>                    the root of a complete epoch
    pins/…, tags/…, deleting/…              holds on epochs, and intents to delete epochs (`pins.py`)
    log/<plan>/<host>-<start>/<n>           external inputs accepted by a host, and seals (`storage/log/`)
    answers/…                               results of steps that outlive the host logs (`storage/log/answer_files.py`)
    outputs/…                               outputs of agents, and positions of their consumers (`storage/outputs/`)
    shelves/<stream>/<n>                    object streams of programs that use the store (`storage/store/object_stream.py`)
    keys/<key>.<generation>                 wrapped keys of an encrypted store (`key_records.py`)
    replicas/<replica>.<number>             logs that the coordinator's replicas have had (`store_files.py`)
    probes/<random>                         files that show whether two processes see the same store
    temporary/<epoch>-<random>              unfinished files, only where the file system has no unnamed files. Names begin with plan-<plan>
                                            for checkpoints, log-<plan> for host logs, output-<epoch> for outputs, shelf-<n> for streams

Paths are relative to the store and use `/`. The functions in this module validate names from untrusted sources, such as a host's report,
before the files are opened. A checkpoint pack may contain several checkpoints of one agent, so each checkpoint in it is named
`<number>.<agent>`.
"""

import re
import urllib.parse
from functools import lru_cache
from pathlib import Path

import msgspec

from snapline.errors import UsageError
from snapline.ids import check_id

IDENTITY = "snapline-store"
FORK = "fork"
PACKS = "packs"
CHECKPOINTS = "checkpoints"
MANIFESTS = "manifests"
REFS = "refs"
EPOCH_REFS = "refs/epochs"
PROBES = "probes"
REPLICAS = "replicas"
LOG = "log"
OUTPUTS = "outputs"
ANSWERS = "answers"
OBJECT_STREAMS = "shelves"
TEMPORARY = "temporary"

DIRECTORIES = (PACKS, MANIFESTS, REFS, EPOCH_REFS, PROBES)
"""Directories of a new store in the order of creation, with parents first. Each other directory is created together with its first file."""

HOLDS = ("pins", "tags", "deleting")
KEYS = "keys"

ROOT_DIRECTORIES = frozenset(
    {
        PACKS,
        CHECKPOINTS,
        MANIFESTS,
        REFS,
        PROBES,
        REPLICAS,
        LOG,
        OUTPUTS,
        ANSWERS,
        OBJECT_STREAMS,
        TEMPORARY,
        KEYS,
        *HOLDS,
        "lost+found",
    }
)
"""Names allowed next to the identity file. The name `lost+found` exists where the store is a separate file system."""

EPOCH_MAX = 2**63 - 1
"""Largest number of an epoch, plan or checkpoint, which fits in a signed 64-bit integer."""

PATHS_KEPT = 1024
"""Size of the cache of parsed pack names. Every step of an epoch parses the names in the epoch's manifest again."""

NUMBER_PATTERN = r"(0|[1-9][0-9]{0,18})"
"""Regular expression, with one group, for an epoch, plan, checkpoint or other number in canonical decimal form."""

_PACK = re.compile(rf"(packs|checkpoints)/([A-Za-z0-9_.-]{{1,128}})/{NUMBER_PATTERN}\.([0-9a-f]{{32}})")
_MANIFEST = re.compile(r"manifests/([0-9a-f]{64})\.(0|[1-9][0-9]{0,8})")
_REF = re.compile(rf"refs/epochs/{NUMBER_PATTERN}")
_PROBE = re.compile(r"probes/[0-9a-f]{32}")
_TEMPORARY = re.compile(rf"temporary/(plan-|log-|output-|shelf-)?{NUMBER_PATTERN}-[0-9a-f]{{32}}")
_TEMPORARY_FOLDERS = {"": PACKS, "plan-": CHECKPOINTS, "log-": LOG, "output-": OUTPUTS, "shelf-": OBJECT_STREAMS}
_ROOT = re.compile(r"[0-9a-f]{64}")
_CHECKPOINT = re.compile(rf"{NUMBER_PATTERN}\.([A-Za-z0-9_.-]{{1,128}})")


class PackName(msgspec.Struct, frozen=True, gc=False):
    """Name of a pack, parsed from its path. `number` is the epoch, or the plan if `folder` is `CHECKPOINTS`."""

    writer: str
    number: int
    pack_id: str
    folder: str = PACKS

    @property
    def epoch(self) -> int | None:
        """Epoch of the pack, or None for a checkpoint pack."""
        return self.number if self.folder == PACKS else None

    @property
    def directory(self) -> str:
        """Directory that contains the pack."""
        return f"{self.folder}/{self.writer}"


def parse_location(url: str) -> Path:
    """Return the directory that a `file:///…` URL or a plain path names.

    Raises:
        UsageError: If the URL has another scheme, or names another machine.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        if not url:
            raise UsageError("the store's path is empty: give a directory or a file:///… URL")
        return Path(url)
    if scheme.lower() != "file":
        raise UsageError(f"{scheme}:// names no directory: write file:///… or a plain path")
    machine, slash, path = rest.partition("/")
    if machine not in ("", "localhost") or not slash or "?" in path or "#" in path:
        raise UsageError(f"{url!r} names no local directory: write file:///… with three slashes")
    return Path("/" + urllib.parse.unquote(path))


def check_epoch(epoch: int) -> int:
    """Return `epoch` if it is a valid epoch number. Raise UsageError otherwise."""
    if not 0 <= epoch <= EPOCH_MAX:
        raise UsageError(f"{epoch} is no epoch number: they count from 0")
    return epoch


def check_plan(plan: int) -> int:
    """Return `plan` if it is a valid plan number. Raise UsageError otherwise."""
    if not 1 <= plan <= EPOCH_MAX:
        raise UsageError(f"{plan} is no number of a plan: they count from 1")
    return plan


def check_writer(writer: str) -> str:
    """Return `writer` if this id is valid and safe to use as a directory name. Raise UsageError otherwise."""
    if writer in (".", ".."):
        raise UsageError(f"{writer!r} cannot name a writer: it is a directory's own name")
    return check_id(writer, "writer")


def check_root(root: str) -> str:
    """Return `root` if it is a string of 64 hexadecimal digits. Raise UsageError otherwise."""
    if _ROOT.fullmatch(root) is None:
        raise UsageError(f"{root!r} is no root: they have 64 hexadecimal digits")
    return root


def pack_path(name: PackName) -> str:
    """Return the path of the pack `name`."""
    return f"{name.directory}/{name.number}.{name.pack_id}"


def manifest_path(root: str, generation: int = 0) -> str:
    """Return the path of the manifest with this root. A later generation lists the same contents at other locations."""
    return f"{MANIFESTS}/{check_root(root)}.{generation}"


def ref_path(epoch: int) -> str:
    """Return the path of the ref of `epoch`."""
    return f"{EPOCH_REFS}/{check_epoch(epoch)}"


def temporary_name(name: PackName) -> str:
    """Return the name of a pack's temporary file, which is used on file systems that do not support unnamed files."""
    return f"{'' if name.folder == PACKS else 'plan-'}{name.number}-{name.pack_id}"


@lru_cache(PATHS_KEPT)
def parse_pack_path(path: str, folder: str = PACKS) -> PackName | None:
    """Parse the path of a pack in `folder`, which is `PACKS` or `CHECKPOINTS`. Return None if the path is invalid."""
    match = _PACK.fullmatch(path)
    if match is None or match[1] != folder or match[2] in (".", "..") or int(match[3]) > EPOCH_MAX:
        return None
    return PackName(match[2], int(match[3]), match[4], folder)


def parse_any_pack_path(path: str) -> PackName | None:
    """Parse the path of an epoch's pack or of a checkpoint pack. Return None if the path is invalid."""
    return parse_pack_path(path) or parse_pack_path(path, CHECKPOINTS)


def checkpoint_name(agent: str, number: int) -> str:
    """Return the name of an agent's checkpoint in a checkpoint pack. Raise UsageError if the number is out of range."""
    if not 0 <= number <= EPOCH_MAX:
        raise UsageError(f"{number} is no number of a checkpoint: they count from 0")
    return f"{number}.{check_id(agent)}"


def parse_checkpoint_name(name: str) -> tuple[str, int] | None:
    """Parse a checkpoint's name into agent and number. Return None if the name is invalid.

    The number ends at the first dot, because agent ids may contain dots.
    """
    match = _CHECKPOINT.fullmatch(name)
    return None if match is None or int(match[1]) > EPOCH_MAX else (match[2], int(match[1]))


def parse_manifest_path(path: str) -> tuple[str, int] | None:
    """Parse the path of a manifest into root and generation. Return None if the path is invalid."""
    match = _MANIFEST.fullmatch(path)
    return None if match is None else (match[1], int(match[2]))


def is_root(root: str) -> bool:
    return _ROOT.fullmatch(root) is not None


def parse_ref_path(path: str) -> int | None:
    """Parse the path of a ref into its epoch. Return None if the path is invalid."""
    match = _REF.fullmatch(path)
    return None if match is None or int(match[1]) > EPOCH_MAX else int(match[1])


def parse_temporary_path(path: str) -> tuple[str, int] | None:
    """Parse the path of a temporary file into its target folder and its number, such as the epoch or plan. For every file of an epoch, the
    folder is `PACKS`.

    Return None if the path is invalid.
    """
    match = _TEMPORARY.fullmatch(path)
    return None if match is None else (_TEMPORARY_FOLDERS[match[1] or ""], int(match[2]))


def is_probe_path(path: str) -> bool:
    return _PROBE.fullmatch(path) is not None


def check_probe(path: str) -> str:
    """Return `path` if it is the path of a probe file. Raise UsageError otherwise."""
    if not is_probe_path(path):
        raise UsageError(f"{path!r} is no path of a probe")
    return path
