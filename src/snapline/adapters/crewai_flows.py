"""Stores CrewAI flow states in snapline's store (docs/session-stores.md).

Each flow has a record `state`. While the flow waits for a person, it also has a record `pending`. Each record has one field for each key of
the flow's state. A field that a method has not changed is stored only as a reference to its earlier value. Pydantic converts values to JSON
before they are stored. Loaded values are therefore plain JSON values.
"""

try:
    from crewai.flow.async_feedback.types import PendingFeedbackContext
    from crewai.flow.persistence.base import FlowPersistence
    from pydantic import PrivateAttr
    from pydantic_core import to_jsonable_python
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "snapline.adapters.crewai_flows needs CrewAI: install snapline[crewai]", name=error.name
    ) from error

import json
import threading
from typing import Any

from snapline.adapters.stored_records import RecordStoreBase, StoredRecords

_STATE, _PENDING = "state", "pending"
_KEY = "key/"
_METHOD, _CONTEXT = "method", "context"

_opening = threading.Lock()
"""Lock that prevents two threads from opening the same persistence at the same time."""


class FlowRecords(RecordStoreBase):
    """The stored records of CrewAI flows."""

    SHELF = "crewai-flows"


class SnaplineFlowPersistence(FlowPersistence):
    """A CrewAI `FlowPersistence`. Use the persistence as `@persist(SnaplineFlowPersistence(location="folder"))` or `MyFlow(persistence=…)`.

    The store is a folder or a URL (`s3://bucket/prefix`). The store is opened when it is first used, and stays open until `close`. If the
    store does not exist, it is created unless `must_exist` is set. Only one object in one process may have the store open. Opening the
    store a second time raises `ObjectStreamInUseError`. A save is atomic, and is durable when the method returns.
    """

    persistence_type: str = "SnaplineFlowPersistence"
    location: str
    must_exist: bool = False
    _owner: FlowRecords | None = PrivateAttr(default=None)

    def init_db(self) -> None:
        """Open the store. Raise the same errors as `RecordStoreBase.open`."""
        with _opening:
            if self._owner is None:
                self._owner = FlowRecords.open(self.location, must_exist=self.must_exist)

    def close(self) -> None:
        """Close the store. Closing the store again has no effect."""
        with _opening:
            owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        """Save a flow's state, which replaces its previous state."""
        self._records().put(_path(flow_uuid), {_STATE: _fields(state_data, _METHOD, method_name)})

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return a flow's newest state, or None if no state was saved."""
        fields = self._records().get(_path(flow_uuid), _STATE)
        return None if fields is None else _state(fields)

    def save_pending_feedback(self, flow_uuid: str, context: PendingFeedbackContext, state_data: Any) -> None:
        """Save a flow's state and its pending feedback in one atomic operation."""
        waiting = json.dumps(to_jsonable_python(context.to_dict(), fallback=str))
        records = {
            _STATE: _fields(state_data, _METHOD, context.method_name),
            _PENDING: _fields(state_data, _CONTEXT, waiting),
        }
        self._records().put(_path(flow_uuid), records)

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """Return the state and the pending feedback of a waiting flow, or None if the flow is not waiting."""
        fields = self._records().get(_path(flow_uuid), _PENDING)
        if fields is None:
            return None
        return _state(fields), PendingFeedbackContext.from_dict(json.loads(fields[_CONTEXT]))

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Delete the flow's pending feedback, so that the flow no longer counts as waiting for a person."""
        self._records().delete(_path(flow_uuid), _PENDING)

    def _records(self) -> StoredRecords:
        self.init_db()
        assert self._owner is not None
        return self._owner.records


def _path(flow_uuid: str) -> tuple[str, str]:
    return "flow", flow_uuid


def _fields(state: Any, name: str, text: str) -> dict[str, bytes]:
    plain = to_jsonable_python(state, fallback=str)
    return {name: text.encode(), **{_KEY + key: json.dumps(value).encode() for key, value in plain.items()}}


def _state(fields: dict[str, bytes]) -> dict[str, Any]:
    return {key.removeprefix(_KEY): json.loads(data) for key, data in fields.items() if key.startswith(_KEY)}
