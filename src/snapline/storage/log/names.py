"""Names of host logs and their entries.

    log/<plan>/<host>-<start>/<n>        entry n = 1, 2, 3 …: a batch, or a seal
    log/<plan>/<host>-<start>/sealing    mark: a process has begun to seal the log
    log/<plan>/<host>-<start>/sealed     mark: the log accepts no more batches
    log/deleted.<random>                 the deleted batches of all logs (`deletions.py`)

Host ids may contain dashes and dots: the last dash ends the id.
"""

import re

import msgspec

from snapline.errors import UsageError
from snapline.ids import check_id
from snapline.storage.disk.layout import EPOCH_MAX, LOG

NUMBER_MAX = EPOCH_MAX
"""Largest number of a plan, start or entry; fits a signed 64-bit integer."""

SEALING = "sealing"
SEALED = "sealed"
MARKS = (SEALING, SEALED)

_NUMBER = r"(0|[1-9][0-9]{0,18})"
_DIRECTORY = re.compile(rf"{LOG}/{_NUMBER}/([A-Za-z0-9_.-]{{1,128}})-{_NUMBER}")
_DELETIONS = re.compile(rf"{LOG}/deleted\.[0-9a-f]{{32}}")
_ENTRY = re.compile(r"[1-9][0-9]{0,18}")


class LogName(msgspec.Struct, frozen=True, order=True, gc=False):
    """Name of the log that one start of a host writes under one plan."""

    plan: int
    host: str
    start: int

    @property
    def directory(self) -> str:
        """Directory of its entries."""
        return f"{LOG}/{self.plan}/{self.host}-{self.start}"

    @property
    def writer(self) -> str:
        """Writer id of this start of the host, as used in pack names."""
        return f"{self.host}.{self.start}"

    def __str__(self) -> str:
        return f"the log of host {self.host!r}, start {self.start}, plan {self.plan}"


def check_log(log: LogName) -> LogName:
    """Return `log` if it is valid; UsageError otherwise."""
    check_id(log.host, "host")
    if not (1 <= log.plan <= NUMBER_MAX and 0 <= log.start <= NUMBER_MAX):
        raise UsageError(f"there is no log of plan {log.plan} and start {log.start}: plans count from 1, starts from 0")
    return log


def check_number(number: int) -> int:
    """Return `number` if it is a valid entry number; UsageError otherwise."""
    if not 1 <= number <= NUMBER_MAX:
        raise UsageError(f"{number} is no number of an entry: they count from 1")
    return number


def entry_path(log: LogName, name: int | str) -> str:
    """Return the path of the entry of this number, or of a mark."""
    return f"{log.directory}/{name}"


def deletions_path(random: str) -> str:
    """Return the path of a record of deletions; `random` has 32 hexadecimal digits."""
    return f"{LOG}/deleted.{random}"


def is_deletions_path(path: str) -> bool:
    """Return whether `path` names a record of deletions."""
    return _DELETIONS.fullmatch(path) is not None


def parse_directory(path: str) -> LogName | None:
    """Return the log with this directory; None for other paths."""
    match = _DIRECTORY.fullmatch(path)
    if match is None:
        return None
    log = LogName(int(match[1]), match[2], int(match[3]))
    return log if 1 <= log.plan <= NUMBER_MAX and log.start <= NUMBER_MAX else None


def parse_path(path: str) -> tuple[LogName, int | str] | None:
    """Return log and number, or log and mark; None for paths that no log file has."""
    directory, _, name = path.rpartition("/")
    log = parse_directory(directory)
    if log is not None and name in MARKS:
        return log, name
    if log is None or _ENTRY.fullmatch(name) is None or int(name) > NUMBER_MAX:
        return None
    return log, int(name)
