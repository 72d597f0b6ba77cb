"""Checks of outputs on a disk."""

from collections.abc import Callable

from snapline.storage.conformance.disk_checks import OpenDisk, check, race, require
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.store.store import Store

EPOCHS = 12
"""More than nine, so that the order by name differs from that by number."""

_CREATED_NS = 10**18


@check
def check_output_lifecycle(open_disk: OpenDisk, racers: int) -> None:
    """Check that another process sees outputs being released, read, acknowledged and deleted."""
    store, other = Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))
    require(other.output_epochs() == [] and other.output_consumers() == {}, "a new store has outputs")
    for epoch in range(1, EPOCHS + 1):
        _release(store, epoch)
        _release(other, epoch)
    require(other.output_epochs() == list(range(1, EPOCHS + 1)), f"another process finds {other.output_epochs()}")
    require(_read(other, "3.1") == list(range(4, EPOCHS + 1)), f"another process reads {_read(other, '3.1')}")
    store.acknowledge_outputs("c1", "", now_ns=0)
    other.acknowledge_outputs("c1", f"{EPOCHS}.1", now_ns=0)
    require(store.output_consumers()["c1"].cursor == f"{EPOCHS}.1", "the consumer is not where it was moved")
    removed = store.delete_outputs(now_ns=_CREATED_NS, age_ns_min=0)
    require(len(removed) == EPOCHS - 1, f"{len(removed)} of {EPOCHS - 1} releases were deleted")
    require(other.output_epochs() == [EPOCHS], f"after the deletion there is {other.output_epochs()}")
    require(other.forget_consumer("c1") and store.output_consumers() == {}, "a consumer that was forgotten is there")
    verification = other.verify()
    require(
        verification.is_whole and not verification.unreferenced,
        f"verify finds {verification.findings[:1]}, {verification.unreferenced[:1]}",
    )


@check
def check_one_release_by_many(open_disk: OpenDisk, racers: int) -> None:
    """Check that processes that release the same epochs all succeed, and each output exists once."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for epoch in range(1, EPOCHS + 1):
        results = race(racers, _releasing(stores, epoch))
        errors = [result for result in results if result is not None]
        require(not errors, f"one of many got {errors[:1]!r}")
        require(_read(store, "") == list(range(1, epoch + 1)), f"after epoch {epoch} there is {_read(store, '')}")


@check
def check_one_consumer_moved_by_many(open_disk: OpenDisk, racers: int) -> None:
    """Check that processes that move the same consumer all succeed, and the furthest position wins."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for epoch in range(1, racers + 1):
        _release(store, epoch)
    results = race(racers, lambda racer: stores[racer].acknowledge_outputs("c1", f"{racer + 1}.1", now_ns=0).cursor)
    errors = [result for result in results if isinstance(result, Exception)]
    require(not errors, f"one of many got {errors[:1]!r}")
    place = store.output_consumers()["c1"].cursor
    require(place == f"{racers}.1", f"the consumer is at {place}, not at {racers}.1")


def _release(store: Store, epoch: int) -> None:
    output = EmittedOutput("a1", epoch, "topic", b"payload" * epoch, 0)
    store.release_outputs(epoch, f"{epoch:064x}", epoch - 1, [output], created_ns=_CREATED_NS)


def _releasing(stores: list[Store], epoch: int) -> Callable[[int], None]:
    return lambda racer: _release(stores[racer], epoch)


def _read(store: Store, after: str) -> list[int]:
    return [output.number for batch in store.read_outputs(after) for output in batch.outputs]


OUTPUT_CHECKS = [check_output_lifecycle, check_one_release_by_many, check_one_consumer_moved_by_many]
