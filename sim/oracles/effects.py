"""G12: no crash makes a fleet call an effect again after its turn has used the outcome, nor under its old key after it was undone.

The oracle records the keys sent to outside services and the outcomes given to handlers. A key belongs to one effect in one generation. Hosts that a
plan has replaced may call pending effects for a while: they are not fenced, and the service knows their keys. A restored fleet does not repeat
effects done since. If the bytes of a complete epoch are lost, it may, so the oracle reports nothing more.
"""

from snapline.agent_runtime.durable import DONE
from snapline.agent_runtime.host.events import StartTurn
from snapline.messages.effect_records import UNDO
from snapline.sim.oracles.ground_truth_records import Report
from snapline.sim.oracles.inputs import InputOracle


class EffectOracle:
    """Effect oracle of one run of the world. `inputs` knows whether bytes of a complete epoch are lost."""

    def __init__(self, report: Report, inputs: InputOracle) -> None:
        self._report = report
        self._inputs = inputs
        self._called: dict[tuple[str, int], str] = {}
        self._ended: dict[str, None] = {}

    def on_called(self, t_ns: int, agent: str, incarnation: int, key: str, *, is_present: bool) -> None:
        """Check a call of an agent's effect under this outside key. `is_present`: made under the newest plan."""
        self._called[agent, incarnation] = key
        if is_present and key + UNDO in self._ended and not self._inputs.has_lost_bytes:
            self._report("effects", "G12", t_ns, f"{agent} calls an effect under a key that was undone: {key}")
        if is_present and key in self._ended and not self._inputs.has_lost_bytes:
            text = f"{agent} calls an effect again from whose outcome its turn had gone on: {key}"
            self._report("effects", "G12", t_ns, text)

    def on_started(self, turn: StartTurn) -> None:
        """Record the outcome of an effect for which this turn's next segment has waited."""
        entry = turn.found
        key = self._called.pop((turn.agent, turn.incarnation), "") if entry is not None else ""
        if entry is not None and key and (entry.kind, entry.outcome) == ("effect", DONE):
            self._ended[key] = None
