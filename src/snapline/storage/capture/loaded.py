"""Is NumPy loaded? Only then can there be an array, and only who has some pays for loading it."""

import sys
from typing import Any


def loaded_numpy() -> Any:  # the module
    """NumPy, if it is loaded, and not only being loaded by another thread, as by the one that cuts the first blob: half of it lacks `ndarray`."""
    found = sys.modules.get("numpy")
    return None if getattr(getattr(found, "__spec__", None), "_initializing", False) else found
