"""Folders that hold secrets are their owner's alone."""

import os
from pathlib import Path

import pytest

from snapline.folders import make_private


def test_a_folder_and_its_missing_ancestors_are_private_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b" / "c")
        make_private(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [(tmp_path / each).stat().st_mode & 0o777 for each in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_what_is_there_keeps_its_mode_and_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    make_private(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "file" / "x")
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")
