"""Functions that tell whether the modules that process messages are compiled. A build with SNAPLINE_COMPILE=1 writes machine code next to
the source files (docs/compiled.md)."""

import functools
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

import snapline

SAMPLE_MODULE = "snapline.channels.link"
"""Module that represents all modules in [tool.snapline] of pyproject.toml, because either all of them are compiled or none is."""


@functools.cache
def is_compiled() -> bool:
    """Check whether `SAMPLE_MODULE` is compiled, without importing it."""
    spec = find_spec(SAMPLE_MODULE)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def version_text() -> str:
    """Return snapline's version, followed by "(compiled)" if the cores are compiled."""
    return f"{snapline.__version__} (compiled)" if is_compiled() else snapline.__version__
