"""Mutants of the code through which data enters or leaves the fleet: clients, inputs, host logs and outputs.

- The mutants of the client core violate the core's guarantees to its program (`client/core.py`).
- The mutants of inputs, host logs and answers violate guarantee R1 or R2. For example, some mutants seal host logs at the wrong time or not
  at all.
- The mutants of outputs violate guarantee R2. In these mutants, the coordinator releases the wrong outputs or releases outputs at the
  wrong time, or hosts drop the wrong outputs.
"""

import heapq
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace
from tests.sim.mutants.registry import BUSY, FREQUENT_INPUTS, SWEPT_OFTEN_MS, Mutant, crash_at, template

from snapline.agent_runtime.host import driver, epoch_files, host_events
from snapline.agent_runtime.host.agent_io import AgentInputs, AgentOutputs, PendingInput
from snapline.agent_runtime.host.host_inputs import Inputs, ReplyWaiters
from snapline.agent_runtime.host.host_log import OwnLog
from snapline.agent_runtime.host.host_outputs import Outputs
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.client import client_events
from snapline.client.core import ClientCore, OpenAsks
from snapline.client.queues import AgentQueue, AgentQueues, Entry
from snapline.coordinator.leader.epochs import publishing
from snapline.coordinator.leader.epochs.publishing import Releases
from snapline.coordinator.leader.events import ReleaseEpoch
from snapline.coordinator.leader.modes.coordinated_epochs import Coordinated
from snapline.coordinator.service import store_keeper
from snapline.coordinator.service.store_keeper import OutputReleaser
from snapline.coordinator.state.fleet_records import FleetImage
from snapline.coordinator.state.fleet_view import Ancestor
from snapline.messages.client_requests import ACCEPTED, REPLIED, RETRY, InputOutcome
from snapline.sim.faults.fault_kinds import CrashFault, DiskFault, PauseFault
from snapline.sim.scenario import ClientsPart, FaultPart
from snapline.sim.world.product_patches import Patch
from snapline.storage.disk import store_files
from snapline.storage.log.log_files import find_garbage, holds_batch
from snapline.storage.log.log_record import entry_path
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.packs.checkpoint import NO_INPUTS, NO_OUTPUTS, SavedInputs, SavedOutputs
from snapline.storage.store.store import Store


def retry_counted_as_accepted() -> list[Patch]:
    """Count an input as accepted although the host has asked for a retry."""
    original = ClientCore._on_request_answered

    def on_request_answered(self: ClientCore, event: client_events.RequestAnswered) -> None:
        outcomes = [InputOutcome(ACCEPTED, 1) if each.status == RETRY else each for each in event.outcomes]
        original(self, replace(event, outcomes=tuple(outcomes)))

    return [(ClientCore, "_on_request_answered", on_request_answered)]


def unanswered_requests_ignored() -> list[Patch]:
    """Treat a rejection as final although earlier requests for the input are unanswered."""

    def end(self: ClientCore, entry: Entry, ending: str, reason: str) -> None:
        self._over(entry)
        self._out.append(client_events.FinishSend(entry.send, ending, reason))

    return [(ClientCore, "_end", end)]


def order_lost() -> list[Patch]:
    """Queue the undecided inputs of a request after newer inputs."""

    def put_back(self: AgentQueues, queue: AgentQueue, entries: list[Entry]) -> None:
        queue.waiting.extend([entry for entry in entries if not entry.is_over])

    return [(AgentQueues, "put_back", put_back)]


def deadlines_forgotten() -> list[Patch]:
    """Ignore deadlines, so that a send ends only when its outcome is known."""

    def expire(self: ClientCore) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._now:
            heapq.heappop(self._deadlines)

    return [(ClientCore, "_expire", expire)]


def answered_upon_retry() -> list[Patch]:
    """Mistake a pending answer for the answer of a turn that has ended without a reply."""
    original = OpenAsks.on_answer_heard

    def on_answer_heard(
        self: OpenAsks, event: client_events.AnswerHeard, now_ns: int
    ) -> Iterable[client_events.Command]:
        outcome = event.outcome
        status = REPLIED if outcome.status == RETRY else outcome.status
        return original(self, replace(event, outcome=replace(outcome, status=status)), now_ns)

    return [(OpenAsks, "on_answer_heard", on_answer_heard)]


_GIVING = template(
    patterns=("random", "bank"),
    faults=crash_at("500ms", "900ms", "1.3s"),
    clients=ClientsPart(count=3, inputs=60, pause="10ms"),
)

