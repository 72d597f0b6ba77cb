"""Where values are saved besides states: each place compares them with what is declared."""

import collections
import datetime
import enum
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import DONE, encode_result, read_result
from snapline.agent_runtime.host.input_service import message_of_json
from snapline.agent_runtime.message_encoding import encode_message, message_decoder
from snapline.agent_runtime.sagas import reference_of
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.errors import EncodingError
from snapline.messages.payloads import split_message
from snapline.storage.packs.checkpoint import JournalEntry


class Level(enum.IntEnum):
    LOW = 1


class Part(msgspec.Struct):
    name: str


class SubPart(Part):
    size: int = 0


class Order(snapline.Message):
    part: Part = msgspec.field(default_factory=lambda: Part(""))
    count: int = 0
    when: datetime.datetime | None = None
    more: Any = None


class Parts(msgspec.Struct):
    parts: list[Part] = []


class Desk(snapline.Agent):
    state: Parts

    @snapline.handler
    async def on_order(self, message: Order, ctx: snapline.Context) -> None: ...


WRONG = [
    (Order(part=SubPart("a", 1)), r"message Order\.part is declared as Part and holds a SubPart"),
    (Order(count=Level.LOW), r"message Order\.count is declared as int and holds a Level"),
    (Order(more={"a": (1, 2)}), r"message Order\.more\['a'\] is declared as Any and holds a tuple"),
]


@pytest.mark.parametrize(("message", "says"), WRONG, ids=["subclass", "enum", "tuple"])
@pytest.mark.parametrize(
    "give",
    [
        lambda ctx, message: ctx.send("b", message),
        lambda ctx, message: ctx.emit("orders", message),
        lambda ctx, message: ctx.set_timer("soon", 1, message),
        lambda ctx, message: ctx.reply(message),
    ],
    ids=["send", "emit", "timer", "reply"],
)
def test_messages_that_would_come_back_as_others_are_refused(
    give: Callable[[Context, Order], None], message: Order, says: str
) -> None:
    with pytest.raises(EncodingError, match=says):
        give(Context("a", 1, "@client", TurnEnvironment()), message)


def test_a_spawned_state_with_a_subclass_is_refused() -> None:
    with pytest.raises(snapline.SnaplineError, match=r"state\.parts\[0\] is declared as Part and holds a SubPart"):
        Context("a", 1, "b", TurnEnvironment()).spawn("c", Desk(Parts([SubPart("a", 1)])))


def undeclared():  # type: ignore[no-untyped-def]  # that is the point
    return None


def declared() -> tuple[int, Part]:
    return 1, Part("a")


def test_results_are_compared_with_what_their_function_declares() -> None:
    assert encode_result("look", (1, Part("a")), declared)
    for function, value in ((undeclared, (1, 2)), (undeclared, Part("a")), (declared, (1, SubPart("a")))):
        with pytest.raises(EncodingError, match=r"the result of step 'look'.* is declared as \w+ and holds a"):
            encode_result("look", value, function)


def cancel(counts: dict[str, int], *, key: str) -> None: ...


def test_arguments_of_compensations_are_compared_with_its_parameters() -> None:
    assert reference_of("order", (cancel, {"a": 1}), ("tests",))[1]
    with pytest.raises(EncodingError, match=r"compensation of effect 'order' is declared as dict.* holds a Counter"):
        reference_of("order", (cancel, collections.Counter("a")), ("tests",))


def test_times_in_json_come_to_utc() -> None:
    payload = message_of_json("a", agent_type(Desk), "Order", b'{"when": "2026-01-02T12:00:00+02:00"}')
    found = message_decoder(Order).decode(split_message(payload)[1])
    assert found.when == datetime.datetime(2026, 1, 2, 10, tzinfo=datetime.UTC)
    with pytest.raises(EncodingError, match=r"message Order\.when.*keep it in UTC"):
        encode_message(Order(when=found.when.astimezone(datetime.timezone(datetime.timedelta(hours=2)))))


def test_an_effect_that_was_done_has_not_failed_because_nothing_says_what_it_returns() -> None:
    """Its handler only ever sees the journal's copy; a refusal would have it done again."""

    def untyped():  # type: ignore[no-untyped-def]  # that is the point
        return (1, 2)

    assert read_result(
        "pay", JournalEntry("effect", "pay", b"", DONE, encode_result("pay", (1, 2), untyped, is_effect=True)), untyped
    ) == [1, 2]
    with pytest.raises(EncodingError):
        encode_result("pay", (1, 2), untyped)
