"""Failpoints in the code: points that the simulated world passes, and points that only real processes pass."""

from snapline.sim.faults.executor import WHEN_CAPTURING
from snapline.sim.faults.fault_kinds import MOMENTS


def _write_once(*points: str) -> tuple[str, ...]:
    steps = ("opened", "written", "synced", "linked", "durable")
    return tuple(f"{point}.{step}" for point in points for step in steps)


FAILPOINTS: tuple[str, ...] = (
    "store.create.directories",
    "store.pack.directory",
    "store.checkpoints.directory",
    "store.chunks.directory",
    *_write_once("store.identity", "store.probe", "store.pack", "store.chunks", "store.checkpoints"),
    *_write_once("store.manifest", "store.held", "store.ref", "store.generation"),
    "store.log.batch.directory",
    "store.log.batch.deleted",
    "store.log.seal.directory",
    "store.log.seal.listed",
    "store.log.seal.closed",
    "store.log.read.found",
    *_write_once("store.log.batch", "store.log.seal", "store.log.mark"),
    "store.intent.created",
    "store.intent.unheld",
    "store.compact.packs",
    "store.compact.generation",
    "store.checkpoints.deleted",
    "store.delete.ref",
    "store.delete.manifest",
    "store.delete.packs",
    "store.sweep.manifests",
    "coordinator.epoch.checked",
    "coordinator.epoch.stored",
    "coordinator.epoch.completed",
    "coordinator.epoch.published",
    "coordinator.line.written",
    "store.outputs.directory",
    *_write_once("store.outputs.release"),
)
"""Failpoints of the product's code that the simulated world passes. A test compares them with the code."""

REAL_FAILPOINTS = (
    "coordinator.serving",
    "link.write",
    "raft.journal.created",
    "raft.journal.deleted",
    "raft.journal.written",
    "raft.journal.committed",
)

REAL_FAILPOINT_PREFIXES = (
    "raft.",
    "coordinator.service.backup.",
    "conformance.",
    "store.compact.retired",
    "store.copy.",
    "store.fork.",
    "coordinator.fork.",
    "store.keys.",
    "store.log.deletions.",
    "store.mark.",
    "store.outputs.consumer",
    "store.outputs.deleted",
    "store.outputs.part",
    "store.outputs.read.",
    "store.pin.",
    "store.shelf.",
)
"""Prefixes of failpoints that are not drawn. Most are passed only by real processes. The world has no gRPC, pysyncobj, backup files or named
consumers, no releases of more than one part, and no pins, tags, copies, forks or encryption. Its runs also end long before a replaced
generation (an hour) or an output (a week) expires. `tests/storage` crashes at these points."""

WORLD_FAILPOINTS = (*MOMENTS.values(), WHEN_CAPTURING)
