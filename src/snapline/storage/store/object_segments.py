"""Segments of an object stream, their file format, and the code that appends and reads commits.

The newest segment stays open, so that a commit needs only one write and one `fdatasync`. Since objects in an object store cannot grow, each
commit there is a separate segment. A segment's file gets its name only after the first commit has been written, as in `write_once`. So the
first commit of every listed segment is complete.

After a failed write or sync, the state of the file on disk is unknown, so the segment is not changed any more. The next commit then begins
a new segment, whose header records the valid length of the old segment.

**The file format.** A segment is a header followed by commits. Each commit is complete or absent.

    shelves/<stream>/<n>     segment n = 1, 2, 3 …: header | commit | commit | …
    shelves/<stream>/lock    lock held by the one process that has the stream open

Headers and commits are records (`storage/disk/record.py`) of the kinds `SHSG` and `SHCO`. The commit's record is followed by the bytes of
its objects, in the order in which the record lists them. The commit's record also contains the total length of these bytes.

An **object** consists of bytes and the digests of other objects to which it refers. Each object is identified by its digest, so equal
objects are stored only once. An object's digest covers its references and bytes, and is keyed if the store is encrypted. The last bit of
the digest shows whether there are references, so an object without references cannot pass for an object with references. An **entry** gives
an object a name. The name consists of a path of words and a last word.

The header of a segment lists the earlier segments that are still in use, and the length of each (`alive`). Bytes beyond the listed length
were never acknowledged, and segments that are not listed are garbage. So missing bytes in the middle of a stream are damage, while the end
of the newest segment may be incomplete. A new segment replaces older segments at the moment when its file gets its name.

In an encrypted store, each segment has its own key, which is derived from the segment's random id, as for packs. The segment's key encrypts
the objects and the contents of commits, including names. Each ciphertext uses its offset as nonce and is bound to its location.
"""

import contextlib
from collections.abc import Callable, Iterator

import lz4.block
import msgspec

from snapline.errors import DamagedDataError, UsageError
from snapline.failpoints import failpoint
from snapline.ids import check_id
from snapline.storage.disk import store_files
from snapline.storage.disk.layout import OBJECT_STREAMS, TEMPORARY, parse_temporary_path
from snapline.storage.disk.local_disk import Disk, appends, make_durable_directory
from snapline.storage.disk.record import (
    CIPHER_OVERHEAD_BYTES,
    DIGEST_BYTES,
    HEAD_BYTES,
    MAGIC,
    Buffer,
    Cipher,
    Guard,
    canonical,
    check_place,
    damaged,
    digest_of,
    open_data,
    record_bytes,
    seal,
    unseal,
)
from snapline.storage.packs.pack import CODEC_LZ4, CODEC_PLAIN, LZ4_BYTES_MAX, LZ4_RATIO_MAX, compress

HEADER_KIND = b"SHSG"
COMMIT_KIND = b"SHCO"

LOCK_NAME = "lock"
"""Name of the lock file, next to the segments. A process on this file system keeps it locked while it has the stream open."""

COMPRESSED_BYTES_MIN = 128
"""Smallest object that is compressed, in bytes. lz4 would save almost nothing on smaller objects."""

OBJECT_BYTES_MAX = 2**31 - 1 - CIPHER_OVERHEAD_BYTES
"""Size of the largest object in bytes, which is the most that one call can encrypt."""

_NUMBER_DIGITS_MAX = 18


class SegmentHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a segment's first record. `key` is the id of the encryption key, or "" if the store is not encrypted."""

    alive: list[tuple[int, int]]
    key: str
    number: int
    segment: str
    object_stream: str = msgspec.field(name="shelf")
    store: str

    @property
    def path(self) -> str:
        """Path of the segment's file."""
        return segment_path(self.object_stream, self.number)

    def context(self, purpose: str, offset: int, *more: object) -> bytes:
        """Return the encryption context of the bytes at `offset`."""
        return canonical.encode(
            (f"snapline shelf {purpose} 1", self.store, self.object_stream, self.segment, offset, *more)
        )


