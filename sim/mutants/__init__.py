"""Mutants: bugs that are deliberately put into the product's code, and that the oracles must find (`catalogue.py`)."""

from snapline.sim.mutants.catalogue import MUTANTS as MUTANTS
from snapline.sim.mutants.catalogue import mutated as mutated
from snapline.sim.mutants.registry import check_replaceable as check_replaceable
