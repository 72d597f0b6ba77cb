"""The replicated log of the coordinator, based on a pinned and hardened `pysyncobj` (docs/protocols.md; G8, G9).

Outside this package, only proposals and their outcomes are visible: committed, rejected or unknown.
"""
