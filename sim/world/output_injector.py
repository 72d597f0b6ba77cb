"""Outputs of simulated agents: a turn of any agent may emit, regardless of its pattern.

The emitting turns are drawn from a separate stream, and every output has unique bytes.
"""

import msgspec
from msgspec.structs import replace

from snapline.agent_runtime.encoding import encode_message
from snapline.agent_runtime.host import events as ev
from snapline.sim.choices import Choices
from snapline.sim.oracles.ground_truth import GroundTruth

TOPICS = ("news", "totals")
TWICE_ONE_IN = 4


class InjectedOutput(msgspec.Struct, frozen=True):
    """One output of an agent's turn under a plan."""

    agent: str
    plan: int
    turn: int
    place: int


class OutputInjector:
    """Injector that makes one turn in `one_in` emit; 0: none."""

    def __init__(self, choices: Choices, books: GroundTruth, one_in: int) -> None:
        self._choices = choices
        self._ground_truth = books
        self._one_in = one_in

    def with_outputs(self, turn: ev.StartTurn, ended: ev.Event | None, now_ns: int) -> ev.Event | None:
        """Return the end of a turn, with injected outputs if the turn is drawn."""
        if not self._one_in or type(ended) is not ev.TurnEnded:
            return ended
        key = (turn.agent, turn.incarnation, self._ground_truth.history_of(turn.incarnation, turn.agent).turns + 1)
        if not self._is_one_in(self._one_in, "speaks", *key):
            return ended
        injected = [InjectedOutput(*key, place) for place in range(1 + self._is_one_in(TWICE_ONE_IN, "twice", *key))]
        encoded = [(TOPICS[each.turn % 2], encode_message(each), now_ns) for each in injected]
        return replace(ended, outputs=[*ended.outputs, *encoded])

    def _is_one_in(self, n: int, *key: str | int) -> bool:
        return self._choices.pick("outputs", key, n) == n - 1
