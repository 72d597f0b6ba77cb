"""Batches of small hosts, for the tests of host logs."""

from snapline.storage.log.log_record import LogBatch, LoggedInput, LogName
from snapline.storage.store.store import Store

LOG = LogName(1, "h1", 1)
OTHER = LogName(2, "h-1.a", 30)


def make_batch(number: int, *, agent: str = "a1", client: str = "c1") -> LogBatch:
    """A batch of two inputs; which ones follows from `number`."""
    return LogBatch(
        [
            LoggedInput(agent, 2 * number - 1, client, f"key {number}", b"payload %d" % number, 10**18 + number),
            LoggedInput("b1", number, client, f"other {number}", b"", 10**18 + number),
        ]
    )


def append(store: Store, number: int, *, log: LogName = LOG) -> bool:
    """Append `make_batch(number)`."""
    return store.append_batch(store.prepare_batch(log, number, make_batch(number)))
