"""What every snapshot in a store must be: a consistent cut (G1) with exactly what is in transit (G2), nothing lost (G3).

The checks read the store alone. They use `recovery.cuts`, which the running fleet does not.
"""

from collections.abc import Collection
from pathlib import Path

from tests.integration.fleets.paced_bank import Purse

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.snapshots.snapshot_cut import Cut, load_cut
from snapline.examples.bank import tokens_in
from snapline.recovery.dependency_records import DependencyRecord, in_transit_numbers, orphans
from snapline.storage.packs.checkpoint import AgentCheckpoint
from snapline.storage.store.store import Store


def store_of(data_dir: Path) -> Store:
    """The store of a local fleet."""
    return Store.open(data_dir / "store")


def checkpoints_of(store: Store, epoch: int) -> dict[str, AgentCheckpoint]:
    """All checkpoints of an epoch, by agent."""
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    return {checkpoint.agent: checkpoint for checkpoint in store.read_checkpoints(manifest)}


def check_consistent(store: Store, epoch: int, *, gone: Collection[str] = ()) -> dict[str, AgentCheckpoint]:
    """No orphan; for each channel exactly the numbers received + 1 … sent are in transit, in order. `gone` had left."""
    checkpoints = checkpoints_of(store, epoch)
    assert not set(gone) & set(checkpoints)
    cut = {agent: DependencyRecord(found.sent, found.received) for agent, found in checkpoints.items()}
    assert orphans(cut, gone=gone) == [], f"epoch {epoch} has orphans"
    saved = {
        (sender, agent): [message.number for message in messages]
        for agent, found in checkpoints.items()
        for sender, messages in found.in_transit.items()
        if messages and sender not in gone
    }
    expected = {channel: list(numbers) for channel, numbers in in_transit_numbers(cut, gone=gone).items()}
    assert saved == expected, f"epoch {epoch}"
    return checkpoints


def check_store(data_dir: Path) -> list[int]:
    """The store is whole and every epoch in it consistent; returns the epochs."""
    store = store_of(data_dir)
    assert store.verify().findings == []
    epochs = store.epochs()
    for epoch in epochs:
        check_consistent(store, epoch)
    return epochs


def check_bank(data_dir: Path, fleet: Fleet, *, tokens: int) -> list[Cut]:
    """All of `check_store`, and every epoch holds all tokens; in the last one the fleet is at its end."""
    epochs = check_store(data_dir)
    assert epochs, f"no epoch in {data_dir}"
    cuts = [load_cut(store_of(data_dir), epoch, fleet) for epoch in epochs]
    assert {cut.epoch: tokens_in(cut) for cut in cuts} == dict.fromkeys(epochs, tokens)
    assert cuts[-1].is_quiet
    return cuts


def check_paced_bank(data_dir: Path, fleet: Fleet, *, tokens: int) -> None:
    """All of `check_bank`, and every agent has handled each message that it received, and answered it, exactly once.

    An agent's `lines` transfers, and those it handled, have been passed on or kept, or wait for a timer.
    """
    store = store_of(data_dir)
    cuts = check_bank(data_dir, fleet, tokens=tokens)
    assert any(cut.in_transit for cut in cuts), "cuts of a working fleet catch messages on their way"
    for cut in cuts:
        for agent, checkpoint in checkpoints_of(store, cut.epoch).items():
            state = cut.states[agent]
            if isinstance(state, Purse):
                where = f"{agent} in epoch {cut.epoch}"
                assert state.handled == sum(checkpoint.received.values()), where
                assert state.passed == sum(checkpoint.sent.values()) + len(checkpoint.outbox), where
                started = state.lines if checkpoint.is_started else 0
                assert started + state.handled == state.passed + state.kept + len(checkpoint.timers), where
