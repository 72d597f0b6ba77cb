"""Mutants prove the oracles: every seeded bug of our own code is found, by the oracle whose guarantee it breaks.

By default each mutant is looked for from its pinned seed on. What a seed does changes with the product, so a few more
seeds may be used up before anybody has to pin another one (`python -m benchmarks.sim_mutants` names the first). The slow test
is the acceptance criterion: from seed 0 on, within 1,000 seeds, shrunk to at most 20 events and 2 faults.
"""

import pytest
from tests.sim.mutants.catalogue import MUTANTS, mutated

from snapline.coordinator.service import line_store
from snapline.sim.choices import RecordedChoices
from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import Scenario
from snapline.sim.search.shrink import shrink
from snapline.sim.search.swarm import draw

SEEDS_NEAR = 30
"""Tried from the pinned seed on."""

FIRST = {mutant.oracle: name for name, mutant in reversed(MUTANTS.items())}
"""Oracle → its first mutant: the run that convicts it passes without it."""

SEEDS_MAX = 1_000
EVENTS_MAX = 20
FAULTS_MAX = 2
SHRINKING_LIMIT_S = 30.0


def find(name: str, seeds: range, oracle: str = "") -> tuple[Scenario, Result]:
    """The first of these seeds at which a mutant is found, by this oracle if one is named."""
    for seed in seeds:
        drawn = draw(MUTANTS[name].scenario, seed)
        with mutated(name):
            result = run(drawn, seed)
        assert result.verdict != "broken", (name, seed, result.error)
        if any(oracle in ("", violation.oracle) for violation in result.violations):
            return drawn, result
    raise AssertionError(f"{name} is not found by {oracle or 'anybody'} in {seeds}")


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 15
    assert len({mutant.text for mutant in MUTANTS.values()}) == len(MUTANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_by_its_oracle(name: str) -> None:
    mutant = MUTANTS[name]
    drawn, result = find(name, range(mutant.seed, mutant.seed + SEEDS_NEAR), mutant.oracle)
    if FIRST[mutant.oracle] == name:
        sound = run(drawn, result.seed)
        assert sound.verdict == "pass", (name, result.seed, sound.violations or sound.pending or sound.error)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_taken_out_again(name: str) -> None:
    """Also if the run raises. Every replaced function is the product's own afterwards, by identity."""
    patches = MUTANTS[name].patches()
    before = [vars(owner).get(attribute) for owner, attribute, _ in patches]
    check = line_store._check_channel
    with pytest.raises(RuntimeError, match="in the midst"), mutated(name):
        replaced = [vars(owner)[attribute] for owner, attribute, _ in patches]
        assert all(now is not was for now, was in zip(replaced, before, strict=True))
        raise RuntimeError("in the midst")
    assert [vars(owner).get(attribute) for owner, attribute, _ in patches] == before
    assert line_store._check_channel is check


@pytest.mark.slow
def test_a_shrunk_mutant_is_small_and_fails_for_the_mutant_alone() -> None:
    """One that shrinks quickly; the slow test takes all."""
    name = "input-number-not-saved"
    drawn, found = find(name, range(SEEDS_NEAR))
    with mutated(name):
        shrunk = shrink(drawn, found.seed, found, time_limit_s=SHRINKING_LIMIT_S)
    assert shrunk.size.total <= EVENTS_MAX and shrunk.size.faults <= FAULTS_MAX, shrunk.size
    with mutated(name):
        again = run(shrunk.scenario, shrunk.seed, RecordedChoices(shrunk.record))
    assert again.violations == shrunk.result.violations
    sound = run(shrunk.scenario, shrunk.seed, RecordedChoices(shrunk.record))
    assert sound.verdict == "pass", sound.violations or sound.pending or sound.error


@pytest.mark.slow
def test_all_mutants_are_found_from_the_first_seed_on_and_become_small() -> None:
    large: list[tuple[str, str]] = []
    for name in MUTANTS:
        drawn, found = find(name, range(SEEDS_MAX))
        with mutated(name):
            shrunk = shrink(drawn, found.seed, found, time_limit_s=SHRINKING_LIMIT_S)
        if shrunk.size.total > EVENTS_MAX or shrunk.size.faults > FAULTS_MAX:
            large.append((name, str(shrunk.size)))
    assert not large
