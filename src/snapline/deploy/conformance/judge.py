"""Checks the tellers' snapshots from the store alone: consistent, complete, no token lost, every transfer handled once (G1–G3)."""

from typing import NamedTuple

from snapline.agent_runtime.snapshots.cut import Cut, load_cut
from snapline.deploy.conformance.bench import require
from snapline.deploy.conformance.token_fleet import AGENTS, LINES, TOKENS, Transfer, TransferCounts, fleet
from snapline.errors import SnaplineError
from snapline.recovery.dependency_records import DependencyRecord, in_transit_numbers, orphans
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.store.store import Store


class CheckedSnapshot(NamedTuple):
    """A correct snapshot: its epoch, the recovery plan in force when it was taken, and the hosts of its agents."""

    epoch: int
    plan: int
    hosts: frozenset[str]


def judge(location: str) -> list[CheckedSnapshot]:
    """Check every snapshot in the store. Snapshots that the coordinator prunes meanwhile are skipped.

    Raises:
        LauncherFaultError: a snapshot is wrong; the message names the snapshot and the fault.
    """
    store = Store.open(location)
    judged: list[CheckedSnapshot] = []
    for epoch in store.epochs():
        try:
            judged.append(_judge_epoch(store, epoch))
        except SnaplineError:
            if epoch in store.epochs():
                raise
    return judged


def _judge_epoch(store: Store, epoch: int) -> CheckedSnapshot:
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    checkpoints = {checkpoint.agent: checkpoint for checkpoint in store.read_checkpoints(manifest)}
    _judge_channels(epoch, checkpoints)
    _judge_tokens(epoch, load_cut(store, epoch, fleet()), checkpoints)
    return CheckedSnapshot(epoch, manifest.metadata.plan, frozenset(line.host for line in manifest.agents))


def _judge_channels(epoch: int, checkpoints: dict[str, AgentCheckpoint]) -> None:
    cut = {agent: DependencyRecord(checkpoint.sent, checkpoint.received) for agent, checkpoint in checkpoints.items()}
    require(orphans(cut) == [], f"epoch {epoch} has orphans: {orphans(cut)}")
    saved = {
        (sender, agent): [message.number for message in messages]
        for agent, checkpoint in checkpoints.items()
        for sender, messages in checkpoint.in_transit.items()
        if messages
    }
    expected = {channel: list(numbers) for channel, numbers in in_transit_numbers(cut).items()}
    require(saved == expected, f"epoch {epoch} holds {saved} as in transit, and {expected} is")


def _judge_tokens(epoch: int, cut: Cut, checkpoints: dict[str, AgentCheckpoint]) -> None:
    counts = {agent: state for agent, state in cut.states.items() if isinstance(state, TransferCounts)}
    require(len(counts) == AGENTS, f"epoch {epoch} has {len(counts)} agents")
    held_tokens = sum(count.balance for count in counts.values())
    moving = sum(transit.message.amount for transit in cut.in_transit if isinstance(transit.message, Transfer))
    require(
        held_tokens + moving == AGENTS * TOKENS,
        f"epoch {epoch}: {held_tokens} tokens in agents and {moving} in transit are wrong",
    )
    for agent, count in counts.items():
        checkpoint = checkpoints[agent]
        sent = sum(checkpoint.sent.values()) + len(checkpoint.outbox)
        waiting = count.passed + len(checkpoint.timers)
        label = f"{agent} in epoch {epoch}"
        require(
            count.handled == sum(checkpoint.received.values()),
            f"{label} handled {count.handled} of {checkpoint.received}",
        )
        require(count.passed == sent, f"{label} passed {count.passed} on, and {sent} were sent")
        started = LINES if checkpoint.is_started else 0
        require(
            started + count.handled == waiting, f"{label} owes {started + count.handled} transfers, and knows {waiting}"
        )
