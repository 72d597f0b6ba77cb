"""Checks of host logs on a disk."""

from collections.abc import Callable, Sequence

from snapline.errors import NotFoundError
from snapline.storage.conformance.disk_checks import OpenDisk, check, race, require
from snapline.storage.log.log_record import LogBatch, LoggedInput, LogName, PreparedBatch
from snapline.storage.store.store import Store

RACED_NUMBERS = 10
"""Number of races: enough to detect a server that decides randomly, even fairly."""

RACED_LOGS = 5

APPENDED_MAX = 1000
"""Largest number of appends, if sealing fails to stop the appender. Sealing takes a few requests, so it usually stops after some ten."""

_LOG = LogName(1, "h1", 1)
_BEFORE = 12
"""Entries before the race: more than nine, so that the order by name differs from that by number."""


@check
def check_life_of_a_log(open_disk: OpenDisk, racers: int) -> None:
    """Check that another process sees batches being appended, read, sealed and deleted."""
    store, other = _open_two(open_disk)
    require(other.read_logs() == {}, "a new store has logs")
    for number in range(1, _BEFORE + 1):
        require(_append(store, number), f"batch {number} was refused")
    require(other.read_logs() == {_LOG: list(range(1, _BEFORE + 1))}, f"another process finds {other.read_logs()}")
    require(other.read_batch(_LOG, 2) == _make_batch(2), "another process reads another batch")
    other.seal_log(_LOG)
    other.seal_log(_LOG)
    require(not _append(store, _BEFORE + 1), "a sealed log took a batch")
    require(store.read_batch(_LOG, _BEFORE + 1) is None, "the seal is none")
    removed = store.delete_batches([(_LOG, number) for number in range(1, _BEFORE + 2)])
    require(len(removed) == _BEFORE, f"{len(removed)} of {_BEFORE} batches were deleted")
    require(other.read_logs() == {_LOG: [_BEFORE + 1]}, f"after the deletion there is {other.read_logs()}")
    verification = other.verify()
    require(
        verification.is_whole and not verification.unreferenced,
        f"verify finds {verification.findings[:1]}, {verification.unreferenced[:1]}",
    )


@check
def check_one_batch_for_each_number(open_disk: OpenDisk, racers: int) -> None:
    """Check that if processes append different batches under one number, exactly one succeeds, also after retries."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for number in range(1, RACED_NUMBERS + 1):
        prepared = [one_store.prepare_batch(_LOG, number, _make_batch(number)) for one_store in stores]
        results = race(racers, _appending(stores, prepared))
        winners = [racer for racer, result in enumerate(results) if result is True]
        losers = [result for result in results if result is not True]
        require(all(result is False for result in losers), f"a loser got {_first_error(losers)!r}")
        require(len(winners) == 1, f"{len(winners)} of {racers} batches have number {number}")
        require(race(racers, _appending(stores, prepared)) == results, "a repetition ended otherwise")
        require(store.read_batch(_LOG, number) == _make_batch(number), "the batch is damaged")


@check
def check_the_same_batch_by_many(open_disk: OpenDisk, racers: int) -> None:
    """Check that processes that append the same bytes all succeed."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for number in range(1, RACED_NUMBERS + 1):
        prepared = store.prepare_batch(_LOG, number, _make_batch(number))
        results = race(racers, _appending(stores, [prepared] * racers))
        require(all(result is True for result in results), f"one of many got {_first_error(results)!r}")


@check
def check_racing_seals(open_disk: OpenDisk, racers: int) -> None:
    """Check appends of a host while others seal its log: each sealer then reads all acknowledged batches, and no later ones are acknowledged."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers + 1)]
    for start in range(1, RACED_LOGS + 1):
        log = LogName(1, "h1", start)
        for number in range(1, _BEFORE + 1):
            _append(store, number, log)
        results = race(racers + 1, _sealing_while_appended(stores, log))
        require(all(isinstance(result, set) for result in results), f"a racer got {_first_error(results)!r}")
        taken, *seen_by_readers = [result for result in results if isinstance(result, set)]
        lost = sorted(number for number in taken if any(number not in seen for seen in seen_by_readers))
        require(not lost, f"batches {lost} were acknowledged, and one who sealed the log does not find them")
        require(not _append(store, max(taken) + 1, log), "a sealed log takes more")


def _sealing_while_appended(stores: list[Store], log: LogName) -> Callable[[int], set[int]]:
    """Return an action in which racer 0 appends until it is refused, and the others seal and read."""

    def append_all(store: Store) -> set[int]:
        taken = set(range(1, _BEFORE + 1))
        for number in range(_BEFORE + 1, APPENDED_MAX):
            if not _append(store, number, log):
                return taken
            taken.add(number)
        raise AssertionError("the appender was never stopped")

    def seal_and_read(store: Store) -> set[int]:
        store.seal_log(log)
        return {number for number in store.read_logs()[log] if _is_batch(store, log, number)}

    return lambda racer: append_all(stores[0]) if racer == 0 else seal_and_read(stores[racer])


def _is_batch(store: Store, log: LogName, number: int) -> bool:
    try:
        return store.read_batch(log, number) is not None
    except NotFoundError:
        return False


def _open_two(open_disk: OpenDisk) -> tuple[Store, Store]:
    return Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))


def _make_batch(number: int) -> LogBatch:
    return LogBatch([LoggedInput("a1", number, "client", f"key {number}", b"payload" * number, 0)])


def _append(store: Store, number: int, log: LogName = _LOG) -> bool:
    return store.append_batch(store.prepare_batch(log, number, _make_batch(number)))


def _appending(stores: list[Store], prepared: list[PreparedBatch]) -> Callable[[int], bool]:
    return lambda racer: stores[racer].append_batch(prepared[racer])


def _first_error(results: Sequence[object]) -> object:
    return next((result for result in results if isinstance(result, Exception)), results[:1])


LOG_CHECKS = [
    check_life_of_a_log,
    check_one_batch_for_each_number,
    check_the_same_batch_by_many,
    check_racing_seals,
]
