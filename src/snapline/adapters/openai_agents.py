"""Sessions of OpenAI's Agents SDK on snapline's store (docs/session-stores.md). The SDK itself is not imported: a session is whatever has these methods.

An item is a record of a list, as JSON. What `add_items` is given is there whole or not at all.
"""

import json
from typing import Any

from snapline.adapters.in_thread import in_thread
from snapline.adapters.shelved_records import RecordsOwner, StoredRecords

Items = list[Any]
"""Items of a conversation, as the SDK calls them: `TResponseInputItem`."""


class SnaplineSession:
    """One conversation: `Runner.run(agent, text, session=…)`. `SnaplineSessions.session` gives one.

    Attributes:
        session_id: which conversation.
        session_settings: the SDK's; its `limit` holds where `get_items` is given none.
    """

    def __init__(self, records: StoredRecords, session_id: str, session_settings: Any = None) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        self._records = records
        self._path = ("session", session_id)

    async def get_items(self, limit: int | None = None) -> Items:
        """Return the latest `limit` items in their order, or all."""
        count = getattr(self.session_settings, "limit", None) if limit is None else limit
        found = await in_thread(self._records.last, self._path, None if count is None else max(0, count))
        return [json.loads(record) for record in found]

    async def add_items(self, items: Items) -> None:
        """Add items at the end."""
        await in_thread(self._records.append, self._path, [json.dumps(item).encode() for item in items])

    async def pop_item(self) -> Any:
        """Take the latest item away, and return it; None: there is none."""
        found = await in_thread(self._records.pop, self._path)
        return None if found is None else json.loads(found)

    async def clear_session(self) -> None:
        """Delete all items."""
        await in_thread(self._records.clear, self._path)


class SnaplineSessions(RecordsOwner):
    """All conversations of one store: `SnaplineSessions.open("folder")`."""

    SHELF = "openai-agents"

    def session(self, session_id: str, session_settings: Any = None) -> SnaplineSession:
        """Return a conversation; it is there when something was added to it."""
        return SnaplineSession(self._records, session_id, session_settings)