class ObjectLine(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Description of an object in a commit. `references` contains concatenated digests."""

    digest: bytes
    codec: int
    stored_bytes: int
    size_bytes: int
    references: bytes


class EntryLine(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Assignment of a name. The entry binds `name` in `path` to the object with this digest, or removes the name if `digest` is None."""

    path: tuple[str, ...]
    name: str
    digest: bytes | None


class Contents(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Contents of one commit. Entries are applied in the given order."""

    objects: list[ObjectLine]
    entries: list[EntryLine]


class CommitBody(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Body of a commit's record. The body contains `Contents`, encrypted if there is a key, and the total length of the objects that follow
    the record."""

    data_bytes: int
    contents: bytes


_header_decoder = msgspec.msgpack.Decoder(SegmentHeader)
_commit_decoder = msgspec.msgpack.Decoder(CommitBody)
_contents_decoder = msgspec.msgpack.Decoder(Contents)


def check_object_stream(object_stream: str) -> str:
    """Return `object_stream` if it is a valid stream id. Raise UsageError otherwise."""
    return check_id(object_stream, "shelf")


def segment_path(object_stream: str, number: int) -> str:
    """Return the path of the segment with this number."""
    return f"{OBJECT_STREAMS}/{object_stream}/{number}"


def parse_segment_name(name: str) -> int | None:
    """Parse the file name of a segment into its number. Return None if the name is invalid."""
    is_number = name.isascii() and name.isdigit() and len(name) <= _NUMBER_DIGITS_MAX and not name.startswith("0")
    return int(name) if is_number else None


def digest_of_object(data: Buffer, references: bytes, guard: Guard | None) -> bytes:
    """Return the digest of an object with these bytes and references."""
    if references:
        data = (len(references) // DIGEST_BYTES).to_bytes(8, "little") + references + bytes(data)
    digest = guard.digest(data) if guard is not None and guard.encrypts else digest_of(data)
    return digest[:-1] + bytes((digest[-1] & 0xFE | bool(references),))


def has_references(digest: bytes) -> bool:
    return bool(digest[-1] & 1)


def references_of(joined: bytes) -> list[bytes]:
    """Split concatenated digests into a list."""
    return [joined[place : place + DIGEST_BYTES] for place in range(0, len(joined), DIGEST_BYTES)]


def encode_header(header: SegmentHeader) -> bytes:
    """Encode the header record of a segment."""
    return seal(HEADER_KIND, canonical.encode(header))


def decode_header(record: bytes, *, path: str, store_id: str | None) -> SegmentHeader:
    """Decode and check the header record of a segment.

    Raises:
        DamagedDataError: If the header is damaged, or belongs to another path or store.
        StoreError: If the header was written by a later version of Snapline.
    """
    body = unseal(HEADER_KIND, record, path=path, epoch=None)
    with store_files.decoding(path):
        header = _header_decoder.decode(body)
    check_place(header, path, store_id)
    return header


def encode_commit(
    header: SegmentHeader,
    cipher: Cipher | None,
    offset: int,
    objects: list[tuple[bytes, bytes, Buffer]],
    entries: list[EntryLine],
) -> tuple[Contents, list[Buffer]]:
    """Encode a commit that begins at `offset`. Return its contents and its bytes. Each object is given as a tuple of digest, references and
    plaintext."""
    lines, compressed = [], []
    for digest, references, data in objects:
        codec, stored = compress(data, None) if len(data) >= COMPRESSED_BYTES_MIN else (CODEC_PLAIN, data)
        stored_bytes = len(stored) + (CIPHER_OVERHEAD_BYTES if cipher is not None else 0)
        lines.append(ObjectLine(digest, codec, stored_bytes, len(data), references))
        compressed.append(stored)
    contents = Contents(lines, entries)
    plain = canonical.encode(contents)
    if cipher is not None:
        plain = cipher.seal(offset, header.context("commit", offset), plain)
    record = seal(COMMIT_KIND, canonical.encode(CommitBody(sum(line.stored_bytes for line in lines), plain)))
    pieces: list[Buffer] = [record]
    offset += len(record)
    for line, stored in zip(lines, compressed, strict=True):
        if cipher is not None:
            stored = cipher.seal(offset, object_context(header, offset, line), stored)
        pieces.append(stored)
        offset += line.stored_bytes
    return contents, pieces


def decode_commit(record: bytes, header: SegmentHeader, guard: Guard | None, *, offset: int) -> tuple[Contents, int]:
    """Decode the commit record at `offset`. Return the commit's contents, and the total length of the objects that follow the record. Raise
    the errors of `decode_header`."""
    path = header.path
    raw = unseal(COMMIT_KIND, record, path=path, epoch=None)
    with store_files.decoding(path):
        body = _commit_decoder.decode(raw)
    context = header.context("commit", offset)
    plain = open_data(
        body.contents, guard, key=header.key, nonce=header.segment, index=offset, context=context, path=path
    )
    with store_files.decoding(path):
        contents = _contents_decoder.decode(plain)
    reason = _contradiction(contents, body.data_bytes, is_sealed=bool(header.key))
    if reason:
        raise damaged(path, f"the commit at {offset}: {reason}")
    return contents, body.data_bytes


def object_context(header: SegmentHeader, offset: int, line: ObjectLine) -> bytes:
    """Return the encryption context, which binds an object's bytes to their location."""
    return header.context("object", offset, line.codec, line.size_bytes, line.digest, line.references)


def open_object(stored: bytes, header: SegmentHeader, guard: Guard | None, *, offset: int, line: ObjectLine) -> bytes:
    """Check an object's stored bytes and return its plaintext (G11).

    Raises:
        DamagedDataError: If the bytes differ from those originally written.
        StoreError: If the bytes are unencrypted although there is a key, or encrypted although there is none.
    """
    path = header.path
    if len(stored) != line.stored_bytes:
        raise damaged(path, f"truncated: {len(stored)} of {line.stored_bytes} bytes at {offset}")
    context = object_context(header, offset, line) if header.key else b""
    plain = open_data(stored, guard, key=header.key, nonce=header.segment, index=offset, context=context, path=path)
    if line.codec == CODEC_LZ4:
        try:
            plain = lz4.block.decompress(plain, uncompressed_size=line.size_bytes)
        except lz4.block.LZ4BlockError as error:
            raise damaged(path, f"lz4 refuses the object at {offset}: {error}") from error
    if len(plain) != line.size_bytes or digest_of_object(plain, line.references, guard) != line.digest:
        raise damaged(path, f"the object at {offset} does not match its digest")
    return plain


def _contradiction(contents: Contents, data_bytes: int, *, is_sealed: bool) -> str:
    """Return why a commit is inconsistent, or "" if it is consistent. Commits are checked before anything is allocated."""
    for line in contents.objects:
        stored_bytes = line.stored_bytes - (CIPHER_OVERHEAD_BYTES if is_sealed else 0)
        if len(line.digest) != DIGEST_BYTES or len(line.references) % DIGEST_BYTES:
            return "a digest has the wrong length"
        if line.codec not in (CODEC_PLAIN, CODEC_LZ4) or stored_bytes < 0:
            return f"codec {line.codec} is unknown to this snapline: use a newer one"
        if line.codec == CODEC_PLAIN and stored_bytes != line.size_bytes:
            return "plain and stored bytes differ"
        if line.codec == CODEC_LZ4 and not stored_bytes < line.size_bytes <= min(
            LZ4_BYTES_MAX, stored_bytes * LZ4_RATIO_MAX
        ):
            return f"{stored_bytes} bytes cannot hold {line.size_bytes} in lz4"
    if sum(line.stored_bytes for line in contents.objects) != data_bytes:
        return "its objects do not fill its bytes"
    if any(not entry.path for entry in contents.entries):
        return "an entry has no path"
    return ""


SEGMENT_BYTES_MAX = 2**26
"""Size after which a new segment begins (64 MiB). One compaction rewrites about the same number of bytes."""

_ID_BYTES = 16
_WINDOW_BYTES = 2**20
"""Number of bytes per read (1 MiB). One read contains some hundreds of commits."""

NewObject = tuple[bytes, bytes, Buffer]
"""Digest, references and plaintext of an object to be written."""


class ObjectStreamInUseError(UsageError):
    """The stream is already being written by another process, or by another `ObjectStream` of this process."""

    exit_code = 11


class ObjectStreamSegments:
    """Segments of one object stream on disk. Only one caller at a time may write, but any number of threads may read."""

    def __init__(
        self,
        disk: Disk,
        store_id: str,
        object_stream: str,
        *,
        guard: Guard | None,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._disk = disk
        self._store_id = store_id
        self._objects = object_stream
        self._guard = guard
        self._random_bytes = random_bytes
        self._headers: dict[int, SegmentHeader] = {}
        self._handle: int | None = None
        self._cipher: Cipher | None = None
        self._newest = 0
        self._end = 0

    @property
    def newest(self) -> int:
        return self._newest

    def is_full(self) -> bool:
        """Return whether the next commit needs a new segment."""
        return self._handle is None or self._end >= SEGMENT_BYTES_MAX

    def append(self, objects: list[NewObject], entries: list[EntryLine]) -> tuple[int, Contents, int]:
        """Durably write a commit after the last commit of the newest segment.

        Returns:
            Offset of the commit's objects, contents of the commit, and new length of the segment.

        Raises:
            OSError: If the disk failed. In that case, the next commit must begin a new segment.
        """
        assert self._handle is not None
        header = self._headers[self._newest]
        contents, pieces = encode_commit(header, self._cipher, self._end, objects, entries)
        try:
            self._disk.write(self._handle, pieces)
            failpoint("store.shelf.commit.written")
            self._disk.sync_data(self._handle)
            failpoint("store.shelf.commit.durable")
        except BaseException:  # The end of the file is unknown after an interrupt, too.
            self.close()
            raise
        start = self._end + len(pieces[0])
        self._end += sum(map(len, pieces))
        return start, contents, self._end

    def begin(
        self, alive: list[tuple[int, int]], objects: list[NewObject], entries: list[EntryLine]
    ) -> tuple[int, Contents, int]:
        """Begin a new segment whose first commit contains these objects and entries. `alive` lists the earlier segments that are still
        needed. See `append`.

        Raises:
            ObjectStreamInUseError: If another process has already begun this segment.
        """
        self.close()
        number = self._newest + 1
        segment = self._random_bytes(_ID_BYTES).hex()
        cipher = None
        if self._guard is not None and self._guard.encrypts:
            cipher = self._guard.begin_pack(f"shelf.{self._objects}", segment)
        key = cipher.key_id if cipher is not None else ""
        header = SegmentHeader(alive, key, number, segment, self._objects, self._store_id)
        head = encode_header(header)
        contents, pieces = encode_commit(header, cipher, len(head), objects, entries)
        # Even after a failure, the number counts as used, so that no later header lists an unacknowledged file of this number in `alive`.
        self._newest = number
        handle = self._create(header.path, [head, *pieces])
        self._headers[number], self._cipher = header, cipher
        self._end = len(head) + sum(map(len, pieces))
        if appends(self._disk):
            self._handle = handle
        else:
            self._disk.close(handle)
        return len(head) + len(pieces[0]), contents, self._end

    def close(self) -> None:
        """Close the newest segment if it is open for writing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                self._disk.close(handle)

    def remove(self, number: int) -> None:
        """Remove a segment that is not needed any more."""
        self._headers.pop(number, None)
        store_files.unlink(self._disk, [segment_path(self._objects, number)])

    def prepare(self) -> None:
        """Durably create the stream's directory, and remove temporary files of killed processes."""
        make_durable_directory(self._disk, OBJECT_STREAMS)
        make_durable_directory(self._disk, f"{OBJECT_STREAMS}/{self._objects}")
        with contextlib.suppress(FileNotFoundError):
            paths = [f"{TEMPORARY}/{entry.name}" for entry in self._disk.list_directory(TEMPORARY)]
            store_files.unlink(
                self._disk, [path for path in paths if (parse_temporary_path(path) or ("",))[0] == OBJECT_STREAMS]
            )

    def read_object(self, number: int, offset: int, line: ObjectLine, stored: bytes) -> bytes:
        """Decrypt and check an object that was read from a segment. Raise the errors of `open_object`, or FileNotFoundError if the segment
        was removed."""
        header = self._headers.get(number)
        if header is None:
            raise FileNotFoundError(f"segment {number} was removed")
        return open_object(stored, header, self._guard, offset=offset, line=line)

    def read_stored(self, number: int, offset: int, length: int) -> bytes:
        """Read bytes of a segment. Raise FileNotFoundError if the segment was removed."""
        path = segment_path(self._objects, number)
        try:
            return self._disk.read(path, offset, length)
        except FileNotFoundError:
            raise
        except OSError:
            with store_files.reading(self._disk, path):
                raise
            raise

    def list_segments(self) -> list[int]:
        return list_segments(self._disk, self._objects)

    def open_newest(self, number: int) -> SegmentHeader:
        """Read the header of the newest segment, which lists the segments in use."""
        self._newest = number
        return self._header(number)

    def commits(self, number: int, end: int | None) -> Iterator[tuple[int, Contents, int]]:
        """Yield the commits of a segment up to `end`, in the form that `append` returns. If `end` is None, stop before the first incomplete
        commit.

        Raises:
            DamagedDataError: If acknowledged bytes differ from those originally written.
            StoreError: If the segment is unencrypted although there is a key, or encrypted although there is none.
        """
        header = self._header(number)
        yield from read_commits(self._disk, header, self._guard, end=end)

    def _header(self, number: int) -> SegmentHeader:
        if number not in self._headers:
            path = segment_path(self._objects, number)
            self._headers[number] = read_header(self._disk, path, store_id=self._store_id)
        return self._headers[number]

    def _create(self, path: str, pieces: list[Buffer]) -> int:
        """Create a file in the same way as `write_once`, but leave it open."""
        directory = path.rpartition("/")[0]
        handle = self._disk.open_temporary(directory, f"shelf-{self._newest}-{self._random_bytes(_ID_BYTES).hex()}")
        try:
            failpoint("store.shelf.segment.opened")
            self._disk.write(handle, pieces)
            failpoint("store.shelf.segment.written")
            self._disk.sync_data(handle)
            failpoint("store.shelf.segment.synced")
            self._disk.link(handle, path)
            failpoint("store.shelf.segment.linked")
            self._disk.sync_directory(directory)
            failpoint("store.shelf.segment.durable")
        except FileExistsError:
            self._disk.close(handle)
            message = f"another process writes the object stream {self._objects!r} of the store {self._disk.location}: open it again"
            raise ObjectStreamInUseError(message) from None
        except BaseException:
            self._disk.close(handle)
            raise
        return handle


def list_segments(disk: Disk, object_stream: str) -> list[int]:
    """Return the segment numbers of an object stream in ascending order."""
    with store_files.reading(disk, f"{OBJECT_STREAMS}/{object_stream}"):
        try:
            entries = disk.list_directory(f"{OBJECT_STREAMS}/{object_stream}")
        except FileNotFoundError:
            return []
    segment_numbers = [parse_segment_name(entry.name) for entry in entries if not entry.is_directory]
    return sorted(number for number in segment_numbers if number is not None)


def list_object_streams(disk: Disk) -> list[str]:
    """Return the names of a store's object streams."""
    with store_files.reading(disk, OBJECT_STREAMS):
        try:
            return [entry.name for entry in disk.list_directory(OBJECT_STREAMS) if entry.is_directory]
        except FileNotFoundError:
            return []


def keys_of_object_streams(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys with which the store's segments are encrypted. Raise DamagedDataError or StoreError if a segment is
    unreadable."""
    paths = [
        segment_path(object_stream, number)
        for object_stream in list_object_streams(disk)
        for number in list_segments(disk, object_stream)
    ]
    return {read_header(disk, path, store_id=store_id).key for path in paths} - {""}


def read_header(disk: Disk, path: str, *, store_id: str | None) -> SegmentHeader:
    """Read and check the header of a segment. Raise the errors of `decode_header`."""
    with store_files.reading(disk, path):
        head = disk.read(path, 0, HEAD_BYTES)
        record = disk.read(path, 0, record_bytes(head) or HEAD_BYTES)
    return decode_header(record, path=path, store_id=store_id)


def check_segment(disk: Disk, path: str, *, store_id: str | None, guard: Guard | None, end: int | None) -> None:
    """Read a whole segment and check all its digests. Raise the errors of `ObjectStreamSegments.commits`."""
    header = read_header(disk, path, store_id=store_id)
    for start, contents, commit_end in read_commits(disk, header, guard, end=end):
        with store_files.reading(disk, path):
            data = disk.read(path, start, commit_end - start)
        place = 0
        for line in contents.objects:
            stored = data[place : place + line.stored_bytes]
            open_object(stored, header, guard, offset=start + place, line=line)
            place += line.stored_bytes


def read_commits(
    disk: Disk, header: SegmentHeader, guard: Guard | None, *, end: int | None
) -> Iterator[tuple[int, Contents, int]]:
    """Yield the commits of a segment. See `ObjectStreamSegments.commits`."""
    path, offset = header.path, len(encode_header(header))
    with store_files.reading(disk, path):
        window = _Window(disk, path, disk.size(path) if end is None else end)
    while offset < window.size_bytes:
        try:
            contents, record_end, commit_end = _read_commit(window, header, guard, offset)
        except DamagedDataError:
            if end is not None or _has_later_commit(window, header, guard, offset):
                raise
            return  # The commit is incomplete, so it was never acknowledged.
        if (
            end is None
            and commit_end == window.size_bytes
            and not _is_whole(window, header, guard, record_end, contents)
        ):
            return  # The objects of the last commit are incomplete, so the commit was never acknowledged.
        yield record_end, contents, commit_end
        offset = commit_end


def _read_commit(
    window: "_Window", header: SegmentHeader, guard: Guard | None, offset: int
) -> tuple[Contents, int, int]:
    length = record_bytes(window.read(offset, HEAD_BYTES))
    if length is None or offset + length > window.size_bytes:
        raise damaged(header.path, f"no commit begins at {offset}, or it is truncated")
    contents, data_bytes = decode_commit(window.read(offset, length), header, guard, offset=offset)
    end = offset + length + data_bytes
    if end > window.size_bytes:
        raise damaged(header.path, f"truncated: the commit at {offset} ends at {end}, the file at {window.size_bytes}")
    return contents, offset + length, end


def _is_whole(window: "_Window", header: SegmentHeader, guard: Guard | None, offset: int, contents: Contents) -> bool:
    try:
        for line in contents.objects:
            open_object(window.read(offset, line.stored_bytes), header, guard, offset=offset, line=line)
            offset += line.stored_bytes
    except DamagedDataError:
        return False
    return True


def _has_later_commit(window: "_Window", header: SegmentHeader, guard: Guard | None, offset: int) -> bool:
    """Return whether an intact commit follows the unreadable one. If so, the unreadable commit was acknowledged and is damaged, because
    commits are written in sequence."""
    rest = window.read(offset, window.size_bytes - offset)
    place = rest.find(MAGIC, 1)
    while place > 0:
        with contextlib.suppress(DamagedDataError):
            _read_commit(window, header, guard, offset + place)
            return True
        place = rest.find(MAGIC, place + 1)
    return False


class _Window:
    """Buffered reader of a file."""

    def __init__(self, disk: Disk, path: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._disk = disk
        self._path = path
        self._start = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes, starting at `offset`."""
        length = min(length, self.size_bytes - offset)
        if not self._start <= offset <= offset + length <= self._start + len(self._data):
            with store_files.reading(self._disk, self._path):
                wanted = min(max(length, _WINDOW_BYTES), self.size_bytes - offset)
                self._start, self._data = offset, self._disk.read(self._path, offset, wanted)
        return self._data[offset - self._start : offset - self._start + length]
