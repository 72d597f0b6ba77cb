"""What a plan's hosts find in the logs of the plans before."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.epoch_files import (
    ALL_LOGS,
    LogContents,
    LogTail,
    entries_beyond,
    read_logs,
    seal_and_read,
    tail_beyond,
)
from snapline.errors import DamagedDataError, StoreError
from snapline.storage.keys.key_files import Keys, make_signing_key
from snapline.storage.log.log_record import LogBatch, LoggedEntry, LoggedInput, LogName, entry_path
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, SavedInputs, SavedTurn
from snapline.storage.packs.manifest import Metadata
from snapline.storage.store.store import Store

FIRST, SECOND = LogName(1, "h1", 1), LogName(2, "h2", 3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def append(store: Store, log: LogName, number: int, *inputs: tuple[str, int]) -> bool:
    logged = [LoggedInput(agent, n, "shop", f"k{n}", b"\x01p", 5) for agent, n in inputs]
    return store.append_batch(store.prepare_batch(log, number, LogBatch(logged)))


def load(plan: int, *logs: LogName) -> ev.LoadAgents:
    return ev.LoadAgents(plan, 1, "root", (), logs)


def restored(agent: str, number: int) -> ev.LoadedAgent:
    checkpoint = AgentCheckpoint(agent=agent, kind="m:A", epoch=1, inputs=SavedInputs(number, []))
    return ev.LoadedAgent(agent, 3, checkpoint)


def found(inputs: LogContents) -> list[tuple[str, int]]:
    assert not inputs.dropped
    return numbers(inputs.inputs)


def numbers(inputs: tuple[LoggedInput, ...]) -> list[tuple[str, int]]:
    return [(each.agent, each.number) for each in inputs]


def test_agents_get_what_lies_beyond_their_checkpoints_in_the_order_of_their_numbers(store: Store) -> None:
    append(store, SECOND, 1, ("a", 3), ("b", 1))
    append(store, FIRST, 1, ("a", 1))
    append(store, FIRST, 2, ("a", 2), ("gone", 1))
    loaded = [restored("a", 1), ev.LoadedAgent("b", 3, None)]
    again = found(read_logs(store, load(3, FIRST, SECOND), loaded))
    assert again == [("a", 2), ("a", 3), ("b", 1), ("gone", 1)]
    assert found(read_logs(store, load(3, FIRST, SECOND), loaded)) == again, "a second host finds the same"


def test_logs_are_sealed_whether_anything_is_in_them_or_not(store: Store) -> None:
    append(store, FIRST, 1, ("a", 1))
    read_logs(store, load(3, FIRST, SECOND), [])
    assert not append(store, FIRST, 2, ("a", 2)) and not append(store, SECOND, 1, ("b", 1))


def test_log_that_nobody_knows_any_more_is_sealed_as_well(store: Store) -> None:
    append(store, FIRST, 1, ("a", 1))
    assert found(read_logs(store, load(3), [])) == [("a", 1)]
    assert not append(store, FIRST, 2, ("a", 2))


def test_log_whose_sealer_died_half_way_is_sealed_to_the_end(store: Store) -> None:
    """His seal stands above numbers that are still free: that there is a seal says nothing."""
    append(store, FIRST, 1, ("a", 1))
    assert store._log_writer._create_seal(FIRST, 5)
    assert found(read_logs(store, load(3), [])) == [("a", 1)]
    assert not append(store, FIRST, 2, ("a", 2))


def test_logs_of_this_plan_and_of_later_ones_are_left_alone(store: Store) -> None:
    append(store, SECOND, 1, ("a", 1))
    assert found(read_logs(store, load(2), [])) == []
    assert append(store, SECOND, 2, ("a", 2))


def test_gap_names_the_inputs_that_are_missing(store: Store) -> None:
    append(store, FIRST, 1, ("a", 5))
    expected = "the host log lacks inputs 3 to 4 of agent a"
    with pytest.raises(StoreError, match=expected):
        read_logs(store, load(3, FIRST), [restored("a", 2)])
    assert found(read_logs(store, load(3, FIRST), [restored("a", 4)])) == [("a", 5)]


def test_what_plans_before_a_restore_took_is_dropped_and_what_later_ones_took_is_given(store: Store) -> None:
    append(store, FIRST, 1, ("a", 1), ("a", 2), ("gone", 1))
    append(store, SECOND, 1, ("a", 3), ("b", 1))
    command = msgspec.structs.replace(load(4, FIRST, SECOND), drop_before=2)
    inputs = read_logs(store, command, [restored("a", 1), restored("b", 0)])
    assert numbers(inputs.dropped) == [("a", 2), ("gone", 1)] and numbers(inputs.inputs) == [("a", 3), ("b", 1)]
    again = read_logs(store, command, [restored("a", 3), restored("b", 0)])
    assert numbers(again.dropped) == [("gone", 1)] and numbers(again.inputs) == [("b", 1)], "a checkpoint holds it now"


ENTRY = JournalEntry("step", "look", b"", "done", b"r")
TURN = SavedTurn("message", "z", b"\x01p", bytes(16))


def log_entries(store: Store, log: LogName, number: int, *turns: tuple[str, int]) -> None:
    logged = [LoggedEntry(agent, turn, bytes(16), 0, b"", ENTRY) for agent, turn in turns]
    assert store.append_batch(store.prepare_batch(log, number, LogBatch([], logged)))


def test_agents_get_the_entries_of_turns_that_their_checkpoints_have_not_ended(store: Store) -> None:
    """In the order of the logs: of two that say the same the first is the one that went on."""
    log_entries(store, SECOND, 1, ("a", 2), ("a", 3))
    log_entries(store, FIRST, 1, ("a", 1), ("a", 3), ("b", 1), ("gone", 7))
    middle = AgentCheckpoint(agent="a", kind="m:A", epoch=1, saved_turns=3, saved_turn=TURN)
    loaded = [ev.LoadedAgent("a", 3, middle), ev.LoadedAgent("b", 3, None)]
    contents = read_logs(store, load(3, FIRST, SECOND), loaded)
    assert [(each.agent, each.turn) for each in contents.entries] == [("a", 3), ("b", 1), ("gone", 7), ("a", 3)]
    assert contents.inputs == () and contents.why_none == ""
    after_drop = read_logs(store, msgspec.structs.replace(load(4, FIRST, SECOND), drop_before=2), loaded)
    assert [(each.agent, each.turn) for each in after_drop.entries] == [("a", 3)], (
        "who drops the inputs drops what they came to"
    )


def test_what_was_undone_outside_is_heard_of_though_its_inputs_are_dropped(store: Store) -> None:
    """It is undone in every history: whoever asks for it again must not get what came of it."""
    undone = JournalEntry("effect", "pay/undo", b"", "done", b"r", "k/undo#1")
    failed = msgspec.structs.replace(undone, outcome="failed")
    done = msgspec.structs.replace(undone, sender="k#1")
    begun = msgspec.structs.replace(done, outcome="begun", sender="l#1")
    entries = (done, failed, undone, begun)
    logged = [LoggedEntry("a", 1, bytes(16), place, b"", entry) for place, entry in enumerate(entries)]
    assert store.append_batch(store.prepare_batch(FIRST, 1, LogBatch([], logged)))
    loaded = [ev.LoadedAgent("a", 3, None)]
    assert len(read_logs(store, load(3, FIRST), loaded).entries) == 4
    contents = read_logs(store, msgspec.structs.replace(load(4, FIRST), drop_before=2), loaded)
    assert [each.entry for each in contents.entries] == list(entries), "and so of what was done, or may have been"


def test_a_turn_of_an_earlier_release_counts_as_the_first(store: Store) -> None:
    assert AgentCheckpoint(agent="a", kind="m:A", epoch=1, saved_turn=TURN).ended_turns == 0
    assert AgentCheckpoint(agent="a", kind="m:A", epoch=1).durable_turns == 0


def test_what_is_missing_of_what_is_dropped_is_not_missed(store: Store) -> None:
    append(store, FIRST, 1, ("a", 4))
    append(store, SECOND, 1, ("a", 5))
    command = msgspec.structs.replace(load(4, FIRST, SECOND), drop_before=2)
    inputs = read_logs(store, command, [restored("a", 1)])
    assert numbers(inputs.dropped) == [("a", 4)] and numbers(inputs.inputs) == [("a", 5)]
    append(store, LogName(3, "h1", 1), 1, ("a", 7))
    with pytest.raises(StoreError, match="lacks inputs 6 to 6"):
        read_logs(store, command, [restored("a", 1)])


# -- stores with keys -------------------------------------------------------------------------------------------------


@pytest.fixture
def signed(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "signed", keys=Keys(signing=make_signing_key(b"s" * 32)))


def remove(store: Store, log: LogName, number: int) -> None:
    store.disk.unlink(entry_path(log, number))


def test_batch_that_the_coordinator_knows_of_is_looked_for(signed: Store) -> None:
    for number in (1, 2):
        append(signed, FIRST, number, ("a", number))
    command = msgspec.structs.replace(load(3, FIRST), newest=((FIRST, 2),))
    assert found(read_logs(signed, command, [])) == [("a", 1), ("a", 2)]
    remove(signed, FIRST, 2)
    assert found(read_logs(signed, load(3, FIRST), [])) == [("a", 1)], "without its word the end is not known"
    with pytest.raises(
        StoreError, match=r"batch 2 of the log of host 'h1', start 1, plan 1 was taken out .*--drop-inputs"
    ):
        read_logs(signed, command, [])


def test_log_that_is_gone_is_looked_for(signed: Store) -> None:
    command = msgspec.structs.replace(load(3, FIRST, SECOND), newest=((FIRST, 2), (SECOND, 1)))
    with pytest.raises(StoreError, match=r"batch 1 of .* and of 1 other logs was taken out"):
        read_logs(signed, command, [])


def test_batch_that_is_missing_among_others_is_found(signed: Store) -> None:
    """Its agents' inputs need not have a gap."""
    append(signed, FIRST, 1, ("a", 1))
    append(signed, FIRST, 2, ("b", 1))
    append(signed, FIRST, 3, ("a", 2))
    remove(signed, FIRST, 2)
    with pytest.raises(StoreError, match="batch 2 of"):
        read_logs(signed, load(3, FIRST), [])


