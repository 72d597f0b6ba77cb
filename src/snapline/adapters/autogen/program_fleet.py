"""The fleet of one AutoGen program, whatever the program is: turns of its agents go on in the program."""

import snapline
from snapline.adapters.autogen.agents import AutogenAgent


def fleet() -> snapline.Fleet:
    """Return a fleet whose agents are made when something is sent to them."""
    return snapline.Fleet("program", agents=AutogenAgent.agents(), triggers=[snapline.Every(seconds=1)])
