"""A mover of a consumer that was overtaken twice between its look and its write."""

from pathlib import Path

import pytest

from snapline.storage.outputs import output_files
from snapline.storage.outputs.output_files import ConsumerPosition
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.store.store import Store


def test_who_writes_a_number_that_others_have_passed_and_removed_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could write it, since it was gone; but the newest place is that of those who had come less far."""
    store = Store.create(tmp_path / "store")
    for epoch in range(1, 9):
        store.release_outputs(
            epoch, f"{epoch:064x}", epoch - 1, [EmittedOutput("a1", epoch, "topic", b"x", 0)], created_ns=1
        )
    for cursor in ("1.1", "2.1", "3.1"):
        store.acknowledge_outputs("c", cursor, now_ns=0)
    stale_lists, stale_reads = [{"c": [1]}], [ConsumerPosition("1.1", 0)]
    look, read = output_files._list, output_files._read_if_whole
    monkeypatch.setattr(output_files, "_list", lambda disk: stale_lists.pop() if stale_lists else look(disk))
    monkeypatch.setattr(output_files, "_read_if_whole", lambda *args: stale_reads.pop() if stale_reads else read(*args))
    assert store.acknowledge_outputs("c", "8.1", now_ns=0).cursor == "8.1"
    assert store.output_consumers()["c"].cursor == "8.1"
