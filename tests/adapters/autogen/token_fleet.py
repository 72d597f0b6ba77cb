"""The same agents, unchanged, as agents of a fleet; and how tokens are counted in its snapshots, without AutoGen."""

import json

import snapline
from snapline.adapters.autogen import AutogenAgent, AutogenMessage, AutogenState, KeptValue, agent_name

AGENTS, TOKENS, KICKS = 8, 100, 4


class Purses(AutogenAgent):
    program = "tests.adapters.autogen.token_program:register"
    ids = tuple(f"purse/{number}" for number in range(AGENTS))


class Kicker(snapline.Agent):
    """An agent of ours: it gives each of them four times nothing, and so sets them going."""

    state: None

    async def on_start(self, ctx: snapline.Context) -> None:
        for purse in Purses.ids:
            for number in range(KICKS):
                message = AutogenMessage(KeptValue("message", json.dumps({"amount": 0}), "Tokens"), id=str(number))
                ctx.send(agent_name(purse), message)


def held(state: AutogenState) -> int:
    """Of one that has had no turn yet: what it is made with."""
    found: int = json.loads(state.kept.body)["held"] if state.kept is not None else TOKENS
    return found


def total(cut: snapline.Cut) -> int:
    """All tokens in a cut: held, under way, and in the hands of a turn that is in its middle."""
    purses = [state for agent, state in cut.states.items() if agent.startswith("purse")]
    messages = [*(sent.message for sent in cut.in_transit), *(turn.message for turn in cut.pending_turns)]
    moving = [json.loads(each.message.body)["amount"] for each in messages if isinstance(each, AutogenMessage)]
    return sum(held(state) for state in purses if isinstance(state, AutogenState)) + sum(moving)


def has_moved(before: snapline.Cut, after: snapline.Cut) -> bool:
    """Has anybody got or given something between two cuts?"""
    return before.states != after.states


def fleet(every_s: str = "0.1", protocol: str = "chandy-lamport") -> snapline.Fleet:
    agents = {**Purses.agents(), "kicker": Kicker()}
    return snapline.Fleet("purses", agents=agents, protocol=protocol, triggers=[snapline.Every(seconds=float(every_s))])
