"""A recovery line becomes an epoch: exactly the messages in transit, in order, or an error that says why not.

The oracle is a fleet of plain message lists (`line_fleet.py`).
"""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.coordinator.line_fleet import Simulated, Taken

from snapline.coordinator.leader import events as ev
from snapline.coordinator.service import line_store
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state.fleet_view import FleetView
from snapline.errors import StoreError
from snapline.storage.store.store import Store


def _states(fleet: Simulated, line: dict[str, Taken], base: dict[str, bytes]) -> dict[str, bytes]:
    """What each agent's state on the line must be: the base's, unless its checkpoint was taken after the base."""
    return {
        agent: base[agent] if fleet.base.get(agent) == x.number else fleet.state_of(agent, x.number)
        for agent, x in line.items()
        if x.path
    }


def _live(seed: int) -> tuple[int, int, int, int]:
    """One random life with several epochs and rollbacks; returns lines, messages in transit, unborn agents seen, and agents
    of which a line needed several checkpoints out of one pack."""
    fleet = Simulated(seed)
    base: dict[str, bytes] = {}
    lines = in_transit = unborn = several = 0
    for _ in range(fleet.random.randint(2, 5)):
        for _ in range(fleet.random.randint(5, 50)):
            fleet.step()
        line = fleet.line()
        command = fleet.command(line)
        several += len([agent for agent in command.agents if len(set(agent.paths)) < len(agent.paths)])
        done = fleet.materialise(command)
        states = _states(fleet, line, base)
        fleet.check_epoch(line, done, states)
        lines, in_transit, unborn = lines + 1, in_transit + done.channel_state_messages, unborn + len(done.unborn)
        fleet.rebase(line, done.root)
        base = states
        if fleet.random.random() < 0.5:
            fleet.roll_back(line)
    assert fleet.store.verify().is_whole
    return lines, in_transit, unborn, several


def test_epochs_hold_exactly_the_messages_in_transit() -> None:
    totals = [_live(seed) for seed in range(20)]
    lines, in_transit, unborn, several = [sum(column) for column in zip(*totals, strict=True)]
    assert lines > 50
    assert in_transit > 150, "channel states are not empty"
    assert unborn > 6, "agents are unborn"
    assert several > 15, "agents have several checkpoints in a pack"


@pytest.mark.slow
def test_epochs_hold_exactly_the_messages_in_transit_many() -> None:
    for seed in range(1000, 3000):
        _live(seed)


def _keep_received(incoming: line_store._Incoming, receiver: str, member: line_store._Member) -> dict[str, object]:
    found = member.base.in_transit if member.base else {}
    return {**found, **incoming._logs[receiver]}


def _forget_base(incoming: line_store._Incoming, receiver: str, member: line_store._Member) -> dict[str, object]:
    return dict(incoming._logs[receiver])


@pytest.mark.parametrize("mutant", [_keep_received, _forget_base])
def test_the_property_catches_wrong_channel_states(
    mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_store._Incoming, "of", mutant)
    with pytest.raises(AssertionError):
        for seed in range(60):
            _live(seed)


def _read_one_of_each_agent(
    store: Store, command: ev.MaterialiseLine, path: str, wanted: dict[str, list[int]]
) -> object:
    return _read_pack(store, command, path, {agent: numbers[-1:] for agent, numbers in wanted.items()})


_read_pack = line_store._read_pack


def test_the_property_catches_a_reader_that_takes_one_checkpoint_of_each_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_store, "_read_pack", _read_one_of_each_agent)
    with pytest.raises(AssertionError):
        for seed in range(60):
            _live(seed)


# ---- lines that are none --------------------------------------------------------------------------------------------


@pytest.fixture
def fleet() -> Simulated:
    """a has sent two messages to b, which took one; both have checkpoint 1, and a has sent a third one since."""
    made = Simulated()
    made.send("a", "b")
    made.send("a", "b")
    made.receive("a", "b")
    made.take(["a", "b"])
    made.send("a", "b")
    return made


def _with(command: ev.MaterialiseLine, agent: str, **changed: object) -> ev.MaterialiseLine:
    agents = [msgspec.structs.replace(x, **changed) if x.agent == agent else x for x in command.agents]
    return msgspec.structs.replace(command, agents=tuple(agents))


def _refused(fleet: Simulated, command: ev.MaterialiseLine) -> str:
    """The error of a command that is refused without blaming a file; nothing is written then."""
    before = fleet.disk.files()
    done = fleet.materialise(command)
    assert done.error and (done.root, done.damaged_path, done.damaged_agent) == ("", "", "")
    assert fleet.disk.files() == before
    return done.error


