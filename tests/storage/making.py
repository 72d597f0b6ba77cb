"""Small fleets' epochs for the tests of the store."""

import random
from collections.abc import Callable

from snapline.storage.disk.local_disk import Disk
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.packs.pack import PackReference
from snapline.storage.store.store import Store

HOSTS = {"h1": ("a1", "a2"), "h2": ("b1",)}


def seeded_bytes(seed: int = 0) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def make_store(disk: Disk, *, seed: int = 0) -> Store:
    return Store.create("simulated", disk=disk, random_bytes=seeded_bytes(seed))


def make_checkpoint(agent: str, epoch: int) -> AgentCheckpoint:
    return AgentCheckpoint(
        agent=agent,
        kind="tests:Agent",
        epoch=epoch,
        number=epoch,
        state=f"{agent} in {epoch} ".encode() * (20 if agent == "a2" else 1),
        sent={"a1": epoch, "b1": 3},
        received={"b1": epoch},
        in_transit={"b1": [InTransitMessage(epoch + 1, epoch - 1, b"payload")]},
    )


TAKEN = (("a1", 1), ("a2", 1), ("a1", 2))
"""What `write_taken` writes: agent, and which of its checkpoints."""


def make_taken(agent: str, plan: int, step: int = 1) -> AgentCheckpoint:
    """A checkpoint that the agent took on its own; its number is `plan + step`."""
    return AgentCheckpoint(
        agent=agent,
        kind="tests:Agent",
        epoch=0,
        number=plan + step,
        basis="forced",
        turns=plan,
        state=f"{agent} under {plan} step {step} ".encode() * (20 if agent == "a2" else 1),
        sent={"b1": plan},
        sender_log={"b1": [InTransitMessage(plan, 0, b"payload", b"piggyback")]},
    )


def write_taken(store: Store, plan: int) -> PackReference:
    """Write a checkpoint pack of host h1."""
    made = [make_taken(agent, plan, step) for agent, step in TAKEN]
    blobs = [(x.agent, x.number, encode_checkpoint(x)) for x in made]
    return store.write_checkpoints(writer="h1.1", plan=plan, blobs=blobs)


def check_taken(store: Store, pack: str | PackReference, plan: int) -> None:
    """Assert that a checkpoint pack holds exactly what `write_taken` wrote."""
    assert store.read_checkpoint_pack(pack) == [make_taken(agent, plan, step) for agent, step in TAKEN]


def write_packs(store: Store, epoch: int) -> dict[str, PackReference]:
    return {
        host: store.write_pack(
            writer=f"{host}.1",
            epoch=epoch,
            blobs=[(agent, encode_checkpoint(make_checkpoint(agent, epoch))) for agent in agents],
        )
        for host, agents in HOSTS.items()
    }


def make_manifest(store: Store, epoch: int, packs: dict[str, PackReference]) -> Manifest:
    lines = [
        agent_line(entry, pack=number, kind="tests:Agent", host=host, incarnation=1)
        for number, (host, pack) in enumerate(packs.items())
        for entry in store.read_pack_index(pack)
    ]
    metadata = Metadata(epoch=epoch, created="2025-01-01T00:00:00Z", fleet="tests", hosts={"h1": 1, "h2": 1})
    return Manifest(metadata, lines, list(packs.values()))


def write_epoch(store: Store, epoch: int) -> str:
    """Write and publish an epoch; return its root."""
    root = store.write_manifest(make_manifest(store, epoch, write_packs(store, epoch)))
    store.publish(epoch, root)
    return root


def check_epoch_restores(store: Store, epoch: int) -> None:
    """Assert that the epoch's checkpoints are exactly those that were written."""
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    agents = sorted(agent for agents in HOSTS.values() for agent in agents)
    assert [line.agent for line in manifest.agents] == agents
    assert list(store.read_checkpoints(manifest)) == [make_checkpoint(agent, epoch) for agent in agents]
