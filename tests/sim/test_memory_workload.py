"""States with parts under every fault: what epochs reuse, share and delete, judged by the world's own books."""

from collections.abc import Callable

import pytest

from snapline.agent_runtime.host.checkpoint_writer import ChunkTables
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import parse_scenario
from snapline.sim.search.swarm import draw
from snapline.storage.retention import epoch_retention

TEMPLATE = """
schema = 1
name = "memory"
[fleet]
agents = 3
hosts = 2
protocol = "{protocol}"
pattern = {{ name = "memory", messages = 300, rate_per_s = 300.0 }}
trigger = {{ kind = "period", every = "40ms" }}
[run]
keep_epochs = 2
[swarm]
fleet = false
"""

COORDINATED = TEMPLATE.format(protocol="chandy-lamport")


def play(text: str, seed: int) -> Result:
    return run(draw(parse_scenario(text, source="here"), seed), seed)


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))])
@pytest.mark.parametrize("protocol", ["chandy-lamport", "koo-toueg", "bcs"])
def test_what_is_remembered_survives(protocol: str, seed: int) -> None:
    result = play(TEMPLATE.format(protocol=protocol), seed)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)


def _sweep_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletion does not ask which packs other manifests name."""
    monkeypatch.setattr(epoch_retention._NamedPacks, "needs", lambda self, path: False)


def _take_aborted_epochs_for_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host reuses chunks of an epoch that was aborted, and does not heed what the next one says: refused, for ever."""
    ended = ChunkTables.ended
    monkeypatch.setattr(ChunkTables, "begun", lambda self, newest: None)
    monkeypatch.setattr(ChunkTables, "ended", lambda self, epoch, is_complete: ended(self, epoch, is_complete=True))


def _take_all_for_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that changed are not written."""
    monkeypatch.setattr("snapline.storage.capture.chunking.xxh3_128_digest", lambda data, seed: bytes(16))


@pytest.mark.parametrize(
    ("mutant", "first"),
    [(_sweep_what_is_shared, 1), (_take_aborted_epochs_for_a_base, 8), (_take_all_for_unchanged, 1)],
)
def test_the_world_finds_it(
    mutant: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`first` is a seed that finds it; after a change of the product it may be one of the next."""
    mutant(monkeypatch)
    assert any(play(COORDINATED, seed).verdict != "pass" for seed in range(first, first + 20)), "no seed of 20 found it"
