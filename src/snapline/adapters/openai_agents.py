"""Stores the sessions of OpenAI's Agents SDK in snapline's store (docs/session-stores.md).

This module does not import the SDK, because the SDK accepts any object that has the methods of a session.

Each conversation is a list of records, with one JSON record per item. `add_items` is atomic.
"""

import json
from typing import Any

from snapline.adapters.stored_records import RecordStoreBase, StoredRecords, in_thread

Items = list[Any]
"""Items of a conversation. In the SDK, their type is `TResponseInputItem`."""


class SnaplineSession:
    """A single conversation, to be used as `Runner.run(agent, text, session=…)`. Create a session with `SnaplineSessions.session`.

    Attributes:
        session_settings: the SDK's settings for the session, whose `limit` is the default limit of `get_items`.
    """

    def __init__(self, records: StoredRecords, session_id: str, session_settings: Any = None) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        self._records = records
        self._path = ("session", session_id)

    async def get_items(self, limit: int | None = None) -> Items:
        """Return the latest `limit` items, oldest first. If neither `limit` nor the settings' limit is set, return all items."""
        count = getattr(self.session_settings, "limit", None) if limit is None else limit
        records = await in_thread(self._records.last, self._path, None if count is None else max(0, count))
        return [json.loads(record) for record in records]

    async def add_items(self, items: Items) -> None:
        """Append items to the conversation."""
        await in_thread(self._records.append, self._path, [json.dumps(item).encode() for item in items])

    async def pop_item(self) -> Any:
        """Remove and return the latest item, or return None if the conversation is empty."""
        record = await in_thread(self._records.pop, self._path)
        return None if record is None else json.loads(record)

    async def clear_session(self) -> None:
        """Delete all items of the conversation."""
        await in_thread(self._records.clear, self._path)


class SnaplineSessions(RecordStoreBase):
    """All conversations in a store, opened with `SnaplineSessions.open("folder")`."""

    SHELF = "openai-agents"

    def session(self, session_id: str, session_settings: Any = None) -> SnaplineSession:
        """Return a conversation. The conversation is created in the store when its first item is added."""
        return SnaplineSession(self._records, session_id, session_settings)
