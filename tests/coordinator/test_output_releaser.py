"""What a release holds, read from the store; and that it stands there once, whoever releases."""

import dataclasses

import msgspec
import pytest
from tests.storage.making import HOSTS, make_store
from tests.storage.simulated_disk import SimulatedDisk

from snapline.coordinator.leader import events as ev
from snapline.coordinator.service.store_keeper import OutputReleaser
from snapline.coordinator.state.fleet_view import Ancestor
from snapline.errors import NotFoundError, StoreError
from snapline.storage.disk.layout import manifest_path
from snapline.storage.packs.checkpoint import AgentCheckpoint, SavedOutput, SavedOutputs, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store


@dataclasses.dataclass
class Fleet:
    """Epochs whose agents have emitted: agent → (lowest pending output, last one)."""

    disk: SimulatedDisk = dataclasses.field(default_factory=SimulatedDisk)
    roots: dict[int, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store: Store = make_store(self.disk)
        self.releaser = OutputReleaser(self.store, lambda: 7)

    def write(self, epoch: int, **emitted: tuple[int, int]) -> None:
        lines, packs = [], []
        for number, (host, agents) in enumerate(HOSTS.items()):
            blobs = [(agent, encode_checkpoint(_checkpoint(agent, epoch, emitted.get(agent)))) for agent in agents]
            pack = self.store.write_pack(writer=f"{host}.1", epoch=epoch, blobs=blobs)
            packs.append(pack)
            for entry in self.store.read_pack_index(pack):
                lines.append(agent_line(entry, pack=number, kind="t:A", host=host, incarnation=1))
        metadata = Metadata(epoch=epoch, outputs={agent: last for agent, (_, last) in emitted.items()})
        self.roots[epoch] = self.store.write_manifest(Manifest(metadata, lines, packs))

    def release(self, epoch: int, *ancestors: int, condemned: int = 0, is_fall_back: bool = False) -> ev.EpochReleased:
        """`condemned`: so many of the ancestors are."""
        found = tuple([Ancestor(x, self.roots[x], place < condemned) for place, x in enumerate(ancestors)])
        return self.releaser.release(ev.ReleaseEpoch(epoch, self.roots[epoch], found, is_fall_back))

    def found(self, epoch: int) -> tuple[int, dict[str, list[int]]]:
        release = self.store.read_release(epoch)
        outputs: dict[str, list[int]] = {}
        for output in release.outputs:
            assert output.payload == f"{output.agent} {output.number}".encode() and output.topic == "t"
            outputs.setdefault(output.agent, []).append(output.number)
        return release.after, outputs


def _checkpoint(agent: str, epoch: int, emitted: tuple[int, int] | None) -> AgentCheckpoint:
    made = AgentCheckpoint(agent=agent, kind="t:A", epoch=epoch)
    if emitted is None:
        return made
    first, last = emitted
    pending = [SavedOutput(n, "t", f"{agent} {n}".encode(), 5) for n in range(first, last + 1)]
    return msgspec.structs.replace(made, saved_outputs=SavedOutputs(last, pending))


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet()
    made.write(1, a1=(1, 3))
    made.write(2, a1=(1, 4), b1=(1, 2))
    made.write(4, a1=(4, 4), b1=(3, 3))
    return made


def test_release_holds_what_is_beyond_the_epoch_before(fleet: Fleet) -> None:
    answers = [fleet.release(1), fleet.release(2, 1), fleet.release(4, 2)]
    assert [answer.error for answer in answers] == ["", "", ""] and answers[1].outputs == {"a1": 4, "b1": 2}
    assert [fleet.found(epoch) for epoch in (1, 2, 4)] == [
        (0, {"a1": [1, 2, 3]}),
        (1, {"a1": [4], "b1": [1, 2]}),
        (2, {"b1": [3]}),
    ]


def test_another_leader_that_releases_again_changes_nothing(fleet: Fleet) -> None:
    for _ in range(2):
        for epoch, *before in ((1,), (2, 1), (4, 2)):
            assert not fleet.release(epoch, *before).error
        fleet.releaser = OutputReleaser(fleet.store, lambda: 9)
    assert fleet.found(2) == (1, {"a1": [4], "b1": [1, 2]}) and fleet.store.read_release(2).created_ns == 7


def test_epoch_without_new_outputs_writes_no_file(fleet: Fleet) -> None:
    fleet.write(5, a1=(5, 4), b1=(3, 3))
    fleet.write(6)
    assert not fleet.release(5, 4).error and not fleet.release(6, 5).error
    assert fleet.store.output_epochs() == []


def test_damaged_bytes_are_named_with_their_epoch(fleet: Fleet) -> None:
    pack = fleet.store.read_manifest(fleet.roots[2]).packs[0].path
    fleet.disk.unlink(pack)
    answer = fleet.release(2, 1)
    assert (answer.damaged_epoch, answer.damaged_path) == (2, pack) and answer.error
    fleet.disk.unlink(manifest_path(fleet.roots[2]))
    answer = OutputReleaser(fleet.store, lambda: 7).release(
        ev.ReleaseEpoch(4, fleet.roots[4], (Ancestor(2, fleet.roots[2], False),))
    )
    assert answer.damaged_epoch == 2 and answer.damaged_path.startswith("manifests/")


def test_outputs_that_are_missing_in_a_checkpoint_are_damage(fleet: Fleet) -> None:
    fleet.write(5, a1=(7, 8))
    answer = fleet.release(5, 4)
    assert answer.damaged_epoch == 5 and "beyond 4 are missing" in answer.error


# ---- condemned epochs -----------------------------------------------------------------------------------------------


def test_what_a_condemned_epoch_has_not_released_comes_with_the_next_one(fleet: Fleet) -> None:
    fleet.release(1)
    fleet.write(5, a1=(4, 5), b1=(1, 3))
    assert not fleet.release(5, 2, 1, condemned=1).error
    assert fleet.found(5) == (2, {"a1": [4, 5], "b1": [1, 2, 3]}) and fleet.found(2) == (1, {})


def test_what_a_condemned_epoch_has_released_does_not_come_again(fleet: Fleet) -> None:
    fleet.release(1)
    fleet.release(2, 1)
    fleet.disk.unlink(manifest_path(fleet.roots[2]))
    fleet.releaser = OutputReleaser(fleet.store, lambda: 9)
    assert not fleet.release(4, 2, 1, condemned=1).error
    assert fleet.found(4) == (2, {"b1": [3]})


def test_slow_leader_cannot_release_a_condemned_epoch_any_more(fleet: Fleet) -> None:
    fleet.release(1)
    fleet.write(5, a1=(1, 5), b1=(1, 3))
    slow = OutputReleaser(Store.open("simulated", disk=fleet.disk), lambda: 8)
    assert not fleet.release(5, 2, 1, condemned=1).error
    assert fleet.found(5) == (2, {"a1": [4, 5], "b1": [1, 2, 3]})
    assert not slow.release(ev.ReleaseEpoch(2, fleet.roots[2], (Ancestor(1, fleet.roots[1], False),))).error
    assert fleet.found(2) == (1, {})


def test_fall_back_writes_a_file_without_outputs(fleet: Fleet) -> None:
    fleet.release(1)
    fleet.release(2, 1)
    fleet.write(5, a1=(1, 3))
    assert not fleet.release(5, 1, is_fall_back=True).error
    assert fleet.found(5) == (1, {})


def test_store_that_is_dead_is_no_damage(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*_arguments: object, **_options: object) -> None:
        raise StoreError("no route to the store")

    monkeypatch.setattr(fleet.store, "release_outputs", dead)
    answer = fleet.release(1)
    assert answer.error == "no route to the store" and not answer.damaged_path
    with pytest.raises(NotFoundError):
        fleet.store.read_release(1)
