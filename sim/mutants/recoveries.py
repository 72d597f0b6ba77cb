"""Seeded bugs of the coordinator: lines, plans, epochs."""

from typing import Any

import msgspec

from snapline.coordinator.epochs import Epochs, OpenEpoch
from snapline.coordinator.fleet_view import FleetView
from snapline.coordinator.leader_events import ManifestWritten, PublishEpoch, WriteManifest
from snapline.coordinator.ledger import Ledger
from snapline.coordinator.lines import Lines

Patch = tuple[Any, str, Any]


def line_too_new() -> list[Patch]:
    def line(self: Ledger) -> dict[str, int]:
        shift = self._shift
        found = self.history.total_line()
        return {agent: max(self.history.checkpoints_of(agent)) - shift.get(agent, 0) for agent in found}

    return [(Ledger, "line", property(line))]


def line_too_old() -> list[Patch]:
    original = Ledger.line.fget  # type: ignore[attr-defined]  # a property
    assert original is not None

    def line(self: Ledger) -> dict[str, int]:
        found = dict(original(self))
        behind = min((agent for agent in found if found[agent] > self.base.get(agent, 0)), default=None)
        if behind is not None:
            found[behind] = self.base.get(behind, 0)
        return found

    return [(Ledger, "line", property(line))]


def older_plan_accepted() -> list[Patch]:
    original = Lines.on_stored

    def on_stored(self: Lines, session: Any, message: Any) -> None:
        original(self, session, msgspec.structs.replace(message, plan=self._desk.state.plan_number))

    return [(Lines, "on_stored", on_stored)]


def plan_from_older_epoch() -> list[Patch]:
    def newest_complete(self: FleetView) -> int:
        complete = self.complete_epochs()
        return complete[-2] if len(complete) > 1 else (complete or [0])[-1]

    return [(FleetView, "newest_complete", newest_complete)]


def part_missing() -> list[Patch]:
    original = Epochs._judge

    def judge(self: Epochs, entry: OpenEpoch) -> None:
        original(self, entry)
        manifest: WriteManifest | None = entry.manifest
        if manifest is not None and len(manifest.agents) > 1 and self._desk.out[-1] is manifest:
            entry.manifest = self._desk.out[-1] = msgspec.structs.replace(manifest, agents=manifest.agents[:-1])

    return [(Epochs, "_judge", judge)]


def ref_before_decision() -> list[Patch]:
    original = Epochs.on_manifest_written

    def on_manifest_written(self: Epochs, event: ManifestWritten) -> None:
        if not event.error:
            self._desk.out.append(PublishEpoch(event.epoch, event.root))
        original(self, event)

    return [(Epochs, "on_manifest_written", on_manifest_written)]
