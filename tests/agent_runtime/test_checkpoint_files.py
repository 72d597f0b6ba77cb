"""Checkpoints that agents take on their own: what is written, and what the coordinator is told of it."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.fleet import encode_state, encode_unchecked, restored
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.checkpoint_writer import TakenCheckpoint, write_checkpoints
from snapline.agent_runtime.message_encoding import encode_message
from snapline.errors import EncodingError, UsageError
from snapline.messages.host_messages import CheckpointsStored
from snapline.storage.capture.image import StateImage
from snapline.storage.packs.checkpoint import (
    DeadLetterRecord,
    InTransitMessage,
    ParkedMessage,
    SavedTimer,
    SpawnRequest,
)
from snapline.storage.packs.pack import PackReference
from snapline.storage.store.store import Store


class Move(snapline.Message):
    amount: int


@dataclasses.dataclass
class Account:
    balance: int


class Teller(snapline.Agent):
    state: Account
    state_version = 7

    @snapline.handler
    async def on_move(self, message: Move, ctx: snapline.Context) -> None: ...


fleet = snapline.Fleet("files", agents={"a": lambda: Teller(Account(5))})
KNOWN = agent_type(Teller)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def taken(agent: str, number: int = 3, **changed: Any) -> TakenCheckpoint:
    """A forced checkpoint; `changed` goes into the command."""
    control = ev.Control(2, number, True, True, False, [], [], [], [], 0, b"protocol")
    command = ev.TakeCheckpoint(agent, "forced", 0, control, {}, {}, {}, {}, {}, 0)
    command = msgspec.structs.replace(command, **changed)
    return TakenCheckpoint(KNOWN, 7, StateImage(encode_state(agent, Teller(Account(number)), KNOWN)), command, 1000, 20)


def log_of(first: int, *payloads: bytes) -> list[InTransitMessage]:
    return [InTransitMessage(number, 0, payload, b"xy") for number, payload in enumerate(payloads, first)]


def reference_of(report: CheckpointsStored) -> PackReference:
    return PackReference(report.pack.path, report.pack.size_bytes, report.pack.index_digest)


def told(report: CheckpointsStored) -> list[tuple[str, int, str, int, dict[str, int], dict[str, int]]]:
    """The columns as rows: agent, number, basis, turns, changed sent, changed received."""
    names = list(report.names)
    assert len(set(names)) == len(names)
    rows = [
        (names[agent], number, basis, turns, dict[str, int](), dict[str, int]())
        for agent, number, basis, turns in zip(report.agents, report.numbers, report.bases, report.turns, strict=True)
    ]
    for of, to, number in zip(report.sent_of, report.sent_to, report.sent_number, strict=True):
        assert names[to] not in rows[of][4]
        rows[of][4][names[to]] = number
    for of, sender, number in zip(report.received_of, report.received_from, report.received_number, strict=True):
        assert names[sender] not in rows[of][5]
        rows[of][5][names[sender]] = number
    return rows


def test_checkpoint_holds_state_channels_log_and_control(store: Store) -> None:
    control = ev.Control(
        2, 4, True, True, True, [ParkedMessage("b", b"p")], [SpawnRequest("n", "k", b"s")], [SavedTimer("t", 5, b"")],
        [DeadLetterRecord("b", b"d", "no handler", 1, 9)], 3, b"image of the protocol",
    )  # fmt: skip
    log = {"b": log_of(8, b"one", b"two"), "c": log_of(1, b"three")}
    report = write_checkpoints(
        store, "h1-1", 5, [taken("a", control=control, sent={"b": 9, "c": 1}, received={"b": 4}, log=log, turns=6)]
    )
    (found,) = store.read_checkpoint_pack(reference_of(report))
    assert (found.agent, found.kind, found.number, found.incarnation) == ("a", KNOWN.kind, 4, 2)
    assert (found.epoch, found.basis, found.round, found.turns) == (0, "forced", 0, 6)
    assert (found.sent, found.received, found.in_transit) == ({"b": 9, "c": 1}, {"b": 4}, {})
    assert found.sender_log == log
    assert (found.outbox, found.spawns, found.timers) == (control.outbox, control.spawns, control.timers)
    assert (found.dead_letters, found.dead_letter_count) == (control.dead_letters, 3)
    assert (found.is_unborn, found.is_started, found.is_leaving) == (False, True, True)
    assert (found.protocol_state, found.recorded_ns) == (b"image of the protocol", 1000)
    assert (found.state_type, found.state_version, found.state_fields) == (KNOWN.state_name, 7, KNOWN.state_fields)
    assert restored(fleet, found).state == Account(3)


def test_report_names_pack_numbers_and_changed_channels(store: Store) -> None:
    captures = [
        taken("a", 1, sent={"b": 9, "c": 1}, changed_sent={"b": 9}, received={"c": 2}, turns=4,
              log={"b": log_of(9, encode_message(Move(1)))}),
        taken("b", 2, changed_received={"a": 3, "d": 1}, basis="basic"),
        taken("e", 0, basis="initial"),
    ]  # fmt: skip
    captures[1].capture_ns = 50
    report = write_checkpoints(store, "h1-1", 5, captures)
    assert told(report) == [
        ("a", 1, "forced", 4, {"b": 9}, {}),
        ("b", 2, "basic", 0, {}, {"a": 3, "d": 1}),
        ("e", 0, "initial", 0, {}, {}),
    ]
    assert (report.plan, report.epoch, report.host_start, report.sequence) == (5, 0, 0, 0)
    assert report.pack.path.startswith("checkpoints/h1-1/5.") and store.checkpoint_packs(5) == [report.pack.path]
    assert [x.agent for x in store.read_checkpoint_pack(reference_of(report))] == ["a", "b", "e"]
    assert (report.log_messages, report.log_bytes) == (1, len(encode_message(Move(1))) + 2)
    assert report.state_bytes == sum(x.image.size_bytes for x in captures) and report.capture_ns == 50


def test_reports_and_files_agree(store: Store) -> None:
    """Random tables; the columns say the same as the files, for every channel that changed."""
    source = random.Random(1)
    agents = [f"a{n}" for n in range(8)]
    for _ in range(50):
        captures = []
        for agent in source.sample(agents, source.randint(0, 8)):
            tables = [{x: source.randint(1, 99) for x in source.sample(agents, source.randint(0, 8))} for _ in range(2)]
            changed = [dict(source.sample(sorted(x.items()), source.randint(0, len(x)))) for x in tables]
            log = {x: log_of(1, *[b"m" * source.randint(0, 5)] * source.randint(1, 3)) for x in changed[0]}
            captures.append(
                taken(agent, source.randint(0, 9), sent=tables[0], received=tables[1], changed_sent=changed[0],
                      changed_received=changed[1], log=log, turns=source.randint(0, 9))
            )  # fmt: skip
        report = write_checkpoints(store, "h1-1", 1, captures)
        found = store.read_checkpoint_pack(reference_of(report))
        rows = told(report)
        assert [(x.agent, x.number, x.basis, x.turns) for x in found] == [row[:4] for row in rows]
        for checkpoint, row, capture in zip(found, rows, captures, strict=True):
            assert row[4] == capture.command.changed_sent and row[5] == capture.command.changed_received
            assert row[4].items() <= checkpoint.sent.items() and row[5].items() <= checkpoint.received.items()
        logged = [message for x in found for channel in x.sender_log.values() for message in channel]
        assert (report.log_messages, report.log_bytes) == (
            len(logged),
            sum(len(x.payload) + len(x.piggyback) for x in logged),
        )


def test_tentative_checkpoints_name_their_round(store: Store) -> None:
    report = write_checkpoints(
        store, "h1-1", 1, [taken("a", basis="tentative", round=6), taken("b", basis="initial"),
                           taken("c", basis="tentative", round=6)]
    )  # fmt: skip
    assert report.epoch == 6 and list(report.bases) == ["tentative", "initial", "tentative"]
    assert [x.round for x in store.read_checkpoint_pack(reference_of(report))] == [6, 0, 6]


def test_state_that_would_not_come_back_is_refused_and_nothing_written(store: Store) -> None:
    spoilt = taken("b")
    spoilt.image = StateImage(encode_unchecked("b", Teller(Account("no number")), KNOWN))  # type: ignore[arg-type]  # on purpose
    with pytest.raises(EncodingError, match=r"state of agent 'b'.* does not come back as declared"):
        write_checkpoints(store, "h1-1", 1, [taken("a"), spoilt])
    assert store.checkpoint_packs() == []


def test_agent_may_come_several_times_and_is_named_once_in_the_report(store: Store) -> None:
    captures = [
        taken("a", 1, changed_sent={"b": 2}, log={"b": log_of(1, b"x", b"y")}),
        taken("b", 1, changed_received={"a": 1}),
        taken("a", 2, changed_sent={"b": 3}, log={"b": log_of(3, b"z")}),
        taken("a", 3, changed_received={"b": 1}),
    ]
    report = write_checkpoints(store, "h1-1", 1, captures)
    assert told(report) == [
        ("a", 1, "forced", 0, {"b": 2}, {}),
        ("b", 1, "forced", 0, {}, {"a": 1}),
        ("a", 2, "forced", 0, {"b": 3}, {}),
        ("a", 3, "forced", 0, {}, {"b": 1}),
    ]
    found = store.read_checkpoint_pack(reference_of(report))
    assert [(x.agent, x.number) for x in found] == [("a", 1), ("b", 1), ("a", 2), ("a", 3)]
    assert [x.number for channel in (found[0], found[2]) for x in channel.sender_log["b"]] == [1, 2, 3]
    assert report.log_messages == 3


@pytest.mark.parametrize(
    "captures", [[taken("a"), taken("b"), taken("a")], [taken("a", round=1, basis="tentative"), taken("b", round=2)]]
)
def test_what_cannot_be_one_pack_is_refused(store: Store, captures: list[TakenCheckpoint]) -> None:
    with pytest.raises(UsageError, match=r"comes twice|rounds \[1, 2\]"):
        write_checkpoints(store, "h1-1", 1, captures)
    assert store.checkpoint_packs() == []
