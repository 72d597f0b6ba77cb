"""Agents that are blocked in a durable turn until an operator acts, for the host's heartbeats."""

from collections.abc import Iterable

from snapline.agent_runtime.host.local_agent import DurableTurn, LocalAgent
from snapline.messages.host_messages import StandingAgent

SHOWN_MAX = 8
"""Largest number of agents that a heartbeat names: after an upgrade thousands may be blocked for one reason."""

REASON_CHARACTERS_MAX = 400

CALLED_NS = 10_000_000_000
"""Time after which an effect that is still in doubt is reported: before that, it is usually probed or called again."""


def standing_agents(agents: Iterable[LocalAgent], now_ns: int) -> list[StandingAgent]:
    """Return all blocked agents, those blocked longest first."""
    turns = [(agent, agent.turn) for agent in agents if agent.turn is not None]
    blocked = [report for agent, turn in turns if (report := _standing(agent, turn, now_ns)) is not None]
    return sorted(blocked, key=lambda told: (-told.elapsed_ns, told.agent))


def _standing(agent: LocalAgent, turn: DurableTurn, now_ns: int) -> StandingAgent | None:
    effects, elapsed_ns = agent.effects, max(0, now_ns - turn.since_ns)
    if turn.problem:
        return StandingAgent(agent.id, "turn", turn.problem[:REASON_CHARACTERS_MAX], elapsed_ns)
    if effects is None or effects.open is None or not turn.is_live or not effects.is_in_doubt:
        return None
    description = f"effect {effects.open.name!r}, key {effects.open.key!r}"[:REASON_CHARACTERS_MAX]
    if effects.needs_people:
        reason = f"{description}: it may have been done, and only people can say"
        return StandingAgent(agent.id, "in_doubt", reason, elapsed_ns)
    if elapsed_ns >= CALLED_NS:
        reason = f"{description}: it may have been done, and its service has not said so yet"
        return StandingAgent(agent.id, "in_doubt", reason, elapsed_ns)
    return None
