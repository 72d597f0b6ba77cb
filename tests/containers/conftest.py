"""One image for all tests of this folder; what it takes is skipped with a reason where it is not there."""

from collections.abc import Iterator

import pytest
from tests.containers.engine import engine, missing


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """podman, and snapline's image in it."""
    if missing():
        pytest.skip(missing())
    with engine(tmp_path_factory.mktemp("podman") / "engine"):
        yield
