"""Seeded bugs of our own code, to see that the oracles find them (`registry.py`)."""

from snapline.sim.mutants.registry import MUTANTS as MUTANTS
from snapline.sim.mutants.registry import Mutant as Mutant
from snapline.sim.mutants.registry import mutated as mutated
