"""What the runtime finds out about an agent class, and what it refuses in one sentence."""

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Union

import msgspec
import pytest

import snapline
from snapline.agent_runtime.agent import _suspends, agent_type
from snapline.agent_runtime.message_encoding import encode_body
from snapline.errors import FleetDefinitionError

if TYPE_CHECKING:
    Hidden = int


class Ping(snapline.Message):
    number: int = 0


class Pong(snapline.Message):
    pass


class Counter(msgspec.Struct):
    count: int = 0
    names: list[str] = []


class Good(snapline.Agent):
    state: Counter

    @snapline.handler
    async def on_ping(self, message: Ping, ctx: snapline.Context) -> None:
        await ctx.step("wait", dict)

    @snapline.handler
    def on_pong(self, message: Pong, ctx: snapline.Context) -> None:
        self.state.count += 1

    async def helper(self, message: Ping, ctx: snapline.Context) -> None:
        """No handler: it is not marked."""


class Heir(Good):
    @snapline.handler
    async def on_ping(self, message: Ping, ctx: snapline.Context) -> None:
        """Overrides; still one handler for Ping."""


def refused(agent_class: type[snapline.Agent]) -> str:
    with pytest.raises(FleetDefinitionError) as caught:
        agent_type(agent_class)
    text = str(caught.value)
    assert "\n" not in text and ("." not in text.rstrip(".") or agent_class.__qualname__.split(".")[0] in text)
    return text


# ---- what is found --------------------------------------------------------------------------------------------------


def test_handlers_are_found_by_their_message_type() -> None:
    known = agent_type(Good)
    assert {name: found.name for name, found in known.handlers.items()} == {"Ping": "on_ping", "Pong": "on_pong"}
    assert known.handlers["Ping"].message_type is Ping
    assert known.kind == f"{__name__}:Good"
    assert known.state_name == "Counter" and known.state_fields == {"count": "int", "names": "list[str]"}


def test_handlers_are_inherited_and_may_be_overridden() -> None:
    known = agent_type(Heir)
    assert set(known.handlers) == {"Ping", "Pong"}
    assert known.handlers["Ping"].function is Heir.on_ping and not known.handlers["Ping"].awaits


def test_a_handler_is_public_where_its_own_class_says_so() -> None:
    class Front(snapline.Agent):
        @snapline.handler(durable=True, public=True)
        async def on_ping(self, message: Ping, ctx: snapline.Context) -> None: ...

        @snapline.handler(durable=True)
        async def on_pong(self, message: Pong, ctx: snapline.Context) -> None: ...

    class Back(Front):
        @snapline.handler
        async def on_ping(self, message: Ping, ctx: snapline.Context) -> None: ...

    assert {name: found.is_public for name, found in agent_type(Front).handlers.items()} == {
        "Ping": True,
        "Pong": False,
    }
    assert not agent_type(Back).handlers["Ping"].is_public


def test_a_union_is_handled_by_one_handler_for_each_of_its_types() -> None:
    class Both(snapline.Agent):
        @snapline.handler
        async def on_either(self, message: Ping | Pong, ctx: snapline.Context) -> None: ...

    class AsEver(snapline.Agent):
        @snapline.handler
        async def on_either(self, message: Union[Ping, Pong], ctx: snapline.Context) -> None: ...  # noqa: UP007

    for agent_class in (Both, AsEver):
        found = agent_type(agent_class).handlers
        assert {name: (one.name, one.message_type) for name, one in found.items()} == {
            "Ping": ("on_either", Ping),
            "Pong": ("on_either", Pong),
        }
        assert found["Pong"].decoder.decode(encode_body(Pong())) == Pong()


def test_a_type_in_a_union_and_alone_is_handled_twice() -> None:
    class Twice(snapline.Agent):
        @snapline.handler
        async def one(self, message: Ping | Pong, ctx: snapline.Context) -> None: ...

        @snapline.handler
        async def two(self, message: Pong, ctx: snapline.Context) -> None: ...

    assert "handles Pong twice, in one and two: keep one" in refused(Twice)