CLIENT_MUTANTS: dict[str, Mutant] = {
    "client-takes-retry-for-taken": Mutant(
        text="a client says that an input was taken which its host did not take just now",
        patches=retry_counted_as_accepted,
        scenario=_GIVING,
        oracle="inputs",
        seed=0,
    ),
    "client-forgets-doubt": Mutant(
        text="a client says that an input was not taken, though an earlier request had no answer",
        patches=unanswered_requests_ignored,
        scenario=_GIVING,
        oracle="inputs",
        seed=1,
    ),
    "client-loses-order": Mutant(
        text="a client gives what was not decided after what has come since",
        patches=order_lost,
        scenario=_GIVING,
        oracle="inputs",
        seed=3,
    ),
    "client-forgets-deadlines": Mutant(
        text="a send ends when there is a word on it, and not at its deadline",
        patches=deadlines_forgotten,
        scenario=_GIVING,
        oracle="inputs",
        seed=0,
    ),
    "client-takes-retry-for-an-answer": Mutant(
        text="a client says that a turn has answered nothing which has not ended",
        patches=answered_upon_retry,
        scenario=_GIVING,
        oracle="answers",
        seed=1,
    ),
}


def acknowledged_early() -> list[Patch]:
    """Acknowledge inputs when their batch is written, not when the batch is durable."""
    original = OwnLog.append

    def append(self: OwnLog) -> None:
        original(self)
        assert isinstance(self._inputs, Inputs)
        for batch in self._batches.values():
            for pending in batch:
                if isinstance(pending, PendingInput):
                    self._inputs._answer(pending, InputOutcome(ACCEPTED, pending.input.number))

    return [(OwnLog, "append", append)]


def not_sealed() -> list[Patch]:
    """Read the logs of earlier plans without sealing them, so that their hosts may continue to write."""

    def read_unsealed(store: Store, command: host_events.LoadAgents, agents: Any) -> Any:
        return epoch_files.read_logs(_Unsealed(store), command, agents)  # type: ignore[arg-type]  # intended

    return [(driver, "read_logs", read_unsealed)]


class _Unsealed:
    """Store that never seals a log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def seal_log(self, log: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def present_sealed() -> list[Patch]:
    """Seal all logs when a host starts a plan, including the logs of that plan. Hosts that write to these logs then accept no inputs."""

    def read_all_sealed(store: Store, command: host_events.LoadAgents, agents: Any) -> Any:
        for log in store.read_logs():
            store.seal_log(log)
        return epoch_files.read_logs(store, command, agents)

    return [(driver, "read_logs", read_all_sealed)]


def seals_deleted() -> list[Patch]:
    """Delete the seals of earlier plans' logs when the garbage of these plans is deleted."""
    sweep = store_keeper.LogSweeper.sweep

    def with_seals(self: store_keeper.LogSweeper, command: Any) -> None:
        sweep(self, command)
        disk = self._store._disk
        for log, numbers in self._store.read_logs().items():
            paths = [entry_path(log, number) for number in numbers if log.plan < command.plan]
            store_files.unlink(disk, [path for path in paths if not holds_batch(disk, path)])

    return [(store_keeper.LogSweeper, "sweep", with_seals)]


def retry_taken_for_another() -> list[Patch]:
    """Mistake a batch that an earlier attempt has written for a batch of another host, and conclude that the log is sealed."""
    create = store_files.create_or_compare

    def create_alone(disk: Any, path: str, data: bytes, *, point: str, **more: Any) -> bool:
        if create(disk, path, data, point=point, **more) and point == "store.log.batch":
            raise FileExistsError(path)
        return False

    return [(store_files, "create_or_compare", create_alone)]


def log_not_read() -> list[Patch]:
    """Do not pass inputs that earlier plans accepted to agents."""

    def nothing(*_: object) -> epoch_files.LogContents:
        return epoch_files.LogContents()

    return [(driver, "read_logs", nothing)]


def input_number_not_saved() -> list[Patch]:
    """Save checkpoints without the number of consumed inputs."""

    def saved(self: AgentInputs) -> SavedInputs:
        return NO_INPUTS

    return [(AgentInputs, "saved", saved)]


def keys_not_saved() -> list[Patch]:
    """Save checkpoints with the number of consumed inputs, but without the inputs' keys."""

    def saved(self: AgentInputs) -> SavedInputs:
        return SavedInputs(self.consumed)

    return [(AgentInputs, "saved", saved)]


