"""Temporary changes to the product for one run: lower limits, and a cache of decoded manifests.

*Limits.* Constants in the product limit every queue, window and pack to sizes that suit large fleets and long runs. Simulated fleets would
hardly ever reach these limits, although bugs often occur at limits. So a scenario may set `limits`, which apply to all nodes of its run.
FoundationDB calls such limits *knobs*. All guarantees must hold for every value in `drawn`. The values respect the relations between
limits: for example, a window is always larger than a part of a message.

*Manifests.* In a small fleet, the oracles and every maintenance step of the store (publishing, sweeping, moving packs, deleting) read all
manifests. The decoded manifest depends only on the bytes, root, path and epoch, and a manifest never changes. So the cache cannot change
any result and only saves time. Damaged bytes are cached under a different key, and errors are not cached.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from snapline.storage.packs import manifest
from snapline.storage.packs.manifest import Manifest, decode_manifest

# -- patches --------------------------------------------------------------------------------------------------------------

Patch = tuple[Any, str, Any]
"""A patch: the object, the name of its attribute, and the attribute's replacement."""


@contextlib.contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Context manager that applies the patches, and restores the original attributes afterwards."""
    before = [(owner, attribute, vars(owner).get(attribute)) for owner, attribute, _ in patches]
    for owner, attribute, replacement in patches:
        setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        for owner, attribute, original in reversed(before):
            if original is None:  # the attribute was inherited
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)


# -- limits ---------------------------------------------------------------------------------------------------------------

MS_NS = 1_000_000


class Limit(msgspec.Struct, frozen=True):
    """A limit of the product that a scenario can change.

    Attributes:
        places: the constants that hold the limit, as `module.CONSTANT`. Each module that imports the constant has its own entry.
        drawn: values among which a swarm chooses the limit.
        scaled: function that converts the limit's unit to the unit of the constants. The function is None if both units are the same.
        with_it: other constants that must change together with the limit, each with a function that computes it from the limit's value.
        is_local: whether the limit concerns only fleets with local recovery.
    """

    places: tuple[str, ...]
    drawn: tuple[int, ...]
    scaled: Callable[[int], float] | None = None
    with_it: tuple[tuple[str, Callable[[int], float]], ...] = ()
    is_local: bool = False


def _ms(value: int) -> int:
    return value * MS_NS


def _s_ns(value: int) -> int:
    return value * 1_000 * MS_NS


def _s(value_ms: int) -> float:
    return value_ms / 1000


LIMITS: Mapping[str, Limit] = {
    # links
    "channel_credit": Limit(
        (
            "snapline.channels.channel.CHANNEL_CREDIT",
            "snapline.agent_runtime.host.channel_ends.CHANNEL_CREDIT",
            "snapline.agent_runtime.host.commits.CHANNEL_CREDIT",
            "snapline.agent_runtime.host.links.CHANNEL_CREDIT",
            "snapline.agent_runtime.host.mailboxes.CHANNEL_CREDIT",
        ),
        (2, 3, 4, 8, 32),
    ),
    "window_items": Limit(
        (
            "snapline.channels.channel.WINDOW_ITEMS",
            "snapline.channels.incoming.WINDOW_ITEMS",
            "snapline.channels.link.WINDOW_ITEMS",
        ),
        (48, 256),
        with_it=(("snapline.channels.incoming._REPORT_ITEMS", lambda items: items // 4),),
    ),
    "part_bytes": Limit(
        (
            "snapline.channels.channel.PART_BYTES",
            "snapline.channels.order.PART_BYTES",
            "snapline.channels.frame.PART_BYTES",
            "snapline.channels.incoming.PART_BYTES",
            "snapline.agent_runtime.host.mailboxes.PART_BYTES",
        ),
        (256, 1024),
        with_it=(
            ("snapline.channels.channel.WINDOW_BYTES", lambda part: 3 * part),
            ("snapline.channels.incoming.WINDOW_BYTES", lambda part: 3 * part),
            ("snapline.channels.incoming._REPORT_BYTES", lambda part: 3 * part // 4),
        ),
    ),
    "frame_items": Limit(
        ("snapline.channels.order.FRAME_ITEMS_MAX",),
        (1, 2, 8),
        with_it=(
            ("snapline.channels.order.LARGE_ITEMS", lambda items: items // 2),
            ("snapline.channels.frame.LARGE_ITEMS", lambda items: items // 2),
        ),
    ),
    "frame_bytes": Limit(
        ("snapline.channels.order.FRAME_BYTES_MAX",),
        (64, 512),
        with_it=(("snapline.channels.order.LARGE_BYTES", lambda size: size),),
    ),
    "frames_unacked": Limit(("snapline.channels.order.FRAMES_UNACKED_MAX",), (1, 2)),
    "frame_credits": Limit(("snapline.channels.incoming.CREDITS_MAX",), (1, 2)),
    "tell_delay_ms": Limit(("snapline.channels.incoming.REPORT_DELAY_NS",), (1, 200), _ms),
    "tell_frames": Limit(("snapline.channels.incoming.TELL_FRAMES",), (1, 1000)),
    "marker_channels": Limit(("snapline.channels.link.MARKER_CHANNELS_MAX",), (1, 2)),
    # hosts
    "parked_messages": Limit(("snapline.agent_runtime.host.host_state.PARKED_MESSAGES_MAX",), (1, 4, 16)),
    "pack_checkpoints": Limit(("snapline.agent_runtime.host.checkpoint_writer.PACK_CHECKPOINTS_MAX",), (1, 2)),
    "pack_bytes": Limit(("snapline.agent_runtime.host.checkpoint_writer.PACK_BYTES_MAX",), (1, 2000)),
    "waiting_checkpoints": Limit(("snapline.agent_runtime.host.checkpoint_writer.WAITING_CHECKPOINTS_MAX",), (2, 8)),
    "waiting_bytes": Limit(("snapline.agent_runtime.host.checkpoint_writer.WAITING_BYTES_MAX",), (2000, 20_000)),
    "chunk_pack_bytes": Limit(
        ("snapline.agent_runtime.host.epoch_files.CHUNK_PACK_BYTES",),
        (1, 100_000),
        with_it=(
            ("snapline.agent_runtime.host.epoch_files.THREADS", lambda _: 1),
        ),  # sequential, because threads would make runs irreproducible
    ),
    "chunk_tables": Limit(("snapline.agent_runtime.host.checkpoint_writer.TABLES_MAX",), (1, 2)),
    "agent_log_bytes": Limit(("snapline.agent_runtime.host.modes.logged.LOG_BYTES_MAX",), (200, 2000)),
    "host_freeze_ms": Limit(("snapline.agent_runtime.host.modes.logged.FREEZE_NS",), (20, 200), _ms),
    # coordinator
    "freeze_ms": Limit(
        (
            "snapline.coordinator.leader.modes.autonomous_epochs.FREEZE_NS",
            "snapline.sim.oracles.line_oracles.FREEZE_NS",
        ),
        (200, 1500),
        _ms,
    ),
    "log_freeze_pause_ms": Limit(
        ("snapline.coordinator.leader.modes.autonomous_epochs.FREEZE_PAUSE_NS",), (200, 2000), _ms
    ),
    "line_period_ms": Limit(("snapline.agent_runtime.fleet.LINE_PERIOD_LEAST_S",), (50, 150), _s),
    "line_retry_ms": Limit(("snapline.coordinator.leader.modes.checkpoint_modes.LINE_RETRY_NS",), (50,), _ms),
    "report_gap_ms": Limit(("snapline.coordinator.leader.modes.recovery_line.GAP_NS",), (100, 500), _ms),
    "reports_waiting": Limit(("snapline.coordinator.leader.modes.recovery_line.WAITING_MAX",), (1, 4)),
    "epochs_open": Limit(
        (
            "snapline.coordinator.state.fleet_records.EPOCHS_OPEN_MAX",
            "snapline.coordinator.state.fleet_state.EPOCHS_OPEN_MAX",
            "snapline.coordinator.leader.modes.coordinated_epochs.EPOCHS_OPEN_MAX",
            "snapline.coordinator.state.fleet_view.EPOCHS_OPEN_MAX",
        ),
        (1, 2),
    ),
    "forget_at_once": Limit(("snapline.coordinator.leader.epochs.epoch_lifecycle.FORGET_AT_ONCE",), (1, 2)),
    "sweep_ms": Limit(
        (
            "snapline.coordinator.leader.epochs.epoch_lifecycle.SWEEP_NS",
            "snapline.coordinator.leader.epochs.epoch_lifecycle.SWEEP_IDLE_NS",
        ),
        (100, 400, 1000),
        _ms,
    ),
    "publish_retry_ms": Limit(("snapline.coordinator.leader.epochs.publishing.PUBLISH_RETRY_NS",), (50,), _ms),
    "cut_ms": Limit(
        ("snapline.coordinator.leader.hosts.failure_detector.CUT_NS",),
        (200, 1000),
        _ms,
        with_it=(("snapline.coordinator.leader.hosts.failure_detector.COUNTED_NS", lambda cut: _ms(cut) // 2),),
    ),
    "spare_ms": Limit(("snapline.coordinator.leader.hosts.failure_detector.STANDBY_NS",), (1, 2000), _ms),
    "plan_answer_ms": Limit(("snapline.coordinator.leader.recovery_plans.ANSWER_NS",), (300, 1500), _ms),
    "stop_answer_ms": Limit(("snapline.coordinator.leader.fleet_end.ANSWER_NS",), (20, 500), _ms),
    "definition_bytes": Limit(("snapline.coordinator.leader.hosts.admission.BATCH_BYTES_MAX",), (200, 500)),
    "plans_kept": Limit(
        ("snapline.coordinator.state.fleet_records.PLANS_KEPT", "snapline.coordinator.state.fleet_state.PLANS_KEPT"),
        (2, 4),
    ),
    # store
    "dead_bytes": Limit(  # alone, this limit has no effect in a small store and a short run
        ("snapline.storage.packs.compaction.DEAD_BYTES_MIN",),
        (1, 1000),
        with_it=(
            ("snapline.storage.packs.compaction.PACKS_PER_EPOCH_MAX", lambda dead: 1 if dead == 1 else 3),
            ("snapline.storage.packs.compaction.MERGED_PACKS_MIN", lambda _: 2),
            ("snapline.coordinator.leader.epochs.epoch_lifecycle.SWEEP_NS", lambda _: _ms(100)),
            ("snapline.coordinator.leader.epochs.epoch_lifecycle.SWEEP_IDLE_NS", lambda _: _ms(100)),
        ),
    ),
    "packs_per_epoch": Limit(("snapline.storage.packs.compaction.PACKS_PER_EPOCH_MAX",), (1, 3)),
    "packs_merged": Limit(("snapline.storage.packs.compaction.MERGED_PACKS_MIN",), (2,)),
    "compact_bytes": Limit(("snapline.storage.packs.compaction.COMPACT_BYTES_MAX",), (1, 5000)),
    "journal_run": Limit(("snapline.storage.capture.chunking.RUN_ENTRIES",), (1, 2, 3)),
    "run_chunks": Limit(("snapline.storage.capture.decoder.RUN_CHUNKS_MAX",), (1, 2)),
    "hour_s": Limit(("snapline.storage.retention.epoch_retention.HOUR_NS",), (1, 2), _s_ns),
    "day_s": Limit(("snapline.storage.retention.epoch_retention.DAY_NS",), (3, 5), _s_ns),
    "deleted_at_once": Limit(("snapline.storage.retention.pins.DELETED_AT_ONCE",), (1, 2)),
    # commits of hosts
    "commit_part_bytes": Limit(
        ("snapline.storage.log.commits.PART_BYTES",),
        (300, 2000),
        with_it=(("snapline.agent_runtime.host.host_log.BATCH_BYTES_MAX", lambda part: part),),
        is_local=True,
    ),
    "commit_changes_bytes": Limit(
        ("snapline.storage.log.commits.CHANGES_BYTES_MIN",),
        (1, 300),
        with_it=(("snapline.storage.log.commits.CHAIN_MAX", lambda size: 3 if size == 1 else 64),),
        is_local=True,
    ),
    "commit_age_ms": Limit(("snapline.agent_runtime.host.commits.COMMIT_AGE_NS",), (1, 500), _ms, is_local=True),
}


@contextlib.contextmanager
def limited(limits: Mapping[str, int]) -> Iterator[None]:
    """Context manager that sets the given limits. All other limits keep their default values."""
    with patched([patch for name, value in limits.items() for patch in _patches(LIMITS[name], value)]):
        yield


def _patches(limit: Limit, value: int) -> Iterator[Patch]:
    scaled = value if limit.scaled is None else limit.scaled(value)
    for place in limit.places:
        yield (*_owner(place), scaled)
    for place, dependent in limit.with_it:
        yield (*_owner(place), dependent(value))


def _owner(place: str) -> tuple[object, str]:
    module, _, constant = place.rpartition(".")
    return importlib.import_module(module), constant


# -- manifests ------------------------------------------------------------------------------------------------------------

MANIFESTS_KEPT = 256
"""Maximum number of cached manifests. A small fleet's store contains fewer; the limit matters only for large stores."""


class ManifestDecoder(Protocol):
    """Signature of `decode_manifest` and of functions that replace it."""

    def __call__(self, data: bytes, *, root: str, path: str, epoch: int | None) -> Manifest: ...


def manifests_cached() -> contextlib.AbstractContextManager[None]:
    """Context manager that caches decoded manifests, so that the store decodes each manifest only once."""
    return patched([(manifest, "decode_manifest", remembered(decode_manifest))])


def remembered(decode: ManifestDecoder) -> ManifestDecoder:
    """Return a function that decodes manifests by calling `decode` and caches the results."""
    known: dict[tuple[bytes, str, str, int | None], Manifest] = {}

    def decoded(data: bytes, *, root: str, path: str, epoch: int | None) -> Manifest:
        key = data, root, path, epoch
        found = known.get(key)
        if found is None:
            if len(known) >= MANIFESTS_KEPT:
                known.clear()
            found = known[key] = decode(data, root=root, path=path, epoch=epoch)
        return found

    return decoded
