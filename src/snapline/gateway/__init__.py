"""HTTP gateway of a fleet: clients send inputs with keys, get answers, and read outputs.

It is one process and an ordinary client of the fleet.
"""
