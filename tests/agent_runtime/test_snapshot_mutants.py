"""Faults put into the reading of snapshots on purpose: a test of it must fail for each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.agent_runtime import test_snapshots as tests
from tests.agent_runtime.test_cut import Written
from tests.agent_runtime.test_incremental_epochs import Host
from tests.storage.capture.test_first_values import saved

import snapline
from snapline.agent_runtime.snapshots import snapshot_cut
from snapline.agent_runtime.snapshots import snapshot_cut as snapshot_html
from snapline.agent_runtime.snapshots import snapshot_reader as snapshots
from snapline.storage.capture import saved_value_formats, saved_values
from snapline.storage.capture.decoder import PartReader

Patch = pytest.MonkeyPatch
Found = (AssertionError, pytest.fail.Exception)


def fortran_order_is_ignored(patch: Patch) -> None:
    patch.setattr(saved_value_formats, "_fortran_place", lambda number, shape: number)


def what_is_read_is_not_compared(patch: Patch) -> None:
    patch.setattr(PartReader, "_check", lambda self, task, header: None)


def text_is_html(patch: Patch) -> None:
    patch.setattr(snapshot_html, "escape", str)


def a_description_reads_all(patch: Patch) -> None:
    plain = saved_value_formats.first_values

    def greedy(array: Any, count: int) -> Any:
        array.content.whole()
        return plain(array, count)

    patch.setattr(saved_value_formats, "first_values", greedy)


def a_cut_has_no_dead_letters(patch: Patch) -> None:
    patch.setattr(snapshot_cut, "dead_letters", lambda checkpoint, decode: ())


def messages_are_not_decoded_with_the_fleet(patch: Patch) -> None:
    patch.setattr(snapshots, "decode_for", lambda agent_class, payload: snapshot_cut.decode_plainly("", payload))


def a_history_loses_its_end(patch: Patch) -> None:
    records = saved_values.SavedHistory.records
    patch.setattr(saved_values.SavedHistory, "records", lambda self: records(self)[:-1])


def in_fortran_order(host: Host, written: Written) -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert saved_value_formats.first_values(saved(array, "F", 48)[0], 5) == [0, 1, 2, 3, 4]


def reading(host: Host) -> snapline.Snapshot:
    return snapline.open_store(host.store.location).snapshot()


MUTANTS: list[tuple[Callable[[Patch], None], Callable[[Host, Written], None]]] = [
    (fortran_order_is_ignored, in_fortran_order),
    (what_is_read_is_not_compared, lambda host, written: tests.test_what_is_damaged_is_never_shown(host)),
    (text_is_html, lambda host, written: tests.test_text_of_a_store_is_no_html(written)),
    (a_cut_has_no_dead_letters, lambda host, written: tests.test_a_cut_has_the_same(written)),
    (
        messages_are_not_decoded_with_the_fleet,
        lambda host, written: tests.test_messages_timers_spawns_and_dead_letters_are_shown(written, with_fleet=True),
    ),
    (
        a_history_loses_its_end,
        lambda host, written: tests.test_without_the_fleet_a_state_is_plain_values(host, reading(host)),
    ),
]


@pytest.fixture
def worlds(tmp_path: Path) -> tuple[Host, Written]:
    host = Host(tmp_path / "store")
    host.end(host.write(), is_complete=True)
    return host, Written(tmp_path / "written")


@pytest.mark.parametrize(("mutant", "find"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_each_fault_is_found(
    monkeypatch: Patch, worlds: tuple[Host, Written], mutant: Callable[[Patch], None], find: Any
) -> None:
    mutant(monkeypatch)
    with pytest.raises(Found):
        find(*worlds)


def test_a_description_that_reads_all_is_found(monkeypatch: Patch, worlds: tuple[Host, Written]) -> None:
    a_description_reads_all(monkeypatch)
    sizes: list[int] = []
    read = PartReader.read

    def counted(self: PartReader, agent: str, parts: Any) -> Any:
        sizes.append(sum(part.size_bytes for part in parts))
        return read(self, agent, parts)

    monkeypatch.setattr(PartReader, "read", counted)
    with pytest.raises(Found):
        tests.test_a_description_reads_one_chunk_of_an_array(sizes, reading(worlds[0]))
