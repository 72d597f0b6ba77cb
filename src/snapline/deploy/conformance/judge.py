"""Judges the snapshots of the tellers by the store alone: consistent, whole, every token there, every transfer handled once (G1–G3)."""

from typing import NamedTuple

from snapline.agent_runtime.snapshots.cut import Cut, load_cut
from snapline.deploy.conformance.bench import demand
from snapline.deploy.conformance.tellers import AGENTS, LINES, TOKENS, Transfer, TransferCounts, fleet
from snapline.errors import SnaplineError
from snapline.recovery.cuts import DependencyRecord, in_transit_numbers, orphans
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.store.store import Store


class Judged(NamedTuple):
    """A snapshot that is as it must be: its epoch, under which recovery plan it was taken, whose agents it holds."""

    epoch: int
    plan: int
    hosts: frozenset[str]


def judge(location: str) -> list[Judged]:
    """Judge every snapshot in the store. One that the coordinator prunes meanwhile, as too old, is passed over.

    Raises:
        LauncherFaultError: one is not what it must be; names which, and what is wrong.
    """
    store = Store.open(location)
    judged: list[Judged] = []
    for epoch in store.epochs():
        try:
            judged.append(_judge_epoch(store, epoch))
        except SnaplineError:
            if epoch in store.epochs():
                raise
    return judged


def _judge_epoch(store: Store, epoch: int) -> Judged:
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    checkpoints = {found.agent: found for found in store.read_checkpoints(manifest)}
    _judge_channels(epoch, checkpoints)
    _judge_tokens(epoch, load_cut(store, epoch, fleet()), checkpoints)
    return Judged(epoch, manifest.metadata.plan, frozenset(line.host for line in manifest.agents))


def _judge_channels(epoch: int, checkpoints: dict[str, AgentCheckpoint]) -> None:
    cut = {agent: DependencyRecord(found.sent, found.received) for agent, found in checkpoints.items()}
    demand(orphans(cut) == [], f"epoch {epoch} has orphans: {orphans(cut)}")
    saved = {
        (sender, agent): [message.number for message in messages]
        for agent, found in checkpoints.items()
        for sender, messages in found.in_transit.items()
        if messages
    }
    expected = {channel: list(numbers) for channel, numbers in in_transit_numbers(cut).items()}
    demand(saved == expected, f"epoch {epoch} holds {saved} as in transit, and {expected} is")


def _judge_tokens(epoch: int, cut: Cut, checkpoints: dict[str, AgentCheckpoint]) -> None:
    tills = {agent: state for agent, state in cut.states.items() if isinstance(state, TransferCounts)}
    demand(len(tills) == AGENTS, f"epoch {epoch} has {len(tills)} agents")
    held = sum(till.balance for till in tills.values())
    moving = sum(transit.message.amount for transit in cut.in_transit if isinstance(transit.message, Transfer))
    demand(
        held + moving == AGENTS * TOKENS, f"epoch {epoch}: {held} tokens in agents and {moving} in transit are wrong"
    )
    for agent, till in tills.items():
        found = checkpoints[agent]
        sent = sum(found.sent.values()) + len(found.outbox)
        waiting = till.passed + len(found.timers)
        told = f"{agent} in epoch {epoch}"
        demand(till.handled == sum(found.received.values()), f"{told} handled {till.handled} of {found.received}")
        demand(till.passed == sent, f"{told} passed {till.passed} on, and {sent} were sent")
        started = LINES if found.is_started else 0
        demand(
            started + till.handled == waiting, f"{told} owes {started + till.handled} transfers, and knows {waiting}"
        )
