"""Named points where tests and chaos runs make an adapter fail; a no-op in production.

Only adapters and `storage/` have them: cores do no I/O, so there is nothing in them to interrupt.
"""

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Pass the point `name`, such as `"store.manifest.linked"`; an installed hook may crash, raise or delay here."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Install `hook`, called with the name of every point passed; `None` removes it. For tests and chaos only."""
    global _hook
    _hook = hook