def test_orphan_is_refused(fleet: Simulated) -> None:
    line = fleet.line() | {"a": fleet.taken["a"][0]}
    error = _refused(fleet, fleet.command(line))
    assert "NOT consistent: on channel a→b message 1 was received, and 0 were sent" in error


def test_gap_in_a_log_is_refused_and_named(fleet: Simulated) -> None:
    """As if the host had forgotten what was sent before an aborted round."""
    fleet.logged["a", "b"] = 3
    fleet.send("a", "b")
    fleet.take(["a"])
    error = _refused(fleet, fleet.command(fleet.line()))
    assert "on channel a→b are not all there" in error and "hold 2, 4, 2 to 4 must be" in error


def test_message_logged_twice_is_refused(fleet: Simulated) -> None:
    fleet.logged["a", "b"] = 1
    fleet.take(["a"])
    assert "hold 2, 2, 3, 2 to 3 must be" in _refused(fleet, fleet.command(fleet.line()))


def test_line_that_does_not_fit_its_base_is_refused(fleet: Simulated) -> None:
    line = fleet.line()
    command = fleet.command(line)
    for changed in (
        _with(command, "a", number=3),
        _with(command, "a", base_number=1),
        _with(command, "a", paths=()),
        _with(command, "c", paths=(), number=1),
        msgspec.structs.replace(command, packs={}),
    ):
        error = _refused(fleet, changed)
        assert "agent a" in error or "agent c" in error or "nothing was reported of it" in error
    done = fleet.materialise(command)
    fleet.rebase(line, done.root)
    command = fleet.command(line)
    assert "does not fit" in _refused(fleet, _with(command, "a", base_number=0, number=0))
    assert "does not fit" in _refused(fleet, _with(command, "a", base_number=-1))
    assert "does not fit" in _refused(fleet, _with(command, "a", number=2))


def test_tentative_checkpoint_of_another_round_is_refused(fleet: Simulated) -> None:
    fleet.take(["a", "b"], basis="tentative", round_=7)
    command = msgspec.structs.replace(fleet.command(fleet.line()), epoch=7)
    assert "belongs to round 7" in _refused(fleet, msgspec.structs.replace(command, epoch=8))
    assert fleet.materialise(command).error == ""


# ---- membership -----------------------------------------------------------------------------------------------------


def test_agents_not_made_yet_keep_what_waits_for_them(fleet: Simulated) -> None:
    """Unborn over two epochs: the creating message is handed on; one whose creation is void is a placeholder."""
    fleet.create("a")
    fleet.create("c")
    fleet.take(["a"])
    for _ in range(2):
        line = fleet.line()
        done = fleet.materialise(fleet.command(line))
        assert set(done.unborn) == {"n1", "n2"}
        manifest = fleet.store.read_manifest(done.root)
        assert [x.payload for x in fleet.store.read_checkpoint(manifest, "n1").in_transit["a"]] == [
            fleet.sent["a", "n1"][0]
        ]
        assert fleet.store.read_checkpoint(manifest, "n2").in_transit == {}
        fleet.rebase(line, done.root)
    fleet.receive("a", "n1")
    fleet.take(["n1"])
    assert fleet.materialise(fleet.command(fleet.line())).unborn == ("n2",)


def _without(command: ev.MaterialiseLine, agent: str) -> ev.MaterialiseLine:
    return msgspec.structs.replace(command, agents=tuple([x for x in command.agents if x.agent != agent]))


def test_removed_agents_leave_nothing_behind(fleet: Simulated) -> None:
    """c has left: all it sent is received inside the base. What was sent to it is dead letters."""
    fleet.send("c", "b")
    fleet.receive("c", "b")
    fleet.take(["b", "c"])
    line = fleet.line()
    fleet.rebase(line, fleet.materialise(fleet.command(line)).root)
    fleet.send("a", "c")
    fleet.take(["a"])
    line = fleet.line()
    for _ in range(2):  # first it is in the base still, then not even there
        done = fleet.materialise(_without(fleet.command(line), "c"))
        assert done.error == ""
        manifest = fleet.store.read_manifest(done.root)
        assert [x.agent for x in manifest.agents] == ["a", "b"]
        assert set(fleet.store.read_checkpoint(manifest, "b").in_transit) == {"a"}
        fleet.rebase(line, done.root)
        fleet.base.pop("c")


