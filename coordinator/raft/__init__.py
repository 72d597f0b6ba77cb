"""The replicated log of the coordinator: `pysyncobj`, pinned and hardened (docs/protocols.md; G8, G9).

Outside this package only proposals and their outcomes are visible: committed, rejected, unknown.
"""
