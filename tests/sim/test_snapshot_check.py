"""The code that has taken a snapshot fits it: `snapline fleet check` has no false alarms, whatever a fleet was doing at that moment."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from tests.sim.mutants.registry import crash_at, template

from snapline.agent_runtime.snapshots.snapshot_check import check_checkpoints
from snapline.sim.oracles.judge import Judge
from snapline.sim.run import run
from snapline.sim.scenario import ClientsPart
from snapline.sim.search.swarm import draw
from snapline.storage.packs.checkpoint import AgentCheckpoint


def _no_parts(agent: str, parts: object) -> Any:
    raise AssertionError(f"{agent} has parts")


@pytest.mark.parametrize("seeds", [3, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("pattern", ["planning", "booking", "stepping"])
def test_code_fits_the_snapshots_that_it_has_taken(pattern: str, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    check_epoch = Judge._check_epoch

    def check_both(judge: Judge, t_ns: int, cut: Any, checkpoints: Mapping[str, AgentCheckpoint]) -> None:
        check_epoch(judge, t_ns, cut, checkpoints)
        found = check_checkpoints(cut.epoch, checkpoints.values(), judge._fleet, _no_parts)
        assert found.incompatibilities == []
        seen.update(agents=found.agents, messages=found.messages, turns=found.turns)

    monkeypatch.setattr(Judge, "_check_epoch", check_both)
    clients = ClientsPart(count=3, inputs=30, pause="20ms", is_settling=True)
    drawn = template(patterns=(pattern,), faults=crash_at("500ms", "900ms", "2.3s"), clients=clients)
    for seed in range(seeds):
        result = run(draw(drawn, seed), seed)
        assert result.verdict == "pass", (seed, result.violations, result.error)
    assert min(seen["agents"], seen["messages"], seen["turns"]) > 100, seen
