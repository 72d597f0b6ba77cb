"""The fleet of one AutoGen program, whatever the program is."""

import snapline
from snapline.adapters.autogen.agents import AutogenAgent


class ProgramAgent(AutogenAgent):
    """An agent whose turns go on in the program."""


def fleet() -> snapline.Fleet:
    """Its agents are made when something is sent to them."""
    return snapline.Fleet("program", agents=ProgramAgent.agents(), triggers=[snapline.Every(seconds=1)])
