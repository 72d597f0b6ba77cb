"""What tools are shown, from a store and from the state alone."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.coordinator.conftest import Agreed

from snapline.coordinator.service.documents import decode_payload, list_snapshots, show_document, verify
from snapline.coordinator.service.fleet_answers import (
    coordinated_line,
    coordinated_lines,
    history,
    located,
    located_all,
)
from snapline.coordinator.state import operations as op
from snapline.errors import NotFoundError
from snapline.messages.answers import document_of
from snapline.messages.payloads import CALL, CREATE, REPLY
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, ParkedMessage, encode_checkpoint
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "store")
    state = {"x": 1, 7: b"raw", "array": msgspec.msgpack.Ext(99, b"12345"), "rows": [(1, 2)]}
    checkpoints = [
        AgentCheckpoint(
            agent="a",
            kind="m:A",
            epoch=1,
            state=msgspec.msgpack.encode(state),
            in_transit={"b": [InTransitMessage(3, 0, b"\x04Mass" + msgspec.msgpack.encode({"amount": 5}))]},
        ),
        AgentCheckpoint(agent="b", kind="m:B", epoch=1, state=b"\xc1", outbox=[ParkedMessage("a", b"")]),
    ]
    pack = made.write_pack(writer="h1.1", epoch=1, blobs=[(x.agent, encode_checkpoint(x)) for x in checkpoints])
    entries = made.read_pack_index(pack)
    lines = [agent_line(entry, pack=0, kind="m", host="h1", incarnation=1) for entry in entries]
    made.publish(
        1, made.write_manifest(Manifest(Metadata(epoch=1, fleet="f", channel_state_messages=1), lines, [pack]))
    )
    return made


def test_states_and_messages_are_shown_without_their_classes(store: Store) -> None:
    shown = json.loads(json.dumps(show_document(store, "latest")))
    assert shown["kind"] == "Snapshot" and shown["epoch"] == 1
    assert shown["agents"][0]["state"] == {
        "x": 1,
        "7": "<3 bytes>",
        "array": "<extension 99, 5 bytes>",
        "rows": [[1, 2]],
    }
    assert shown["agents"][1]["state"] == "<1 bytes>", "bytes that do not decode are counted"
    assert shown["channels"] == [
        {
            "sender": "b",
            "receiver": "a",
            "in_transit": [{"number": 3, "stamp": 0, "message": {"type": "Mass", "fields": {"amount": 5}}}],
        }
    ]
    assert [x["agent"] for x in show_document(store, "1", "b")["agents"]] == ["b"]  # type: ignore[attr-defined]  # JSON


def test_a_caller_may_describe_states_itself(store: Store) -> None:
    shown = show_document(store, "1", "a", describe_state=lambda x, _: f"state of {x.agent}", describe_message=len)
    (agent,) = msgspec.convert(shown["agents"], list[dict[str, object]])
    assert agent["state"] == "state of a"


def test_what_has_no_room_is_told_by_its_size_and_not_decoded(store: Store) -> None:
    decoded: list[str] = []

    def told(checkpoint: AgentCheckpoint, _: object) -> object:
        decoded.append(checkpoint.agent)
        return "s" * 40

    room = 42 + 32  # as JSON: of the state of a, and of the message to it
    shown = show_document(store, "1", describe_state=told, describe_message=lambda _: "m" * 30, contents_bytes_max=room)
    first, second = msgspec.convert(shown["agents"], list[dict[str, object]])
    assert first["state"] == "s" * 40 and "m" * 30 in str(shown["channels"])
    assert str(second["state"]).startswith("<1 bytes, too large") and decoded == ["a"]
    assert msgspec.json.encode(show_document(store, "1", contents_bytes_max=10)).count(b"too large") == 4


def test_lists_and_verifications_name_what_is_damaged(store: Store, tmp_path: Path) -> None:
    assert document_of(verify(store))["is_whole"] is True
    (pack,) = (tmp_path / "store" / "packs" / "h1.1").iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    found = document_of(verify(store, "1"))
    (finding, *_) = msgspec.convert(found["findings"], list[dict[str, object]])
    assert found["is_whole"] is False and finding["epoch"] == 1 and str(finding["path"]).startswith("packs/h1.1/1.")
    (manifest,) = (tmp_path / "store" / "manifests").iterdir()
    manifest.unlink()
    (row,) = msgspec.convert(document_of(list_snapshots(store))["snapshots"], list[dict[str, object]])
    assert row["epoch"] == 1 and "missing" in str(row["damage"])


def test_the_recovery_line_is_the_last_complete_epoch_for_everybody(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    assert document_of(coordinated_line(agreed.state, []))["epoch"] == 0
    agreed.epoch()
    agreed.begin()
    line = document_of(coordinated_line(agreed.state, ["host:h1", "a1"]))
    assert line["failed"] == ["a0", "a1", "a2"] and line["recovery_line"] == dict.fromkeys(["a0", "a1", "a2", "a3"], 1)
    for unknown in ("a9", "host:h9"):
        with pytest.raises(NotFoundError):
            document_of(coordinated_line(agreed.state, [unknown]))


def test_with_local_recovery_a_failure_takes_back_the_agents_of_its_host(agreed: Agreed) -> None:
    agreed.recovery = "local"
    agreed.start("h1", "h2")
    agreed.epoch()
    line = document_of(coordinated_line(agreed.state, ["a1"]))
    places = agreed.places()
    beside = sorted(agent for agent in places if places[agent] == places["a1"])
    assert line["recovery_line"] == dict.fromkeys(beside, 1) and line["rolled_back"] == len(beside) < len(places)
    lines = msgspec.convert(document_of(coordinated_lines(agreed.state))["lines"], list[dict[str, object]])
    assert {"failed": "a1", "rolled_back": beside} in lines
    assert {"failed": f"host:{places['a1']}", "rolled_back": beside} in lines and len(lines) == 4 + 2


def test_the_history_tells_why_from_where_and_how_long(agreed: Agreed) -> None:
    agreed.start("h1", "h2")
    epochs = [agreed.epoch() for _ in range(2)]
    agreed.lose("h2")
    agreed.do(op.CondemnEpoch(epochs[1], "packs/x", "flipped"))
    agreed.do(op.CommitPlan(1, epochs[0], ("h1",), "lost"))
    (recovery,) = msgspec.convert(document_of(history(agreed.state))["recoveries"], list[dict[str, object]])
    assert recovery["done"] is None
    agreed.do(op.ConfirmPlan(2, "h1", 1))
    (recovery,) = msgspec.convert(document_of(history(agreed.state))["recoveries"], list[dict[str, object]])
    assert (recovery["plan"], recovery["line_epoch"], recovery["condemned_epochs"]) == (2, 1, [2])
    assert recovery["lost_hosts"] == ["h2"] and recovery["done"] == "1970-01-01T00:00:00.000Z"


def test_agents_are_located_where_the_plan_put_them_and_as_they_stand(agreed: Agreed) -> None:
    agreed.define()
    assert [found.state for found in located(agreed.state, ["a0", "nobody"]).agents] == ["unplaced", "unknown"]
    for host in ("h1", "h2"):
        agreed.do(op.AdmitHost(host, f"{host}-1", f"{host}:1", 0))
    agreed.plan("h1", "h2")
    agreed.epoch()
    agreed.remove("a1")
    agreed.lose("h2")
    found = located(agreed.state, ["a3", "a0", "a1", "nobody", "a0"])
    assert (found.phase, found.reason) == ("recovering", "test")
    assert [(x.agent, x.state, x.host, x.address, x.incarnation) for x in found.agents] == [
        ("a3", "lost", "h2", "h2:1", 1),
        ("a0", "alive", "h1", "h1:1", 1),
        ("a1", "left", "h2", "h2:1", 1),
        ("nobody", "unknown", "", "", 0),
        ("a0", "alive", "h1", "h1:1", 1),
    ]
    assert [x.agent for x in located_all(agreed.state).agents] == ["a0", "a2", "a3"]
    assert document_of(located_all(agreed.state))["kind"] == "AgentList"


def test_who_left_long_ago_is_no_stranger(agreed: Agreed) -> None:
    agreed.start("h1")
    agreed.create("short")
    agreed.remove("short")
    for _ in range(3):
        agreed.epoch()
    agreed.do(op.ForgetEpochs((1, 2)))
    assert "short" not in agreed.state.image.agents
    assert located(agreed.state, ["short"]).agents[0].state == "left"


def test_an_ended_fleet_says_so_beside_its_agents(agreed: Agreed) -> None:
    agreed.start("h1")
    agreed.do(op.EndFleet(agreed.epoch(), "stopped", "stop_when holds"))
    found = located(agreed.state, ["a0"])
    assert (found.phase, found.reason) == ("finished", "stop_when holds")


def test_a_call_and_a_creation_are_shown_as_what_they_hold() -> None:
    payload = b"\x03Pay" + msgspec.msgpack.encode({"order": "17", 5: b"x"})
    shown = {"type": "Pay", "fields": {"order": "17", "5": "<1 bytes>"}}
    assert decode_payload(payload) == shown
    assert decode_payload(CALL + bytes(8) + payload) == shown
    assert decode_payload(REPLY + bytes(8) + payload) == shown
    followed = b"\x3dPay@00-" + b"0" * 32 + b"-" + b"1" * 16 + b"-01ff" + payload[4:]
    assert decode_payload(followed) == shown
    assert decode_payload(CREATE + b"\x00\x03m:A" + msgspec.msgpack.encode({"n": 1})) == {
        "creates": "m:A",
        "state": {"n": 1},
    }
    assert decode_payload(b"") == "<0 bytes>"
