"""The explorer's own books: who sent and who consumed which messages, whatever a protocol says.

Theory of operation
-------------------
An agent's books are its application's state: how much it sent to whom, and which messages it consumed, by their identities,
in order. A message's identity is (sender, receiver, number). Numbers are used again after a rollback, so the books are
compared right at the recovery, before anything new can bear an old number.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

ItemT = TypeVar("ItemT")

Numbers = tuple[int, ...]

_FLOW_BASE = 1 << 16
"""Base of a flow's digits; no agent sends half as many messages in an exploration."""


class AgentBooks(NamedTuple):
    """Actions of one agent's application.

    Attributes:
        sent: by receiver, how many messages; they are numbered from 1.
        consumed: by sender, the numbers of the messages consumed, in order.
        vector: by agent, the last interval in the causal past, -1 for none; empty where it is not kept.
    """

    sent: Numbers
    consumed: tuple[Numbers, ...]
    vector: Numbers = ()


def empty_books(agents: int, agent: int, *, has_vector: bool = False) -> AgentBooks:
    """Return an agent's books at the start."""
    vector = tuple(0 if other == agent else -1 for other in range(agents)) if has_vector else ()
    return AgentBooks((0,) * agents, ((),) * agents, vector)


def with_sent(books: AgentBooks, to: int) -> AgentBooks:
    """Return the books with one more message to `to`."""
    return books._replace(sent=raised(books.sent, to))


def with_consumed(books: AgentBooks, sender: int, number: int) -> AgentBooks:
    """Message `number` of `sender` was consumed."""
    return books._replace(consumed=replaced(books.consumed, sender, (*books.consumed[sender], number)))


def raised(numbers: Numbers, place: int) -> Numbers:
    """Return the numbers with one more at `place`."""
    return (*numbers[:place], numbers[place] + 1, *numbers[place + 1 :])


def replaced(items: tuple[ItemT, ...], place: int, item: ItemT) -> tuple[ItemT, ...]:
    """Return the items with another one at `place`."""
    return (*items[:place], item, *items[place + 1 :])


# -- exactly once ---------------------------------------------------------------------------------------------------------


def flow_of(agent: int, books: AgentBooks, waiting: Sequence[Sequence[int]]) -> int:
    """One number for all channels of an agent, a digit for each: what it has sent, less what it has consumed or may consume.

    Summed up over all agents every digit must be 0 (G3). What is not 1, 2, 3 … counts as more than anybody sends.

    Args:
        agent: its ordinal.
        books: what it did.
        waiting: by sender, the numbers of the messages that are under way to it or wait.
    """
    count, flow = len(books.sent), 0
    for other in range(count):
        numbers = [*books.consumed[other], *waiting[other]]
        held = len(numbers) if numbers == list(range(1, len(numbers) + 1)) else _FLOW_BASE // 2
        flow += books.sent[other] * _FLOW_BASE ** (agent * count + other)
        flow -= held * _FLOW_BASE ** (other * count + agent)
    return flow


def describe_flow(names: Sequence[str], books: Sequence[AgentBooks], waiting: Sequence[Sequence[Sequence[int]]]) -> str:
    """The first channel that is wrong; `waiting` by receiver and sender."""
    for sender, ours in enumerate(books):
        for receiver, theirs in enumerate(books):
            consumed, held = list(theirs.consumed[sender]), list(waiting[receiver][sender])
            if consumed + held != list(range(1, ours.sent[receiver] + 1)):
                return (
                    f"{names[sender]} has sent {ours.sent[receiver]} to {names[receiver]}, "
                    f"which has consumed {consumed} and may consume {held}"
                )
    return ""
