"""What a plan's hosts find in the logs of the plans before."""

from pathlib import Path

import pytest

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.log_files import read_logs
from snapline.errors import StoreError
from snapline.storage.log.names import LogName
from snapline.storage.log.records import LogBatch, LoggedInput
from snapline.storage.packs.checkpoint import AgentCheckpoint, SavedInputs
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


def found(inputs: tuple[LoggedInput, ...]) -> list[tuple[str, int]]:
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
    assert read_logs(store, load(2), []) == ()
    assert append(store, SECOND, 2, ("a", 2))


def test_gap_names_the_inputs_that_are_missing(store: Store) -> None:
    append(store, FIRST, 1, ("a", 5))
    expected = "the host log lacks inputs 3 to 4 of agent a"
    with pytest.raises(StoreError, match=expected):
        read_logs(store, load(3, FIRST), [restored("a", 2)])
    assert found(read_logs(store, load(3, FIRST), [restored("a", 4)])) == [("a", 5)]