def test_message_of_a_stranger_is_an_orphan(fleet: Simulated) -> None:
    """Not of an agent that was removed: such messages were received inside the base."""
    fleet.create("a")
    fleet.take(["a"])
    fleet.receive("a", "n1")
    fleet.send("n1", "b")
    fleet.receive("n1", "b")
    fleet.take(["b", "n1"])
    error = _refused(fleet, _without(fleet.command(fleet.line()), "n1"))
    assert "NOT consistent: on channel n1→b message 1 was received, and the sender is not in the line" in error


# ---- damage ---------------------------------------------------------------------------------------------------------


def _damage(fleet: Simulated, path: str, offset: int | None = None) -> None:
    node = fleet.disk.nodes[path]
    assert node is not None
    if offset is None:
        del fleet.disk.nodes[path]
    else:
        data = bytearray(node.data)
        data[offset] ^= 1
        node.data = bytes(data)


def test_damaged_checkpoint_is_named_with_its_agent(fleet: Simulated) -> None:
    command = fleet.command(fleet.line())
    path = fleet.taken["b"][-1].path
    node = fleet.disk.nodes[path]
    assert node is not None
    _damage(fleet, path, node.data.rindex(b"SNAPBLOB") + 130)
    done = fleet.materialise(command)
    assert (done.root, done.damaged_path, done.damaged_agent) == ("", path, "b")
    assert "agent 'b', checkpoint 1 is damaged" in done.error
    _damage(fleet, path)
    done = fleet.materialise(command)
    assert (done.damaged_path, done.damaged_agent) == (path, "") and "missing" in done.error


def test_checkpoint_that_is_not_the_reported_one_is_damage(fleet: Simulated) -> None:
    first, second = fleet.taken["a"][0].path, fleet.taken["a"][1].path
    command = fleet.command(fleet.line())
    done = fleet.materialise(_with(command, "a", paths=(second, first)))
    assert (done.damaged_path, done.damaged_agent) in (
        (first, ""),
        (second, ""),
    ) and "not what was reported" in done.error
    done = fleet.materialise(_with(command, "a", paths=(first, first)))
    assert done.damaged_path == first and "holds no checkpoint 1 of agent 'a'" in done.error
    done = fleet.materialise(_with(command, "c", paths=(first, second), number=1))
    assert (done.damaged_path, done.damaged_agent) == (second, "") and "not what was reported" in done.error


@pytest.mark.parametrize("what", ["manifests/", "packs/"])
def test_damage_of_the_base_is_named(fleet: Simulated, what: str) -> None:
    line = fleet.line()
    done = fleet.materialise(fleet.command(line))
    fleet.rebase(line, done.root)
    path = next(path for path in fleet.disk.files() if path.startswith(what))
    node = fleet.disk.nodes[path]
    assert node is not None
    _damage(fleet, path, 60 if what == "manifests/" else node.data.index(b"SNAPBLOB") + 130)
    done = fleet.materialise(fleet.command(line))
    assert done.damaged_path == path and done.root == "" and done.error
    assert done.damaged_agent == ("a" if what == "packs/" else "")
    scanned = fleet.keeper.scan(ev.ScanCheckpoints(1, fleet.base_epoch, fleet.base_root))
    assert scanned.damaged_path == path and scanned.error and not scanned.found


def test_store_that_cannot_be_written_blames_no_file(fleet: Simulated) -> None:
    command = fleet.command(fleet.line())
    assert fleet.materialise(command).error == ""
    calls = len(fleet.disk.calls)
    assert fleet.keeper.materialise(msgspec.structs.replace(command, epoch=40)).error == ""
    count = len(fleet.disk.calls) - calls
    assert count >= 10
    for moment in range(count):
        fleet.disk.fail_at = len(fleet.disk.calls) + moment
        done = fleet.keeper.materialise(msgspec.structs.replace(command, epoch=2 + moment))
        fleet.disk.fail_at = None
        assert (done.root, done.damaged_path) == ("", "") and "cannot write" in done.error
    assert fleet.keeper.materialise(msgspec.structs.replace(command, epoch=50)).error == ""


def test_line_may_be_materialised_again(fleet: Simulated) -> None:
    """After a crash before the epoch was complete: another pack, another manifest, the same cut.

    Within one millisecond the creation times are equal; no real disk is so fast.
    """
    command = fleet.command(fleet.line())
    first, *later = [fleet.keeper.materialise(command) for _ in range(20)]
    second = next(x for x in later if not x.error)
    assert first.error == "" and first.root != second.root
    found = [list(fleet.store.read_checkpoints(fleet.store.read_manifest(x.root))) for x in (first, second)]
    assert found[0] == found[1]


