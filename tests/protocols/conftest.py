"""Every core that a test registers is validated when the test ends."""

from collections.abc import Callable, Iterator

import pytest

from snapline.protocols.epoch_stamped import EpochStampedCore
from snapline.sim.explorer.chandy_lamport import ChandyLamportCore

Core = ChandyLamportCore | EpochStampedCore


@pytest.fixture
def checked() -> Iterator[Callable[[Core], None]]:
    """Register a core: its invariants are checked at teardown, and that an image of it survives."""
    cores: list[Core] = []
    yield cores.append
    for core in cores:
        core.validate()
        image = core.freeze()
        assert hash(image) == hash(core.freeze())
        assert type(core).restore(image).freeze() == image  # type: ignore[arg-type]  # an image of the same type
