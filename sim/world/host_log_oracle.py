"""Oracle of host logs, read directly from the disk: they must back the hosts' answers to clients, and keep the inputs that are needed.

*Receipts.* When a host reports that an input is accepted, now or before, the input is in a batch that no power cut can lose. Otherwise the newest
complete epoch holds its effect, and the batch may be gone.

*Final answers.* When a host gives a final answer, the newest complete epoch holds the answering turn.

*Deletions.* The fleet can be restored to any kept epoch. So a batch is deleted only when the oldest kept epoch holds the effects of its inputs.

Inputs are identified by their bytes, which are unique. The oracle uses no numbers, keys or file names of the product.
"""

from collections.abc import Mapping, Sequence

from snapline.agent_runtime.host import events as ev
from snapline.messages.inputs import ACCEPTED, REPEATED, InputOutcome
from snapline.sim.world.replicated_log import SimulatedLog
from snapline.sim.world.world_state import WorldState
from snapline.storage.disk.layout import LOG


class HostLogOracle:
    """Oracle of host logs in one run. It reports nothing once a fault has damaged files, or bytes of a complete epoch are lost."""

    def __init__(self, shared: WorldState, log: SimulatedLog, flipped: Mapping[str, int]) -> None:
        self._shared = shared
        self._log = log
        self._flipped = flipped
        self._payloads: dict[tuple[str, str], bytes] = {}
        """(agent, key) → payload."""

    def _is_judged(self) -> bool:
        oracle = self._shared.judge.books.inputs
        return not self._flipped and not oracle.has_lost_bytes and self._shared.scenario.budget == "within"

    def on_offered(
        self, host: str, plan: int, inputs: Sequence[ev.OfferedInput], answers: Sequence[InputOutcome]
    ) -> None:
        """Check a host's answers to a request that it got under this plan. What a later plan drops may have been taken before."""
        drops = self._shared.judge.books.inputs.drops.of_plan(self._log.canonical.plan_number)
        is_judged = self._is_judged() and all(drop.plan <= plan for drop in drops)
        for offered, answer in zip(inputs, answers, strict=True):
            if answer.status not in (ACCEPTED, REPEATED) or offered.is_operator_command:
                continue
            self._payloads[offered.agent, offered.key] = offered.payload
            if is_judged and not self._is_held(offered.agent, offered.payload):
                text = f"{host} says that input {offered.key} of {offered.agent} is {answer.status}, and no batch that would outlive a power cut holds it"
                self._shared.say("receipts", "R1", text)

    def on_asked(self, host: str, agent: str, key: str, answer: ev.AskAnswer) -> None:
        """Check a final answer of a host."""
        payload = self._payloads.get((agent, key))
        oracle = self._shared.judge.books.inputs
        if answer.status != "replied" or payload is None or oracle.has_fallen_back or not self._is_judged():
            return
        if not self._shared.judge.holds_answer(self._log.canonical.newest_complete(), agent, payload):
            text = f"{host} tells the answer to input {key} of {agent} as final, and no complete epoch holds the turn that gave it"
            self._shared.say("receipts", "R2", text)

    def _is_held(self, agent: str, payload: bytes) -> bool:
        files = self._shared.stores.disk.durable_files(f"{LOG}/")
        if any(payload in data for data in files.values()):
            return True
        return self._shared.judge.holds_input(self._log.canonical.newest_complete(), agent, payload)

    # ---- deletions --------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """Return all present files of the logs."""
        return self._shared.stores.disk.files_below(f"{LOG}/")

    def on_swept(self, before: Mapping[str, bytes]) -> None:
        """Check a leader's deletion of batches. `before`: all files before it."""
        now = self.files()
        deleted = [data for path, data in before.items() if path not in now]
        epochs = self._log.canonical.complete_epochs()
        if not deleted or not epochs or not self._is_judged():
            return
        oracle = self._shared.judge.books.inputs
        for payload, offered in oracle.offered.items():
            if not offered.acknowledged_ns or not any(payload in data for data in deleted):
                continue
            is_dropped = oracle.drops.may_be_missing(self._log.canonical.plan_number, payload)
            if is_dropped or any(payload in data for data in now.values()):
                continue
            if not self._shared.judge.holds_input(epochs[0], offered.agent, payload):
                text = f"the batch with an input of {offered.client} for {offered.agent} is deleted, and epoch {epochs[0]}, which is kept, does not hold its effect"
                self._shared.say("garbage", "G7", text)
                return
