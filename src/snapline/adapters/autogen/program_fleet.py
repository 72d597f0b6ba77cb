"""The fleet of one AutoGen program: turns of its agents run in the program itself."""

import snapline
from snapline.adapters.autogen.agents import AutogenAgent


def fleet() -> snapline.Fleet:
    """Return a fleet whose agents are created at their first message."""
    return snapline.Fleet("program", agents=AutogenAgent.agents(), triggers=[snapline.Every(seconds=1)])
