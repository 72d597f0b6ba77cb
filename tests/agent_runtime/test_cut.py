"""A complete cut as `stop_when` and people see it, and the way of an epoch through the store."""

import dataclasses
import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.fleet import encode_unchecked
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.coordinator_messages import ask_stop
from snapline.agent_runtime.host.epoch_files import Capture, LoadProgress, load_line, write_epoch
from snapline.agent_runtime.host.plans import creation_payload
from snapline.agent_runtime.message_encoding import encode_body, encode_message
from snapline.agent_runtime.snapshots.snapshot_cut import describe_state, load_cut
from snapline.errors import DamagedDataError, EncodingError, NotFoundError, SnaplineError
from snapline.messages.host_messages import EpochReport
from snapline.messages.payloads import describe_payload
from snapline.protocols.epoch_stamped import RecordedPart, WaitingMessage
from snapline.storage.capture.image import StateImage
from snapline.storage.packs.checkpoint import (
    BootClock,
    DeadLetterRecord,
    MadeEffect,
    OpenEffect,
    ParkedMessage,
    SavedEffects,
    SavedTimer,
    SavedTurn,
    SpawnRequest,
)
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.packs.pack import PackReference
from snapline.storage.store.store import Store


class Move(snapline.Message):
    amount: int


class Unhandled(snapline.Message):
    why: str


@dataclasses.dataclass
class Account:
    balance: int
    history: np.ndarray | None = None


class Teller(snapline.Agent):
    state: Account

    @snapline.handler
    async def on_move(self, message: Move, ctx: snapline.Context) -> None: ...


fleet = snapline.Fleet("cuts", agents={name: functools.partial(Teller, Account(5)) for name in ("a", "b")})
CREATION = creation_payload(agent_type(Teller).kind, encode_body(Account(9)))


def control(**changed: Any) -> ev.Control:
    plain = ev.Control(1, 1, True, True, False, [], [], [], [], 0)
    return msgspec.structs.replace(plain, **changed)


def capture(state: Account, **changed: Any) -> Capture:
    known = agent_type(Teller)
    return Capture(known, 0, StateImage(encode_unchecked("a", Teller(state), known)), control(**changed), 1, 2)


def record(
    sent: dict[str, int] | None = None, in_transit: dict[str, list[bytes]] | None = None, **changed: Any
) -> RecordedPart:
    messages = {
        sender: [WaitingMessage(sender, number, 0, payload) for number, payload in enumerate(payloads, 1)]
        for sender, payloads in (in_transit or {}).items()
    }
    plain = RecordedPart(1, False, sent or {}, {}, messages)
    return msgspec.structs.replace(plain, **changed)


class Written:
    """A store with one complete epoch, written as a host and the coordinator would."""

    def __init__(self, path: Path) -> None:
        self.store = Store.create(path)

    def write(self, records: dict[str, RecordedPart], captures: dict[str, Capture]) -> EpochReport:
        command = ev.StoreEpoch(1, 1, records, {"gone": {"a": 7}})
        report = write_epoch(self.store, "h1-1", 1, command, captures).report
        pack = PackReference(report.pack.path, report.pack.size_bytes, report.pack.index_digest)
        kind = agent_type(Teller).kind
        lines = [
            agent_line(entry, pack=0, kind=kind, host="h1", incarnation=1) for entry in self.store.read_pack_index(pack)
        ]
        metadata = Metadata(epoch=1, created="2025-01-01T00:00:00Z", fleet="cuts", hosts={"h1": 1})
        self.store.publish(1, self.store.write_manifest(Manifest(metadata, lines, [pack])))
        return report

    def cut(self) -> snapline.Cut:
        return load_cut(self.store, 1, fleet)

    def load(self, agents: Iterable[str], line: int = 1) -> tuple[list[ev.LoadedAgent], dict[str, Any]]:
        places = tuple(ev.Placement(agent, "", "h1", 2) for agent in agents)
        found = load_line(self.store, fleet, ev.LoadAgents(2, line, self.store.read_ref(1) if line else "", places))
        return found.agents, found.objects


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "store")


