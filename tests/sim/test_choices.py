"""A record of a run's choices makes the same run again, also where a situation has come more than once."""

import pytest

from snapline.sim.choices import RandomChoices, RecordedChoices
from snapline.sim.run import run
from snapline.sim.search.swarm import BUILT_IN, draw


def test_each_time_of_a_situation_is_a_choice_of_its_own() -> None:
    random = RandomChoices(7, is_recording=True)
    picked = [random.pick("net", ("a", 1), 100) for _ in range(5)]
    assert len(set(picked)) > 1 and random.record is not None
    recorded = RecordedChoices(random.record)
    assert [recorded.pick("net", ("a", 1), 100) for _ in range(5)] == picked
    assert recorded.used == random.record


def test_a_choice_that_is_left_out_leaves_the_others_alone() -> None:
    random = RandomChoices(7, is_recording=True)
    picked = [random.pick("net", ("a", number % 2), 100) for number in range(6)]
    assert random.record is not None and all(picked)
    for place, left_out in enumerate(random.record):
        recorded = RecordedChoices({name: choice for name, choice in random.record.items() if name != left_out})
        expected = [0 if number == place else choice for number, choice in enumerate(picked)]
        assert [recorded.pick("net", ("a", number % 2), 100) for number in range(6)] == expected


@pytest.mark.parametrize(
    "seed", [503301, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (503304, 503311, 503320))]
)
def test_a_recorded_run_is_the_same_run(seed: int) -> None:
    """Of each of these frames were sent again, or an operator asked again: their record once held one choice for all times."""
    random = RandomChoices(seed, is_recording=True)
    scenario = draw(BUILT_IN["swarm"], seed)
    first = run(scenario, seed, random)
    assert random.record is not None
    again = run(scenario, seed, RecordedChoices(random.record))
    assert (again.trace_hash, again.verdict) == (first.trace_hash, "pass")
