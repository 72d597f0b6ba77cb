"""Stores workflow checkpoints of Microsoft Agent Framework in snapline's store (docs/session-stores.md).

A checkpoint is stored as a record with the fields of `WorkflowCheckpoint`, where each key of `state` is a separate field. If a superstep
has not changed a field, only a reference to it is stored. The framework's own encoding converts values to JSON, and pickles values that
JSON cannot represent. When loading a pickle, the framework accepts only allowed types. The framework's security advice also applies to this
storage.
"""

try:
    from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException
    from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "snapline.adapters.microsoft_agent_framework needs Agent Framework: install snapline[agent-framework]",
        name=error.name,
    ) from error

import json
from collections.abc import Iterable
from datetime import datetime

from snapline.adapters.stored_records import RecordStoreBase, StoredRecords, in_thread

_KIND = "workflow"
_STATE = "state"
_STATE_KEY = "state/"


class SnaplineCheckpointStorage(RecordStoreBase):
    """A `CheckpointStorage` that saves workflow checkpoints in snapline's store. Use the storage as `WorkflowBuilder(…,
    checkpoint_storage=SnaplineCheckpointStorage.open("folder"))`.

    `allow` lists the application's types that may be loaded, in the form "module:Class". Alternatively, allow a type with
    `agent_framework.register_checkpoint_type`.
    """

    SHELF = "agent-framework"

    def __init__(self, records: StoredRecords) -> None:
        """Create the storage from open records. Applications should use `open` instead."""
        super().__init__(records)
        self._allowed: frozenset[str] = frozenset()

    def allow(self, types: Iterable[str]) -> "SnaplineCheckpointStorage":
        """Allow the given additional types to be loaded, and return this storage object."""
        self._allowed |= frozenset(types)
        return self

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Save a checkpoint and return its id. Raise WorkflowCheckpointException if the checkpoint could not be loaded later."""
        fields = self._fields_of(checkpoint)
        path = (_KIND, checkpoint.workflow_name)
        await in_thread(self._records.put, path, {checkpoint.checkpoint_id: fields})
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return the checkpoint with this id. Raise WorkflowCheckpointException if the checkpoint does not exist, or if it contains a type
        that is not allowed."""
        fields = await in_thread(self._find, checkpoint_id)
        if fields is None:
            raise WorkflowCheckpointException(f"there is no checkpoint {checkpoint_id!r} in the store")
        return self._checkpoint_of(fields)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first."""
        records = await in_thread(self._records.all, (_KIND, workflow_name))
        checkpoints = [self._checkpoint_of(fields) for fields in records.values()]
        return sorted(checkpoints, key=lambda checkpoint: datetime.fromisoformat(checkpoint.timestamp))

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint. Return True if the checkpoint existed."""
        path = self._records.owner_of(_KIND, checkpoint_id)
        return path is not None and await in_thread(self._records.delete, path, checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the workflow's checkpoint with the newest timestamp, or None if the workflow has no checkpoints."""
        return next(reversed(await self.list_checkpoints(workflow_name=workflow_name)), None)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of a workflow's checkpoints, oldest first."""
        return [checkpoint.checkpoint_id for checkpoint in await self.list_checkpoints(workflow_name=workflow_name)]

    def _find(self, checkpoint_id: str) -> dict[str, bytes] | None:
        path = self._records.owner_of(_KIND, checkpoint_id)
        return None if path is None else self._records.get(path, checkpoint_id)

    def _fields_of(self, checkpoint: WorkflowCheckpoint) -> dict[str, bytes]:
        encoded = encode_checkpoint_value(checkpoint.to_dict())
        decode_checkpoint_value(encoded, allowed_types=self._allowed)  # fails now if it could not be loaded later
        state = encoded.pop(_STATE)
        encoded |= {_STATE_KEY + key: value for key, value in state.items()}
        return {key: json.dumps(value).encode() for key, value in encoded.items()}

    def _checkpoint_of(self, fields: dict[str, bytes]) -> WorkflowCheckpoint:
        encoded = {key: json.loads(data) for key, data in fields.items() if not key.startswith(_STATE_KEY)}
        encoded[_STATE] = {
            key.removeprefix(_STATE_KEY): json.loads(data) for key, data in fields.items() if key.startswith(_STATE_KEY)
        }
        return WorkflowCheckpoint.from_dict(decode_checkpoint_value(encoded, allowed_types=self._allowed))
