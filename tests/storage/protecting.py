"""An encrypted store on a simulated disk, for the tests of encryption, keys and rotation."""

import msgspec
from tests.storage.making import seeded_bytes
from tests.storage.simulated_disk import Inode, SimulatedDisk

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

    @property
    def promises(self) -> int:
        return len(self.sealed)

    def check(self, image: SimulatedDisk, keys: Keys = OLD) -> None:
        """Whatever a pack may have been written with is there, and the next writer goes on."""
        made = load(image, keys, seed=7)
        for key_id, pack_id, sealed, digest in self.sealed:
            assert made.open_pack(key_id, pack_id).open(0, CONTEXT, sealed) == b"state"
            assert made.digest(b"state") == digest
        made.begin_pack("h9.1", "9" * 32)
