"""Contexts of LlamaIndex's workflows on snapline's store (docs/session-stores.md).

A context is a record whose fields are those of `Context.to_dict`: what has not changed costs a reference. Values become text by LlamaIndex's own
serializer, and are loaded by it.
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

from snapline.adapters.in_thread import in_thread
from snapline.adapters.shelved_records import RecordsOwner

_PATH = ("context",)


class SnaplineContexts(RecordsOwner):
    """Contexts by name: `await contexts.save("one", handler.ctx)`, and later `await contexts.load("one", workflow)`."""

    SHELF = "llama-workflows"

    async def save(self, name: str, context: Context, serializer: Any = None) -> None:
        """Save a context as it is now; it takes the place of the one of that name.

        A step that runs just now is in it as one that will run again.
        """
        fields = {key: json.dumps(value).encode() for key, value in context.to_dict(serializer).items()}
        await in_thread(self._records.put, _PATH, {name: fields})

    async def load(self, name: str, workflow: Workflow, serializer: Any = None) -> Context | None:
        """Return a context for `workflow.run(ctx=…)`; None: none was saved."""
        fields = await in_thread(self._records.get, _PATH, name)
        if fields is None:
            return None
        return Context.from_dict(workflow, {key: json.loads(data) for key, data in fields.items()}, serializer)

    async def delete(self, name: str) -> bool:
        """Delete a context; return whether there was one."""
        return await in_thread(self._records.delete, _PATH, name)

    def names(self) -> list[str]:
        """Return what saved contexts are called, sorted."""
        return self._records.names(_PATH)
