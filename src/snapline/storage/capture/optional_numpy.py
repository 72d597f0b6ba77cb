"""Access to NumPy only if it is already loaded: without it there are no arrays, and importing it costs time."""

import sys
from typing import Any


def numpy_if_loaded() -> Any:  # the module
    """Return NumPy if it is completely loaded. While another thread imports it, such as the one that cuts the first blob, `ndarray` is missing."""
    module = sys.modules.get("numpy")
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module
