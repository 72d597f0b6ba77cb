"""A payment service for the examples: a program of its own, which knows nothing of fleets. HTTP on this machine, standard library only.

    python -m snapline.examples.payment_service payments.jsonl --port 8401
    python -m snapline.examples.payment_service payments.jsonl -- sh -c 'snapline run … --arg service=$PAYMENTS'

The second form lends the service to a command, and ends with it. Each payment is one line of the ledger, on disk before it is answered, so
a kill loses nothing that was answered. What a caller must be able to rely on is the *key*: the same `Idempotency-Key` again is the same
payment, with the same answer, despite kills in between. With `--ignore-keys` it is a service that does not keep this promise.

    POST /payments {"order", "amount"}   pays; 402 above the limit, 409 if the key was used for something else
    GET  /payments/KEY                   the payment with this key, or 404
    POST /undo {"order"}                 gives back the order's last payment not yet undone; if there is none, that is noted
"""

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from snapline.examples.payments import MISSING, REFUSED, Book, Entry, Receipt, read_entries

AMOUNT_MOST = 100
"""Largest payment: more is refused."""

CONFLICT, MALFORMED = 409, 400

BODY_BYTES_MAX = 64 * 1024


class Asked(msgspec.Struct):
    """A request's body; `amount` of a payment."""

    order: str
    amount: int = 0


class NotDoneError(Exception):
    """A request that is answered with this status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Ledger:
    """All payments: in memory, and one line each on disk."""

    def __init__(self, path: Path, *, ignores_keys: bool = False) -> None:
        path.touch()
        whole = list(read_entries(path))
        self.book = Book(whole)
        self._ignores_keys = ignores_keys
        self._file = path.open("r+b", buffering=0)
        self._file.truncate(sum([len(_line(entry)) for entry in whole]))  # what a kill has cut was never answered
        self._file.seek(0, os.SEEK_END)
        self._lock = threading.Lock()

    def pay(self, key: str, order: str, amount: int) -> Receipt:
        if amount > AMOUNT_MOST:
            raise NotDoneError(REFUSED, f"{amount} is more than {AMOUNT_MOST}")
        with self._lock:
            known = self._known(key, order, amount=amount)
            entry = known or self._add(Entry(self.book.count + 1, order, amount, key))
            return Receipt(entry.number, is_first=known is None and len(self.book.standing[order]) == 1)

    def undo(self, key: str, order: str) -> Receipt:
        with self._lock:
            known = self._known(key, order, is_undoing=True)
            return Receipt((known or self._add(self._undoing(key, order))).number)

    def find(self, key: str) -> Receipt:
        with self._lock:
            if (known := self.book.by_key.get(key)) is None:
                raise NotDoneError(MISSING, "there is no entry with this key")
            return Receipt(known.number)

    def _known(self, key: str, order: str, *, amount: int | None = None, is_undoing: bool = False) -> Entry | None:
        known = None if self._ignores_keys else self.book.by_key.get(key)
        if known is None:
            return None
        if (known.order, known.is_undoing) != (order, is_undoing) or amount not in (None, known.amount):
            raise NotDoneError(CONFLICT, f"this key was used for something else: {known}")
        return known

    def _undoing(self, key: str, order: str) -> Entry:
        paid = self.book.standing.get(order)
        last = paid[-1] if paid else Entry(0, order, 0)
        return Entry(self.book.count + 1, order, -last.amount, key, undoes=last.number, is_undoing=True)

    def _add(self, entry: Entry) -> Entry:
        self._file.write(_line(entry))
        os.fsync(self._file.fileno())
        self.book.enter(entry)
        return entry


def _line(entry: Entry) -> bytes:
    return msgspec.json.encode(entry) + b"\n"


class Service(ThreadingHTTPServer):
    """The ledger behind HTTP; `delay_s` before and after each entry: where kills hurt."""

    daemon_threads = True

    def __init__(self, ledger: Ledger, port: int, delay_s: float) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.ledger = ledger
        self.delay_s = delay_s

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Service

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_GET(self) -> None:
        self._answer(self._get)

    def _post(self) -> Receipt:
        size, key = int(self.headers.get("Content-Length", 0)), self.headers.get("Idempotency-Key", "")
        asked = msgspec.json.decode(self.rfile.read(min(size, BODY_BYTES_MAX)), type=Asked)
        time.sleep(self.server.delay_s)
        if self.path == "/payments":
            done = self.server.ledger.pay(key, asked.order, asked.amount)
        elif self.path == "/undo":
            done = self.server.ledger.undo(key, asked.order)
        else:
            raise NotDoneError(MISSING, f"there is nothing at {self.path}")
        time.sleep(self.server.delay_s)
        return done

    def _get(self) -> Receipt:
        name, _, key = self.path[1:].partition("/")
        if name != "payments":
            raise NotDoneError(MISSING, f"there is nothing at {self.path}")
        return self.server.ledger.find(urllib.parse.unquote(key))

    def _answer(self, work: Callable[[], Receipt]) -> None:
        try:
            status, body = 200, msgspec.json.encode(work())
        except NotDoneError as error:
            status, body = error.status, str(error).encode()
        except (msgspec.MsgspecError, ValueError) as error:
            status, body = MALFORMED, str(error).encode()
        with contextlib.suppress(ConnectionError):  # who asked was killed
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the ledger records it all."""


def main() -> int:
    parser = argparse.ArgumentParser(description="A payment service for the examples.")
    parser.add_argument("ledger", type=Path, help="file of the payments; made if it is not there")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; default: any free one")
    parser.add_argument("--delay-s", type=float, default=0.0, help="seconds before and after each entry")
    parser.add_argument("--ignore-keys", action="store_true", help="pay again for a key that was used")
    parser.add_argument("command", nargs="*", help="after `--`: run this, with PAYMENTS=URL, and end with it")
    options = parser.parse_args()
    with Service(Ledger(options.ledger, ignores_keys=options.ignore_keys), options.port, options.delay_s) as service:
        if not options.command:
            print(service.url, flush=True)
            service.serve_forever()
        threading.Thread(target=service.serve_forever, daemon=True).start()
        code = subprocess.call(options.command, env={**os.environ, "PAYMENTS": service.url})
    print(f"payments   {service.ledger.book}")
    return code


if __name__ == "__main__":
    sys.exit(main())
