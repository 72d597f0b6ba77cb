"""Marks of the coordinator's logs: the logs that each replica has had, and which of them may vote.

A coordinator replica that lost its disk has forgotten its votes and what it acknowledged. It cannot detect that by
itself, since a new replica also starts with an empty folder. So the store keeps a record (`coordinator/raft/learner.py` decides). The store is the
right place, since it names the cluster: emptying it too starts another cluster.

    replicas/<replica>.<number>     1, 2, 3 …: the newest counts

Files are written once. If two processes write the same number, one of them fails.
"""

import re
from collections.abc import Callable

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.ids import check_id
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import Disk, make_durable_directory
from snapline.storage.disk.record import canonical, check_store, damaged, seal, unseal

MARK_KIND = b"RLOG"
NUMBER_MAX = 10**9
"""Largest number of marks of one replica: each stands for a lost disk."""

_PATH = re.compile(rf"{layout.REPLICAS}/([A-Za-z0-9_.-]{{1,128}})\.([1-9][0-9]{{0,8}})")


class LogMark(msgspec.Struct, frozen=True, gc=False):
    """A log, by its random id, and whether it may vote."""

    log: str
    is_voter: bool


class _MarkBody(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    replica: str
    log: str
    is_voter: bool
    store: str


def read_marks(disk: Disk, store_id: str) -> dict[str, list[LogMark]]:
    """Return the marks of each replica, oldest first.

    Raises:
        DamagedDataError: a mark is damaged or belongs to another store.
        StoreError: the store cannot be read.
    """
    marks_by_replica: dict[str, dict[int, LogMark]] = {}
    for path in _paths(disk):
        replica, number = parse_mark_path(path) or ("", 0)
        if number:
            marks_by_replica.setdefault(replica, {})[number] = read_mark(disk, path, store_id)
    return {replica: [marks[number] for number in sorted(marks)] for replica, marks in sorted(marks_by_replica.items())}


def read_mark(disk: Disk, path: str, store_id: str | None) -> LogMark:
    """Return one mark, after every check. `store_id` None skips that comparison; errors as `read_marks`."""
    body = unseal(
        MARK_KIND,
        store_files.read_file(disk, path, epoch=None, size_bytes_max=store_files.SMALL_BYTES_MAX),
        path=path,
        epoch=None,
    )
    with store_files.decoding(path):
        mark = msgspec.msgpack.decode(body, type=_MarkBody)
    check_store(mark.store, path, store_id)
    if (parse_mark_path(path) or ("",))[0] != mark.replica:
        raise damaged(path, f"it is of replica {mark.replica}")
    return LogMark(mark.log, mark.is_voter)


def add_mark(disk: Disk, store_id: str, replica: str, mark: LogMark, *, random_bytes: Callable[[int], bytes]) -> None:
    """Make `mark` the newest of `replica`; durable when this returns.

    Raises:
        StoreError: the mark cannot be written, or another process of this replica was faster.
    """
    number = (
        max([number for path in _paths(disk) for name, number in [_parsed(path)] if name == replica], default=0) + 1
    )
    path = f"{layout.REPLICAS}/{check_id(replica, 'replica')}.{number}"
    body = _MarkBody(replica=replica, log=mark.log, is_voter=mark.is_voter, store=store_id)
    name = f"0-{random_bytes(16).hex()}"
    with store_files.writing(disk, f"the mark of replica {replica}"):
        make_durable_directory(disk, layout.REPLICAS)
        try:
            store_files.create_or_compare(
                disk, path, seal(MARK_KIND, canonical.encode(body)), temporary_name=name, epoch=0, point="store.mark"
            )
        except (FileExistsError, DamagedDataError) as error:
            raise StoreError(f"{path} is there already: two processes run as replica {replica}; end one") from error


def parse_mark_path(path: str) -> tuple[str, int] | None:
    """Return replica and number; None for other paths."""
    match = _PATH.fullmatch(path)
    return (match[1], int(match[2])) if match else None


def _parsed(path: str) -> tuple[str, int]:
    return parse_mark_path(path) or ("", 0)


def _paths(disk: Disk) -> list[str]:
    try:
        return sorted(f"{layout.REPLICAS}/{entry.name}" for entry in disk.list_directory(layout.REPLICAS))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot read {layout.REPLICAS} in the store {disk.location}: {error}") from error
