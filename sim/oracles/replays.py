"""The two replay oracles (G3), and the search for the reason why a user's fleet diverges.

The turns of an agent are replayed at the end of a run (`replay.py`): once with the user's module variables as the run left them, and once with
their values in a new process. A variable that survives a recovery shows in at least one of the two. Durable turns are replayed as they end
(`durable_replay.py`).
"""

import contextlib

from snapline.agent_runtime.agent import Agent, AgentType
from snapline.agent_runtime.encoding import encode_body
from snapline.agent_runtime.fleet import Fleet
from snapline.sim.oracles.divergence_reasons import DivergenceReasons
from snapline.sim.oracles.durable_replay import DurableOracle
from snapline.sim.oracles.ground_truth_records import AgentHistory, Report
from snapline.sim.oracles.replay import NOT_POSSIBLE, replay


class ReplayOracle:
    """Replay oracle of one run of the world.

    Attributes:
        durable: oracle of single durable turns.
        is_own: the fleet is a user's: its module variables are checked, and durable turns are replayed.
    """

    def __init__(self, report: Report, fleet: Fleet, *, is_own: bool) -> None:
        self.is_own = is_own
        self._fleet = fleet
        self._suspects = DivergenceReasons()
        self._classes: dict[str, type[Agent]] = {}
        self._first: dict[str, bytes] = {}
        self.durable = DurableOracle(report, self._suspects, is_again=is_own)

    def on_turn(self, agent: str, known: AgentType, made: Agent) -> None:
        """Record the begin of a turn; only an agent's first turn counts, when it has its initial state."""
        if agent not in self._classes:
            self._suspects.look(known)
            self._classes[agent] = known.agent_class
            with contextlib.suppress(Exception):  # the capture checks report such a state
                image = encode_body(made.state)
                known.state_decoder.decode(image)
                self._first[agent] = image

    def finish(self) -> None:
        """End the search for reasons at the end of the run."""
        self._suspects.finish()

    def check(self, history: AgentHistory, state: bytes | None) -> str:
        """Replay a history; return "" if it agrees, `NOT_POSSIBLE`, or the difference and its reason."""
        first = self._first.get(history.agent)
        different = replay(self._fleet, history, state, first)
        if not different and self.is_own:
            with self._suspects.fresh():
                different = replay(self._fleet, history, state, first)
        known = self._classes.get(history.agent)
        if not different or different == NOT_POSSIBLE or known is None:
            return different
        why = [f"{handler} {reason}" for handler, reason in self._suspects.reasons(known)]
        return f"{different}: {'; '.join(why)}" if why else different
