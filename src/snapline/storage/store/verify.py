"""Verification of a store, which reads every byte and reports each difference from what was originally written (G11).

Verification checks the following:

- The identity, the fork record, refs, manifests and probes are intact records of this store, each under the correct name.
- Each ref names an existing manifest. Each manifest names existing packs, with the listed length and index digest. Each manifest describes
  every blob as the pack's index does, and lists every chunk of each checkpoint.
- In each pack, the header, blobs, index and footer fill the file without gaps and match their digests.
- Batches and seals of host logs are intact records of this store, each under the correct name. Batches can be decrypted, and are signed if
  refs are signed. If there is a key, every missing batch below an existing one has been recorded as deleted.
- Answer files are intact, each under the correct name, and can be decrypted.
- Output files are intact and can be decrypted, and each release has all parts that its part 0 lists. The positions of consumers are intact.
- In the segments of object streams, commits follow each other without gaps. Each object matches its digest. The end of the newest segment
  of a stream may be incomplete.
- Pins, tags and keys are intact records, each under the correct name. Without the store's key, verification cannot tell whether a key can
  be unwrapped.
- The store contains no other files.

Manifests and packs without a ref, and parts of unreleased outputs, are checked like other files and listed as `unreferenced`. Unreferenced
files belong to an epoch that was aborted or is still being written. A store may be verified while it is in use. Files are created in the
order pack, manifest, ref, and deleted in the order ref, manifest, pack. Verification reads files in the order ref, manifest, pack. So a
missing file was deleted during the verification if and only if the file that names it is missing too.

Verification cannot detect that an epoch's ref has vanished completely, or that the end of a host log has been lost. Only the coordinator's
log knows which epochs and batches must exist.
"""

import contextlib
from collections.abc import Iterator

import msgspec

from snapline.errors import DamagedDataError, StoreError
from snapline.storage.disk import layout, store_files
from snapline.storage.disk.local_disk import DirectoryEntry, Disk, StoreUnavailableError
from snapline.storage.disk.object_disk import open_disk
from snapline.storage.disk.record import Finding, Guard, authenticates, damaged, finding_of
from snapline.storage.disk.store_files import read_fork
from snapline.storage.keys import key_records
from snapline.storage.keys.key_files import Keys
from snapline.storage.log.answer_files import RECORDED, check_answer_file, is_answer_file
from snapline.storage.log.log_files import check_entry, find_logs, list_batches, missing_batches, read_deletions
from snapline.storage.log.log_record import entry_path, is_deletions_path, parse_path
from snapline.storage.outputs.output_files import check_place, check_same_release, read_part
from snapline.storage.outputs.output_record import (
    CONSUMERS,
    OutputBody,
    PartName,
    open_outputs,
    parse_consumer_path,
    parse_part_path,
)
from snapline.storage.packs.checkpoint import decode_checkpoint
from snapline.storage.packs.checkpoint_packs import difference_in_size, keyring_of
from snapline.storage.packs.manifest import Manifest, find_generation, read_manifest, read_ref
from snapline.storage.packs.pack import (
    KIND_CHECKPOINT,
    PLAIN_KEYRING,
    BlobEntry,
    Keyring,
    PackIndex,
    PackReference,
    decode_blob,
    header_bytes,
    read_index,
)
from snapline.storage.retention import pins
from snapline.storage.store.object_segments import LOCK_NAME, check_segment, parse_segment_name, read_header

LISTINGS_OF_LOGS = 3
"""Number of listings in which a batch must be missing. An append may hide a batch from one listing, but hardly from three."""

_ROOT_NAMES = layout.ROOT_DIRECTORIES | {layout.IDENTITY, layout.FORK}


class CheckedFile(msgspec.Struct, frozen=True, gc=False):
    """A file that was read completely during verification."""

    path: str
    epoch: int | None
    size_bytes: int


class Verification(msgspec.Struct):
    """Outcome of a verification.

    Attributes:
        checked: all files that were read, including damaged ones.
        findings: problems found, or an empty list if the store is intact.
        unreferenced: paths of manifests and packs that no ref needs, of output parts that no release names, and of temporary files.
            They are garbage, or belong to an epoch that is being written, and do not count as damage.
    """

    checked: list[CheckedFile]
    findings: list[Finding]
    unreferenced: list[str]

    @property
    def is_whole(self) -> bool:
        """True if verification found no problem."""
        return not self.findings


