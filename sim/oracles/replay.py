"""Replay of surviving histories (G3): the fleet's state is one that a failure-free run reaches.

Theory of operation
-------------------
At the end of a run each agent has one surviving history: the turns before each line from which it was restored, and those after.
The ground truth has the inputs of each turn: its message, the draws of `ctx.random()` and `ctx.now()`, the plan. A fresh object that
takes these turns in the same order, without failures, checkpoints and restores, must send the same messages and end in the state of
the real agent. With "exactly-once" (each message consumed was sent, once and in order) this is G3.

States are compared as bytes. If these differ, both are decoded and encoded again, since a restored state may hold its values in
another form (`1` for `1.0`) than one that never left memory.

Agents with durable turns are not replayed here (`durable_replay.py` replays each of these turns). Agents that failed with
`on_error = "keep"` are not replayed from that failure on: they promise only an unchanged state.
"""

import copy
from collections.abc import Awaitable, Callable
from typing import Any

from snapline.agent_runtime.agent import Agent, AgentType, agent_type
from snapline.agent_runtime.agent_classes import find_class
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import LATE_REPLY, read_call
from snapline.agent_runtime.encoding import encode_body
from snapline.agent_runtime.fleet import Fleet, encode_state, restore_agent
from snapline.agent_runtime.heartbeats import Heartbeats
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.messages.payloads import CREATE, read_creation, split_message
from snapline.sim.oracles.ground_truth_records import AgentHistory, StepOutcome, Turn, show

NOT_POSSIBLE = "not possible"


class _NotPossibleError(Exception):
    """Error for a history that cannot be replayed."""


class _Draws(TurnEnvironment):
    """Environment that returns the recorded draws, in order."""

    def __init__(self) -> None:
        self.left: list[object] = []

    def now_ns(self) -> int:
        drawn = self._next("asks for the time")
        return drawn if isinstance(drawn, int) else 0

    def random(self) -> float:
        drawn = self._next("draws")
        return drawn if isinstance(drawn, float) else 0.0

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        drawn = self._next(f"runs step {name!r}")
        if isinstance(drawn, StepOutcome):
            if drawn.error is not None:
                raise drawn.error
            return copy.deepcopy(drawn.value)
        raise LookupError(f"it runs step {name!r} where it did not")

    def beating(self, name: str, function: Callable[[], Any], _beat: Heartbeats, _heartbeat_s: float | None) -> Any:
        return self.step(name, function)

    async def pause(self, seconds: float) -> None:
        """Return at once: the time has already passed."""

    async def limited(self, running: Awaitable[Any], seconds: float) -> Any:  # the result of what ran
        return await running

    def _next(self, what: str) -> object:
        if not self.left:
            raise LookupError(f"it {what} more often than it did")
        return self.left.pop(0)


def replay(fleet: Fleet, history: AgentHistory, state: bytes | None, first: bytes | None = None) -> str:
    """Replay a history; return "" if it agrees, `NOT_POSSIBLE`, or the difference. `state` None: compare only the sends.

    `first`: the initial state; None: the state with which the fleet creates the agent now.
    """
    try:
        return _run(fleet, history, state, first)
    except _NotPossibleError:
        return NOT_POSSIBLE


def _run(fleet: Fleet, history: AgentHistory, state: bytes | None, first: bytes | None) -> str:
    draws = _Draws()
    agent: Agent | None = fleet.make(history.agent) if history.agent in fleet.agents else None
    if agent is not None and first is not None:
        agent.state = agent_type(type(agent)).state_decoder.decode(first)
    for number, turn in enumerate(history.log, 1):
        if turn.what.startswith("buried"):
            agent = agent or _first_state(fleet, turn)
            continue
        if turn.what == "segment" or turn.what.startswith("taken"):
            raise _NotPossibleError
        if turn.what == "create":
            agent = _first_state(fleet, turn)
        if agent is None or turn.draws is None:
            raise _NotPossibleError
        draws.left = list(turn.draws)
        different = _take_turn(agent, turn, Context(history.agent, turn.plan, turn.sender, draws))
        if different or draws.left:
            return f"turn {number} of {history.agent} ({turn.what}), run again, {different or 'draws less often'}"
    if state is None or agent is None:
        return ""
    return _compare(history, agent, state)


def _first_state(fleet: Fleet, turn: Turn) -> Agent | None:
    """Return the agent made by a creation, even by a dead-lettered one; None if there is none."""
    if turn.payload[:1] != CREATE:
        return None
    kind, image = read_creation(turn.payload)
    try:
        return restore_agent(find_class(fleet, kind), image)
    except Exception:
        return None  # the reason why it was dead-lettered


def _take_turn(agent: Agent, turn: Turn, ctx: Context) -> str:
    """Replay one turn; return how it differs from the recorded one."""
    try:
        coroutine = _call(agent, turn, ctx)
        if coroutine is not None:
            coroutine.send(None)
            coroutine.close()
            raise _NotPossibleError
    except StopIteration:
        pass
    except _NotPossibleError:
        raise
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    ended = ctx.outcome()
    sends, spawns = ended.sends, ended.spawns
    if sends == turn.sends and spawns == turn.spawns:
        return ""
    first = f", such as {show(turn.sends[0][1])}" if turn.sends else ""
    return f"sends {len(sends)} messages, not the {len(turn.sends)} that it sent{first}"


def _call(agent: Agent, turn: Turn, ctx: Context) -> Any:  # what a user's handler returns: a coroutine, or None
    if turn.what in ("start", "create"):
        return agent.on_start(ctx)
    call, payload = read_call(turn.payload)
    name, body = split_message(payload)
    if name == LATE_REPLY:
        return None
    handler = agent_type(type(agent)).handlers[name]
    if handler.is_durable:
        raise _NotPossibleError
    ctx.begin(call=call)
    return handler.function(agent, handler.decoder.decode(body), ctx)


def _compare(history: AgentHistory, agent: Agent, state: bytes) -> str:
    known = agent_type(type(agent))
    image = encode_state(history.agent, agent, known)
    if image == state or _plain(known, image) == _plain(known, state):
        return ""
    return f"{history.agent} ended in another state than its {history.turns} turns, run again, lead to"


def _plain(known: AgentType, state: bytes) -> bytes:
    """Return the state as a restored agent would encode it."""
    try:
        return encode_body(known.state_decoder.decode(state))
    except Exception:
        return state  # the state does not decode: compare the bytes
