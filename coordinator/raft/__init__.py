"""The replicated log of the coordinator: `pysyncobj`, pinned and hardened (docs/protocols.md; G8, G9).

Outside of this room only proposals and their outcomes are known: committed, rejected, unknown.
"""
