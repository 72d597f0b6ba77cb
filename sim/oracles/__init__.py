"""Oracles, which check properties that must hold in every run. They use the simulated world's own ground truth, never
results that the product computes."""
