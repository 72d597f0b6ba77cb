"""The explorer's own books: which messages each agent sent and consumed, independent of the protocol.

Theory of operation
-------------------
An agent's books are its application's state: the number of messages sent to each receiver, and the identities of the messages
consumed, in order. A message's identity is (sender, receiver, number). Numbers are reused after a rollback, so the books are
compared right at the recovery, before a new message can have an old number.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

ItemT = TypeVar("ItemT")

Numbers = tuple[int, ...]

_FLOW_BASE = 1 << 16
"""Base of a flow's digits. In an exploration, no agent sends half as many messages."""


class AgentLedger(NamedTuple):
    """Actions of one agent's application.

    Attributes:
        sent: number of messages sent, by receiver; messages are numbered from 1.
        consumed: numbers of the messages consumed, in order, by sender.
        vector: last interval in the causal past, by agent; -1 for none; empty if vectors are not kept.
    """

    sent: Numbers
    consumed: tuple[Numbers, ...]
    vector: Numbers = ()


def empty_ledger(agents: int, agent: int, *, has_vector: bool = False) -> AgentLedger:
    """Return an agent's initial books."""
    vector = tuple(0 if other == agent else -1 for other in range(agents)) if has_vector else ()
    return AgentLedger((0,) * agents, ((),) * agents, vector)


def with_sent(books: AgentLedger, to: int) -> AgentLedger:
    """Return the books with one more message to `to`."""
    return books._replace(sent=raised(books.sent, to))


def with_consumed(books: AgentLedger, sender: int, number: int) -> AgentLedger:
    """Return the books with message `number` of `sender` consumed."""
    return books._replace(consumed=replaced(books.consumed, sender, (*books.consumed[sender], number)))


def raised(numbers: Numbers, place: int) -> Numbers:
    """Return the numbers with the one at `place` increased by one."""
    return (*numbers[:place], numbers[place] + 1, *numbers[place + 1 :])


def replaced(items: tuple[ItemT, ...], place: int, item: ItemT) -> tuple[ItemT, ...]:
    """Return the items with `item` at `place`."""
    return (*items[:place], item, *items[place + 1 :])


# -- exactly once ---------------------------------------------------------------------------------------------------------


def flow_of(agent: int, books: AgentLedger, waiting: Sequence[Sequence[int]]) -> int:
    """Return one number with a digit for each channel of an agent: messages sent minus messages consumed, in transit or waiting.

    Summed over all agents, every digit must be 0 (G3). A sequence other than 1, 2, 3 … counts as more than any agent sends.

    Args:
        agent: index of the agent.
        books: books of the agent.
        waiting: numbers of the messages that are in transit to the agent or wait there, by sender.
    """
    count, flow = len(books.sent), 0
    for other in range(count):
        numbers = [*books.consumed[other], *waiting[other]]
        held = len(numbers) if numbers == list(range(1, len(numbers) + 1)) else _FLOW_BASE // 2
        flow += books.sent[other] * _FLOW_BASE ** (agent * count + other)
        flow -= held * _FLOW_BASE ** (other * count + agent)
    return flow


def describe_flow(
    names: Sequence[str], books: Sequence[AgentLedger], waiting: Sequence[Sequence[Sequence[int]]]
) -> str:
    """Describe the first wrong channel. `waiting`: numbers by receiver and sender."""
    for sender, ours in enumerate(books):
        for receiver, theirs in enumerate(books):
            consumed, held = list(theirs.consumed[sender]), list(waiting[receiver][sender])
            if consumed + held != list(range(1, ours.sent[receiver] + 1)):
                return (
                    f"{names[sender]} has sent {ours.sent[receiver]} to {names[receiver]}, "
                    f"which has consumed {consumed} and may consume {held}"
                )
    return ""
