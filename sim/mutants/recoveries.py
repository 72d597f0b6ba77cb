"""Seeded bugs of the coordinator: recovery lines, plans and epochs."""

import msgspec

from snapline.coordinator.leader.epochs.open_epochs import Collecting, Deciding, OpenEpoch, StoringManifest
from snapline.coordinator.leader.events import (
    ManifestWritten,
    PublishEpoch,
    ScanCheckpoints,
    StoredCheckpoint,
)
from snapline.coordinator.leader.modes.autonomous_epochs import Freezing
from snapline.coordinator.leader.modes.checkpoint_ledger import Ledger
from snapline.coordinator.leader.modes.coordinated_epochs import Coordinated
from snapline.coordinator.service import line_store
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state.fleet_view import FleetView
from snapline.sim.world.product_patches import Patch
from snapline.storage.store.store import Store


def line_too_new() -> list[Patch]:
    def line(self: Ledger) -> dict[str, int]:
        shift = self._shift
        newest_line = self.history.total_line()
        return {agent: max(self.history.checkpoints_of(agent)) - shift.get(agent, 0) for agent in newest_line}

    return [(Ledger, "line", property(line))]


def line_too_old() -> list[Patch]:
    """Return an outdated line that is not recomputed."""
    original = Ledger.line.fget  # type: ignore[attr-defined]  # a property
    assert original is not None

    def line(self: Ledger) -> dict[str, int]:
        newest_line: dict[str, int] = original(self)
        lines = vars(self).setdefault("_lines", [{}])
        if newest_line != lines[-1]:
            lines.append(dict(newest_line))
        older: dict[str, int] = lines[-2]
        is_possible = all(older.get(agent, -1) >= self.base.get(agent, 0) for agent in newest_line)
        return older if is_possible else newest_line

    return [(Ledger, "line", property(line))]


def older_plan_accepted() -> list[Patch]:
    """Accept checkpoints of older plans, and keep them when a new plan would sweep them."""
    original = line_store.scan_packs

    def scan_packs(store: Store, command: ScanCheckpoints) -> list[StoredCheckpoint]:
        plans = [msgspec.structs.replace(command, plan=plan) for plan in range(1, command.plan + 1)]
        return [checkpoint for each in plans for checkpoint in original(store, each)]

    return [(line_store, "scan_packs", scan_packs), (StoreKeeper, "sweep_checkpoints", lambda *_: None)]


def plan_from_older_epoch() -> list[Patch]:
    def newest_complete(self: FleetView) -> int:
        complete = self.complete_epochs()
        return complete[-2] if len(complete) > 1 else (complete or [0])[-1]

    return [(FleetView, "newest_complete", newest_complete)]


def part_missing() -> list[Patch]:
    original = Coordinated._check_reports

    def judge(self: Coordinated, entry: OpenEpoch, stage: Collecting) -> None:
        original(self, entry, stage)
        if isinstance(entry.stage, StoringManifest) and len(entry.stage.manifest.agents) > 1:
            manifest = entry.stage.manifest
            self._shared.out[-1] = cut = msgspec.structs.replace(manifest, agents=manifest.agents[:-1])
            entry.stage = StoringManifest(cut)

    return [(Coordinated, "_check_reports", judge)]


def ref_before_decision() -> list[Patch]:
    original = Coordinated.on_manifest_written

    def on_manifest_written(self: Coordinated, event: ManifestWritten) -> None:
        if not event.error:
            self._shared.out.append(PublishEpoch(event.epoch, event.root))
        original(self, event)

    return [(Coordinated, "on_manifest_written", on_manifest_written)]


def freeze_not_awaited() -> list[Patch]:
    original = Freezing.ask

    def ask(self: Freezing) -> bool:
        original(self)
        return True

    return [(Freezing, "ask", ask)]


def members_never_unborn() -> list[Patch]:
    """Recreate as unborn only agents that were created after the epoch had begun."""
    original = Coordinated.on_manifest_written

    def on_manifest_written(self: Coordinated, event: ManifestWritten) -> None:
        original(self, event)
        entry, agents = self._open_epochs.get(event.epoch), self._shared.state.image.agents
        if entry is not None and isinstance(entry.stage, Deciding):
            completion = entry.stage.completion
            later = [x for x in completion.unborn_agents if not agents[x].is_member_of(event.epoch)]
            entry.stage = Deciding(msgspec.structs.replace(completion, unborn_agents=tuple(later)))

    return [(Coordinated, "on_manifest_written", on_manifest_written)]