def newest_key_forgotten() -> list[Patch]:
    """Discard the newest keys instead of the oldest keys."""

    def forget(self: AgentInputs) -> None:
        while len(self.keys) > 3:
            self.keys.popitem()

    return [(AgentInputs, "_forget_keys", forget)]


def log_unknown_to_plans() -> list[Patch]:
    """Write a log without registering the log at the coordinator, so that later plans do not seal it."""

    def open_at_once(self: OwnLog) -> None:
        self._is_open = True
        self.append()

    return [(OwnLog, "_open", open_at_once)]


def all_batches_deleted() -> list[Patch]:
    """Delete batches that epochs still need, and let hosts ignore missing numbers."""

    def everything(batches: Any, *_: object) -> Any:
        return [(batch.log, batch.number) for batch in batches]

    return [(store_keeper, "find_garbage", everything), *_input_gaps_unnoticed()]


def deleted_at_the_newest_epoch() -> list[Patch]:
    """Delete a batch when the newest epoch covers it, although that epoch may later turn out to be damaged."""

    def at_the_newest(batches: Any, epochs: Any, left: Any, turns: Any, settled: Any, base: Any) -> Any:
        newest = max(epochs, default=0)
        kept = {epoch: numbers for epoch, numbers in epochs.items() if epoch == newest}
        ended = {epoch: numbers for epoch, numbers in turns.items() if epoch == newest}
        return find_garbage(batches, kept, left, ended, settled, base)

    return [(store_keeper, "find_garbage", at_the_newest), *_input_gaps_unnoticed()]


def _input_gaps_unnoticed() -> list[Patch]:
    add = AgentInputs.add

    def add_any(self: AgentInputs, logged: Any, *, is_durable: bool) -> Any:
        self.consumed += logged.number - self.numbered - 1
        self.numbered = logged.number - 1
        return add(self, logged, is_durable=is_durable)

    def unchecked(*_: object) -> None:
        """Skip a check."""

    return [(epoch_files, "_check_whole", unchecked), (AgentInputs, "add", add_any)]


def answered_early() -> list[Patch]:
    """Report answers as final at the end of the turn."""
    original = ReplyWaiters._answer

    def answer(self: ReplyWaiters, agent: LocalAgent, place: Any) -> None:
        assert agent.inputs is not None
        agent.inputs.released = agent.inputs.consumed
        original(self, agent, place)

    return [(ReplyWaiters, "_answer", answer)]


def released_to_the_present() -> list[Patch]:
    """Release all existing answers when an epoch completes, not only those that the epoch covers."""
    original = ReplyWaiters.epoch_ended

    def epoch_ended(self: ReplyWaiters, event: Any) -> None:
        for name in event.agents:
            agent = self._shared.agents.get(name)
            if agent is not None and agent.inputs is not None:
                agent.inputs.released = agent.inputs.consumed
        original(self, event)

    return [(ReplyWaiters, "epoch_ended", epoch_ended)]


def replies_not_saved() -> list[Patch]:
    """Save the keys of consumed inputs in checkpoints, without the answers."""

    def saved(self: AgentInputs) -> SavedInputs:
        return SavedInputs(self.consumed, [replace(known, reply=b"") for known in self.keys.values()])

    return [(AgentInputs, "saved", saved)]


def released_at_the_end_of_the_turn() -> list[Patch]:
    """Release all existing outputs with an epoch, including those that the epoch does not cover."""
    original = Outputs.emit
    said: dict[str, AgentOutputs] = {}

    def emit(self: Outputs, agent: LocalAgent, emissions: Any) -> None:
        original(self, agent, emissions)
        assert agent.outputs is not None
        said[agent.id] = agent.outputs

    def read(self: OutputReleaser, command: ReleaseEpoch, fresh: dict[str, int], now: Any) -> list[EmittedOutput]:
        pending = [(agent, x) for agent, above in fresh.items() for x in said[agent].pending if x.number > above]
        return [EmittedOutput(agent, x.number, x.topic, x.payload, x.emitted_ns) for agent, x in pending]

    return [(Outputs, "emit", emit), (OutputReleaser, "_read_outputs", read)]


def released_at_begun() -> list[Patch]:
    """Release outputs when the manifest is written, before the log records the epoch as complete."""
    original = Coordinated.on_manifest_written

    def on_manifest_written(self: Coordinated, event: Any) -> None:
        image, newest = self._shared.state.image, self._shared.state.newest_complete()
        if not event.error:
            ancestors = (Ancestor(newest, image.epochs[newest].root, False),) if newest else ()
            self._shared.out.append(ReleaseEpoch(event.epoch, event.root, ancestors))
        original(self, event)

    return [(Coordinated, "on_manifest_written", on_manifest_written)]


