"""HTTP gateway of a fleet. HTTP clients send inputs with idempotency keys, receive answers, and read outputs.

The gateway runs in a single process and is an ordinary client of the fleet.
"""
