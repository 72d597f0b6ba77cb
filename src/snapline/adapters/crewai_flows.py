"""States of CrewAI's flows on snapline's store (docs/session-stores.md).

A flow has a record `state`, and `pending` while it waits for a person. Their fields are the keys of the flow's state: what a method has not changed costs
a reference. Values become JSON as pydantic says them, and are what JSON gives back.
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

from snapline.adapters.shelved_records import RecordsOwner, StoredRecords

_STATE, _PENDING = "state", "pending"
_KEY = "key/"
_METHOD, _CONTEXT = "method", "context"

_opening = threading.Lock()
"""Threads that use a persistence for the first time at the same moment must not open it twice."""


class FlowRecords(RecordsOwner):
    """The shelf of flows."""

    SHELF = "crewai-flows"


class SnaplineFlowPersistence(FlowPersistence):
    """A `FlowPersistence`: `@persist(SnaplineFlowPersistence(location="folder"))`, or `MyFlow(persistence=…)`.

    The store, a folder or a URL (`s3://bucket/prefix`), is opened when it is used first, made if there is none (unless `must_exist`), and open until `close`. It may be open in
    one process at a time, and in it in one object; another is refused (`ObjectStreamInUseError`). What a method saves is durable when it returns, whole or not
    at all.
    """

    persistence_type: str = "SnaplineFlowPersistence"
    location: str
    must_exist: bool = False
    _owner: FlowRecords | None = PrivateAttr(default=None)

    def init_db(self) -> None:
        """Open the store; errors as `RecordsOwner.open`."""
        with _opening:
            if self._owner is None:
                self._owner = FlowRecords.open(self.location, must_exist=self.must_exist)

    def close(self) -> None:
        """Let go of the store. May be called twice."""
        with _opening:
            owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        """Save a flow's state; it takes the place of the one before."""
        self._records().put(_path(flow_uuid), {_STATE: _fields(state_data, _METHOD, method_name)})

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return a flow's newest state; None: there is none."""
        fields = self._records().get(_path(flow_uuid), _STATE)
        return None if fields is None else _state(fields)

    def save_pending_feedback(self, flow_uuid: str, context: PendingFeedbackContext, state_data: Any) -> None:
        """Save a flow's state, and what it waits for, together."""
        waiting = json.dumps(to_jsonable_python(context.to_dict(), fallback=str))
        records = {
            _STATE: _fields(state_data, _METHOD, context.method_name),
            _PENDING: _fields(state_data, _CONTEXT, waiting),
        }
        self._records().put(_path(flow_uuid), records)

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """Return the state of a flow that waits, and what it waits for; None: it does not wait."""
        fields = self._records().get(_path(flow_uuid), _PENDING)
        if fields is None:
            return None
        return _state(fields), PendingFeedbackContext.from_dict(json.loads(fields[_CONTEXT]))

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """The flow does not wait any more."""
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
