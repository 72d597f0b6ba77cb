"""Is a history of concurrent clients linearizable? The search of Wing and Gong, with Lowe's memory of states seen.

A history says when each operation was called, when it was answered, and what was answered. It is linearizable if every
operation can be given one instant between call and answer so that, done one after another at these instants, a single
copy of the object gives the same answers (Herlihy and Wing, 1990).

The search goes through the events in order of time. At each point any operation that has been called may be the next;
reaching the answer of one that has not been chosen means that an earlier choice was wrong. A pair of (operations chosen,
state) that was met before is not searched again (Lowe 2017, after Wing and Gong 1993). An operation whose outcome nobody
knows has no answer: it may happen at any time after its call, or never.

It takes exponential time at worst. Objects that do not touch each other are checked one by one (`check_objects`), which is
as strict (Herlihy and Wing, theorem 1) and keeps histories short.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

Step = Callable[[Any, Any], tuple[Any, Any]]
"""(state, what was asked) → (state after it, answer). States are hashable."""


class Operation(NamedTuple):
    """One operation of one client."""

    called: float
    answered: float | None
    """None: nobody knows whether it happened."""
    asked: Any
    answer: Any = None
    on: Hashable = ""
    """The object it was done to."""


class Verdict(NamedTuple):
    """What the search found."""

    is_linearizable: bool
    order: list[Operation]
    """One order that explains every answer; if there is none, the longest that explains its part of them."""


class _Event:
    """A call or an answer, in a list from which calls are taken out and put back."""

    __slots__ = ("answer", "before", "bit", "next", "operation")

    def __init__(self, operation: Operation | None, bit: int) -> None:
        self.operation = operation
        self.bit = bit
        self.answer: _Event | None = None
        """Of a call: the event of its answer, if there is one; of an answer: itself."""
        self.before: _Event | None = None
        self.next: _Event | None = None

    @property
    def is_call(self) -> bool:
        return self.answer is not self


def check_objects(history: Iterable[Operation], step: Step, initial: Hashable) -> dict[Hashable, Verdict]:
    """Check each object's part of the history; all begin as `initial`."""
    parts: dict[Hashable, list[Operation]] = {}
    for operation in history:
        parts.setdefault(operation.on, []).append(operation)
    return {on: check(part, step, initial) for on, part in parts.items()}


def check(history: Iterable[Operation], step: Step, initial: Hashable) -> Verdict:
    """Search for an order of all answered operations, and some of the others, that explains every answer."""
    head = _events(list(history))
    state, chosen = initial, 0
    seen: set[tuple[int, Hashable]] = set()
    stack: list[tuple[_Event, Hashable]] = []
    longest: list[Operation] = []
    event = head.next
    while event is not None:
        if not event.is_call:
            # This operation was answered and is not chosen: take the last choice back.
            if len(stack) > len(longest):
                longest = _order(stack)
            if not stack:
                return Verdict(False, longest)
            last, state = stack.pop()
            chosen &= ~last.bit
            _put_back(last)
            event = last.next
            continue
        after = _explained(event, step, state)
        if after is not None and (chosen | event.bit, after[0]) not in seen:
            chosen |= event.bit
            seen.add((chosen, after[0]))
            stack.append((event, state))
            state = after[0]
            _take_out(event)
            event = head.next
        else:
            event = event.next
    # What is left has no answer: it need not have happened.
    return Verdict(True, _order(stack))


def _explained(event: _Event, step: Step, state: Hashable) -> tuple[Hashable] | None:
    """The state after the operation, if it may come next: nobody knows its answer, or it is the right one."""
    operation = event.operation
    assert operation is not None
    after, answer = step(state, operation.asked)
    return (after,) if operation.answered is None or answer == operation.answer else None


def _order(stack: list[tuple[_Event, Hashable]]) -> list[Operation]:
    return [event.operation for event, _ in stack if event.operation is not None]


def _events(history: list[Operation]) -> _Event:
    """The head of a list of all events by time; at equal times calls come first, so such operations overlap."""
    timed: list[tuple[float, int, _Event]] = []
    for number, operation in enumerate(history):
        call = _Event(operation, 1 << number)
        timed.append((operation.called, 0, call))
        if operation.answered is not None:
            assert operation.called <= operation.answered, operation
            answer = _Event(operation, 1 << number)
            answer.answer = call.answer = answer
            timed.append((operation.answered, 1, answer))
    head = last = _Event(None, 0)
    for _, _, event in sorted(timed, key=lambda each: each[:2]):
        last.next, event.before, last = event, last, event
    return head


def _take_out(call: _Event) -> None:
    for event in (call, call.answer):
        if event is not None:
            assert event.before is not None
            event.before.next = event.next
            if event.next is not None:
                event.next.before = event.before


def _put_back(call: _Event) -> None:
    for event in (call.answer, call):
        if event is not None:
            assert event.before is not None
            event.before.next = event
            if event.next is not None:
                event.next.before = event


def register(state: Any, asked: Any) -> tuple[Any, Any]:
    """A register of one integer: read, write, add (answers the sum), compare and set (answers whether it did)."""
    match asked:
        case ("read",):
            return state, state
        case ("write", value):
            return value, None
        case ("add", value):
            return state + value, state + value
        case ("cas", expected, value):
            return (value, True) if state == expected else (state, False)
    raise AssertionError(asked)
