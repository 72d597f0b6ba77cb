"""Failpoints: named points in the code at which tests and chaos runs make an adapter fail. In production, failpoints do nothing.

Only adapters and `storage/` have failpoints. Cores do no I/O, so a failpoint in a core would have nothing to interrupt.
"""

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Mark the failpoint `name`, such as `"store.manifest.linked"`.

    If a hook is installed, it may crash the process, raise an exception or wait.
    """
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Install `hook`, which is called with the name of each failpoint that is reached.

    Passing None removes the hook. Only tests and chaos runs call this function.
    """
    global _hook
    _hook = hook
