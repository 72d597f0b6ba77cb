"""Waiting sends of a client: the input of each, and the future of the waiting program."""

import asyncio
from collections.abc import Sequence
from typing import Any

from snapline.client import events as ev
from snapline.client.outcomes import Receipt, ending_of
from snapline.errors import SnaplineError
from snapline.messages.inputs import GivenInput


class WaitingSend:
    """An input and the program that waits for its receipt."""

    __slots__ = ("ending", "given")

    def __init__(self, given: GivenInput) -> None:
        self.given = given
        self.ending: asyncio.Future[Receipt | SnaplineError] = asyncio.get_running_loop().create_future()


def fail_all(endings: Sequence[asyncio.Future[Any]], error: Exception) -> None:
    """Fail all futures with an error: a bug of ours must not make a program wait forever."""
    for ending in endings:
        if not ending.done():
            ending.set_exception(error)
            ending.exception()  # marks it as retrieved: a program that still waits gets it, but there may be none


def late(given: GivenInput) -> SnaplineError:
    """Return the outcome of a send that was never entered because of the limits."""
    finish = ev.FinishSend(
        0, ev.NOT_TAKEN, "this client has too many under way: wait for receipts before you send more"
    )
    outcome = ending_of(finish, given.agent, given.key)
    assert isinstance(outcome, SnaplineError), "it was not taken"
    return outcome
