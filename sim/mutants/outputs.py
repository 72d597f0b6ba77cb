"""Seeded bugs of outputs (R2): what is released, when, and what hosts drop."""

from typing import Any

from snapline.agent_runtime.host.agent_io import AgentOutputs
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.outputs import Outputs
from snapline.coordinator.leader.epochs import publishing
from snapline.coordinator.leader.epochs.publishing import Releases
from snapline.coordinator.leader.events import ReleaseEpoch
from snapline.coordinator.leader.modes.coordinated_epochs import Coordinated
from snapline.coordinator.service import output_releaser
from snapline.coordinator.service.output_releaser import OutputReleaser
from snapline.coordinator.state.fleet_records import FleetImage
from snapline.coordinator.state.lineage import Ancestor
from snapline.sim.world.product_patches import Patch
from snapline.storage.outputs.output_record import EmittedOutput
from snapline.storage.packs.checkpoint import NO_OUTPUTS, SavedOutputs


def released_at_the_end_of_the_turn() -> list[Patch]:
    """Release all outputs so far with an epoch, even those that it does not cover."""
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
    """Release the newest epoch with a ref first."""

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
    """Drop all pending outputs when an epoch is released, not only those that it covers."""
    original = Outputs._release

    def release(self: Outputs, agent: LocalAgent, outputs: AgentOutputs, number: int) -> None:
        original(self, agent, outputs, outputs.number)

    return [(Outputs, "_release", release), *_output_gaps_unnoticed()]


def _output_gaps_unnoticed() -> list[Patch]:
    """Disable the coordinator's check that a release is complete."""
    return [(output_releaser, "_check_whole", lambda *arguments, **options: None)]


def lost_with_its_agent() -> list[Patch]:
    """Let a stopping agent leave at once."""

    def keeps(self: Outputs, agent: LocalAgent) -> bool:
        return False

    return [(Outputs, "keeps", keeps)]


def output_number_not_saved() -> list[Patch]:
    """After a recovery, continue numbering from the pending outputs; without any, from the beginning."""
    original = AgentOutputs.__init__

    def init(self: AgentOutputs, saved: SavedOutputs = NO_OUTPUTS) -> None:
        original(self, saved)
        if not self.pending:
            self.number = 0

    return [(AgentOutputs, "__init__", init)]


def forgotten_by_a_new_leader() -> list[Patch]:
    """Let a new leader assume that all complete epochs are released."""

    def on_started(self: Releases) -> None:
        """Do nothing."""

    return [(Releases, "on_started", on_started)]


def not_taken_back() -> list[Patch]:
    """Continue releases after the newest epoch, even if the fleet was rolled back behind it."""

    def newest_of(image: FleetImage, epoch: int) -> tuple[Ancestor, ...]:
        newest = max([x for x, record in image.epochs.items() if x < epoch and record.root], default=0)
        return (Ancestor(newest, image.epochs[newest].root, False),) if newest else ()

    return [(publishing, "lineage_of", newest_of), (publishing, "has_fallen_back", lambda *arguments: False)]
