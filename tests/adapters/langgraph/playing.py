"""Savers and checkpoints for tests. Needs LangGraph: `make test-langgraph` installs it."""

from collections.abc import Mapping
from typing import Any

import pytest

REASON = "needs LangGraph, its SQLite saver and its conformance suite: make test-langgraph"

for name in ("langgraph.graph", "langgraph.checkpoint.sqlite", "langgraph.checkpoint.conformance"):
    pytest.importorskip(name, reason=REASON)


def thread(name: str = "t", namespace: str = "", checkpoint: str | None = None) -> dict[str, Any]:
    found = {"thread_id": name, "checkpoint_ns": namespace}
    return {"configurable": found if checkpoint is None else {**found, "checkpoint_id": checkpoint}}


def checkpoint(number: int, values: Mapping[str, Any], versions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A checkpoint whose channels all have the version `number`, unless others are given."""
    return {
        "v": 2,
        "id": f"{number:08}",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": dict(values),
        "channel_versions": dict(versions) if versions is not None else dict.fromkeys(values, str(number)),
        "versions_seen": {"node": {"channel": str(number)}},
        "updated_channels": None,
    }


def put(
    saver: Any, number: int, values: Mapping[str, Any], *, of: str = "t", parent: int | None = None, **more: Any
) -> Any:
    """Save a checkpoint in which every channel is new."""
    made = checkpoint(number, values)
    above = None if parent is None else f"{parent:08}"
    metadata = {"source": "loop", "step": number, "parents": {}, **more}
    return saver.put(thread(of, checkpoint=above), made, metadata, made["channel_versions"])


def values_of(saver: Any, name: str = "t", number: int | None = None) -> Any:
    found = saver.get_tuple(thread(name, checkpoint=None if number is None else f"{number:08}"))
    return None if found is None else found.checkpoint["channel_values"]
