"""An encrypted store on a simulated disk, for the tests of encryption, keys and rotation."""

from collections.abc import Callable

import msgspec
from tests.storage.making import seeded_bytes
from tests.storage.simulated_disk import Inode, SimulatedCrashError, SimulatedDisk

from snapline.storage.disk.local_disk import Disk
from snapline.storage.disk.record import canonical, seal
from snapline.storage.keys.key_files import Keys, make_wrapping_key
from snapline.storage.keys.key_records import KEYS_KIND
from snapline.storage.store.protection import Protection, load_protection

STORE = "5" * 32
OTHER_STORE = "6" * 32
PACK = "a" * 32
OTHER_PACK = "b" * 32
OLD = Keys((make_wrapping_key(b"o" * 32),))
NEW = Keys((make_wrapping_key(b"n" * 32),))
BOTH = Keys(NEW.wrapping + OLD.wrapping)
CONTEXT = b"kind, codec, lengths, digest"


def make_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.nodes |= {"snapline-store": Inode(b"identity", b"identity"), "packs": None, "checkpoints": None}
    disk.durable = dict(disk.nodes)
    return disk


def load(disk: Disk, keys: Keys = OLD, *, store: str = STORE, seed: int = 0) -> Protection:
    return load_protection(disk, store, keys, random_bytes=seeded_bytes(seed))


def put_file(disk: SimulatedDisk, path: str, data: bytes) -> None:
    disk.nodes[path] = Inode(data, data)


def content(disk: SimulatedDisk, path: str) -> bytes:
    return disk.read(path, 0, 10**6)


def make_encrypted() -> tuple[SimulatedDisk, str]:
    """A store with the key of digests and one data key; returns its id."""
    disk = make_disk()
    return disk, load(disk).begin_pack("h1.1", PACK).key_id


def forge(disk: SimulatedDisk, path: str, **fields: object) -> None:
    """Change fields of a record, with a right digest."""
    body = msgspec.msgpack.decode(content(disk, path)[24:-32])
    put_file(disk, path, seal(KEYS_KIND, canonical.encode(body | fields)))


def run_at_every_call(
    disk_of: Callable[[], SimulatedDisk],
    ours: Callable[[SimulatedDisk], None],
    act: Callable[[SimulatedDisk], None],
    check: Callable[[SimulatedDisk], None],
) -> int:
    """Run `act` of another process once, before the n-th call of ours, for every n; return how many calls there are."""
    for moment in range(1000):
        disk = disk_of()
        count = 0

        def on_call(name: str, disk: SimulatedDisk = disk, moment: int = moment) -> None:
            nonlocal count
            count += 1
            if count == moment + 1:
                disk.on_call = lambda name: None
                act(disk)
                disk.on_call = on_call

        disk.on_call = on_call
        ours(disk)
        disk.on_call = lambda name: None
        if count <= moment:
            return moment
        check(disk)
    raise AssertionError("too many calls")


class Life:
    """A writer's first packs; knows which keys it was promised."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.sealed: list[tuple[str, str, bytes, bytes]] = []
        """Key, pack, sealed bytes, digest."""

    def run(self) -> None:
        for seed in (1, 2):
            made = load(self.disk, seed=seed)
            for n in range(2):
                pack_id = f"{seed}{n}" * 16
                cipher = made.begin_pack(f"h{n}.1", pack_id)
                sealed = cipher.seal(0, CONTEXT, b"state")
                self.sealed.append((cipher.key_id, pack_id, sealed, made.digest(b"state")))

    def check(self, image: SimulatedDisk, keys: Keys = OLD) -> None:
        """Whatever a pack may have been written with is there, and the next writer goes on."""
        made = load(image, keys, seed=7)
        for key_id, pack_id, sealed, digest in self.sealed:
            assert made.open_pack(key_id, pack_id).open(0, CONTEXT, sealed) == b"state"
            assert made.digest(b"state") == digest
        made.begin_pack("h9.1", "9" * 32)


def crash_everywhere(
    life_of: Callable[[SimulatedDisk], Life], run: Callable[[Life], None], check: Callable[[Life, SimulatedDisk], None]
) -> int:
    """Crash before each call, and check every image that may be left; return how many there were."""
    images = 0
    for moment in range(1000):
        disk = make_disk()
        life = life_of(disk)
        disk.crash_after = len(disk.calls) + moment
        try:
            run(life)
        except SimulatedCrashError:
            pass
        else:
            assert moment > 8
            return images
        for image in disk.images():
            images += 1
            check(life, image)
    raise AssertionError("too many calls")
