"""The payment service of the examples: a key is paid for once, and what was answered survives, wherever a kill has cut the ledger."""

import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.examples import payments
from snapline.examples.payment_service import AMOUNT_MOST, Ledger, NotDoneError, Service
from snapline.examples.payments import Book, read_entries


@contextmanager
def served(path: Path, *, ignores_keys: bool = False) -> Iterator[str]:
    with Service(Ledger(path, ignores_keys=ignores_keys), 0, 0.0) as service:
        serving = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield service.url
        service.shutdown()
        serving.join()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "payments.jsonl"


def test_a_key_is_paid_for_once(ledger: Path) -> None:
    with served(ledger) as url:
        first = payments.pay(url, "a", 5, key="k/1")
        again = payments.pay(url, "a", 5, key="k/1")
        other = payments.pay(url, "a", 5, key="k/2")
        assert payments.find(url, "a", 5, key="k/1") == again
        assert payments.find(url, "a", 5, key="k/3") is None
    assert [(x.number, x.is_first) for x in (first, again, other)] == [(1, True), (1, False), (2, False)]
    assert str(Book(read_entries(ledger))) == "1 orders paid, 1 of them more than once"


def test_a_service_that_ignores_keys_pays_again(ledger: Path) -> None:
    with served(ledger, ignores_keys=True) as url:
        assert [payments.pay(url, "a", 5, key="k").number for _ in range(2)] == [1, 2]


def test_without_a_key_each_request_is_a_payment(ledger: Path) -> None:
    with served(ledger) as url:
        assert [payments.pay(url, "a", 5).number for _ in range(2)] == [1, 2]


def test_a_refusal_is_an_answer_and_a_misused_key_an_error(ledger: Path) -> None:
    with served(ledger) as url:
        assert payments.pay(url, "a", AMOUNT_MOST + 1, key="k").number == 0
        payments.pay(url, "a", 5, key="k")
        for order, amount in (("b", 5), ("a", 6)):
            with pytest.raises(urllib.error.HTTPError, match="409"):
                payments.pay(url, order, amount, key="k")
        with pytest.raises(urllib.error.HTTPError, match="409"):
            payments.undo(url, "a", key="k")
    assert len(list(read_entries(ledger))) == 1


def test_undoing_gives_the_last_payment_back_once(ledger: Path) -> None:
    with served(ledger) as url:
        payments.pay(url, "a", 5, key="k")
        assert [payments.undo(url, "a", key="k/undo").number for _ in range(2)] == [2, 2]
        payments.undo(url, "never", key="n/undo")
        payments.pay(url, "a", 7, key="k#2")
    entries = list(read_entries(ledger))
    assert [(x.amount, x.undoes) for x in entries] == [(5, 0), (-5, 1), (0, 0), (7, 0)]
    assert str(Book(entries)) == "1 orders paid, 0 of them more than once"


KEYS = st.sampled_from(["", "k", "l"])
REQUESTS = st.lists(st.tuples(st.booleans(), KEYS, st.sampled_from(["a", "b"]), st.integers(1, 2)), max_size=12)


def apply(ledger: Ledger, request: tuple[bool, str, str, int]) -> None:
    is_undoing, key, order, amount = request
    try:
        ledger.undo(key, order) if is_undoing else ledger.pay(key, order, amount)
    except NotDoneError as error:
        assert error.status == 409


@settings(deadline=None)
@given(before=REQUESTS, after=REQUESTS, data=st.data())
def test_a_ledger_that_was_cut_anywhere_in_its_last_line_goes_on(
    before: list[tuple[bool, str, str, int]],
    after: list[tuple[bool, str, str, int]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """It is as if it had never been down, and the request that was cut had never come."""
    paths = [tmp_path_factory.mktemp("ledger") / "payments.jsonl" for _ in range(2)]
    for path in paths:
        ledger = Ledger(path)
        for request in before:
            apply(ledger, request)
    whole = paths[0].read_bytes()
    torn = b'{"number":99,"order":"a","amount":1}'
    paths[0].write_bytes(whole + torn[: data.draw(st.integers(0, len(torn)))])
    opened = Ledger(paths[0])
    for request in after:
        apply(opened, request)
        apply(ledger, request)
    assert list(read_entries(paths[0])) == list(read_entries(paths[1]))
    paid = [x.key for x in read_entries(paths[0]) if x.key]
    assert len(paid) == len(set(paid))
