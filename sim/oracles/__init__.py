"""Oracles: checks that must hold in every run, based on the world's own ground truth and never on what the product computes."""
