"""Conformance checks for every disk of a checkpoint store: ours, and other people's.

`Store` trusts its disk in a few points, and nothing works without them: a name is given once; it leads to all bytes or to none;
what was acknowledged is seen by all; listings are complete. The checks here test these through the port (`storage/store/disk.py`), with many
threads, and then run whole stores, host logs and outputs on it. They cannot see whether bytes outlive a power cut.

In a test suite:

    @pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
    def test_my_disk(check: conformance.Check, tmp_path: Path) -> None:
        check(lambda place: MyDisk(tmp_path / place))

`open_disk(place)` returns a new disk object each time; the same place means the same bytes, and a place used for the first time is empty.
So several objects on one place represent several processes. What the checks wrote remains: give places that may be thrown away.

Directories may be real or only common starts of names. So nothing is demanded of listing a missing directory, of making one twice, of
unlinking one name from two threads.
"""

from snapline.storage.conformance.disk_checks import DISK_CHECKS
from snapline.storage.conformance.harness import RACERS, Check, ConformanceError, OpenDisk
from snapline.storage.conformance.log_checks import LOG_CHECKS
from snapline.storage.conformance.output_checks import OUTPUT_CHECKS
from snapline.storage.conformance.store_checks import STORE_CHECKS

__all__ = [
    "DISK_CHECKS",
    "LOG_CHECKS",
    "OUTPUT_CHECKS",
    "RACERS",
    "STORE_CHECKS",
    "Check",
    "ConformanceError",
    "OpenDisk",
    "check_disk",
    "checks",
]


def checks() -> list[Check]:
    """Return all checks, the simple ones first. Each is a function of `open_disk` and, if you like, `racers`."""
    return [*DISK_CHECKS, *STORE_CHECKS, *LOG_CHECKS, *OUTPUT_CHECKS]


def check_disk(open_disk: OpenDisk, *, racers: int = RACERS) -> None:
    """Run all checks, one after the other.

    Args:
        open_disk: see the module's text.
        racers: threads that race in those checks that race.

    Raises:
        ConformanceError: the first check that failed, by name, and what it saw.
    """
    for check in checks():
        check(open_disk, racers)