def test_a_host_without_agents_reads_nothing_of_a_line(written: Written) -> None:
    """It may join long after the plan, when the line's epoch has been pruned."""
    found = load_line(written.store, fleet, ev.LoadAgents(2, 1, "0" * 64, ()))
    assert not found.agents and not found.objects


# ---- cuts -----------------------------------------------------------------------------------------------------------


def test_a_cut_shows_states_and_messages_in_transit(written: Written) -> None:
    records = {
        "a": record({"b": 3}),
        "b": record(in_transit={"a": [encode_message(Move(1)), encode_message(Move(2))]}),
    }
    parked = [ParkedMessage("b", encode_message(Move(3)))]
    captures = {"a": capture(Account(1, np.arange(3)), outbox=parked), "b": capture(Account(2))}
    written.write(records, captures)
    cut = written.cut()
    assert cut.epoch == 1 and set(cut.states) == {"a", "b"} and len(cut.states) == 2
    state = cut.states["a"]
    assert isinstance(state, Account) and state.balance == 1 and state.history is not None
    assert cut.states["a"] is state, "decoded once"
    assert [(m.sender, m.receiver, m.number, m.message) for m in cut.in_transit] == [
        ("a", "b", None, Move(3)),
        ("a", "b", 1, Move(1)),
        ("a", "b", 2, Move(2)),
    ]
    assert not cut.is_quiet and cut.timers == 0


@pytest.mark.parametrize(
    ("changed", "is_quiet"),
    [
        ({}, True),
        ({"is_started": False}, False),
        ({"outbox": [ParkedMessage("b", b"\x01x")]}, False),
        ({"timers": [SavedTimer("t", 5, b"\x01x")]}, False),
        ({"spawns": [SpawnRequest("c", "k", b"")]}, False),
        ({"dead_letters": [DeadLetterRecord("b", b"\x01x", "no", 1, 0)], "dead_letter_count": 1}, True),
        ({"is_leaving": True}, True),
    ],
)
def test_a_cut_is_quiet_when_nothing_can_happen_any_more(
    written: Written, changed: dict[str, Any], is_quiet: bool
) -> None:
    written.write({"a": record(), "b": record()}, {"a": capture(Account(1), **changed), "b": capture(Account(2))})
    assert written.cut().is_quiet is is_quiet


def test_messages_that_no_handler_takes_are_shown_plainly(written: Written) -> None:
    """They will become dead letters; `stop_when` must not fail for them."""
    broken = b"\x04Move" + msgspec.msgpack.encode({"amount": "many"})
    nobody = [encode_message(Unhandled("x")), broken, b"\x04Move\x81"]
    written.write({"a": record(in_transit={"b": nobody}), "b": record()}, {x: capture(Account(1)) for x in "ab"})
    shown = [transit.message for transit in written.cut().in_transit]
    assert shown[:2] == [{"why": "x"}, {"amount": "many"}] and shown[2] == "<1 bytes>"


def test_an_agent_that_is_not_created_yet_has_no_state(written: Written) -> None:
    transit = {"a": [CREATION, encode_message(Move(1))]}
    records = {"a": record({"c": 2}), "c": record(is_unborn=True, in_transit=transit)}
    report = written.write(records, {"a": capture(Account(1))})
    assert dict(zip([report.names[n] for n in report.agents], report.unborn, strict=True)) == {"a": False, "c": True}
    cut = written.cut()
    assert set(cut.states) == {"a"} and "c" not in cut.states and not cut.is_quiet
    assert [transit.message for transit in cut.in_transit] == [None, {"amount": 1}]


def test_notebooks_show_a_cut_and_no_text_of_it_is_html(written: Written) -> None:
    evil = "<script>alert(1)</script>"
    letter = DeadLetterRecord("b", encode_message(Unhandled(evil)), evil, 1, 0)
    transit = {"a": [encode_message(Move(1)), encode_message(Unhandled(evil))]}
    captures = {"a": capture(Account(1), dead_letters=[letter], dead_letter_count=1), "b": capture(Account(1))}
    written.write({"a": record(), "b": record(in_transit=transit)}, captures)
    shown = written.cut()._repr_html_()
    assert "<h4>Cut of epoch 1</h4>" in shown and "<script" not in shown
    assert "<th>dead letter of</th>" in shown and "&lt;script" in shown and "{&quot;balance&quot;: 1" in shown


