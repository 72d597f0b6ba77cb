"""Checkpoints of Microsoft Agent Framework's workflows on snapline's store (docs/session-stores.md).

A checkpoint is a record whose fields are those of `WorkflowCheckpoint`, and of its `state` each key for itself: what a superstep has not changed costs a
reference. Values become JSON by the framework's own encoding, which pickles what JSON does not know, and loads of that only types that are allowed: what
is said there about trust holds here.
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

from snapline.adapters.in_thread import in_thread
from snapline.adapters.shelved_records import RecordsOwner, StoredRecords

_KIND = "workflow"
_STATE = "state"
_STATE_KEY = "state/"


class SnaplineCheckpointStorage(RecordsOwner):
    """A `CheckpointStorage`: `WorkflowBuilder(…, checkpoint_storage=SnaplineCheckpointStorage.open("folder"))`.

    `allow` says which types of the application's own may be loaded, as "module:Class"; `agent_framework.register_checkpoint_type` says it, too.
    """

    SHELF = "agent-framework"

    def __init__(self, records: StoredRecords) -> None:
        """Use `open`."""
        super().__init__(records)
        self._allowed: frozenset[str] = frozenset()

    def allow(self, types: Iterable[str]) -> "SnaplineCheckpointStorage":
        """Let these types be loaded, too; return this object."""
        self._allowed |= frozenset(types)
        return self

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Save a checkpoint, and return its id; WorkflowCheckpointException: it could not be loaded again."""
        fields = self._fields_of(checkpoint)
        path = (_KIND, checkpoint.workflow_name)
        await in_thread(self._records.put, path, {checkpoint.checkpoint_id: fields})
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint; WorkflowCheckpointException: there is none, or a type in it is not allowed."""
        fields = await in_thread(self._find, checkpoint_id)
        if fields is None:
            raise WorkflowCheckpointException(f"there is no checkpoint {checkpoint_id!r} in the store")
        return self._checkpoint_of(fields)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first."""
        found = await in_thread(self._records.all, (_KIND, workflow_name))
        checkpoints = [self._checkpoint_of(fields) for fields in found.values()]
        return sorted(checkpoints, key=lambda checkpoint: datetime.fromisoformat(checkpoint.timestamp))

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether there was one."""
        path = self._records.owner_of(_KIND, checkpoint_id)
        return path is not None and await in_thread(self._records.delete, path, checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the newest checkpoint of a workflow, by its timestamp; None: there is none."""
        return next(reversed(await self.list_checkpoints(workflow_name=workflow_name)), None)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of a workflow's checkpoints, oldest first."""
        return [checkpoint.checkpoint_id for checkpoint in await self.list_checkpoints(workflow_name=workflow_name)]

    def _find(self, checkpoint_id: str) -> dict[str, bytes] | None:
        path = self._records.owner_of(_KIND, checkpoint_id)
        return None if path is None else self._records.get(path, checkpoint_id)

    def _fields_of(self, checkpoint: WorkflowCheckpoint) -> dict[str, bytes]:
        encoded = encode_checkpoint_value(checkpoint.to_dict())
        decode_checkpoint_value(encoded, allowed_types=self._allowed)  # What cannot be loaded again is refused now.
        state = encoded.pop(_STATE)
        encoded |= {_STATE_KEY + key: value for key, value in state.items()}
        return {key: json.dumps(value).encode() for key, value in encoded.items()}

    def _checkpoint_of(self, fields: dict[str, bytes]) -> WorkflowCheckpoint:
        encoded = {key: json.loads(data) for key, data in fields.items() if not key.startswith(_STATE_KEY)}
        encoded[_STATE] = {
            key.removeprefix(_STATE_KEY): json.loads(data) for key, data in fields.items() if key.startswith(_STATE_KEY)
        }
        return WorkflowCheckpoint.from_dict(decode_checkpoint_value(encoded, allowed_types=self._allowed))
