"""Mutants: bugs that are deliberately put into the product's code, and that the oracles must find (`catalogue.py`)."""

from tests.sim.mutants.catalogue import MUTANTS as MUTANTS
from tests.sim.mutants.catalogue import mutated as mutated
from tests.sim.mutants.registry import check_replaceable as check_replaceable
