"""Names of output files and of the consumers' position files.

    outputs/<epoch>.0                   first part of an epoch's release; it holds the number of parts
    outputs/<epoch>.<part>.<release>    part 1, 2 … of the release whose random id part 0 names
    outputs/consumers/<name>.<number>   position of a named consumer; the highest number counts

A consumer's name may contain dots: the last one ends the name.
"""

import re

import msgspec

from snapline.errors import UsageError
from snapline.ids import check_id
from snapline.storage.disk.layout import EPOCH_MAX, OUTPUTS

CONSUMERS = f"{OUTPUTS}/consumers"

_NUMBER = r"[1-9][0-9]{0,18}"
_COUNT = r"0|[1-9][0-9]{0,18}"
_PART = re.compile(rf"{OUTPUTS}/({_NUMBER})\.(?:0|([1-9][0-9]{{0,8}})\.([0-9a-f]{{32}}))")
_CONSUMER = re.compile(rf"{CONSUMERS}/([A-Za-z0-9_.-]{{1,128}})\.({_NUMBER})")
_CURSOR = re.compile(rf"({_NUMBER})\.({_COUNT})")


class Cursor(msgspec.Struct, frozen=True, order=True, gc=False):
    """Position of a reader: all releases before `epoch`, and the first `taken` outputs of that epoch's release."""

    epoch: int = 0
    taken: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.taken}" if self.epoch else ""


START = Cursor()
"""The cursor before all outputs; its text form is empty."""


class PartName(msgspec.Struct, frozen=True, gc=False):
    """Name of a part, from its path; `release` is empty for part 0."""

    epoch: int
    part: int
    release: str

    @property
    def path(self) -> str:
        """Path of the part."""
        return f"{OUTPUTS}/{self.epoch}.{self.part}" + (f".{self.release}" if self.part else "")


def first_path(epoch: int) -> str:
    """Return the path of part 0; UsageError if the epoch is invalid."""
    if not 1 <= epoch <= EPOCH_MAX:
        raise UsageError(f"{epoch} is no epoch that outputs are released with: they count from 1")
    return PartName(epoch, 0, "").path


def parse_part_path(path: str) -> PartName | None:
    """Return the part's name from its path; None for other paths."""
    match = _PART.fullmatch(path)
    if match is None or int(match[1]) > EPOCH_MAX:
        return None
    return PartName(int(match[1]), int(match[2] or 0), match[3] or "")


def parse_cursor(text: str) -> Cursor:
    """Return the parsed cursor; UsageError if it is invalid."""
    if not text:
        return START
    match = _CURSOR.fullmatch(text)
    if match is None or int(match[1]) > EPOCH_MAX or int(match[2]) > EPOCH_MAX:
        raise UsageError(f"{text!r} is no cursor: give one that came with an output, or '' for the beginning")
    return Cursor(int(match[1]), int(match[2]))


def consumer_path(name: str, number: int) -> str:
    """Return the path of the `number`-th position of a consumer; UsageError if the name is invalid."""
    return f"{CONSUMERS}/{check_id(name, 'consumer')}.{number}"


def parse_consumer_path(path: str) -> tuple[str, int] | None:
    """Return name and number; None for other paths."""
    match = _CONSUMER.fullmatch(path)
    return None if match is None or int(match[2]) > EPOCH_MAX else (match[1], int(match[2]))
