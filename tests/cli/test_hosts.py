"""`snapline host …`, `scale` and `agent move`: what they say, and when."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from snapline.cli.hosts import place_agents
from snapline.errors import NotFoundError
from snapline.messages.status import FleetStatus


class Refusing:
    """A coordinator's client whose moves are refused."""

    async def status(self) -> FleetStatus:
        return FleetStatus(phase="running")

    async def move_agents(self, *hosts: object, **more: object) -> SimpleNamespace:
        raise NotFoundError("no host 'h9' in this fleet")


async def test_a_move_that_is_refused_is_not_announced() -> None:
    notes: list[str] = []
    client: Any = Refusing()
    with pytest.raises(NotFoundError):
        await place_agents(client, ("a",), "h9", time.monotonic() + 5, notes.append)
    assert notes == []