def test_a_cut_of_no_epoch_is_not_found(written: Written) -> None:
    with pytest.raises(NotFoundError):
        written.cut()


def test_a_predicate_that_raises_says_where(written: Written) -> None:
    written.write({"a": record()}, {"a": capture(Account(1))})
    asking = snapline.Fleet("cuts", agents=fleet.agents, stop_when=lambda cut: bool(cut.states["nobody"]))
    answer = ask_stop(asking, lambda: written.store, 1)
    assert not answer.reached
    assert re.fullmatch(r"stop_when raised KeyError: 'nobody' \(.*test_cut\.py:\d+\)", answer.error), answer.error


OPENED = SavedEffects(open=OpenEffect("k", 1, b"", "", 1, "pay", "", []))
MADE = SavedEffects(made=[MadeEffect("k", 1, "pay")])


@pytest.mark.parametrize(
    ("effects", "is_reached", "named"),
    [
        (None, True, ()),
        (OPENED, False, ("a: pay",)),
        (MADE, True, ("a: a turn that has done pay",)),
    ],
)
def test_decided_end_asks_for_effects_and_not_the_predicate(
    written: Written, effects: SavedEffects | None, is_reached: bool, named: tuple[str, ...]
) -> None:
    turn = SavedTurn("message", "z", encode_message(Move(1)), bytes(16), "", [], None)
    written.write({"a": record()}, {"a": capture(Account(1), effects=effects, turn=turn)})
    asking = snapline.Fleet("cuts", agents=fleet.agents, stop_when=lambda cut: bool(cut.states["nobody"]))
    answer = ask_stop(asking, lambda: written.store, 1, is_decided=True)
    assert (answer.reached, answer.error, answer.open_effects) == (is_reached, "", named)


# ---- reports and lines ----------------------------------------------------------------------------------------------


def test_a_report_names_every_channel_once(written: Written) -> None:
    transit = {"a": [encode_message(Move(1))], "z": [encode_message(Move(2))] * 2}
    records = {"a": record({"b": 3, "z": 4}), "b": record(received={"a": 2, "y": 5}, in_transit=transit)}
    report = written.write(records, {"a": capture(Account(1)), "b": capture(Account(2))})
    name = list(report.names)
    sent = {(name[i], name[j]): n for i, j, n in zip(report.sent_from, report.sent_to, report.sent_number, strict=True)}
    received = {
        (name[i], name[j]): (n, count)
        for i, j, n, count in zip(
            report.received_from, report.received_to, report.received_number, report.recorded_count, strict=True
        )
    }
    assert sent == {("a", "b"): 3, ("a", "z"): 4, ("gone", "a"): 7}
    assert received == {("a", "b"): (2, 1), ("y", "b"): (5, 0), ("z", "b"): (0, 2)}
    assert len(set(name)) == len(name) and report.channel_state_messages == 3
    assert report.channel_state_bytes == sum(len(payload) for payloads in transit.values() for payload in payloads)


def test_a_line_becomes_agents_again(written: Written) -> None:
    records = {"a": record({"b": 1}), "c": record(is_unborn=True, in_transit={"a": [CREATION]})}
    written.write(records, {"a": capture(Account(1, np.ones(2)), timers=[SavedTimer("t", 5, b"\x01")])})
    loaded, made = written.load(["a", "c"])
    assert [
        (each.agent, each.incarnation, each.checkpoint is None or each.checkpoint.is_unborn) for each in loaded
    ] == [
        ("a", 2, False),
        ("c", 2, True),
    ]
    assert set(made) == {"a"} and made["a"].state.balance == 1
    made["a"].state.history += 1  # its own memory


def test_line_zero_is_the_fleets_definition(written: Written) -> None:
    loaded, made = written.load(["b"], line=0)
    assert loaded == [ev.LoadedAgent("b", 2, None)] and made["b"].state.balance == 5


def test_an_agent_that_is_not_on_the_line_is_refused(written: Written) -> None:
    written.write({"a": record()}, {"a": capture(Account(1))})
    with pytest.raises(SnaplineError, match="b"):
        written.load(["b"])


