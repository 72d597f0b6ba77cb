"""What the saver promises beyond the conformance suite: bytes, deletion, threads, crashes, types."""

import asyncio
import operator
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.langgraph import playing  # skips where LangGraph is not there

assert playing.REASON

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from tests.adapters.langgraph.playing import checkpoint, put, thread, values_of

from snapline.adapters.langgraph import SnaplineSaver
from snapline.errors import DamagedDataError, StoreError, UsageError
from snapline.storage.keys.key_files import NO_KEYS, Keys, make_wrapping_key
from snapline.storage.store.object_segments import ObjectStreamInUseError

pytestmark = pytest.mark.langgraph

VERSIONS = {"inherited": "1", "other": "2", "items": "2"}
KEYS = Keys((make_wrapping_key(b"k" * 32),))


@pytest.fixture
def saver(tmp_path: Path) -> Any:
    with SnaplineSaver.open(tmp_path / "store") as opened:
        yield opened


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Work(TypedDict):
    count: int
    load: bytes
    items: Annotated[list[str], operator.add]


def graph(saver: Any, steps: int, *, item_bytes: int = 0) -> Any:
    """Appends an item at each step, so many times."""

    def work(state: Work) -> dict[str, Any]:
        return {"count": state["count"] + 1, "items": [os.urandom(item_bytes // 2).hex()] if item_bytes else []}

    builder = StateGraph(Work)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: END if state["count"] >= steps else "work")
    return builder.compile(checkpointer=saver)


def start(load_bytes: int = 0) -> Any:
    return {"count": 0, "load": os.urandom(load_bytes), "items": []}


def run_config(name: str, steps: int) -> Any:
    return {**thread(name), "recursion_limit": steps + 10}


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_200_steps_of_a_list_that_grows_take_at_most_1_5_of_what_is_in_it(saver: Any, tmp_path: Path) -> None:
    graph(saver, 200, item_bytes=4096).invoke(start(), run_config("t", 200), durability="sync")
    assert used(tmp_path) <= 1.5 * 200 * 4096
    assert len(values_of(saver)["items"]) == 200


def test_a_megabyte_that_no_step_touches_costs_a_reference(saver: Any, tmp_path: Path) -> None:
    graph(saver, 3).invoke(start(2**20), run_config("a", 10), durability="sync")
    before = used(tmp_path)
    assert before < 1.1 * 2**20, "input and channel hold it, and it is there once"
    saver.copy_thread("a", "b")
    graph(saver, 103).invoke({"count": 3}, run_config("b", 200), durability="sync")
    assert used(tmp_path) - before <= 100 * 10 * 1024
    assert values_of(saver, "b")["load"] == values_of(saver, "a")["load"]


def test_a_branch_that_goes_back_has_its_own_values(saver: Any) -> None:
    made = graph(saver, 5, item_bytes=600)
    made.invoke(start(), run_config("t", 5), durability="sync")
    states = list(made.get_state_history(thread()))
    third = next(each for each in states if each.values.get("count") == 3)
    made.invoke(None, {**third.config, "recursion_limit": 20}, durability="sync")
    for state in states:
        assert made.get_state(state.config).values == state.values
    newest = made.get_state(thread()).values
    assert newest["items"][:3] == states[0].values["items"][:3] and newest["items"][3:] != states[0].values["items"][3:]


# -- values -----------------------------------------------------------------------------------------------------------

ITEMS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(max_size=300),
    st.binary(max_size=900), st.lists(st.integers(0, 9), max_size=4), st.tuples(st.integers(0, 9), st.text(max_size=3)),
)  # fmt: skip
EDITS = st.lists(st.tuples(st.sampled_from(["append", "insert", "drop", "set"]), ITEMS), min_size=1, max_size=60)


@given(EDITS, st.booleans())
@settings(deadline=None, max_examples=40)
def test_values_come_back_as_they_were_however_they_change(tmp_path_factory: Any, edits: Any, is_dict: bool) -> None:
    """Lists and dicts are saved as items and differences: each version must be exactly what the serializer alone gives."""
    folder = tmp_path_factory.mktemp("values")
    plain, kept = InMemorySaver().serde, []
    items: list[Any] = []
    with SnaplineSaver.open(folder) as saver:
        for number, (edit, item) in enumerate(edits):
            place = number % (len(items) + 1)
            if edit == "append":
                items = [*items, item] * (1 if len(items) > 100 else 2)
            elif edit == "insert":
                items = [*items[:place], item, *items[place:]]
            elif edit == "drop":
                items = items[:place]
            elif items:
                items = [*items[:-1], item]
            value = {f"{at}": each for at, each in enumerate(items)} if is_dict else items
            put(saver, number, {"value": value}, parent=number - 1 if number else None)
            kept.append(plain.loads_typed(plain.dumps_typed(value)))
    with SnaplineSaver.open(folder) as saver:
        for number, value in enumerate(kept):
            found = values_of(saver, number=number)["value"]
            assert found == value and list(map(type, found)) == list(map(type, value))
            assert list(found) == list(value)


def test_channels_that_are_not_new_are_as_in_the_parent_and_nobody_looks_at_them(saver: Any) -> None:
    put(saver, 1, {"a": "first" * 100, "b": "b"})
    second = checkpoint(2, {"a": object(), "b": "new"}, {"a": "1", "b": "2"})
    saver.put(thread(checkpoint="00000001"), second, {}, {"b": "2"})
    assert values_of(saver) == {"a": "first" * 100, "b": "new"}
    third = checkpoint(3, {"a": "third"}, {"a": "3"})
    saver.put(thread(checkpoint="00000404"), third, {}, {})
    assert values_of(saver) == {"a": "third"}, "without a parent they are taken as they are given"


def test_writes_come_in_the_order_in_which_their_step_applies_them(saver: Any) -> None:
    config = put(saver, 1, {"a": 1})
    saver.put_writes(config, [("a", 1), ("b", 2)], "task-9", "~path, 1")
    saver.put_writes(config, [("a", 3)], "task-1", "~path, 2")
    saver.put_writes(config, [("a", "late")], "task-9", "~path, 1")
    saver.put_writes(config, [("__error__", "one")], "task-9", "~path, 1")
    saver.put_writes(config, [("__error__", "two")], "task-9", "~path, 1")
    found = saver.get_tuple(thread()).pending_writes
    assert found == [("task-9", "__error__", "two"), ("task-9", "a", 1), ("task-9", "b", 2), ("task-1", "a", 3)]


# -- deletion ---------------------------------------------------------------------------------------------------------


def test_keep_last_keeps_so_many_and_the_folder_stays_small(tmp_path: Path) -> None:
    with SnaplineSaver.open(tmp_path / "store", keep_last=3) as saver:
        for number in range(300):
            config = put(saver, number, {"load": os.urandom(20_000), "same": "x" * 5000}, parent=number - 1)
            saver.put_writes(config, [("a", number)], "task")
        found = list(saver.list(thread()))
        assert [each.metadata["step"] for each in found] == [299, 298, 297]
        assert [each.pending_writes for each in found] == [[("task", "a", 299 - at)] for at in range(3)]
        assert used(tmp_path) < 3 * 2**20, "300 would be 6 MB"
    with pytest.raises(UsageError, match="keep_last=0"):
        SnaplineSaver.open(tmp_path / "store", keep_last=0)


def test_what_is_deleted_is_gone_from_the_files(saver: Any, tmp_path: Path) -> None:
    for number in range(30):
        put(saver, number, {"load": os.urandom(100_000)}, of="gone")
        put(saver, number, {"same": "kept" * 100}, of="kept")
    saver.delete_thread("gone")
    assert values_of(saver, "gone") is None and values_of(saver, "kept") == {"same": "kept" * 100}
    assert used(tmp_path) < 200_000


def delta_thread(saver: Any) -> None:
    """As LangGraph saves a `DeltaChannel`: a value in the second checkpoint only; the later ones are made of writes."""
    for number in range(6):
        values = {"plain": number, **({"delta": "snapshot"} if number == 1 else {})}
        metadata = {"counters_since_delta_snapshot": {"delta": [1, 1]}, "run_id": f"run-{number}"}
        versions = {"plain": f"{number}", "delta": f"{number}"}
        made = checkpoint(number, values, versions)
        above = f"{number - 1:08}" if number else None
        config = saver.put(thread(checkpoint=above), made, {"step": number, **metadata}, versions)
        saver.put_writes(config, [("delta", f"write {number}")], "task")


def test_pruning_keeps_what_a_delta_channel_is_made_of(saver: Any) -> None:
    delta_thread(saver)
    history = saver.get_delta_channel_history(config=thread(), channels=["delta"])
    saver.prune(["t"])
    assert [each.metadata["step"] for each in saver.list(thread())] == [5, 4, 3, 2, 1]
    assert saver.get_delta_channel_history(config=thread(), channels=["delta"]) == history
    assert history["delta"]["seed"] == "snapshot" and len(history["delta"]["writes"]) == 4
    with pytest.raises(UsageError, match="DeltaChannel"):
        saver.delete_for_runs(["run-3"])
    saver.delete_for_runs(["run-3", "run-4", "run-5"])
    assert [each.metadata["step"] for each in saver.list(thread())] == [2, 1]


def test_keep_last_keeps_it_too(tmp_path: Path) -> None:
    with SnaplineSaver.open(tmp_path / "store", keep_last=2) as saver:
        delta_thread(saver)
        assert [each.metadata["step"] for each in saver.list(thread())] == [5, 4, 3, 2, 1]


# -- threads, processes, crashes ----------------------------------------------------------------------------------------


def test_many_graphs_run_at_once_on_one_saver(saver: Any, tmp_path: Path) -> None:
    """In threads and in an event loop, each on its thread; others are deleted meanwhile."""
    made = graph(saver, 10, item_bytes=600)
    failed: list[BaseException] = []

    def run(name: str) -> None:
        try:
            made.invoke(start(), run_config(name, 10))
            put(saver, 1, {"a": "b" * 1000}, of=f"{name} gone")
            saver.delete_thread(f"{name} gone")
        except BaseException as error:
            failed.append(error)

    async def run_all() -> None:
        await asyncio.gather(*(made.ainvoke(start(), run_config(f"async {at}", 10)) for at in range(5)))

    threads = [threading.Thread(target=run, args=(f"sync {at}",)) for at in range(5)]
    for each in threads:
        each.start()
    asyncio.run(run_all())
    for each in threads:
        each.join()
    assert not failed
    names = [f"{kind} {at}" for kind in ("sync", "async") for at in range(5)]
    before = {name: values_of(saver, name) for name in names}
    assert all(len(values["items"]) == 10 for values in before.values())
    saver.close()
    with SnaplineSaver.open(tmp_path / "store") as again:
        assert {name: values_of(again, name) for name in names} == before
        assert {each.config["configurable"]["thread_id"] for each in again.list(None)} == set(names)


def test_a_parent_that_is_deleted_while_its_child_is_saved_is_not_needed(tmp_path: Path) -> None:
    class Deleting(JsonPlusSerializer):
        """Has the thread deleted while a value is serialized: after the parent was looked up, before the child is written."""

        is_armed = False

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            if self.is_armed and obj == "new":
                self.is_armed = False
                opened.delete_thread("t")
            return super().dumps_typed(obj)

    serde = Deleting()
    with SnaplineSaver.open(tmp_path / "store", serde=serde) as opened:
        put(opened, 1, {"inherited": "x" * 500, "items": ["y" * 500] * 3, "other": "old"})
        child = checkpoint(2, {"inherited": "x" * 500, "other": "new", "items": ["y" * 500] * 4}, VERSIONS)
        serde.is_armed = True
        opened.put(thread(checkpoint="00000001"), child, {"step": 2}, {"other": "2", "items": "2"})
        assert not serde.is_armed and [each.metadata["step"] for each in opened.list(thread())] == [2]
        assert values_of(opened) == child["channel_values"]


def test_saving_goes_on_while_others_delete_copy_and_read(saver: Any, tmp_path: Path) -> None:
    """What a change refers to may be gone when it comes to the disk. Nobody sees half of anything, and a new run can use the thread afterwards."""
    over, failed = threading.Event(), list[BaseException]()
    item = "x" * 200

    def until_over(act: Any) -> None:
        try:
            while not over.is_set():
                act()
        except BaseException as error:
            failed.append(error)

    def look() -> None:
        for each in [saver.get_tuple(thread()), *saver.list(thread(), limit=3)]:
            if each is not None:
                step = each.metadata["step"]
                assert each.checkpoint["channel_values"] == {"items": [item] * 20 + [f"{step}" * 100]}

    acts = [lambda: saver.prune(["t"]), lambda: saver.delete_thread("t"), lambda: saver.copy_thread("t", "u"), look]
    others = [threading.Thread(target=until_over, args=(act,)) for act in acts]
    for each in others:
        each.start()
    for number in range(200):
        put(saver, number, {"items": [item] * 20 + [f"{number}" * 100]}, parent=number - 1)
    over.set()
    for each in others:
        each.join()
    assert not failed
    put(saver, 200, {"items": "last"})
    saver.close()
    with SnaplineSaver.open(tmp_path / "store") as again:
        assert values_of(again) == {"items": "last"}
        look_at = again.get_tuple(thread("u"))
        assert look_at is None or look_at.checkpoint["channel_values"]["items"][:20] == [item] * 20


def test_a_second_saver_on_the_folder_is_refused(saver: Any, tmp_path: Path) -> None:
    with pytest.raises(ObjectStreamInUseError, match="in use"):
        SnaplineSaver.open(tmp_path / "store")
    command = ["import sys", "from snapline.adapters.langgraph import SnaplineSaver", "SnaplineSaver.open(sys.argv[1])"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(command), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "ObjectStreamInUseError" in done.stderr
    put(saver, 1, {"a": 1})


def test_it_works_on_an_object_store() -> None:
    pytest.importorskip("obstore")
    with SnaplineSaver.open("memory://graphs") as saver:
        graph(saver, 20, item_bytes=600).invoke(start(), run_config("t", 20))
        values = values_of(saver)
    with SnaplineSaver.open("memory://graphs") as saver:
        assert values_of(saver) == values and len(values["items"]) == 20


def test_an_encrypted_folder_shows_nothing_and_refuses_what_is_plain(tmp_path: Path) -> None:
    with SnaplineSaver.open(tmp_path / "store", keys=KEYS) as saver:
        put(saver, 1, {"channel-name": "very secret" * 100}, of="who it is")
    data = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not [word for word in (b"secret", b"channel-name", b"who it is") if word in data]
    with pytest.raises(StoreError):
        SnaplineSaver.open(tmp_path / "store", keys=NO_KEYS)
    with SnaplineSaver.open(tmp_path / "plain", keys=NO_KEYS) as saver:
        put(saver, 1, {"a": 1})
    with pytest.raises(StoreError, match="without encryption"):
        SnaplineSaver.open(tmp_path / "plain", keys=KEYS)


def test_a_damaged_value_is_an_error_and_not_another_value(saver: Any, tmp_path: Path) -> None:
    put(saver, 1, {"a": "some text " * 100})
    put(saver, 2, {"b": 1})
    saver.close()
    [path] = (tmp_path / "store" / "shelves" / "langgraph").glob("[0-9]*")
    data = path.read_bytes()
    place = data.index(b"some text ") + 3
    path.write_bytes(data[:place] + b"!" + data[place + 1 :])
    with SnaplineSaver.open(tmp_path / "store") as again, pytest.raises(DamagedDataError):
        values_of(again, number=1)


KILLED = """
import os, signal, sys
from snapline import failpoints
from snapline.adapters.langgraph import SnaplineSaver
from tests.adapters.langgraph.playing import put

def run(at):
    count = 0
    def kill(name):
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    folder = os.path.join(sys.argv[1], str(at))
    saver = SnaplineSaver.open(folder, keep_last=2)
    failpoints.install(kill)
    with open(folder + ".told", "w") as told:
        for number in range(4):
            items = ["item " * 100 + str(at) for at in range(number)]
            config = put(saver, number, {"items": items, "number": number}, parent=number - 1)
            print("put", file=told, flush=True)
            saver.put_writes(config, [("items", [f"write {number}"] * 200), ("number", number)], "task")
            print("writes", file=told, flush=True)

at, ended = 0, -1
while ended:
    at += 1
    child = os.fork()
    if not child:
        run(at)
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    assert ended in (0, signal.SIGKILL), ended
print(at)
"""


def test_a_killed_process_leaves_every_checkpoint_and_its_writes_whole(tmp_path: Path) -> None:
    """SIGKILL at every point at which something is written."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    points = int(done.stdout) - 1
    assert points > 15
    for at in range(1, points + 1):
        told = (tmp_path / f"{at}.told").read_text().split()
        with SnaplineSaver.open(tmp_path / str(at)) as saver:
            _check_after_kill(saver, puts=told.count("put"), writes=told.count("writes"))


def _check_after_kill(saver: Any, *, puts: int, writes: int) -> None:
    found = {each.metadata["step"]: each for each in saver.list(thread())}
    newest = max(found, default=-1)
    assert newest in (puts - 1, puts) and len(found) == min(newest + 1, 2)
    for number, each in found.items():
        items = ["item " * 100 + str(at) for at in range(number)]
        assert each.checkpoint["channel_values"] == {"items": items, "number": number}
        expected = [("task", "items", [f"write {number}"] * 200), ("task", "number", number)]
        assert each.pending_writes == expected or (each.pending_writes == [] and number >= writes)
    values = {"items": [], "number": 9}
    put(saver, 9, values, parent=newest)
    assert values_of(saver) == values


# ---- writes that come late ---------------------------------------------------------------------------------------------


def everything(saver: SnaplineSaver) -> list[tuple[Any, ...]]:
    """All checkpoints of all threads, and their writes."""
    return [
        (each.config["configurable"], each.checkpoint["channel_values"], each.pending_writes)
        for each in saver.list(None)
    ]


def test_a_checkpoint_that_comes_late_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    with SnaplineSaver.open(tmp_path / "store", keep_last=1) as saver:
        put(saver, 1, {"value": "first"})
        put(saver, 3, {"value": "new"}, parent=1)
        before = everything(saver)
        assert put(saver, 2, {"value": "old"}, parent=1) == thread("t", checkpoint=f"{2:08}")
        saver.put_writes(thread("t", checkpoint=f"{2:08}"), [("value", "old")], "task")
        assert everything(saver) == before and values_of(saver) == {"value": "new"}
        assert not saver._objects.entries(("t", "", f"{2:08}")), "its writes are not left behind"


DELETIONS: dict[str, Any] = {
    "thread": lambda saver: saver.delete_thread("t"),
    "runs": lambda saver: saver.delete_for_runs(["run"]),
    "prune": lambda saver: saver.prune(["t"]),
    "prune all": lambda saver: saver.prune(["t"], strategy="delete"),
}


@pytest.mark.parametrize("deletion", DELETIONS)
@pytest.mark.parametrize("is_used_again", [False, True])
def test_what_a_run_saves_after_its_deletion_changes_nothing(
    saver: SnaplineSaver, deletion: str, is_used_again: bool
) -> None:
    put(saver, 1, {"value": "first"}, run_id="run")
    put(saver, 2, {"value": "second"}, parent=1, run_id="run")
    put(saver, 5, {"value": "third"}, parent=2, run_id="run")
    DELETIONS[deletion](saver)
    if is_used_again:
        put(saver, 6, {"value": "new"}, parent=5 if deletion == "prune" else None, run_id="other")
    before = everything(saver)
    put(saver, 3, {"value": "late"}, parent=2, run_id="run")
    put(saver, 4, {"value": "later"}, parent=3, run_id="run")
    for number in (2, 3, 4):
        saver.put_writes(thread("t", checkpoint=f"{number:08}"), [("value", "late")], "task")
    assert everything(saver) == before
    if deletion != "prune":
        put(saver, 7, {"value": "latest"}, parent=4, run_id="run")
        assert everything(saver) == before, "a run that goes on is not there any more"


def test_a_deleted_thread_can_be_put_back(saver: SnaplineSaver) -> None:
    put(saver, 1, {"value": "first"})
    put(saver, 2, {"value": "second"}, parent=1)
    before = everything(saver)
    saver.delete_thread("t")
    put(saver, 1, {"value": "first"})
    put(saver, 2, {"value": "second"}, parent=1)
    assert everything(saver) == before


async def test_a_cancelled_coroutine_ends_when_its_write_is_over(
    saver: SnaplineSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    commit = saver._objects.commit

    def slowly(change: Any) -> None:
        begun.set()
        assert may_go_on.wait(20)
        commit(change)

    monkeypatch.setattr(saver._objects, "commit", slowly)
    made = checkpoint(1, {"value": "old"})
    writing = asyncio.create_task(saver.aput(thread(), made, {"step": 1}, made["channel_versions"]))
    await asyncio.to_thread(begun.wait, 20)
    writing.cancel()
    await asyncio.sleep(0)
    writing.cancel()
    done, _ = await asyncio.wait([writing], timeout=0.05)
    assert not done
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert values_of(saver) == {"value": "old"}
