"""What thin adapters stand on: lists of records, and records by name, from many threads, across openings, encrypted."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snapline.adapters.stored_records import RecordStoreBase
from snapline.errors import StoreMissingError
from snapline.storage.keys.key_files import Keys, make_wrapping_key


class Notes(RecordStoreBase):
    SHELF = "notes"


PATH = ("list", "one")
RECORDS = st.lists(st.binary(max_size=300), max_size=3)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@settings(max_examples=50)
@given(st.lists(st.one_of(RECORDS, st.sampled_from(["pop", "clear", "open"])), max_size=20))
@example(
    [[b"", b"1"]]
)  # two objects that begin at the same place: the empty one was read last, and the other one was cut off
def test_a_list_is_a_list(tmp_path_factory: pytest.TempPathFactory, steps: list[list[bytes] | str]) -> None:
    folder = tmp_path_factory.mktemp("notes")
    expected: list[bytes] = []
    notes = Notes.open(folder)
    for step in steps:
        match step:
            case "pop":
                assert notes.records.pop(PATH) == (expected.pop() if expected else None)
            case "clear":
                notes.records.clear(PATH)
                expected.clear()
            case "open":
                notes.close()
                notes = Notes.open(folder)
            case list():
                notes.records.append(PATH, step)
                expected += step
        assert notes.records.last(PATH) == expected and notes.records.last(PATH, 2) == expected[-2:]
        assert notes.records.last(PATH, 0) == [] and notes.records.last(("list", "other")) == []
    notes.close()


def test_threads_lose_nothing(tmp_path: Path) -> None:
    with Notes.open(tmp_path) as notes, ThreadPoolExecutor(8) as threads:

        def add(number: int) -> None:
            notes.records.append(("list", f"{number % 3}"), [b"a", f"{number}".encode()])

        list(threads.map(add, range(90)))
        for owner in range(3):
            found = notes.records.last(("list", f"{owner}"))
            assert found[::2] == [b"a"] * 30, "what is appended together stays together"
            assert sorted(map(int, found[1::2])) == list(range(owner, 90, 3))


def test_a_field_that_is_there_already_costs_a_reference(tmp_path: Path) -> None:
    path, large = ("record", "one"), bytes(range(256)) * 400
    with Notes.open(tmp_path) as notes:
        notes.records.put(path, {"a": {"large": large, "small": b"1", "empty": b""}})
        before = size_of(tmp_path)
        notes.records.put(path, {"a": {"large": large, "small": b"2"}, "b": {"large": large, "again": large}})
        assert size_of(tmp_path) - before < 1000
    with Notes.open(tmp_path) as notes:
        assert notes.records.names(path) == ["a", "b"] and notes.records.owner_of("record", "b") == path
        assert notes.records.all(path) == {"a": {"large": large, "small": b"2"}, "b": {"large": large, "again": large}}
        assert notes.records.delete(path, "a") and not notes.records.delete(path, "a")
        assert notes.records.get(path, "a") is None and notes.records.owner_of("record", "a") is None


def test_with_a_key_all_of_it_is_encrypted(tmp_path: Path) -> None:
    keys = Keys((make_wrapping_key(bytes(32)),))
    with Notes.open(tmp_path, keys=keys) as notes:
        notes.records.put(("secret", "secret"), {"secret": {"secret": b"secret" * 100}})
        notes.records.append(("secret", "list"), [b"secret"])
    for path in (tmp_path / "shelves").rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes()
    with Notes.open(tmp_path, keys=keys) as notes:
        assert notes.records.get(("secret", "secret"), "secret") == {"secret": b"secret" * 100}


def test_where_the_store_must_exist_none_is_made(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.mkdir()  # as a mount point
    with pytest.raises(StoreMissingError, match="whether it is mounted"):
        Notes.open(place, must_exist=True)
    assert not list(place.iterdir())
    Notes.open(place).close()
    Notes.open(place, must_exist=True).close()
