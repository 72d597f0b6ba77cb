"""Whoever finds a file locked is told by whom, and for how long."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from snapline.storage.disk.local_disk import LockHeldError, lock_file

HOLD = "import sys; from snapline.storage.disk.local_disk import lock_file; lock_file(sys.argv[1]); print(flush=True); sys.stdin.read()"


def test_the_holder_is_named_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        instant = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
        with pytest.raises(
            LockHeldError, match=f"process {holder.pid} on {re.escape(socket.gethostname())}, since {instant}"
        ):
            lock_file(path)
        holder.kill()
    ours = lock_file(path)
    with pytest.raises(LockHeldError, match=f"process {os.getpid()} on"):
        lock_file(path)
    os.close(ours)


def test_a_holder_that_wrote_nothing_is_some_process(tmp_path: Path) -> None:
    ours = lock_file(tmp_path / "lock")
    os.ftruncate(ours, 0)
    with pytest.raises(LockHeldError, match="another process"):
        lock_file(tmp_path / "lock")
    os.close(ours)


def test_a_file_with_other_content_keeps_it(tmp_path: Path) -> None:
    """A job of PyTorch locks the identity of its store."""
    path = tmp_path / "identity"
    path.write_bytes(b"SNAPLINESTOR" + bytes(range(85)))
    before = path.read_bytes()
    ours = lock_file(path)
    with pytest.raises(LockHeldError, match="another process"):
        lock_file(path)
    os.close(ours)
    assert path.read_bytes() == before
