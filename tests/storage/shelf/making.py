"""Shelves for tests, and what they hold."""

from tests.storage.making import make_store, seeded_bytes
from tests.storage.simulated_disk import SimulatedDisk

from snapline.storage.shelf.shelf import Shelf
from snapline.storage.store.disk import Disk
from snapline.storage.store.store import Store

PATH = ("thread", "")


def open_shelf(disk: Disk | None = None, *, seed: int = 1) -> Shelf:
    """The shelf of a store on this disk, made if there is none."""
    disk = disk or SimulatedDisk()
    try:
        store = Store.open("simulated", disk=disk)
    except Exception:
        store = make_store(disk)
    return Shelf.open(store, "play", random_bytes=seeded_bytes(seed))


def save(shelf: Shelf, name: str, *texts: str, path: tuple[str, ...] = PATH) -> bytes:
    """Save an object that refers to one for each text, under a name."""
    change = shelf.change()
    digest = change.add(name.encode(), [change.add(text.encode() * 50) for text in texts])
    change.name(path, name, digest)
    shelf.commit(change)
    return digest


def remove(shelf: Shelf, *names: str, path: tuple[str, ...] = PATH) -> None:
    change = shelf.change()
    for name in names:
        change.name(path, name, None)
    shelf.commit(change)


def contents(shelf: Shelf) -> dict[str, dict[str, list[str]]]:
    """All that can be read: path → name → texts."""
    found = {}
    for word in shelf.first_words():
        for path in shelf.paths(word):
            names = {}
            for name, digest in shelf.entries(path).items():
                references = shelf.references(digest)
                texts = shelf.read(references)
                names[name] = [texts[each][: len(texts[each]) // 50].decode() for each in references]
                assert shelf.read([digest])[digest] == name.encode()
            found["/".join(path)] = names
    return found
