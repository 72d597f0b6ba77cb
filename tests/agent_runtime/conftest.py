"""Every host core that a test drives is validated when the test ends."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.agent_runtime.driving import Driver


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    """Make a driver of one host core; its invariants are checked after every event and at teardown."""
    drivers: list[Driver] = []

    def make(**options: Any) -> Driver:
        drivers.append(Driver(**options))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.core.validate()
