"""Define named points at which tests and chaos runs make an adapter fail. In production they do nothing.

Only adapters and `storage/` have failpoints. Cores do no I/O, so they contain nothing to interrupt.
"""

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Pass the failpoint `name`, such as `"store.manifest.linked"`.

    An installed hook may crash, raise an exception or wait at this point.
    """
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Install `hook`, which is called with the name of each failpoint that is passed.

    None removes the hook. Only tests and chaos runs use this.
    """
    global _hook
    _hook = hook
