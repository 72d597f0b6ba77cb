"""What a client holds of each send and ask: its bytes, and the program that waits."""

import asyncio
from collections.abc import Sequence
from typing import Any

from snapline.client import events as ev
from snapline.client.endings import Receipt, ending_of
from snapline.conversation.inputs import GivenInput
from snapline.errors import SnaplineError


class WaitingSend:
    """An input and the program that waits for its receipt."""

    __slots__ = ("ending", "given")

    def __init__(self, given: GivenInput) -> None:
        self.given = given
        self.ending: asyncio.Future[Receipt | SnaplineError] = asyncio.get_running_loop().create_future()


class WaitingAsk:
    """A question and the program that waits for its answer."""

    __slots__ = ("ending", "question")

    def __init__(self, question: bytes) -> None:
        self.question = question
        self.ending: asyncio.Future[ev.FinishAsk] = asyncio.get_running_loop().create_future()


def fail_all(waiting: Sequence[WaitingSend | WaitingAsk], error: Exception) -> None:
    """Nobody may wait for ever because of an error of ours."""
    endings: list[asyncio.Future[Any]] = [each.ending for each in waiting]
    for ending in endings:
        if not ending.done():
            ending.set_exception(error)
            ending.exception()  # who still waits gets it; nobody need


def late(given: GivenInput) -> SnaplineError:
    """There was no room for it."""
    said = ev.FinishSend(0, ev.NOT_TAKEN, "this client has too many under way: wait for receipts before you send more")
    outcome = ending_of(said, given.agent, given.key)
    assert isinstance(outcome, SnaplineError), "it was not taken"
    return outcome
