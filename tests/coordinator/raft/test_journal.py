"""The journal: equal to a plain list, equal after any crash, and at an end after any error (H1, H3, H4; G8, G11)."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pysyncobj.journal import Journal  # type: ignore[import-untyped]  # has no stubs
from tests.coordinator.raft.recorded_disk import can_record_sqlite
from tests.coordinator.raft.storage_scripts import (
    Stopped,
    fast_folder,
    open_journal,
)

from snapline import failpoints
from snapline.coordinator.raft import durability
from snapline.coordinator.raft.journal import Entry, ForeignLogError, SqliteJournal
from snapline.errors import LogError

recorded = pytest.mark.skipif(not can_record_sqlite(), reason="SQLite is linked where its calls cannot be recorded")


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as made:
        yield made


def filled(folder: Path, count: int = 10) -> SqliteJournal:
    journal = open_journal(folder)
    journal.setCurrentTerm(1, "a")
    for idx in range(1, count + 1):
        journal.add(b"command %d" % idx, idx, 1)
    journal.sync()
    return journal


def entries_of(folder: Path) -> list[Entry]:
    journal = open_journal(folder)
    entries = journal[:]
    journal.abandon()
    return entries


# ---- a list ---------------------------------------------------------------------------------------------------------


class ListModel(RuleBasedStateMachine):
    """The journal beside a list, cut and filled as the library does it, closed and killed at any moment."""

    @initialize()
    def begin(self) -> None:
        self.folder = fast_folder()
        self.path = self.folder.__enter__()
        self.journal = open_journal(self.path)
        self.visible: list[Entry] = []
        self.aside: list[Entry] = []
        self.term = 0
        self.durable: list[Entry] = []
        self.commit_index = self.commit_index_max = 1

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.abandon()
            self.folder.__exit__(None, None, None)

    @rule(command=st.binary(max_size=40))
    def add(self, command: bytes) -> None:
        """The next entry: of this term, or the one set aside if that is of this term too."""
        entry = (command, self.visible[-1][1] + 1 if self.visible else 1, self.term)
        if self.aside and self.aside[0][2] == self.term:
            entry = self.aside.pop(0)
        else:
            self.aside = []
        self.visible.append(entry)
        self.journal.add(*entry)

    @rule(count=st.integers(1, 5))
    def take_back(self, count: int) -> None:
        for _ in range(min(count, len(self.aside))):
            self.visible.append(self.aside.pop(0))
            self.journal.add(*self.visible[-1])

    @precondition(lambda self: len(self.visible) > 1)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(1, len(self.visible)))
        self.journal.deleteEntriesFrom(place)
        self.aside = self.visible[place:] + self.aside
        del self.visible[place:]

    @rule()
    def put_back(self) -> None:
        self.journal.put_back()
        self.visible, self.aside = self.visible + self.aside, []

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.visible)))
        self.journal.deleteEntriesTo(place)
        self.visible, self.aside = self.visible[place:] + self.aside, []

    @rule(idx=st.integers(2, 60))
    def replace(self, idx: int) -> None:
        self.journal.clear()
        self.visible, self.aside = [(b"p", idx - 1, self.term), (b"l", idx, self.term)], []
        for entry in self.visible:
            self.journal.add(*entry)

    @rule(vote=st.sampled_from([None, "a", "b"]))
    def vote(self, vote: str | None) -> None:
        self.term += 1
        self.journal.setCurrentTerm(self.term, vote)
        self.durable = self.visible + self.aside

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        self.commit_index = int(share * (self.visible[-1][1] if self.visible else 1))
        self.commit_index_max = max(self.commit_index_max, self.commit_index)
        self.journal.setRaftCommitIndex(self.commit_index)
        assert self.journal.getRaftCommitIndex() == self.commit_index

    @rule(is_timer=st.booleans())
    def sync(self, is_timer: bool) -> None:
        (self.journal.onOneSecondTimer if is_timer else self.journal.sync)()
        self.visible, self.aside = self.visible + self.aside, []
        self.durable = list(self.visible)

    @rule(is_killed=st.booleans())
    def restart(self, is_killed: bool) -> None:
        vote, boot = self.journal.getVotedForNodeId(), self.journal.boot
        (self.journal.abandon if is_killed else self.journal._destroy)()
        self.visible = self.durable if is_killed else self.visible + self.aside
        self.visible, self.aside = list(self.visible), []
        self.durable = list(self.visible)
        self.journal = open_journal(self.path)
        assert (self.journal.getCurrentTerm(), self.journal.getVotedForNodeId()) == (self.term, vote)
        assert (self.journal.boot, self.journal.is_new) == (boot + 1, False)
        assert 1 <= self.journal.getRaftCommitIndex() <= self.commit_index_max

    @invariant()
    def is_the_list(self) -> None:
        if not hasattr(self, "journal"):
            return
        assert len(self.journal) == len(self.visible)
        assert self.journal[:] == self.visible and self.journal[2:5] == self.visible[2:5]
        assert self.journal[-3:] == self.visible[-3:]
        if self.visible:
            assert self.journal[-1] == self.visible[-1] and self.journal[0] == self.visible[0]
        assert self.journal.size_bytes == sum(len(entry[0]) for entry in self.visible + self.aside)


ListModel.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
test_it_equals_a_list = ListModel.TestCase


def test_it_has_what_the_library_calls() -> None:
    names = [name for name in vars(Journal) if not name.startswith("__")] + ["__len__", "__getitem__"]
    assert len(names) == 13
    assert not [name for name in names if getattr(SqliteJournal, name) is getattr(Journal, name)]


def test_a_matching_message_writes_nothing(folder: Path) -> None:
    """V5: heartbeats and repeated entries are most of the messages."""
    journal = filled(folder)
    commits = journal.commits
    journal.deleteEntriesFrom(4)
    journal.add(*(b"command 5", 5, 1))
    assert len(journal) == 5
    journal.put_back()
    journal.sync()
    assert (len(journal), journal.commits) == (10, commits)
    journal.abandon()


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_after_a_failure_everything_fails(folder: Path) -> None:
    def fail(name: str) -> None:
        if name == "raft.journal.written":
            raise OSError(28, "No space left on device")

    journal = filled(folder)
    journal.add(b"lost", 11, 1)
    failpoints.install(fail)
    try:
        with pytest.raises(Stopped, match="No space left"):
            journal.sync()
    finally:
        failpoints.install(None)
    for call in (journal.sync, journal.clear, journal.onOneSecondTimer, lambda: journal.setCurrentTerm(2, None)):
        with pytest.raises(Stopped, match="No space left"):
            call()
    journal._destroy()
    assert len(entries_of(folder)) == 10


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ((b"x", 12, 1), "gap"),
        ((b"x", 10, 1), "gap"),
        ((b"x", 11, 0), "term 0"),
        ((b"x", 11, 2), "term 2"),
        ((b"x", 2**63, 1), "gap"),
    ],
)
def test_what_no_log_holds_is_not_written(folder: Path, entry: Entry, sentence: str) -> None:
    journal = filled(folder)
    with pytest.raises(Stopped, match=sentence):
        journal.add(*entry)
    journal.abandon()
    assert len(entries_of(folder)) == 10


def test_two_contents_under_one_index_and_term_end_the_process(folder: Path) -> None:
    journal = filled(folder)
    journal.deleteEntriesFrom(5)
    with pytest.raises(Stopped, match="two contents"):
        journal.add(b"other", 6, 1)
    journal.abandon()


@pytest.mark.parametrize(("term", "vote", "sentence"), [(1, "b", "second vote"), (1, None, "second"), (0, "a", "back")])
def test_no_second_vote_and_no_earlier_term(folder: Path, term: int, vote: str | None, sentence: str) -> None:
    journal = filled(folder)
    with pytest.raises(Stopped, match=sentence):
        journal.setCurrentTerm(term, vote)
    journal.abandon()


def test_what_the_file_cannot_hold_ends_the_process(folder: Path) -> None:
    journal = filled(folder)
    journal.setCurrentTerm(2**63, None)
    journal.add(b"x", 11, 2**63)
    with pytest.raises(Stopped, match="too large"):
        journal.sync()
    journal.abandon()


def test_fail_stop_ends_the_process_even_if_the_hook_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exited(Exception):
        pass

    def exit_now(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(os, "_exit", exit_now)
    durability.set_fail_stop_hook(lambda reason: None)  # type: ignore[arg-type,return-value]  # wrong on purpose
    try:
        with pytest.raises(Exited, match=str(durability.FAIL_STOP_EXIT_CODE)):
            durability.fail_stop("a reason")
    finally:
        durability.set_fail_stop_hook(None)


# ---- damage, and files of others --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE log SET command = CAST('x' AS BLOB) WHERE idx = 5",
        "UPDATE log SET command = 'command 5' WHERE idx = 5",
        "UPDATE log SET digest = zeroblob(16) WHERE idx = 5",
        "UPDATE log SET term = 0 WHERE idx = 5",
        "UPDATE log SET idx = 99 WHERE idx = 5",
        "DELETE FROM log WHERE idx = 5",
        "DELETE FROM log WHERE idx = 10",
        "UPDATE meta SET value = CAST('7' AS BLOB) WHERE key = 'term'",
        "UPDATE meta SET value = CAST('null' AS BLOB) WHERE key = 'vote'",
        "UPDATE meta SET key = 'veto' WHERE key = 'vote'",
        "DELETE FROM meta WHERE key = 'term'",
        "DROP TABLE log",
        "DROP TABLE meta",
    ],
)
def test_damage_is_found(folder: Path, damage: str) -> None:
    journal = filled(folder)
    journal.setRaftCommitIndex(10)
    journal.onOneSecondTimer()
    journal._destroy()
    connection = sqlite3.connect(folder / "journal", isolation_level=None)
    connection.execute(damage)
    connection.close()
    with pytest.raises(LogError, match=str(folder / "journal")):
        open_journal(folder)


def test_every_flipped_byte_of_the_file_is_found_or_changes_nothing(folder: Path) -> None:
    journal = filled(folder, 60)
    entries = journal[:]
    journal._destroy()
    good = (folder / "journal").read_bytes()
    found = 0
    for position in range(0, len(good), 31):
        (folder / "journal").write_bytes(good[:position] + bytes([good[position] ^ 0x40]) + good[position + 1 :])
        try:
            journal = open_journal(folder)
        except LogError:
            found += 1
        else:
            assert journal[:] == entries and journal.getVotedForNodeId() == "a", f"byte {position}"
            journal.abandon()
        for name in ("journal-wal", "journal-shm", "journal-journal"):
            (folder / name).unlink(missing_ok=True)
    assert found > 60


def test_files_of_another_replica_are_refused(folder: Path) -> None:
    filled(folder)._destroy()
    with pytest.raises(LogError, match="node 'a', not 'b'"):
        open_journal(folder, node="b")
    with pytest.raises(LogError, match="cluster 'c', not 'd'"):
        SqliteJournal(folder / "journal", cluster="d", node="a")
    assert len(entries_of(folder)) == 10


def test_the_replicas_are_those_that_the_log_was_opened_with_first(folder: Path) -> None:
    """A replica that is started as if it were alone would elect itself, beside the others."""
    filled(folder)._destroy()
    path = folder / "journal"
    SqliteJournal(path, cluster="c", node="a", members="a,b,c").abandon()
    for members in ("a", "a,b,d"):
        with pytest.raises(ForeignLogError, match=f"with the replicas a,b,c, not {members}.*--peers as before"):
            SqliteJournal(path, cluster="c", node="a", members=members)
    SqliteJournal(path, cluster="c", node="a").abandon()
    SqliteJournal(path, cluster="c", node="a", members="a,b,c").abandon()
    assert ForeignLogError.exit_code == 2


def test_a_second_process_is_refused(folder: Path) -> None:
    journal = filled(folder)
    with pytest.raises(LogError, match="in use"):
        open_journal(folder)
    journal.abandon()


def test_what_is_no_journal_is_refused(folder: Path) -> None:
    (folder / "journal").write_bytes(b"text" * 2000)
    with pytest.raises(LogError, match="damaged"):
        open_journal(folder)
    (folder / "journal").unlink()
    (folder / "journal").mkdir()
    with pytest.raises(LogError, match="cannot be read"):
        open_journal(folder)


def test_a_log_that_was_emptied_begins_anew(folder: Path) -> None:
    """Found by the model above: entries of the new log were taken for those of the old one, and not written."""
    journal = filled(folder)
    journal.deleteEntriesTo(10)
    for idx in (4, 5):
        journal.add(b"new", idx, 1)
    journal._destroy()
    assert entries_of(folder) == [(b"new", 4, 1), (b"new", 5, 1)]
