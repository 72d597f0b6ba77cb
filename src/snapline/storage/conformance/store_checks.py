"""Checks of whole stores on a disk.

Checks of host logs on a disk.

Checks of outputs on a disk.
"""

from collections.abc import Callable, Sequence

from snapline.errors import NotFoundError, StoreError
from snapline.storage.conformance.disk_checks import ConformanceError, OpenDisk, check, race, require
from snapline.storage.log.log_record import LogBatch, LoggedInput, LogName, PreparedBatch
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
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


_RACED_EPOCHS = 3
_AGENTS = 12
_STATE_BYTES = 30_000
_CREATED = "2025-01-01T00:00:00Z"


@check
def check_store_lifecycle(open_disk: OpenDisk, racers: int) -> None:
    """Check that another process sees epochs being written, read, verified and deleted."""
    store = Store.create("a", disk=open_disk("a"))
    other = Store.open("a", disk=open_disk("a"))
    require(other.store_id == store.store_id, "another process opened another store")
    for epoch in (1, 2, 10):
        root = _write_epoch(store, epoch)
        store.publish(epoch, root)
        require(other.read_ref(epoch) == root, f"another process reads another root of epoch {epoch}")
        _demand_epoch_restores(other, epoch)
    require(other.epochs() == [1, 2, 10], f"epochs are {other.epochs()}")
    _demand_whole(other, unreferenced=0)
    require(bool(store.delete_epoch(2)), "nothing of an epoch was deleted")
    require(other.epochs() == [1, 10], "a deleted epoch is listed")
    _demand_whole(other, unreferenced=0)
    _demand_epoch_restores(other, 10)


@check
def check_garbage_is_found(open_disk: OpenDisk, racers: int) -> None:
    """Check that exactly the files that no ref needs are found and swept."""
    store, other = Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))
    store.publish(1, _write_epoch(store, 1))
    _write_epoch(store, 2)
    store.write_pack(writer="late.1", epoch=3, blobs=_blobs(3))
    _demand_whole(other, unreferenced=3)
    removed = other.delete_unreferenced(begun_below=4)
    require(len(removed) == 3, f"the sweep removed {removed}")
    _demand_whole(store, unreferenced=0)
    _demand_epoch_restores(store, 1)


@check
def check_probes(open_disk: OpenDisk, racers: int) -> None:
    """Check that one process reads a probe that another writes."""
    store, other = Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))
    path, token = store.write_probe()
    require(other.read_probe(path) == token, "another process reads another probe")
    _demand_whole(other, unreferenced=0)
    other.remove_probe(path)
    store.remove_probe(path)
    try:
        store.read_probe(path)
    except StoreError:
        return
    raise ConformanceError("a removed probe was read")


@check
def check_checkpoint_packs(open_disk: OpenDisk, racers: int) -> None:
    """Check that packs of checkpoints that agents take on their own are found, verified and swept."""
    store, other = Store.create("a", disk=open_disk("a")), Store.open("a", disk=open_disk("a"))
    for plan in (1, 2):
        taken = [AgentCheckpoint(agent="a", kind="k:K", epoch=0, number=plan, state=b"state" * plan)]
        blobs = [(made.agent, made.number, encode_checkpoint(made)) for made in taken]
        pack = store.write_checkpoints(writer="h1.1", plan=plan, blobs=blobs)
        require(other.checkpoint_packs(plan) == [pack.path], "another process does not find the pack")
        require(other.read_checkpoint_pack(pack) == taken, "another process reads other checkpoints")
    checked = [file.path for file in other.verify().checked]
    require(all(path in checked for path in other.checkpoint_packs()), "verify does not look at checkpoint packs")
    other.sweep_checkpoints(plans_below=2)
    require(len(store.checkpoint_packs()) == 1, "the sweep has not removed one of two packs")


@check
def check_racing_creators_share_one_store(open_disk: OpenDisk, racers: int) -> None:
    """Check that processes that concurrently open or create a store get the same one."""

    def create(_: int) -> str:
        return Store.open_or_create("a", disk=open_disk("a")).store_id

    results = race(racers, create)
    require(all(isinstance(result, str) for result in results), f"a racing opener got {_first_error(results)!r}")
    require(len(set(map(str, results))) == 1, "racing processes made several stores")


