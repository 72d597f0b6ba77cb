"""Oracles: what must hold in every run, checked from the world's own books and never from what the product computes."""
