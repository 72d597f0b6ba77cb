"""G12: an effect whose outcome its turn has gone on with is not called again, whatever dies; nor under its old key, once it was undone.

The books are the keys that go outside, and what handlers were given. A key is of one effect in one generation, so no other effect has it. Hosts that a plan has replaced may call for
a while what they had been told to: nothing fences them, and the service knows their keys. A fleet that goes back on purpose does not call again what was done since. Where the bytes of a
complete epoch are lost, it may: then nothing is said any more.
"""

from snapline.agent_runtime.durable import DONE
from snapline.agent_runtime.host.events import StartTurn
from snapline.messages.effect_records import UNDO
from snapline.sim.oracles.ground_truth_records import Report
from snapline.sim.oracles.inputs import InputOracle


class EffectOracle:
    """Effect oracle of one run of the world. `inputs`: knows whether bytes of a complete epoch are lost."""

    def __init__(self, report: Report, inputs: InputOracle) -> None:
        self._report = report
        self._inputs = inputs
        self._called: dict[tuple[str, int], str] = {}
        self._ended: dict[str, None] = {}

    def on_called(self, t_ns: int, agent: str, incarnation: int, key: str, *, is_present: bool) -> None:
        """An agent's effect is called under this outside key; `is_present`: under the newest plan."""
        self._called[agent, incarnation] = key
        if is_present and key + UNDO in self._ended and not self._inputs.has_lost_bytes:
            self._report("effects", "G12", t_ns, f"{agent} calls an effect under a key that was undone: {key}")
        if is_present and key in self._ended and not self._inputs.has_lost_bytes:
            text = f"{agent} calls an effect again from whose outcome its turn had gone on: {key}"
            self._report("effects", "G12", t_ns, text)

    def on_started(self, turn: StartTurn) -> None:
        """The next segment of a turn: it may have waited for an effect."""
        found = turn.found
        key = self._called.pop((turn.agent, turn.incarnation), "") if found is not None else ""
        if found is not None and key and (found.kind, found.outcome) == ("effect", DONE):
            self._ended[key] = None