@check
def check_racing_leaders_agree(open_disk: OpenDisk, racers: int) -> None:
    """Check that leaders that publish one epoch with one root all succeed."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for epoch in range(1, _RACED_EPOCHS + 1):
        roots = race(racers, _writing(stores, _make_manifest(store, epoch)))
        require(len(set(map(str, roots))) == 1, f"writing one manifest gave {_first_error(roots)!r}")
        root = str(roots[0])
        results = race(racers, _publishing(stores, epoch, [root] * racers))
        require(all(result is None for result in results), f"a leader got {_first_error(results)!r}")
        require(store.read_ref(epoch) == root, "the ref names another root")
    _demand_whole(store, unreferenced=0)


@check
def check_two_fleets_stop(open_disk: OpenDisk, racers: int) -> None:
    """Check that if leaders publish one epoch with different roots, one succeeds, and the others get an error."""
    store = Store.create("a", disk=open_disk("a"))
    stores = [Store.open("a", disk=open_disk("a")) for _ in range(racers)]
    for epoch in range(1, _RACED_EPOCHS + 1):
        roots = [_write_epoch(one_store, epoch, fleet=f"fleet{number}") for number, one_store in enumerate(stores)]
        results = race(racers, _publishing(stores, epoch, roots))
        winners = [number for number, result in enumerate(results) if result is None]
        require(len(winners) == 1, f"{len(winners)} of {racers} fleets published epoch {epoch}")
        losers = [result for result in results if result is not None]
        require(all(isinstance(loser, StoreError) for loser in losers), f"a loser got {losers[0]!r}")
        require(store.read_ref(epoch) == roots[winners[0]], "the ref names a loser's root")
    require(store.verify().is_whole, "verify finds damage")


def _writing(stores: list[Store], manifest: Manifest) -> Callable[[int], str]:
    return lambda number: stores[number].write_manifest(manifest)


def _publishing(stores: list[Store], epoch: int, roots: list[str]) -> Callable[[int], None]:
    return lambda number: stores[number].publish(epoch, roots[number])


# -- small fleets ------------------------------------------------------------------------------------------------------


def _make_checkpoint(agent: str, epoch: int) -> AgentCheckpoint:
    state = f"{agent} {epoch} ".encode() * (_STATE_BYTES // 10)
    return AgentCheckpoint(agent=agent, kind="k:K", epoch=epoch, number=epoch, state=state)


def _agents() -> list[str]:
    return [f"a{number:03}" for number in range(_AGENTS)]


def _blobs(epoch: int) -> list[tuple[str, bytes]]:
    return [(agent, encode_checkpoint(_make_checkpoint(agent, epoch))) for agent in _agents()]


def _make_manifest(store: Store, epoch: int, fleet: str = "conformance") -> Manifest:
    """Write an epoch's pack; return its manifest."""
    pack = store.write_pack(writer="h1.1", epoch=epoch, blobs=_blobs(epoch))
    entries = store.read_pack_index(pack)
    lines = [agent_line(entry, pack=0, kind="k:K", host="h1", incarnation=1) for entry in entries]
    metadata = Metadata(epoch=epoch, created=_CREATED, fleet=fleet, hosts={"h1": 1})
    return Manifest(metadata, lines, [pack])


def _write_epoch(store: Store, epoch: int, fleet: str = "conformance") -> str:
    return store.write_manifest(_make_manifest(store, epoch, fleet))


def _demand_epoch_restores(store: Store, epoch: int) -> None:
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    checkpoints = list(store.read_checkpoints(manifest))
    require(checkpoints == [_make_checkpoint(agent, epoch) for agent in _agents()], f"epoch {epoch} came back changed")


def _demand_whole(store: Store, *, unreferenced: int) -> None:
    verification = store.verify()
    require(verification.is_whole, f"verify finds {verification.findings[:1]}")
    require(len(verification.unreferenced) == unreferenced, f"verify finds as garbage {verification.unreferenced}")


STORE_CHECKS = [
    check_store_lifecycle,
    check_garbage_is_found,
    check_probes,
    check_checkpoint_packs,
    check_racing_creators_share_one_store,
    check_racing_leaders_agree,
    check_two_fleets_stop,
]


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
