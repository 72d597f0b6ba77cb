"""HTTP gateway of a fleet. Its clients send inputs with idempotency keys, get answers, and read outputs.

The gateway runs in one process and is an ordinary client of the fleet.
"""