def test_a_checkpoint_of_another_agent_is_damage(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    written.write({"a": record(), "b": record()}, {x: capture(Account(1)) for x in "ab"})
    read = Store.read_checkpoint
    monkeypatch.setattr(Store, "read_checkpoint", lambda self, manifest, agent: read(self, manifest, "b"))
    with pytest.raises(DamagedDataError, match="the checkpoint of a is that of b"):
        written.load(["a"])


def test_a_state_that_would_not_come_back_is_not_written(written: Written) -> None:
    """A handler has put text where a number is declared: Python lets it, and only a recovery would find out."""
    drifted = capture(Account("many"))  # type: ignore[arg-type]  # that is the point
    with pytest.raises(EncodingError, match=r"the state of agent 'a' \(Account\) .*\$.balance"):
        written.write({"a": record()}, {"a": drifted})


# ---- for people -----------------------------------------------------------------------------------------------------


def test_states_and_messages_are_described_without_their_classes(written: Written) -> None:
    written.write({"a": record()}, {"a": capture(Account(1, np.arange(2)))})
    manifest = written.store.read_manifest(written.store.read_ref(1), epoch=1)
    shown = describe_state(written.store.read_checkpoint(manifest, "a"))
    assert shown == {"balance": 1, "history": {"dtype": "<i8", "shape": [2], "values": [0, 1]}}
    assert describe_payload(encode_message(Move(3))) == {"type": "Move", "fields": {"amount": 3}}
    assert describe_payload(b"") == "<0 bytes>" and describe_payload(b"\x01\xff") == "<2 bytes>"
    assert describe_payload(b"\x01X\x81") == {"type": "X", "fields": "<1 bytes>"}
    assert describe_payload(CREATION) == {"creates": f"{__name__}:Teller", "state": {"balance": 9, "history": None}}


def test_an_unborn_agents_state_is_nothing(written: Written) -> None:
    written.write(
        {"a": record(), "c": record(is_unborn=True, in_transit={"a": [CREATION]})}, {"a": capture(Account(1))}
    )
    manifest = written.store.read_manifest(written.store.read_ref(1), epoch=1)
    assert describe_state(written.store.read_checkpoint(manifest, "c")) is None


@pytest.mark.parametrize(
    ("clock", "passed_ns"),
    [
        (BootClock("this start", 150), 50),
        (BootClock("this start", 40), 0),
        (BootClock("another start, or machine", 150), 0),
        (None, 0),
    ],
)
def test_what_has_passed_since_a_checkpoint_is_known_on_its_machine_until_it_is_booted(
    written: Written, clock: BootClock | None, passed_ns: int
) -> None:
    timed = capture(Account(1), timers=[SavedTimer("t", 5, b"\x01")])
    plain = capture(Account(1))
    timed.clock = plain.clock = BootClock("this start", 100)
    written.write({"a": record(), "b": record()}, {"a": timed, "b": plain})
    places = tuple(ev.Placement(agent, "", "h1", 2) for agent in "ab")
    order = ev.LoadAgents(2, 1, written.store.read_ref(1), places)
    found = load_line(written.store, fleet, order, clock=clock)
    assert [each.passed_ns for each in found.agents] == [passed_ns, 0], "the other has no timer, and needs no clock"


class Clock:
    now_ns = 0

    def read(self) -> int:
        return self.now_ns


@pytest.mark.parametrize("limit_s", [None, 6.0])
def test_each_second_in_the_users_code_is_progress_up_to_its_limit(written: Written, limit_s: float | None) -> None:
    clock, seen = Clock(), []
    progress = LoadProgress(clock.read, limit_s)

    def slow() -> Teller:
        for _ in range(8):
            clock.now_ns += 10**9
            seen.append(progress.steps())
        return Teller(Account(1))

    slow_fleet = snapline.Fleet("slow", agents={"a": slow})
    load_line(written.store, slow_fleet, ev.LoadAgents(1, 0, "", (ev.Placement("a", "", "h1", 1),)), progress)
    assert seen == [min(second, int(limit_s or 8)) for second in range(1, 9)]
    assert progress.steps() == 1, "afterwards it is one step"
