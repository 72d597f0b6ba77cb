"""An array of a snapshot as a file in NumPy's format, version 1.0, written without NumPy."""

import os
from pathlib import Path

from snapline.errors import StoreError, UsageError
from snapline.folders import open_private
from snapline.storage.capture.first_values import TORCH_TYPES
from snapline.storage.capture.saved_values import SavedArray

SUFFIX = ".npy"

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64
"""Alignment of the values in the file, which allows memory mapping."""


def write_npy(array: SavedArray, path: Path) -> int:
    """Read, check and write an array to a new file; return the file's size.

    Raises:
        UsageError: the file exists or does not end in .npy, or NumPy has no such type.
        DamagedDataError: the array's bytes differ from those written.
        StoreError: the file cannot be written.
    """
    if path.suffix != SUFFIX:
        raise UsageError(f"{path} would hold NumPy's format: choose a name that ends in {SUFFIX}")
    head = _head(array)
    content = array.content.whole()
    try:
        with open(path, "xb", opener=open_private) as file:
            try:
                file.write(head)
                file.write(content)
            except BaseException:
                os.unlink(path)
                raise
    except FileExistsError as error:
        raise UsageError(f"{path} exists: choose another name, or remove it first") from error
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    return len(head) + content.nbytes


def _head(array: SavedArray) -> bytes:
    dtype = TORCH_TYPES.get(array.dtype) if array.is_tensor else array.dtype
    if dtype is None:
        raise UsageError(f"NumPy has no type for torch's {array.dtype}: read the field with snapline.open_store")
    fields = {"descr": dtype, "fortran_order": array.order == "F", "shape": tuple(array.shape)}
    text = repr(fields).encode("ascii")
    length = len(_MAGIC) + 2 + len(text) + 1
    text += b" " * (-length % _ALIGNMENT) + b"\n"
    return _MAGIC + len(text).to_bytes(2, "little") + text