def test_a_class_is_looked_over_once() -> None:
    assert agent_type(Good) is agent_type(Good)


def test_the_state_may_be_an_inherited_or_plain_type() -> None:
    class Plain(snapline.Agent):
        state: dict[str, int]

    assert agent_type(Heir).state_type is Counter
    assert agent_type(Plain).state_fields == {"": "dict[str, int]"}


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_wrong_signatures_are_refused_with_the_right_one() -> None:
    class Few(snapline.Agent):
        @snapline.handler
        async def on_ping(self, message: Ping) -> None: ...

    class Many(snapline.Agent):
        @snapline.handler
        async def on_ping(self, message: Ping, ctx: snapline.Context, more: int) -> None: ...

    class Bare(snapline.Agent):
        @snapline.handler
        async def on_ping(self, message, ctx): ...  # type: ignore[no-untyped-def]  # that is the point

    class Perhaps(snapline.Agent):
        @snapline.handler
        async def on_ping(self, message: Ping | None, ctx: snapline.Context) -> None: ...

    class Listed(snapline.Agent):
        @snapline.handler
        async def on_ping(self, message: Ping | list[Pong], ctx: snapline.Context) -> None: ...

    class ByName(snapline.Agent):
        @snapline.handler
        async def on_ping(self, *, message: Ping, ctx: snapline.Context) -> None: ...

    class Whatever(snapline.Agent):
        @snapline.handler
        async def on_ping(self, message: Any, ctx: snapline.Context) -> None: ...

    class Static(snapline.Agent):
        @staticmethod
        @snapline.handler
        async def on_ping(message: Ping, ctx: snapline.Context) -> None: ...

    for agent_class in (Few, Many, Bare, Perhaps, Listed, ByName, Whatever, Static):
        text = refused(agent_class)
        assert f"{agent_class.__qualname__}.on_ping must be written" in text, text
        assert "(self, message: SomeMessage, ctx: snapline.Context)" in text


def test_generators_are_no_handlers() -> None:
    """They would be taken for coroutines that wait."""

    class Yields(snapline.Agent):
        @snapline.handler
        def on_ping(self, message: Ping, ctx: snapline.Context) -> Iterator[int]:
            yield 1

    class YieldsAsync(snapline.Agent):
        @snapline.handler
        async def on_ping(self, message: Ping, ctx: snapline.Context) -> AsyncIterator[int]:
            yield 1

    class Starts(snapline.Agent):
        async def on_start(self, ctx: snapline.Context) -> AsyncIterator[int]:  # type: ignore[override]
            yield 1

    for agent_class in (Yields, YieldsAsync):
        assert "on_ping must not yield" in refused(agent_class)
    assert "on_start must not yield" in refused(Starts)


def test_two_handlers_for_one_type_are_refused_by_name() -> None:
    class Twice(snapline.Agent):
        @snapline.handler
        async def one(self, message: Ping, ctx: snapline.Context) -> None: ...

        @snapline.handler
        async def two(self, message: Ping, ctx: snapline.Context) -> None: ...

    text = refused(Twice)
    assert "handles Ping twice, in one and two: keep one" in text


def test_annotations_that_cannot_be_read_are_named() -> None:
    class Handles(snapline.Agent):
        @snapline.handler
        async def on_hidden(self, message: "Hidden", ctx: snapline.Context) -> None: ...

    class Keeps(snapline.Agent):
        state: "Hidden"

    assert "Handles.on_hidden cannot be read" in refused(Handles) and "module level" in refused(Handles)
    assert "annotations of" in refused(Keeps) and "'Hidden' is not defined" in refused(Keeps)


def test_a_state_that_has_no_decoder_is_refused() -> None:
    class One(msgspec.Struct):
        a: int

    class Other(msgspec.Struct):
        b: int

    class Union(snapline.Agent):
        state: One | Other

    class Forward(msgspec.Struct):
        a: "Hidden"

    class Unresolved(snapline.Agent):
        state: Forward

    assert "the state of" in refused(Union) and "tagged" in refused(Union)
    assert "'Hidden' is not defined" in refused(Unresolved)


