"""The launcher on Slurm, on a cluster of our own with real daemons. Skipped where they are not installed: `make test-slurm` does that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from snapline.deploy import conformance
from snapline.deploy.conformance.slurmds import SlurmBench, Slurmds, missing, own_cluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(500),
]

CHECKS = {str(check.__name__): check for check in conformance.checks()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurmds]:
    with own_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made
    assert not made.remaining()


@pytest.mark.parametrize("name", CHECKS)
async def test_a_cluster_conforms(name: str, cluster: Slurmds, tmp_path: Path) -> None:
    await conformance.run(CHECKS[name], SlurmBench(tmp_path))
