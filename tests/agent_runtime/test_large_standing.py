"""A large state in the middle of a durable turn: its checkpoint has parts, as between two turns, and is the state from before."""

import msgspec
import pytest

import snapline
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.storage.capture.image import PART_BLOB, StateImage


class Sit(snapline.Message):
    pass


class Hold(msgspec.Struct):
    papers: snapline.Blob
    sat: int = 0


class Sitter(snapline.Agent):
    state: Hold
    on_error = "undo"

    @snapline.handler(durable=True)
    async def on_sit(self, message: Sit, ctx: snapline.Context) -> None:
        self.state.sat += 1
        self.state.papers = snapline.Blob(b"others")
        assert not ctx.may_reply, "a message of an agent that has not called"
        await ctx.sleep(1)


def standing(size_bytes: int) -> StateImage:
    """The image of a sitter whose turn stands."""
    fleet = snapline.Fleet("sitters", agents={"a": Sitter(Hold(snapline.Blob(b"x" * size_bytes)))})
    turns = Turns(fleet, lambda event: None, lambda text: None)
    turns.add("a", fleet.make("a"))
    ended = turns.run(ev.StartTurn("a", 1, "message", "z", encode_message(Sit())))
    assert isinstance(ended, ev.TurnEnded) and ended.pause is not None, ended
    _, _, image = turns.capture("a")
    turns.forget("a")
    return image


@pytest.mark.parametrize(("size_bytes", "parts"), [(1_000, []), (100_000, [PART_BLOB])])
def test_a_standing_turn_is_captured_with_the_state_from_before_by_parts_if_it_is_large(
    size_bytes: int, parts: list[int]
) -> None:
    image = standing(size_bytes)
    assert [part.kind for part in image.parts] == parts
    assert sum(part.size_bytes for part in image.parts) == (size_bytes if parts else 0)
    assert msgspec.msgpack.decode(image.skeleton)["sat"] == 0