def test_what_was_deleted_as_garbage_is_not_looked_for(signed: Store) -> None:
    for number in (1, 2):
        append(signed, FIRST, number, ("a", number))
    signed.seal_log(FIRST)
    signed.delete_batches([(FIRST, 1), (FIRST, 2)])
    command = msgspec.structs.replace(load(3, FIRST), newest=((FIRST, 2),))
    assert found(read_logs(signed, command, [restored("a", 2)])) == []


def test_nothing_is_looked_for_in_logs_that_are_dropped(signed: Store) -> None:
    append(signed, FIRST, 1, ("a", 1))
    append(signed, FIRST, 2, ("a", 2))
    remove(signed, FIRST, 1)
    command = msgspec.structs.replace(load(4, FIRST, SECOND), newest=((FIRST, 3), (SECOND, 1)), drop_before=3)
    assert numbers(read_logs(signed, command, []).dropped) == [("a", 2)]


def test_host_tells_its_key_where_batches_are_signed(signed: Store, store: Store) -> None:
    contents = read_logs(signed, load(3), [])
    assert contents.log_key == signed.log_key != b"" and contents.is_authenticated
    contents = read_logs(store, load(3), [])
    assert contents.log_key == b"" and not contents.is_authenticated


def test_damaged_batch_is_no_damage_of_the_epoch_that_is_restored(store: Store, signed: Store) -> None:
    """Any other epoch would ask for the same batch: all would be condemned, one after the other."""
    for each in (store, signed):
        append(each, FIRST, 1, ("a", 1))
        path = entry_path(FIRST, 1)
        remove(each, FIRST, 1)
        (Path(each.location) / path).write_bytes(b"nothing that was written by a host")
        with pytest.raises(StoreError, match=rf"{path} is damaged: .*--drop-inputs") as caught:
            read_logs(each, load(3, FIRST), [])
        assert not isinstance(caught.value, DamagedDataError)