# ---- scans ----------------------------------------------------------------------------------------------------------


def _scan(fleet: Simulated, plan: int | None = None) -> ev.CheckpointsScanned:
    found = fleet.keeper.scan(ev.ScanCheckpoints(plan or fleet.plan, fleet.base_epoch, fleet.base_root))
    assert found.error == "" and (found.plan, found.base_epoch) == (plan or fleet.plan, fleet.base_epoch)
    return found


def test_scan_finds_all_that_was_written(fleet: Simulated) -> None:
    fleet.create("a")
    fleet.take(["a"])
    scanned = _scan(fleet)
    assert scanned.base == ()
    assert [(x.agent, x.number, x.basis) for x in scanned.found] == [
        ("a", 0, "initial"), ("a", 1, "basic"), ("a", 2, "basic"), ("b", 0, "initial"), ("b", 1, "basic"),
        ("c", 0, "initial"),
    ]  # fmt: skip
    for stored in scanned.found:
        taken = fleet.taken[stored.agent][stored.number]
        assert (stored.sent, stored.received, stored.turns) == (taken.sent, taken.received, stored.number)
        assert stored.pack == fleet.packs[taken.path] and stored.epoch == 0
    logged = sum(len(x) + 9 for x in fleet.sent["a", "b"][:2])
    assert [x.log_bytes for x in scanned.found[:2]] == [0, logged]
    line = fleet.line()
    done = fleet.materialise(fleet.command(line))
    fleet.rebase(line, done.root)
    base = {x.agent: x for x in _scan(fleet).base}
    assert list(base) == ["a", "b", "c", "n1"]
    assert [(x.number, x.basis, x.epoch) for x in base.values()] == [
        (2, "basic", 1), (1, "basic", 1), (0, "initial", 1), (0, "unborn", 1),
    ]  # fmt: skip
    assert base["b"].received == {"a": 1} and base["n1"].sent == base["n1"].received == {}
    assert base["a"].pack.path.startswith("packs/coordinator-0/1.")


def test_scan_takes_one_plan_and_tells_rounds_apart(fleet: Simulated) -> None:
    fleet.plan = 2
    for round_ in (5, 4):  # the first one of the same number was aborted
        fleet.take(["b"], basis="tentative", round_=round_, first=2)
    assert [(x.agent, x.number, x.epoch, x.basis) for x in _scan(fleet).found] == [
        ("b", 2, 4, "tentative"), ("b", 2, 5, "tentative"),
    ]  # fmt: skip
    assert len(_scan(fleet, 1).found) == 5 and _scan(fleet, 3).found == ()


def test_scan_leaves_damaged_packs_out_and_says_so(fleet: Simulated, caplog: pytest.LogCaptureFixture) -> None:
    path = fleet.taken["a"][1].path
    _damage(fleet, path, 200)
    with caplog.at_level(logging.WARNING, "snapline.coordinator"):
        assert [(x.agent, x.number) for x in _scan(fleet).found] == [("a", 0), ("b", 0), ("c", 0)]
    assert path in caplog.text


def test_scan_of_a_store_that_cannot_be_read_is_an_error(fleet: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(plan: int) -> list[str]:
        raise StoreError("not mounted")

    monkeypatch.setattr(fleet.store, "checkpoint_packs", refuse)
    scanned = fleet.keeper.scan(ev.ScanCheckpoints(1, 0, ""))
    assert (scanned.error, scanned.damaged_path) == ("not mounted", "")


# ---- deleting -------------------------------------------------------------------------------------------------------


def test_keeper_deletes_and_sweeps_quietly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store.create(tmp_path / "store")
    keeper = StoreKeeper(store, FleetView())
    paths = [store.write_checkpoints(writer="h", plan=plan, blobs=[]).path for plan in (1, 1, 2, 3)]
    keeper.delete_checkpoints(ev.DeleteCheckpoints((paths[0],)))
    keeper.delete_checkpoints(ev.DeleteCheckpoints((paths[0],)))
    assert store.checkpoint_packs() == sorted(paths[1:])
    keeper.sweep_checkpoints(ev.SweepCheckpoints(3, kept=(paths[2],)))
    assert store.checkpoint_packs() == sorted(paths[2:])
    keeper.delete_checkpoints(ev.DeleteCheckpoints(("packs/h/1.x",)))
    assert "checkpoints remain in the store" in caplog.text
