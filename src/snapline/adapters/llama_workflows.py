"""Stores LlamaIndex workflow contexts in snapline's store (docs/session-stores.md).

A context is stored as a record with the fields of `Context.to_dict`. If a field has not changed, only a reference to it is stored.
LlamaIndex's own serializer converts values to text and back.
"""

try:
    from workflows import Context, Workflow
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "snapline.adapters.llama_workflows needs LlamaIndex's workflows: install snapline[llama-workflows]",
        name=error.name,
    ) from error

import json
from typing import Any

from snapline.adapters.stored_records import RecordStoreBase, in_thread

_PATH = ("context",)


class SnaplineContexts(RecordStoreBase):
    """Stores LlamaIndex workflow contexts by name. Save with `await contexts.save("one", handler.ctx)`. Load later with `await
    contexts.load("one", workflow)`."""

    SHELF = "llama-workflows"

    async def save(self, name: str, context: Context, serializer: Any = None) -> None:
        """Save the current state of a context. A previously saved context with the same name is replaced.

        If a step is running when the context is saved, the step is rerun after the context is loaded.
        """
        fields = {key: json.dumps(value).encode() for key, value in context.to_dict(serializer).items()}
        await in_thread(self._records.put, _PATH, {name: fields})

    async def load(self, name: str, workflow: Workflow, serializer: Any = None) -> Context | None:
        """Return a context to pass to `workflow.run(ctx=…)`, or None if no context was saved under this name."""
        fields = await in_thread(self._records.get, _PATH, name)
        if fields is None:
            return None
        return Context.from_dict(workflow, {key: json.loads(data) for key, data in fields.items()}, serializer)

    async def delete(self, name: str) -> bool:
        """Delete a context. Return True if the context existed."""
        return await in_thread(self._records.delete, _PATH, name)

    def names(self) -> list[str]:
        """Return the names of all saved contexts in sorted order."""
        return self._records.names(_PATH)
