"""The planted mistakes (`benchmarks/planted.toml`) fit the tree: `python -m benchmarks.sim_planted` measures how many of them the swarm finds."""

from benchmarks.sim_planted import problems_of, read_mutants

MUTANTS = 20


def test_each_planted_mistake_can_be_put_into_the_tree() -> None:
    assert problems_of(read_mutants()) == []


def test_the_set_is_whole() -> None:
    assert len(read_mutants()) == MUTANTS
