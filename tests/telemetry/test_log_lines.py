"""What processes log: each entry one line of JSON that says whom it is about, or text; and that `snapline logs` reads both."""

import asyncio
import contextvars
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.cli.logs import EntryReader, LogEntry
from snapline.security.printable import printable
from snapline.telemetry.log_lines import BoundIds, JsonLines, LogScope, TextLines

Said = Callable[[], dict[str, object]]


@pytest.fixture
def bound() -> BoundIds:
    return BoundIds(host="h1", fleet="")


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    made = logging.getLogger("snapline.test_log_lines")
    made.setLevel(logging.DEBUG)
    made.propagate = False
    yield made
    made.handlers.clear()


@pytest.fixture
def said(log: logging.Logger, bound: BoundIds) -> Said:
    """The last line."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(bound))
    log.addHandler(handler)

    def last() -> dict[str, object]:
        found = json.loads(stream.getvalue().splitlines()[-1])
        assert isinstance(found, dict)
        return found

    return last


def record(message: str, **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"msg": message, "args": None, "name": "snapline.host", "levelname": "WARNING", "created": 1.5e9, **fields}
    )


def read(line: str) -> LogEntry:
    """As `snapline logs` does."""
    reader = EntryReader("h1", 0)
    assert [each for each in map(reader.feed, line.split("\n")) if each is not None] == []
    entry = reader.end()
    assert entry is not None
    return entry


@given(st.text(), st.dictionaries(st.sampled_from(["order", "epoch", "agent"]), st.integers(1) | st.text(min_size=1)))
def test_a_line_of_json_is_one_line_and_is_read_as_it_was_said(message: str, fields: dict[str, object]) -> None:
    line = JsonLines(BoundIds(host="h1")).format(record(message, **fields))
    assert "\n" not in line and "\r" not in line
    entry = read(line)
    assert (entry.message, entry.level, entry.logger, entry.at_ns) == (message, "WARNING", "snapline.host", 15 * 10**17)
    assert entry.fields == {"host": "h1", **fields}


@given(st.text(st.characters(blacklist_categories=["Cs"])))
def test_a_line_of_text_is_read_as_it_was_said(message: str) -> None:
    entry = read(TextLines().format(record(message)))
    assert (entry.level, entry.logger, entry.at_ns) == ("WARNING", "snapline.host", 15 * 10**17)
    if "\n" not in message:
        assert entry.message == printable(message)


def test_text_says_the_time_in_utc() -> None:
    assert TextLines().format(record("on")) == "2017-07-14T02:40:00.000Z WARNING snapline.host: on"


def test_an_error_has_its_traceback_and_is_one_entry(log: logging.Logger, said: Said) -> None:
    try:
        raise ZeroDivisionError("debt")
    except ZeroDivisionError:
        log.exception("a turn of %s", "a-1")
    assert said()["message"] == "a turn of a-1" and str(said()["traceback"]).endswith("ZeroDivisionError: debt")
    entry = read(json.dumps(said()))
    assert entry.message.startswith("a turn of a-1\nTraceback (most recent") and "traceback" not in entry.fields


def test_whatever_is_logged_beside_is_a_line(log: logging.Logger, said: Said) -> None:
    circle: list[object] = []
    circle.append(circle)
    log.info("x", extra={"what": object(), "order": 7})
    assert said()["order"] == 7 and str(said()["what"]).startswith("<object")
    for value in (circle, {("a", 1): 2}, float("inf")):
        log.info("y", extra={"what": value})
        assert said()["message"] == "y" and "what" in said()


def test_ids_that_are_unknown_are_left_out_and_those_bound_later_are_there(
    log: logging.Logger, said: Said, bound: BoundIds
) -> None:
    log.info("x")
    assert said()["host"] == "h1" and "fleet" not in said()
    bound.add(fleet="bank")
    stands: dict[str, object] = {"epoch": 0}
    with bound.reading(lambda: stands):
        log.info("x")
        assert said()["fleet"] == "bank" and "epoch" not in said()
        stands["epoch"] = 4
        log.info("x")
        assert said()["epoch"] == 4
        thread = threading.Thread(target=log.info, args=("elsewhere",))
        thread.start()
        thread.join()
        assert said()["message"] == "elsewhere" and "epoch" not in said()
    log.info("x")
    assert "epoch" not in said()


async def test_a_scope_is_of_its_task_and_ends_for_all_that_it_has_set_off(log: logging.Logger, said: Said) -> None:
    """A timer that a call sets inherits its context: without an end the call's id would stand on lines for ever."""
    loop = asyncio.get_running_loop()
    later: list[contextvars.Context] = []

    async def call(request: str) -> None:
        scope = LogScope(request=request)
        scope.enter()
        later.append(contextvars.copy_context())
        await asyncio.sleep(0)
        log.info("within")
        assert said()["request"] == request
        LogScope(agent="a-1").enter()
        log.info("deeper")
        assert said()["request"] == request and said()["agent"] == "a-1"
        scope.enter()
        scope.close()

    await asyncio.gather(*(loop.create_task(call(name)) for name in ("r1", "r2")))
    log.info("beside")
    assert "request" not in said()
    later[0].run(log.info, "later")
    assert said()["message"] == "later" and "request" not in said()
