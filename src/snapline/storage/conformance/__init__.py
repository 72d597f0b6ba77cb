"""Conformance checks for every disk of a checkpoint store, including third-party ones.

`Store` relies on a few properties of its disk. A name is created once; a name has all its bytes or does not exist;
acknowledged changes are visible to all; listings are complete. The checks test these through the protocol (`storage/disk/local_disk.py`), with many
threads, and then run whole stores, host logs and outputs on it. They cannot check whether bytes survive a power failure.

In a test suite:

    @pytest.mark.parametrize("check", conformance.checks(), ids=lambda check: check.__name__)
    def test_my_disk(check: conformance.Check, tmp_path: Path) -> None:
        check(lambda place: MyDisk(tmp_path / place))

`open_disk(place)` returns a new disk object each time. The same place means the same bytes, and a new place is empty.
So several objects on one place represent several processes. The checks leave their files behind: use disposable places.

Directories may be real or only common prefixes of names. So the checks make no demands on listing a missing directory, creating one twice, or
unlinking one name from two threads.
"""

from snapline.storage.conformance.checks import (
    DISK_CHECKS,
    LOG_CHECKS,
    OUTPUT_CHECKS,
    RACERS,
    STORE_CHECKS,
    Check,
    ConformanceError,
    OpenDisk,
)

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
    """Return all checks, the simple ones first. Each is a function of `open_disk` and optionally `racers`."""
    return [*DISK_CHECKS, *STORE_CHECKS, *LOG_CHECKS, *OUTPUT_CHECKS]


def check_disk(open_disk: OpenDisk, *, racers: int = RACERS) -> None:
    """Run all checks, one after the other.

    Args:
        open_disk: see the module's text.
        racers: number of threads in checks with races.

    Raises:
        ConformanceError: names the first failed check, and the reason.
    """
    for check in checks():
        check(open_disk, racers)
