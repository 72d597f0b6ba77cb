"""The library is the one that was read: version, every file, every hooked name (acceptance test 1)."""

import hashlib
import logging
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pysyncobj.pickle as library_pickle  # type: ignore[import-untyped]  # the library has no types
import pytest
from pysyncobj import syncobj as library
from pysyncobj import version

from snapline.coordinator.raft import pysyncobj_adapter
from snapline.errors import LogError

FOLDER = Path(library.__file__).parent


def test_every_file_of_the_library_is_the_reviewed_one() -> None:
    found = {
        name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in pysyncobj_adapter.SHA256_OF_FILES
    }
    assert found == pysyncobj_adapter.SHA256_OF_FILES


def test_no_file_that_the_library_imports_was_left_out() -> None:
    """All it imports by itself; its batteries, consumers for other uses, come in only if somebody asks for them."""
    code = "import sys, pysyncobj; print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('pysyncobj')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)
    assert {Path(name).name for name in done.stdout.split()} == set(pysyncobj_adapter.SHA256_OF_FILES)


def test_every_hooked_name_exists() -> None:
    assert pysyncobj_adapter.missing_names() == []
    pysyncobj_adapter.check_release()


@pytest.mark.parametrize("where", ["METHODS", "ATTRIBUTES", "GLOBALS", "NOTIFIER_ATTRIBUTES"])
def test_a_name_that_is_gone_is_noticed(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysyncobj_adapter, where, (*getattr(pysyncobj_adapter, where), "_SyncObj__gone"))
    with pytest.raises(LogError, match="_SyncObj__gone"):
        pysyncobj_adapter.check_release()


def test_every_private_name_in_the_layer_is_listed() -> None:
    """A name that is used and not listed would escape the check at start."""
    files = [path for path in Path(pysyncobj_adapter.__file__).parent.glob("*.py") if path.name != "hooks.py"]
    used = {name for path in files for name in re.findall(r"_SyncObj__\w+|_PipeNotifier__\w+", path.read_text())}
    listed = (*pysyncobj_adapter.METHODS, *pysyncobj_adapter.ATTRIBUTES, *pysyncobj_adapter.NOTIFIER_ATTRIBUTES)
    assert used == {name for name in listed if "__" in name}


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "VERSION", "0.3.18")
    with pytest.raises(LogError, match=r"pysyncobj 0\.3\.18 is installed, 0\.3\.17 is needed"):
        pysyncobj_adapter.check_release()


def test_storage_is_swapped_for_one_constructor_only() -> None:
    before = library.createJournal, library.Serializer
    with pytest.raises(ZeroDivisionError), pysyncobj_adapter.replaced_storage(str, dict):
        assert (library.createJournal, library.Serializer) == (str, dict)
        raise ZeroDivisionError
    assert (library.createJournal, library.Serializer) == before


def test_the_library_can_unpickle_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_pickle, "loads", pickle.loads)
    monkeypatch.setattr(library_pickle, "load", pickle.load)
    assert library.pickle.loads(pickle.dumps([1])) == [1], "the library's own way in"
    pysyncobj_adapter.forbid_pickle()
    for load in (library.pickle.loads, library.pickle.load):
        with pytest.raises(pickle.UnpicklingError, match="may not unpickle"):
            load(pickle.dumps([1]))


def test_only_the_false_alarm_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    pysyncobj_adapter.drop_false_alarms()
    pysyncobj_adapter.drop_false_alarms()
    with caplog.at_level(logging.CRITICAL, logger=library.logger.name):
        library.logger.critical("truncating already-applied log entries from index %d (last applied: %d)", 3, 7)
        library.logger.critical("failed to load full dump")
    assert caplog.messages == ["failed to load full dump"]
