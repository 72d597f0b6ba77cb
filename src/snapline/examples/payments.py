"""Send requests from the examples to the payment service (`payment_service.py`), and evaluate the service's ledger.

The functions that send requests are meant for `ctx.effect`, so each of them takes the effect's key. If the service is down, they raise an
exception, so the effect is retried. A rejected payment is a final answer and is not retried.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

TIMEOUT_S = 10.0
"""Time limit in seconds for one request. The service answers within milliseconds unless it is down."""

MISSING, REFUSED = 404, 402


class Entry(msgspec.Struct, frozen=True):
    """One line of the service's ledger.

    Attributes:
        number: sequence number of the entry, starting at 1.
        key: idempotency key of the request, or "" if it had no key.
        amount: the paid amount. For a refund, this is the negative amount of the refunded payment, whose sequence number is `undoes`. If
            there was no payment to refund, `amount` and `undoes` are 0.
    """

    number: int
    order: str
    amount: int
    key: str = ""
    undoes: int = 0
    is_undoing: bool = False


class Receipt(msgspec.Struct, frozen=True):
    """The service's reply to a request.

    `number` is the sequence number of the ledger entry, or 0 if the payment was rejected. `is_first` is true if this was the first payment
    for the order.
    """

    number: int
    is_first: bool = False


class Book:
    """An index of a ledger's entries.

    Attributes:
        by_key: the first entry with each key.
        standing: for each order, its payments that have not been refunded.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.count = 0
        self.by_key: dict[str, Entry] = {}
        self.standing: dict[str, list[Entry]] = {}
        for entry in entries:
            self.enter(entry)

    def enter(self, entry: Entry) -> None:
        self.count += 1
        if entry.key:
            self.by_key.setdefault(entry.key, entry)
        paid = self.standing.setdefault(entry.order, [])
        if entry.is_undoing:
            paid[:] = [payment for payment in paid if payment.number != entry.undoes]
        else:
            paid.append(entry)

    def __str__(self) -> str:
        paid = [order for order in self.standing.values() if order]
        return f"{len(paid)} orders paid, {sum([len(order) > 1 for order in paid])} of them more than once"


def pay(service: str, order: str, amount: int, *, key: str = "") -> Receipt:
    """Pay `amount` for `order`. If a key is given, repeated calls with the same key pay only once."""
    try:
        return _ask(f"{service}/payments", key, {"order": order, "amount": amount})
    except urllib.error.HTTPError as error:
        if error.code == REFUSED:
            return Receipt(0)
        raise


def find(service: str, order: str, amount: int, *, key: str) -> Receipt | None:
    """Return the payment with this key, or None if it does not exist. An effect whose outcome is unknown uses this function as its
    probe."""
    try:
        return _ask(f"{service}/payments/{urllib.parse.quote(key, safe='')}", "", None)
    except urllib.error.HTTPError as error:
        if error.code == MISSING:
            return None
        raise


def undo(service: str, order: str, *, key: str) -> Receipt:
    """Refund the last payment for `order` that has not been refunded."""
    return _ask(f"{service}/undo", key, {"order": order})


def _ask(url: str, key: str, body: dict[str, object] | None) -> Receipt:
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=TIMEOUT_S) as answer:
        return msgspec.json.decode(answer.read(), type=Receipt)


def read_entries(ledger: Path) -> Iterator[Entry]:
    """Yield the entry of each complete line in the ledger file. The last line may be incomplete because the service was killed."""
    for line in ledger.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield msgspec.json.decode(line, type=Entry)
