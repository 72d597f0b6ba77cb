"""One cluster of Ray for the tests of a module."""

from collections.abc import Iterator

import pytest
from tests.integration.processes import ROOT, nothing_left_running

from snapline.deploy.conformance.local_ray import Raylets, raylets


@pytest.fixture(scope="module")
def cluster() -> Iterator[Raylets]:
    with nothing_left_running(), raylets(1, [str(ROOT)]) as made:
        yield made