def test_a_message_that_has_no_decoder_is_refused() -> None:
    class One(msgspec.Struct):
        a: int

    class Other(msgspec.Struct):
        b: int

    class Letter(snapline.Message):
        part: One | Other

    class Reader(snapline.Agent):
        @snapline.handler
        async def on_letter(self, message: Letter, ctx: snapline.Context) -> None: ...

    text = refused(Reader)
    assert "Reader.on_letter" in text and "Letter" in text and "tagged" in text


def test_an_unknown_on_error_is_refused() -> None:
    class Wrong(snapline.Agent):
        on_error = "retry"  # type: ignore[assignment]  # that is the point

    assert "on_error is 'retry': use 'undo', 'keep' or 'recover'" in refused(Wrong)


# ---- can it wait? ---------------------------------------------------------------------------------------------------


async def _nothing() -> int:
    return 0


async def _numbers() -> AsyncIterator[int]:
    yield 1


async def _calls() -> int:
    return len([number for number in range(3)])


async def _nested_only() -> Callable[[], Awaitable[None]]:
    async def inner() -> None:
        await _nothing()
        async with contextlib.AsyncExitStack():
            pass

    return inner


async def _nested_comprehension_only() -> object:
    async def inner() -> list[int]:
        return [number async for number in _numbers()]

    return inner


async def _lambda_only() -> object:
    return lambda: _nothing()


async def _defines_an_async_class() -> object:
    class Inner:
        async def run(self) -> None:
            await _nothing()

    return Inner


async def _awaits() -> None:
    await _nothing()


async def _awaits_in_a_branch() -> None:
    if len("") > 1:
        await _nothing()


async def _async_with() -> None:
    async with contextlib.AsyncExitStack():
        pass


async def _async_for() -> None:
    async for _ in _numbers():
        pass


async def _async_comprehension() -> list[int]:
    return [number async for number in _numbers()]


async def _awaiting_comprehension() -> list[int]:
    return [await _nothing() for _ in range(2)]


async def _awaiting_condition() -> set[int]:
    return {number for number in range(2) if await _nothing() == 0}


async def _nested_comprehensions() -> list[list[int]]:
    return [[await _nothing() for _ in range(2)] for _ in range(2)]


async def _awaits_in_finally() -> None:
    try:
        _numbers()
    finally:
        await _nothing()


STRAIGHT = (_nothing, _calls, _nested_only, _nested_comprehension_only, _lambda_only, _defines_an_async_class)
WAITING = (
    *(_awaits, _awaits_in_a_branch, _async_with, _async_for, _async_comprehension, _awaiting_comprehension),
    *(_awaiting_condition, _nested_comprehensions, _awaits_in_finally),
)


@pytest.mark.parametrize("function", STRAIGHT, ids=lambda function: function.__name__)
def test_code_without_await_runs_straight_through(function: Any) -> None:
    assert not _suspends(function)


@pytest.mark.parametrize("function", WAITING, ids=lambda function: function.__name__)
def test_code_with_await_may_wait(function: Any) -> None:
    assert _suspends(function)


def test_what_is_not_a_coroutine_function_may_hand_out_one_that_waits() -> None:
    """A decorator's plain wrapper has no await of its own: only calling it tells."""

    @functools.wraps(_awaits)
    def wrapper() -> Awaitable[None]:
        return _awaits()

    assert _suspends(wrapper)


def test_decorated_handlers_are_found() -> None:
    def counted(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(*arguments: Any) -> None:
            await function(*arguments)

        return wrapper

    class Decorated(snapline.Agent):
        @counted
        @snapline.handler
        async def inside(self, message: Ping, ctx: snapline.Context) -> None: ...

        @snapline.handler
        @counted
        async def outside(self, message: Pong, ctx: snapline.Context) -> None: ...

    handlers = agent_type(Decorated).handlers
    assert handlers["Ping"].name == "inside" and handlers["Ping"].awaits
    assert handlers["Pong"].name == "outside" and handlers["Pong"].awaits