def released_out_of_order() -> list[Patch]:
    """Release the newest epoch that has a ref first, before older epochs."""

    def following(self: Releases) -> int:
        return 0 if self._releasing else max([x for x in self._unreleased if self._may_be_released(x)], default=0)

    return [(Releases, "_next", following)]


def lost_by_an_aborted_epoch() -> list[Patch]:
    """Drop pending outputs when an epoch ends, even if it was aborted."""
    original = Outputs.epoch_ended

    def epoch_ended(self: Outputs, event: Any) -> None:
        original(self, event)
        for agent in self._emitters() if not event.is_complete else ():
            assert agent.outputs is not None
            self._release(agent, agent.outputs, agent.outputs.number)

    return [(Outputs, "epoch_ended", epoch_ended), *_output_gaps_unnoticed()]


def dropped_up_to_the_present() -> list[Patch]:
    """Drop all pending outputs when an epoch is released, not only those that the epoch covers."""
    original = Outputs._release

    def release(self: Outputs, agent: LocalAgent, outputs: AgentOutputs, number: int) -> None:
        original(self, agent, outputs, outputs.number)

    return [(Outputs, "_release", release), *_output_gaps_unnoticed()]


def _output_gaps_unnoticed() -> list[Patch]:
    """Disable the coordinator's check that a release is complete."""
    return [(store_keeper, "_check_whole", lambda *arguments, **options: None)]


def lost_with_its_agent() -> list[Patch]:
    """Let a stopping agent leave at once, before its outputs are released."""

    def keeps(self: Outputs, agent: LocalAgent) -> bool:
        return False

    return [(Outputs, "keeps", keeps)]


def output_number_not_saved() -> list[Patch]:
    """Continue the numbering of outputs after a recovery from the pending outputs, or from the beginning if there are none."""
    original = AgentOutputs.__init__

    def init(self: AgentOutputs, saved: SavedOutputs = NO_OUTPUTS) -> None:
        original(self, saved)
        if not self.pending:
            self.number = 0

    return [(AgentOutputs, "__init__", init)]


def forgotten_by_a_new_leader() -> list[Patch]:
    """Let a new leader assume that all complete epochs are released."""

    def on_started(self: Releases) -> None:
        """Do nothing, instead of looking for unreleased epochs."""

    return [(Releases, "on_started", on_started)]


def not_taken_back() -> list[Patch]:
    """Continue releases after the newest epoch, even if the fleet was rolled back to an older epoch."""

    def newest_of(image: FleetImage, epoch: int) -> tuple[Ancestor, ...]:
        newest = max([x for x, record in image.epochs.items() if x < epoch and record.root], default=0)
        return (Ancestor(newest, image.epochs[newest].root, False),) if newest else ()

    return [(publishing, "lineage_of", newest_of), (publishing, "has_fallen_back", lambda *arguments: False)]


FAILING_BATCHES = [
    FaultPart(disk=DiskFault(mode="eio", failpoint="store.log.batch.linked", hit=hit)) for hit in (2, 4, 8)
]
STALLED_BATCHES = [
    FaultPart(pause=PauseFault(failpoint="store.log.batch.synced", hit=hit, lasts="4s")) for hit in (3, 9, 20)
]
ROLLING = [FaultPart(crash=CrashFault(at="600ms", restart_after="200ms", is_rolling=True))]

LOG_MUTANTS: dict[str, Mutant] = {
    "present-log-sealed": Mutant(
        text="who comes to a plan seals the logs of that plan, too",
        patches=present_sealed,
        scenario=template(patterns=BUSY, faults=ROLLING, clients=FREQUENT_INPUTS),
        oracle="liveness",
        seed=0,
    ),
    "seals-deleted": Mutant(
        text="seals are deleted as garbage, and what was stalled is written after all",
        patches=seals_deleted,
        scenario=replace(
            template(patterns=BUSY, faults=STALLED_BATCHES, clients=FREQUENT_INPUTS),
            limits={"sweep_ms": SWEPT_OFTEN_MS},
        ),
        oracle="inputs",
        seed=3,
    ),
    "retry-taken-for-another": Mutant(
        text="a batch that is in the log already counts as somebody else's when it is written again",
        patches=retry_taken_for_another,
        scenario=template(patterns=BUSY, faults=FAILING_BATCHES, clients=FREQUENT_INPUTS),
        oracle="liveness",
        seed=0,
    ),
}
