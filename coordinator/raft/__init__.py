"""The replicated log of the coordinator, based on a pinned and hardened `pysyncobj` (docs/protocols.md; G8, G9).

Code outside this package sees only proposals and their outcomes: committed, rejected or unknown.
"""
