"""Oracles, which check properties that must hold in every run. Oracles use only the simulated world's ground truth, never results that the
product computes."""
