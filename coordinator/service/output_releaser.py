"""Writer of releases: the outputs that agents have emitted since the previous epoch, read from the epoch's checkpoints.

The manifest of the previous epoch has the numbers of the outputs already released. If that epoch is condemned, its bytes may be damaged, and it
is unknown whether a leader has released it or is about to. So it is *closed*: an empty release is written for it, unless it has one already
(files of releases are created exclusively). Then its release file shows what it has released.
"""

from collections.abc import Callable, Sequence

import msgspec

from snapline.coordinator.leader.events import EpochReleased, ReleaseEpoch
from snapline.coordinator.state.lineage import Ancestor
from snapline.errors import DamagedDataError, NotFoundError, SnaplineError, UsageError
from snapline.storage.disk.layout import manifest_path
from snapline.storage.disk.record import damaged, finding_of
from snapline.storage.outputs.output_record import EmittedOutput, parse_part_path
from snapline.storage.packs.manifest import Manifest, Metadata
from snapline.storage.store.store import Store

EPOCHS_KEPT = 8
"""Number of epochs whose numbers are cached, so that a new epoch and its predecessor need not be read."""

Numbers = dict[str, int]


class _CachedNumbers(msgspec.Struct, frozen=True):
    """Cached numbers of an epoch: its root, and per agent the last input consumed and the last output emitted."""

    root: str
    inputs: Numbers
    outputs: Numbers


class OutputReleaser:
    """Output releaser of one coordinator. Methods may run on any thread, but `release` only once at a time."""

    def __init__(self, store: Store, wall_ns: Callable[[], int]) -> None:
        self._store = store
        self._wall_ns = wall_ns
        self._known: dict[int, _CachedNumbers] = {}

    def on_written(self, root: str, metadata: Metadata) -> None:
        """Note a manifest that this process has written."""
        self._note(metadata.epoch, _CachedNumbers(root, metadata.inputs, metadata.outputs))

    def known(self, epoch: int, root: str) -> tuple[Numbers, Numbers] | None:
        """Return the cached inputs and outputs of an epoch; None: they are not cached."""
        known = self._known.get(epoch)
        return (known.inputs, known.outputs) if known is not None and known.root == root else None

    def release(self, command: ReleaseEpoch) -> EpochReleased:
        """Release an epoch; repeating it succeeds."""
        epoch = command.epoch
        try:
            now = self._store.confirm_damage(lambda: self._release(command))
        except DamagedDataError as error:
            return EpochReleased(epoch, str(error) or repr(error), *_damage_of(error, command))
        except (SnaplineError, OSError) as error:
            return EpochReleased(epoch, str(error) or repr(error))
        return EpochReleased(epoch, inputs=now.inputs, outputs=now.outputs)

    def _release(self, command: ReleaseEpoch) -> _CachedNumbers:
        released = self._read(command.epoch, command.root)
        now = released.outputs
        before = self._emitted_before(command.ancestors, now)
        fresh = {agent: before.get(agent, 0) for agent, number in now.items() if number > before.get(agent, 0)}
        if not fresh and not command.is_fall_back:
            return released
        outputs = self._read_outputs(command, fresh, now) if fresh else None
        after = command.ancestors[0].epoch if command.ancestors else 0
        self._write(command.epoch, command.root, after, outputs)
        return released

    def _write(self, epoch: int, root: str, after: int, outputs: Sequence[EmittedOutput] | None) -> None:
        """Write a release. None: there are no outputs, and later writers must not add any."""
        try:
            self._store.release_outputs(epoch, root, after, outputs, created_ns=self._wall_ns())
        except UsageError:
            if outputs or self._store.output_epochs():
                raise  # otherwise ignore it: nothing was ever released into this store, so nothing has to be reverted

    # ---- earlier releases -----------------------------------------------------------------------------------------

    def _emitted_before(self, ancestors: Sequence[Ancestor], now: Numbers) -> Numbers:
        """Return agent → number of its last released output."""
        whole = next((x for x in ancestors if not x.is_condemned), None)
        before = dict(self._read(whole.epoch, whole.root).outputs) if whole is not None and now else {}
        condemned = [x for x in reversed(ancestors) if x.is_condemned]
        if not any(number > before.get(agent, 0) for agent, number in now.items()):
            return before
        after = 0 if whole is None else whole.epoch
        for ancestor in condemned:
            for agent, number in self._close(ancestor, after).items():
                before[agent] = max(number, before.get(agent, 0))
            after = ancestor.epoch
        return before

    def _close(self, ancestor: Ancestor, after: int) -> Numbers:
        """Close a condemned epoch's release; return agent → number of the last output in it."""
        self._write(ancestor.epoch, ancestor.root, after, None)
        try:
            released = self._store.read_release(ancestor.epoch)
        except NotFoundError:  # a higher release exists, so this epoch was decided before
            return {}
        return {output.agent: output.number for output in released.outputs}

    # ---- reading --------------------------------------------------------------------------------------------------

    def _read_outputs(self, command: ReleaseEpoch, fresh: Numbers, now: Numbers) -> list[EmittedOutput]:
        """Return the outputs of the agents in `fresh` beyond these numbers, reading only their checkpoints."""
        manifest = self._store.read_manifest(command.root, epoch=command.epoch)
        outputs: list[EmittedOutput] = []
        for checkpoint in self._store.read_checkpoints(manifest, list(fresh)):
            agent = checkpoint.agent
            pending = [x for x in checkpoint.outputs.pending if x.number > fresh[agent]]
            _check_whole(manifest, agent, [x.number for x in pending], above=fresh[agent], last=now[agent])
            outputs += [EmittedOutput(agent, x.number, x.topic, x.payload, x.emitted_ns) for x in pending]
        return outputs

    def _read(self, epoch: int, root: str) -> _CachedNumbers:
        known = self._known.get(epoch)
        if known is None or known.root != root:
            metadata = self._store.read_manifest(root, epoch=epoch).metadata
            known = _CachedNumbers(root, metadata.inputs, metadata.outputs)
            self._note(epoch, known)
        return known

    def _note(self, epoch: int, known: _CachedNumbers) -> None:
        kept = sorted({*self._known, epoch})[-EPOCHS_KEPT:]
        self._known = {kept_epoch: known if kept_epoch == epoch else self._known[kept_epoch] for kept_epoch in kept}


def _check_whole(manifest: Manifest, agent: str, numbers: list[int], *, above: int, last: int) -> None:
    """Check that the checkpoint has all outputs since the previous epoch: hosts drop only released ones."""
    if numbers != list(range(above + 1, last + 1)):
        path = manifest.packs[manifest.line_of(agent).pack].path
        raise damaged(path, f"outputs beyond {above} are missing", epoch=manifest.metadata.epoch, blob=agent)


def _damage_of(error: DamagedDataError, command: ReleaseEpoch) -> tuple[int, str]:
    """Return the damaged epoch and file; (0, ""): only a release file is damaged, which harms no epoch."""
    finding = finding_of(error)
    path = manifest_path(command.root) if finding is None else finding.path
    if parse_part_path(path) is not None:
        return 0, ""
    manifests = {manifest_path(ancestor.root): ancestor.epoch for ancestor in command.ancestors}
    return manifests.get(path, command.epoch), path
