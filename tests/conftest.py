"""For all tests: properties are checked by what they say, not by how long a busy machine takes for them.

Ten thousand collected tests, and what they import, are looked at by the garbage collector as seldom as what a process of a fleet imports.

Some tests fork this process, others have gRPC in it: it must be told so before gRPC is imported (`storage/capture/forked.py`).
"""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

from snapline.cli.garbage_collection import collect_rarely, freeze_imported
from snapline.storage.capture import forked

forked.prepare()
collect_rarely()

settings.register_profile("snapline", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1_000)
settings.load_profile("snapline")

HERE = Path(__file__).parent
PROCESS_FOLDERS = ("access", "adapters", "chaos", "containers", "deploy", "integration")
"""Folders whose tests have the marker `processes`, as have single files: they start fleets, commands or builds. `make test` runs those of them that
pin a promise."""


def pytest_configure() -> None:
    """A shell's job in the background ignores Ctrl-C, and so would everything that a test starts and then interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.relative_to(HERE).parts[0] in PROCESS_FOLDERS:
            item.add_marker(pytest.mark.processes)


def pytest_collection_finish() -> None:
    freeze_imported()
