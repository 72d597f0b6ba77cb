"""Checks of whole stores on a disk."""

from collections.abc import Callable

from snapline.errors import StoreError
from snapline.storage.conformance.disk_checks import ConformanceError, OpenDisk, check, race, require
from snapline.storage.conformance.log_checks import _first_error
from snapline.storage.packs.checkpoint import AgentCheckpoint, encode_checkpoint
from snapline.storage.store.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store

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
