"""A payment service for the examples.

The service is a separate HTTP server on this machine, which uses only the standard library and does not depend on fleets.

    python -m snapline.examples.payment_service payments.jsonl --port 8401
    python -m snapline.examples.payment_service payments.jsonl -- sh -c 'snapline run … --arg service=$PAYMENTS'

If a command is given after `--`, the service runs only while the command runs. Each payment is one line of the ledger file, which is
written to disk before the service replies. So killing the service loses no payment that was confirmed. Requests with the same *key*
(`Idempotency-Key`) mean the same payment and get the same reply, even if the service was killed in between. With `--ignore-keys`, the
service ignores the keys and makes a payment for each request.

    POST /payments {"order", "amount"}   pay; 402 above the limit, 409 if the key was used for another request
    GET  /payments/KEY                   return the payment with this key, or 404
    POST /undo {"order"}                 refund the order's last payment that was not refunded, or record that there is none
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
"""Largest amount of a payment. The service refuses larger amounts."""

CONFLICT, MALFORMED = 409, 400

BODY_BYTES_MAX = 64 * 1024


class PaymentRequest(msgspec.Struct):
    """The body of a request. Only payment requests have an `amount`."""

    order: str
    amount: int = 0


class NotDoneError(Exception):
    """A request has failed with this HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Ledger:
    """All payments, in memory and as lines of the ledger file."""

    def __init__(self, path: Path, *, ignores_keys: bool = False) -> None:
        path.touch()
        whole = list(read_entries(path))
        self.book = Book(whole)
        self._ignores_keys = ignores_keys
        self._file = path.open("r+b", buffering=0)
        self._file.truncate(
            sum([len(_line(entry)) for entry in whole])
        )  # a line that a kill cut off belongs to a request that was never answered
        self._file.seek(0, os.SEEK_END)
        self._lock = threading.Lock()

    def pay(self, key: str, order: str, amount: int) -> Receipt:
        if amount > AMOUNT_MOST:
            raise NotDoneError(REFUSED, f"{amount} is more than {AMOUNT_MOST}")
        with self._lock:
            earlier = self._known(key, order, amount=amount)
            entry = earlier or self._add(Entry(self.book.count + 1, order, amount, key))
            return Receipt(entry.number, is_first=earlier is None and len(self.book.standing[order]) == 1)

    def undo(self, key: str, order: str) -> Receipt:
        with self._lock:
            earlier = self._known(key, order, is_undoing=True)
            return Receipt((earlier or self._add(self._undoing(key, order))).number)

    def find(self, key: str) -> Receipt:
        with self._lock:
            if (entry := self.book.by_key.get(key)) is None:
                raise NotDoneError(MISSING, "there is no entry with this key")
            return Receipt(entry.number)

    def _known(self, key: str, order: str, *, amount: int | None = None, is_undoing: bool = False) -> Entry | None:
        entry = None if self._ignores_keys else self.book.by_key.get(key)
        if entry is None:
            return None
        if (entry.order, entry.is_undoing) != (order, is_undoing) or amount not in (None, entry.amount):
            raise NotDoneError(CONFLICT, f"this key was used for another request: {entry}")
        return entry

    def _undoing(self, key: str, order: str) -> Entry:
        paid = self.book.standing.get(order)
        last_payment = paid[-1] if paid else Entry(0, order, 0)
        return Entry(self.book.count + 1, order, -last_payment.amount, key, undoes=last_payment.number, is_undoing=True)

    def _add(self, entry: Entry) -> Entry:
        self._file.write(_line(entry))
        os.fsync(self._file.fileno())
        self.book.enter(entry)
        return entry


def _line(entry: Entry) -> bytes:
    return msgspec.json.encode(entry) + b"\n"


class Service(ThreadingHTTPServer):
    """HTTP server for the payment service. `delay_s` is a delay before and after each ledger entry, so that kills are likely to hit
    critical moments."""

    daemon_threads = True

    def __init__(self, ledger: Ledger, port: int, delay_s: float) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.ledger = ledger
        self.delay_s = delay_s

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """Handles one HTTP request."""

    server: Service

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_GET(self) -> None:
        self._answer(self._get)

    def _post(self) -> Receipt:
        size, key = int(self.headers.get("Content-Length", 0)), self.headers.get("Idempotency-Key", "")
        request = msgspec.json.decode(self.rfile.read(min(size, BODY_BYTES_MAX)), type=PaymentRequest)
        time.sleep(self.server.delay_s)
        if self.path == "/payments":
            receipt = self.server.ledger.pay(key, request.order, request.amount)
        elif self.path == "/undo":
            receipt = self.server.ledger.undo(key, request.order)
        else:
            raise NotDoneError(MISSING, f"there is nothing at {self.path}")
        time.sleep(self.server.delay_s)
        return receipt

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
        with contextlib.suppress(ConnectionError):  # the caller was killed
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests, because the ledger records all of them."""


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
