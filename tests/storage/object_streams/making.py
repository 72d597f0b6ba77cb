"""Shelves for tests, and what they hold."""

from tests.storage.making import make_store, seeded_bytes
from tests.storage.simulated_disk import SimulatedDisk

from snapline.storage.disk.local_disk import Disk
from snapline.storage.store.object_stream import ObjectStream
from snapline.storage.store.store import Store

PATH = ("thread", "")


def open_object_stream(disk: Disk | None = None, *, seed: int = 1) -> ObjectStream:
    """The shelf of a store on this disk, made if there is none."""
    disk = disk or SimulatedDisk()
    try:
        store = Store.open("simulated", disk=disk)
    except Exception:
        store = make_store(disk)
    return ObjectStream.open(store, "play", random_bytes=seeded_bytes(seed))


def save(object_stream: ObjectStream, name: str, *texts: str, path: tuple[str, ...] = PATH) -> bytes:
    """Save an object that refers to one for each text, under a name."""
    change = object_stream.change()
    digest = change.add(name.encode(), [change.add(text.encode() * 50) for text in texts])
    change.name(path, name, digest)
    object_stream.commit(change)
    return digest


def remove(object_stream: ObjectStream, *names: str, path: tuple[str, ...] = PATH) -> None:
    change = object_stream.change()
    for name in names:
        change.name(path, name, None)
    object_stream.commit(change)


def contents(object_stream: ObjectStream) -> dict[str, dict[str, list[str]]]:
    """All that can be read: path → name → texts."""
    found = {}
    for word in object_stream.first_words():
        for path in object_stream.paths(word):
            names = {}
            for name, digest in object_stream.entries(path).items():
                references = object_stream.references(digest)
                texts = object_stream.read(references)
                names[name] = [texts[each][: len(texts[each]) // 50].decode() for each in references]
                assert object_stream.read([digest])[digest] == name.encode()
            found["/".join(path)] = names
    return found
