"""From a recorded kind back to its class; a state whose type has changed is refused in a sentence that names it."""

import dataclasses
from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.fleet import encode_state, find_class, restored
from snapline.agent_runtime.migrations import plan_migration
from snapline.errors import EncodingError
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint, encode_checkpoint


class Old(msgspec.Struct):
    count: int = 0
    names: list[str] = []
    gone: bool = False


class New(msgspec.Struct):
    count: float = 0
    names: list[str] = []
    added: str = ""


class Keeper(snapline.Agent):
    state: Old


class Outer:
    class Inner(snapline.Agent):
        state: Old


class Later(snapline.Agent):
    state: New


NOT_AN_AGENT = 5

fleet = snapline.Fleet("kinds", agents={"a": lambda: Keeper(Old())})


def saved(made: snapline.Agent, **changed: Any) -> AgentCheckpoint:
    """A checkpoint of agent `a`, through its bytes."""
    known = agent_type(type(made))
    checkpoint = AgentCheckpoint(
        agent="a",
        kind=known.kind,
        epoch=1,
        state=encode_state("a", made, known),
        state_type=known.state_name,
        state_version=made.state_version,
        state_fields=known.state_fields,
    )
    return decode_checkpoint(encode_checkpoint(msgspec.structs.replace(checkpoint, **changed)))


# ---- classes --------------------------------------------------------------------------------------------------------


def test_classes_are_found_by_their_recorded_name() -> None:
    assert find_class(fleet, f"{__name__}:Keeper") is Keeper
    assert find_class(fleet, f"{__name__}:Outer.Inner") is Outer.Inner


def test_a_class_inside_a_function_is_found_through_the_fleet() -> None:
    class Local(snapline.Agent):
        state: Old

    kind = agent_type(Local).kind
    assert find_class(snapline.Fleet("f", agents={"a": Local(Old())}), kind) is Local
    with pytest.raises(EncodingError, match="there is no agent class"):
        find_class(fleet, kind)


@pytest.mark.parametrize(
    "kind",
    [f"{__name__}:Gone", f"{__name__}:Outer.Gone", "no_such_module:Keeper", "", ":", "x", f"{__name__}:", ".x:y"],
)
def test_a_class_that_is_gone_is_named(kind: str) -> None:
    with pytest.raises(EncodingError, match=r"agent class.*run the code that wrote the checkpoint") as caught:
        find_class(fleet, kind)
    assert repr(kind) in str(caught.value)


@pytest.mark.parametrize("name", ["NOT_AN_AGENT", "Old", "fleet", "saved", "Keeper.__init__"])
def test_only_agent_classes_are_returned(name: str) -> None:
    """A name from a checkpoint or a peer must not reach anything else."""
    with pytest.raises(EncodingError, match="is no agent class"):
        find_class(fleet, f"{__name__}:{name}")


# ---- states ---------------------------------------------------------------------------------------------------------


def test_a_state_of_the_same_type_comes_back() -> None:
    made = restored(fleet, saved(Keeper(Old(3, ["x"], True))))
    assert isinstance(made, Keeper) and made.state == Old(3, ["x"], True)


def test_a_changed_state_type_names_the_agent_and_every_field_that_differs() -> None:
    checkpoint = saved(Keeper(Old()), kind=agent_type(Later).kind)
    with pytest.raises(EncodingError) as caught:
        restored(fleet, checkpoint)
    text = str(caught.value)
    assert "agent 'a' (Later)" in text and "names" not in text and "no migration" in text
    assert "gone: bool is gone; added: str is new; count: int became float" in text


def test_fields_of_dataclasses_are_compared_too() -> None:
    @dataclasses.dataclass
    class Record:
        count: int = 0

    class Recorder(snapline.Agent):
        state: Record

    assert agent_type(Recorder).state_fields == {"count": "int"}
    with pytest.raises(EncodingError, match="count: str became int"):
        plan_migration(Recorder, saved(Keeper(Old()), state_fields={"count": "str"}))


def test_a_change_that_the_fields_do_not_show_is_found_when_the_state_does_not_decode() -> None:
    """Only the outermost type's fields are compared."""
    checkpoint = saved(Keeper(Old()), state=msgspec.msgpack.encode({"count": "many"}))
    with pytest.raises(EncodingError, match=r"saved state of agent 'a' does not decode as Old .*\$.count"):
        restored(fleet, checkpoint)
