"""The launcher on podman: real containers on this machine."""

from pathlib import Path

import pytest
from tests.containers.engine import PodmanBench

from snapline.deploy import conformance

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("image")]

CHECKS = {str(check.__name__): check for check in conformance.checks()}


@pytest.mark.parametrize("name", CHECKS)
async def test_containers_conform(name: str, tmp_path: Path) -> None:
    await conformance.run(CHECKS[name], PodmanBench(tmp_path))