# -- beyond a recovery line -----------------------------------------------------------------------------------------------

THIRD = LogName(2, "h1", 1)
LINE = Metadata(epoch=1, plan=2, hosts={"h1": 1, "h2": 3}, log_starts={"h1-1": 1, "h2-3": 2})


def test_only_the_batches_that_the_line_does_not_cover_are_read(store: Store) -> None:
    append(store, FIRST, 1, ("a", 1))
    append(store, THIRD, 1, ("a", 2))
    for number in (1, 2, 3):
        append(store, SECOND, number, ("b", number))
    command = load(4, FIRST, SECOND, THIRD)
    tail = tail_beyond(command, LINE)
    logs = seal_and_read(store, command, tail=tail)
    assert {log: [number for number, _ in batches] for log, batches in logs.items()} == {THIRD: [1], SECOND: [2, 3]}
    contents = entries_beyond(store, command, logs, [restored("b", 1)], tail)
    assert numbers(contents.inputs) == [("b", 2), ("b", 3)], "of other agents, earlier inputs may be missing"
    assert append(store, FIRST, 2) and not append(store, THIRD, 2), "the earlier log was sealed under the line's plan"


@pytest.mark.parametrize(
    ("line", "era", "drop_before"),
    [(None, 0, 0), (LINE, 3, 0), (LINE, 0, 3), (replace(LINE, log_starts={"h1-1": 1}), 0, 0)],
    ids=["without a line", "before the era", "before dropped logs", "a host needs earlier logs"],
)
def test_all_logs_are_read_if_the_line_may_not_cover_them(line: Metadata | None, era: int, drop_before: int) -> None:
    command = replace(load(4, FIRST, SECOND), era=era, drop_before=drop_before)
    assert tail_beyond(command, line) == ALL_LOGS
    assert tail_beyond(load(4, FIRST, SECOND), LINE) == LogTail(2, LINE.log_starts)


def test_batches_that_are_not_read_are_not_looked_for(signed: Store) -> None:
    for number in (1, 2, 3):
        append(signed, SECOND, number, ("b", number))
    command = replace(load(4, SECOND), newest=((SECOND, 3), (FIRST, 7)))
    remove(signed, SECOND, 1)
    (batches,) = seal_and_read(signed, command, tail=tail_beyond(command, LINE)).values()
    assert [number for number, _ in batches] == [2, 3]
    remove(signed, SECOND, 3)
    with pytest.raises(StoreError, match="batch 3 of"):
        seal_and_read(signed, command, tail=tail_beyond(command, LINE))