def verify_disk(
    disk: Disk, store_id: str | None, *, epoch: int | None = None, guard: Guard | None = None
) -> Verification:
    """Verify a whole store, or one published epoch. Pass None as `store_id` if the identity file is damaged. Store ids are then not
    compared."""
    verifier = _Verifier(disk, store_id, guard)
    if epoch is None:
        verifier.check_all()
    else:
        verifier.check_epoch(epoch)
    return verifier.verification


def verify_location(url: str, *, disk: Disk | None = None) -> Verification:
    """Verify a store that cannot be opened because its identity file is damaged."""
    return verify_disk(disk or open_disk(url), None)


class _Verifier:
    """One verification run.

    `_roots` maps each root named by a ref to the ref's epoch. `_seen` maps the path of each pack that was read to its index, or to None if
    the index is damaged. `_digests` maps the path of each pack to the chunk digests of each checkpoint in the pack.
    """

    def __init__(self, disk: Disk, store_id: str | None, guard: Guard | None) -> None:
        self._disk = disk
        self._store_id = store_id
        self._guard = guard
        self.verification = Verification([], [], [])
        self._roots: dict[str, int] = {}
        self._seen: dict[str, PackIndex | None] = {}
        self._digests: dict[str, dict[str, list[bytes]]] = {}

    def check_all(self) -> None:
        with self._noting(layout.IDENTITY, None):
            self._note_checked(layout.IDENTITY, None)
            actual_id = store_files.read_identity(self._disk)
            if self._store_id is not None and actual_id != self._store_id:
                raise damaged(layout.IDENTITY, f"it is the identity of store {actual_id}, not {self._store_id}")
        self._check_root_directory()
        self._check_fork()
        for path in self._files(layout.EPOCH_REFS):
            self._check_ref(path, layout.parse_ref_path(path))
        roots = set()
        for path in self._files(layout.MANIFESTS):
            parsed = layout.parse_manifest_path(path)
            if parsed is None:
                self._note_unknown(path)
                continue
            roots.add(parsed[0])
            self._check_manifest(path, *parsed)
        for root, epoch in self._roots.items():
            if root not in roots:
                self._check_missing(layout.manifest_path(root), epoch, referrer=layout.ref_path(epoch))
        for directory in self._entries(layout.PACKS, is_directory=True):
            for path in self._files(directory):
                if path not in self._seen:
                    self.verification.unreferenced.append(path)
                    self._check_pack(path, layout.PACKS)
        for directory in self._entries_if_present(layout.CHECKPOINTS, is_directory=True):
            for path in self._files(directory):
                self._check_pack(path, layout.CHECKPOINTS)
        for path in self._files(layout.PROBES):
            self._check_probe(path)
        if self._is_there(layout.LOG):
            self._check_logs()
        self._check_outputs()
        for path in self._files_if_present(layout.ANSWERS):
            self._check_answers(path)
        for directory in self._entries_if_present(layout.OBJECT_STREAMS, is_directory=True):
            self._check_object_stream(directory)
        for path in self._files_if_present(layout.REPLICAS):
            self._check_mark(path)
        for directory in layout.HOLDS:
            for path in self._files_if_present(directory):
                self._check_hold(path)
        for path in self._files_if_present(layout.KEYS):
            with self._noting(path, None):
                self._note_checked(path, None)
                if self._guard is not None:
                    self._guard.check_key_file(path)
                else:
                    key_records.check_key_file(self._disk, path, store_id=self._store_id, keys=Keys())
        self._check_temporary()

    def check_epoch(self, epoch: int) -> None:
        self._check_ref(layout.ref_path(epoch), epoch)
        for root in self._roots:
            generation = find_generation(self._disk, root)
            path = layout.manifest_path(root, generation)
            if not self._is_there(path):
                self._check_missing(path, epoch, referrer=layout.ref_path(epoch))
            self._check_manifest(path, root, generation)

    # -- checks of each kind of file ---------------------------------------------------------------------------------

    def _check_ref(self, path: str, epoch: int | None) -> None:
        if epoch is None:
            self._note_unknown(path)
            return
        with self._noting(path, epoch):
            self._note_checked(path, epoch)
            self._roots[read_ref(self._disk, epoch, self._store_id, self._guard)] = epoch

    def _check_manifest(self, path: str, root: str, generation: int) -> None:
        epoch = self._roots.get(root)
        if epoch is None:
            self.verification.unreferenced.append(path)
        with self._noting(path, epoch):
            checked = self._note_checked(path, epoch)
            manifest = read_manifest(self._disk, root, epoch=epoch, generation=generation)
            self.verification.checked[checked] = msgspec.structs.replace(
                self.verification.checked[checked], epoch=manifest.metadata.epoch
            )
            for number, pack in enumerate(manifest.packs):
                self._check_referenced_pack(manifest, number, pack, manifest_path=path, is_garbage=epoch is None)
            self._check_chunks(manifest, path)

    def _check_referenced_pack(
        self, manifest: Manifest, number: int, pack: PackReference, *, manifest_path: str, is_garbage: bool
    ) -> None:
        epoch = manifest.metadata.epoch
        if not self._is_there(pack.path):
            self._check_missing(pack.path, epoch, referrer=manifest_path)
            return
        if pack.path not in self._seen:
            self._seen[pack.path] = self._check_pack(pack.path, layout.PACKS, pack)
        if is_garbage:
            self.verification.unreferenced.append(pack.path)
        index = self._seen[pack.path]
        if index is None:
            return
        entries = {entry.name or entry.digest: entry for entry in index.entries}
        for line in manifest.agents:
            if line.pack == number and entries.get(line.agent) != line.entry():
                reason = "its index and the manifest differ"
                self.verification.findings.append(Finding(pack.path, epoch, reason, line.agent))
        for chunk in manifest.chunks:
            if chunk.pack == number and entries.get(chunk.digest) != chunk.entry():
                reason = f"its index and the manifest differ about chunk {chunk.digest.hex()[:12]}"
                self.verification.findings.append(Finding(pack.path, epoch, reason))

    def _check_chunks(self, manifest: Manifest, path: str) -> None:
        """Check that the manifest contains a location for every chunk of every checkpoint."""
        places = {chunk.digest for chunk in manifest.chunks}
        for line in manifest.agents:
            wanted = self._digests.get(manifest.packs[line.pack].path, {}).get(line.agent, [])
            if any(digest not in places for digest in wanted):
                reason = "it does not say where a chunk of the checkpoint lies"
                self.verification.findings.append(Finding(path, manifest.metadata.epoch, reason, line.agent))

    def _check_pack(self, path: str, folder: str, expected: PackReference | None = None) -> PackIndex | None:
        """Read a whole pack. Return the pack's index, or None if the index is damaged or the file is missing."""
        name = layout.parse_pack_path(path, folder)
        if name is None:
            self._note_unknown(path)
            return None
        with self._noting(path, name.epoch):
            size_bytes = self.verification.checked[self._note_checked(path, name.epoch)].size_bytes
            reason = "" if expected is None else difference_in_size(size_bytes, expected.size_bytes)
            if reason:
                raise damaged(path, reason, epoch=name.epoch)
            index, actual = read_index(self._disk, path, size_bytes=size_bytes, store_id=self._store_id)
            if expected is not None and actual.index_digest != expected.index_digest:
                raise damaged(path, "its index is not the one that the manifest names", epoch=name.epoch)
            header = index.header()
            if self._disk.read(path, 0, len(header)) != header:
                self.verification.findings.append(Finding(path, name.epoch, "its header is not what the index says"))
            keyring = self._keyring(path, index)
            for entry in index.entries:
                self._check_blob(path, name.epoch, entry, keyring)
            return index
        return None

    def _keyring(self, path: str, index: PackIndex) -> Keyring:
        return (
            keyring_of(self._guard, store_id=index.store, path=path, key_id=index.key) if self._guard else PLAIN_KEYRING
        )

    def _check_blob(self, path: str, epoch: int | None, entry: BlobEntry, keyring: Keyring) -> None:
        with self._noting(path, epoch):
            data = self._disk.read(path, entry.offset, header_bytes(entry.name) + entry.stored_bytes)
            plain = decode_blob(data, entry, path=path, epoch=epoch, keyring=keyring)
            if entry.kind == KIND_CHECKPOINT:
                with contextlib.suppress(
                    StoreError
                ):  # A later version of Snapline wrote the file, which is not damage.
                    self._digests.setdefault(path, {})[entry.name] = list(decode_checkpoint(plain).digests())

    def _check_probe(self, path: str) -> None:
        if not layout.is_probe_path(path):
            self._note_unknown(path)
            return
        with self._noting(path, None):
            self._note_checked(path, None)
            store_files.read_probe(self._disk, path, self._store_id)

    def _check_logs(self) -> None:
        for path in [f"{layout.LOG}/{entry.name}" for entry in self._list(layout.LOG) if not entry.is_directory]:
            if not is_deletions_path(path):
                self._note_unknown(path)
                continue
            with self._noting(path, None):
                self._note_checked(path, None)
                read_deletions(self._disk, path, store_id=self._store_id, guard=self._guard)
        for plan in [f"{layout.LOG}/{entry.name}" for entry in self._list(layout.LOG) if entry.is_directory]:
            for directory in self._entries(plan, is_directory=True):
                for path in self._files(directory):
                    self._check_entry(path)
        with self._noting(layout.LOG, None):
            self._check_none_missing()

    def _check_none_missing(self) -> None:
        """Check that no batch is missing. A batch that is missing from a listing only because it was being appended appears in a later
        listing."""
        guard = self._guard
        if guard is None or not authenticates(guard):
            return
        logs, missing = find_logs(self._disk), {}
        for _ in range(LISTINGS_OF_LOGS):
            batches = {log: list_batches(self._disk, log) for log in logs}
            missing = missing_batches(self._disk, batches, {}, store_id=self._store_id, guard=guard)
            logs = list(missing)
        for log, number in missing.items():
            reason = "it is missing, and nothing says that it was deleted as garbage"
            self.verification.findings.append(Finding(entry_path(log, number), None, reason))

    def _check_entry(self, path: str) -> None:
        if parse_path(path) is None:
            self._note_unknown(path)
            return
        with self._noting(path, None):
            self._note_checked(path, None)
            check_entry(self._disk, path, store_id=self._store_id, guard=self._guard)

    def _check_answers(self, path: str) -> None:
        if path != RECORDED and not is_answer_file(path):
            self._note_unknown(path)
            return
        with self._noting(path, None):
            self._note_checked(path, None)
            check_answer_file(self._disk, path, store_id=self._store_id, guard=self._guard)

    def _check_outputs(self) -> None:
        """Check outputs. Parts are listed before they are read, so a part that a release names but the listing lacks never existed or was
        deleted."""
        if not self._is_there(layout.OUTPUTS):
            return
        names: list[PartName] = []
        for entry in self._list(layout.OUTPUTS):
            path = f"{layout.OUTPUTS}/{entry.name}"
            name = parse_part_path(path)
            if entry.is_directory and path == CONSUMERS:
                self._check_consumers()
            elif entry.is_directory or name is None:
                self._note_unknown(path)
            else:
                names.append(name)
        heads: dict[int, OutputBody] = {}
        for name in sorted(names, key=lambda name: name.part):
            with self._noting(name.path, None):
                self._note_checked(name.path, None)
                self._check_part(name, heads)
        for head in heads.values():
            self._check_release(head, {name.path for name in names})

    def _check_part(self, name: PartName, heads: dict[int, OutputBody]) -> None:
        head = heads.get(name.epoch)
        if name.part and (head is None or head.release != name.release):
            self.verification.unreferenced.append(name.path)
        body = read_part(self._disk, name.path, store_id=self._store_id)
        if name.part == 0:
            heads[name.epoch] = msgspec.structs.replace(body, data=b"")
        elif head is not None and head.release == name.release:
            check_same_release(body, head)
        open_outputs(body, self._guard)

    def _check_release(self, head: OutputBody, listed: set[str]) -> None:
        for path in {head.part_path(part) for part in range(1, len(head.counts))} - listed:
            if self._is_there(head.path) and not self._is_there(path):
                self.verification.findings.append(Finding(path, None, f"it is missing; {head.path} names it"))

    def _check_consumers(self) -> None:
        for path in self._files(CONSUMERS):
            if parse_consumer_path(path) is None:
                self._note_unknown(path)
                continue
            with self._noting(path, None):
                self._note_checked(path, None)
                check_place(self._disk, path, store_id=self._store_id)

    def _check_object_stream(self, directory: str) -> None:
        """Check one object stream. A segment that the newest segment does not list is garbage, because it was compacted or never
        acknowledged."""
        numbers = []
        for path in self._files(directory):
            name = path.rpartition("/")[2]
            number = parse_segment_name(name)
            if number is not None:
                numbers.append(number)
            elif name != LOCK_NAME:
                self._note_unknown(path)
        ends: dict[int, int | None] = {}
        for number in sorted(numbers, reverse=True):
            path = f"{directory}/{number}"
            with self._noting(path, None):
                self._note_checked(path, None)
                if not ends:
                    ends = {number: None, **dict(read_header(self._disk, path, store_id=self._store_id).alive)}
                if number in ends:
                    check_segment(self._disk, path, store_id=self._store_id, guard=self._guard, end=ends[number])
                else:
                    self.verification.unreferenced.append(path)
        for number in sorted(ends.keys() - set(numbers)):
            self.verification.findings.append(
                Finding(f"{directory}/{number}", None, "it is missing; a later segment counts it")
            )

    def _check_mark(self, path: str) -> None:
        if store_files.parse_mark_path(path) is None:
            self._note_unknown(path)
            return
        with self._noting(path, None):
            self._note_checked(path, None)
            store_files.read_mark(self._disk, path, self._store_id)

    def _check_hold(self, path: str) -> None:
        with self._noting(path, None):
            self._note_checked(path, None)
            pins.read_record(self._disk, path, self._store_id)

    def _check_temporary(self) -> None:
        for path in self._files_if_present(layout.TEMPORARY):
            if layout.parse_temporary_path(path) is None:
                self._note_unknown(path)
            else:
                self.verification.unreferenced.append(path)

    def _check_root_directory(self) -> None:
        for entry in self._list(""):
            if entry.is_directory != (entry.name in layout.ROOT_DIRECTORIES) or entry.name not in _ROOT_NAMES:
                self._note_unknown(entry.name)
        for entry in self._list(layout.REFS):
            if f"{layout.REFS}/{entry.name}" != layout.EPOCH_REFS:
                self._note_unknown(f"{layout.REFS}/{entry.name}")

    def _check_fork(self) -> None:
        if self._is_there(layout.FORK):
            with self._noting(layout.FORK, None):
                self._note_checked(layout.FORK, None)
                read_fork(self._disk, self._store_id, self._guard)

    # -- notes -------------------------------------------------------------------------------------------------------

    def _note_checked(self, path: str, epoch: int | None) -> int:
        """Record that a file is being read, and return the index of the record. Raise FileNotFoundError if the file is missing."""
        self.verification.checked.append(CheckedFile(path, epoch, self._disk.size(path)))
        return len(self.verification.checked) - 1

    def _note_unknown(self, path: str) -> None:
        self.verification.findings.append(Finding(path, None, "no file of a snapline store has this name"))

    def _check_missing(self, path: str, epoch: int, *, referrer: str) -> None:
        """Report a missing file, unless the file that names it was deleted meanwhile."""
        if self._is_there(referrer) and not self._is_there(path):
            self.verification.findings.append(Finding(path, epoch, f"it is missing; {referrer} names it"))

    @contextlib.contextmanager
    def _noting(self, path: str, epoch: int | None) -> Iterator[None]:
        """Turn errors into findings. A missing identity file is a finding. Any other missing file was deleted meanwhile."""
        try:
            yield
        except FileNotFoundError:
            if path == layout.IDENTITY:
                self.verification.findings.append(Finding(path, None, "it is missing"))
        except DamagedDataError as error:
            finding = finding_of(error) or Finding(path, epoch, str(error))
            if self._is_there(path):
                self.verification.findings.append(finding)
        except (OSError, StoreError) as error:
            _reraise_unavailable(error)
            self.verification.findings.append(Finding(path, epoch, f"it cannot be read: {error}"))

    # -- directories -------------------------------------------------------------------------------------------------

    def _is_there(self, path: str) -> bool:
        try:
            self._disk.size(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            _reraise_unavailable(error)
        return True

    def _list(self, directory: str) -> list[DirectoryEntry]:
        try:
            return self._disk.list_directory(directory)
        except OSError as error:
            _reraise_unavailable(error)
            reason = f"the directory cannot be listed: {error.strerror or error}"
            self.verification.findings.append(Finding(directory, None, reason))
            return []

    def _files(self, directory: str) -> list[str]:
        return self._entries(directory, is_directory=False)

    def _files_if_present(self, directory: str) -> list[str]:
        return self._entries_if_present(directory, is_directory=False)

    def _entries_if_present(self, directory: str, *, is_directory: bool) -> list[str]:
        """Return the entries of a directory, or an empty list if the directory does not exist yet."""
        return self._entries(directory, is_directory=is_directory) if self._is_there(directory) else []

    def _entries(self, directory: str, *, is_directory: bool) -> list[str]:
        """Return the paths of all files, or of all directories, in `directory`. Report every entry of the other kind as a finding."""
        paths = []
        for entry in self._list(directory):
            path = f"{directory}/{entry.name}"
            if entry.is_directory is is_directory:
                paths.append(path)
            else:
                self._note_unknown(path)
        return paths


def _reraise_unavailable(error: Exception) -> None:
    """Raise the cause of `error` if it is an unavailable store, so that it is not reported as a finding."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, StoreUnavailableError):
        raise cause
