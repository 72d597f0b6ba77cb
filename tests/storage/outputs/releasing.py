"""Small releases, for the tests of outputs."""

from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.store.store import Store

CREATED_NS = 10**18


def root_of(epoch: int) -> str:
    return f"{epoch:064x}"


def make_output(agent: str, number: int, *, epoch: int = 0, size: int = 0) -> EmittedOutput:
    return EmittedOutput(agent, number, "news", b"%d of epoch %d" % (number, epoch) + bytes(size), CREATED_NS + number)


def make_outputs(epoch: int, *, size: int = 0) -> list[EmittedOutput]:
    """Three outputs; which ones follows from the epoch."""
    numbers = [("a1", 2 * epoch - 1), ("a1", 2 * epoch), ("b1", epoch)]
    return [make_output(agent, number, epoch=epoch, size=size) for agent, number in numbers]


def release(store: Store, epoch: int, after: int | None = None, *, size: int = 0, created_ns: int = CREATED_NS) -> None:
    """Release `make_outputs(epoch)`; after the epoch before, unless told otherwise."""
    before = epoch - 1 if after is None else after
    store.release_outputs(epoch, root_of(epoch), before, make_outputs(epoch, size=size), created_ns=created_ns)
