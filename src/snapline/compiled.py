"""Test whether the message path's cores are machine code here: a build with SNAPLINE_COMPILE=1 has it next to their sources (docs/compiled.md)."""

import functools
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

import snapline

WITNESS = "snapline.channels.link"
"""All of [tool.snapline] in pyproject.toml are compiled, or none is."""


@functools.cache
def is_compiled() -> bool:
    """Look where the module is, without importing it."""
    spec = find_spec(WITNESS)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def described() -> str:
    """Return the version, and how the cores run if that is not as usual."""
    return f"{snapline.__version__} (compiled)" if is_compiled() else snapline.__version__
