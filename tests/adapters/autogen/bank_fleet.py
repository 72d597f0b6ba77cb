"""The bank as a fleet. Its tills are not named: the agent `autogen` makes them."""

import json
from typing import Any

import snapline
from snapline.adapters.autogen import AutogenAgent, AutogenMessage, AutogenState, KeptValue, agent_name

CLERKS = 3


class Clerks(AutogenAgent):
    program = "tests.adapters.autogen.bank_program:register"
    ids = tuple(f"clerk/{number}" for number in range(CLERKS))


class Opening(snapline.Agent):
    """Sends everybody to work."""

    state: int

    async def on_start(self, ctx: snapline.Context) -> None:
        for clerk in Clerks.ids:
            work = KeptValue("message", json.dumps({"payments": self.state}), "Work")
            ctx.send(agent_name(clerk), AutogenMessage(work))


def kept(cut: snapline.Cut, kind: str) -> list[dict[str, Any]]:
    """The attributes of all agents of a type."""
    states = [state for agent, state in cut.states.items() if agent.startswith(kind + "..")]
    return [json.loads(each.kept.body) for each in states if isinstance(each, AutogenState) and each.kept is not None]


def is_over(cut: snapline.Cut) -> bool:
    return cut.is_quiet and len(kept(cut, "clerk")) == CLERKS


def fleet(payments: str = "30") -> snapline.Fleet:
    agents = {**Clerks.agents(), "opening": Opening(int(payments))}
    return snapline.Fleet("bank", agents=agents, triggers=[snapline.Every(seconds=0.2)], stop_when=is_over)
