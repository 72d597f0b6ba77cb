"""Turns: the message is decoded, the handler called, and what it did handed back, or what went wrong."""

import asyncio
import functools
import gc
import warnings
from typing import Any, ClassVar

import msgspec
import pytest

import snapline
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.fleet import encode_state
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.epoch_files import check_image
from snapline.agent_runtime.host.plans import creation_payload
from snapline.agent_runtime.host.turns import CHECKED_BYTES_MAX, TRACEBACK_CHARACTERS_MAX, Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.errors import EncodingError, UsageError


class Add(snapline.Message):
    amount: int
    fails: bool = False


class Do(snapline.Message):
    what: str


class Slow(snapline.Message):
    what: str = ""


class Stranger(snapline.Message):
    pass


class Sum(msgspec.Struct):
    total: int = 0
    log: list[str] = []
    blob: Any = b""
    is_broken: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.is_broken:
            raise ValueError("broken")


class Adder(snapline.Agent):
    state: Sum
    contexts: ClassVar[list[Context]] = []  # leaked on purpose

    async def on_start(self, ctx: Context) -> None:
        self.state.log.append("started")
        ctx.send("other", Do("hello"))

    @snapline.handler
    async def on_add(self, message: Add, ctx: Context) -> None:
        self.contexts.append(ctx)
        self.state.total += message.amount
        if message.fails:
            raise ValueError(f"cannot add {message.amount}")

    @snapline.handler
    def on_do(self, message: Do, ctx: Context) -> Any:
        match message.what:
            case "next":
                next(iter(()))
            case "coroutine":
                return self._wait(ctx)
            case "number":
                return 7
            case "grow":
                self.state.blob = b"x" * 70_000
            case "drift":
                self.state.total = "many"  # type: ignore[assignment]  # as careless authors do
            case "spoil":
                self.state.blob = object()
            case "fail":
                raise RuntimeError("asked to")
        return None

    @snapline.handler
    async def on_slow(self, message: Slow, ctx: Context) -> None:
        match message.what:
            case "thread":
                self.state.log.append(str(await ctx.step("plain", lambda: 6 * 7)))
            case "coroutine":
                self.state.log.append(await ctx.step("coroutine", self._answer))
            case "awaitable":
                self.state.log.append(await ctx.step("both", lambda: self._answer()))
            case "fail":
                await ctx.step("failing", functools.partial(int, "x"))
            case "cancelled":
                inner = asyncio.ensure_future(asyncio.sleep(60))
                asyncio.get_running_loop().call_soon(inner.cancel)
                await inner
            case "forever":
                await asyncio.sleep(3600)
        ctx.send("other", Do("done"))

    async def _answer(self) -> str:
        await asyncio.sleep(0)
        return "answer"

    async def _wait(self, ctx: Context) -> None:
        await asyncio.sleep(0)
        self.state.log.append("waited")


class Keeping(Adder):
    on_error = "keep"
    retries = 5


class Recovering(Adder):
    on_error = "recover"


class StartsPlainly(Adder):
    def on_start(self, ctx: Context) -> None:  # type: ignore[override]  # a plain function will do
        self.state.log.append("plainly")


class Runner:
    """Turns of one agent, `a`, and what they report."""

    def __init__(self, made: snapline.Agent | None = None) -> None:
        self.reports: list[ev.Event] = []
        self.warnings: list[str] = []
        fleet = snapline.Fleet("turns", agents={"a": Adder(Sum())})
        self.turns = Turns(fleet, self.reports.append, self.warnings.append, TurnEnvironment())
        self.turns.add("a", made or Adder(Sum()))

    def run(self, message: object = None, what: ev.TurnKind = "message", agent: str = "a", payload: bytes = b"") -> Any:
        payload = payload or (encode_message(message) if message is not None else b"")
        return self.turns.run(ev.StartTurn(agent, 1, what, "b", payload))

    async def run_all(self, message: object) -> Any:
        """Run a turn that gets a task to its end."""
        assert self.run(message) is None
        for _ in range(1000):
            if self.reports:
                return self.reports.pop()
            await asyncio.sleep(0.001)
        raise AssertionError("the turn did not end")

    @property
    def state(self) -> Sum:
        found = self.turns.object_of("a").state
        assert isinstance(found, Sum)
        return found


@pytest.fixture
def runner() -> Runner:
    return Runner()


# ---- the handler ends -----------------------------------------------------------------------------------------------


def test_a_turn_hands_back_what_it_did(runner: Runner) -> None:
    ended = runner.run(Add(3))
    assert isinstance(ended, ev.TurnEnded) and (ended.agent, ended.incarnation) == ("a", 1)
    assert not ended.sends and runner.state.total == 3
    started = runner.run(what="start")
    assert started.sends == [("other", encode_message(Do("hello")))] and runner.state.log == ["started"]


def test_plain_functions_will_do() -> None:
    runner = Runner(StartsPlainly(Sum()))
    assert isinstance(runner.run(what="start"), ev.TurnEnded) and runner.state.log == ["plainly"]
    assert isinstance(runner.run(Do("nothing")), ev.TurnEnded)


async def test_a_plain_function_may_hand_out_a_coroutine(runner: Runner) -> None:
    assert isinstance(await runner.run_all(Do("coroutine")), ev.TurnEnded) and runner.state.log == ["waited"]


def test_stop_iteration_in_a_plain_function_is_an_error(runner: Runner) -> None:
    """Coroutines end with StopIteration too: the two must not be mixed up."""
    failed = runner.run(Do("next"))
    assert isinstance(failed, ev.TurnFailed) and "StopIteration" in failed.error


def test_what_a_plain_function_returns_is_refused(runner: Runner) -> None:
    failed = runner.run(Do("number"))
    assert isinstance(failed, ev.TurnFailed) and "returned a int" in failed.error


# ---- the handler raises ---------------------------------------------------------------------------------------------


def test_a_failed_turn_reports_its_traceback_and_its_classes_choice(runner: Runner) -> None:
    failed = runner.run(Add(3, fails=True))
    assert isinstance(failed, ev.TurnFailed)
    assert "ValueError: cannot add 3" in failed.error and "in on_add" in failed.error
    assert (failed.on_error, failed.retries, failed.is_final) == ("undo", 2, False)
    kept = Runner(Keeping(Sum())).run(Add(3, fails=True))
    assert (kept.on_error, kept.retries, kept.is_final) == ("keep", 5, False)


def test_undo_puts_back_the_image_from_before_the_turn(runner: Runner) -> None:
    runner.run(Add(1))
    runner.run(Add(3, fails=True))
    runner.turns.undo("a")
    assert runner.state == Sum(1)
    runner.run(Add(5, fails=True))
    runner.turns.undo("a")
    assert runner.state == Sum(1)


@pytest.mark.parametrize("made", [Keeping(Sum()), Recovering(Sum())])
def test_without_undo_no_image_is_taken(made: Adder) -> None:
    runner = Runner(made)
    runner.run(Do("spoil"))
    assert isinstance(runner.run(Add(1)), ev.TurnEnded)


def test_a_state_that_cannot_be_put_back_is_a_crash_of_its_agent(runner: Runner) -> None:
    """Its own classes raise when they are made: the image encodes, and does not decode."""
    runner.run(Add(1))
    Sum.is_broken = True
    try:
        failed = runner.run(Do("fail"))
    finally:
        Sum.is_broken = False
    assert (failed.on_error, failed.is_final) == ("recover", False)
    assert "asked to" in failed.error and "broken" in failed.error


def test_a_turn_that_leaves_a_field_of_another_type_fails_and_is_undone(runner: Runner) -> None:
    """It can be encoded, but never be read again: no epoch would complete any more."""
    failed = runner.run(Do("drift"))
    assert isinstance(failed, ev.TurnFailed) and (failed.on_error, failed.is_final) == ("undo", False)
    assert "the state of agent 'a' (Sum) cannot be saved after on_do: state.total is declared as int" in failed.error
    assert "and holds a str ('many'), which would not come back as it is" in failed.error
    runner.turns.undo("a")
    runner.run(Add(1))
    assert runner.state.total == 1


@pytest.mark.parametrize("made", [Keeping(Sum()), Adder(Sum(blob=b"x" * CHECKED_BYTES_MAX))])
def test_where_turns_are_not_checked_the_first_capture_names_field_and_handlers(made: Adder) -> None:
    """And so does every later one, until the field is right again."""
    runner = Runner(made)
    runner.run(Do("drift"))
    runner.run(what="start")
    for _ in range(2):
        with pytest.raises(
            EncodingError, match=r"after on_do or on_start: state\.total is declared as int and holds a str"
        ):
            runner.turns.capture("a")
    runner.state.total = 3
    for _ in range(2):
        known, _, image = runner.turns.capture("a")
        Sum.is_broken = True
        try:
            with pytest.raises(EncodingError, match=r"on_do or on_start of class \w+ puts something"):
                check_image("a", known, image)
        finally:
            Sum.is_broken = False
    check_image("a", *runner.turns.capture("a")[::2])
    runner = Runner(Keeping(Sum()))
    runner.run(Do("spoil"))
    with pytest.raises(EncodingError, match=r"cannot be saved after on_do: state\.blob"):
        runner.turns.capture("a")


def test_a_turn_that_leaves_a_state_that_cannot_be_saved_fails_and_is_undone(runner: Runner) -> None:
    failed = runner.run(Do("spoil"))
    assert "state of agent 'a' (Sum) cannot be saved after on_do: state.blob cannot be saved" in failed.error
    runner.turns.undo("a")
    runner.run(Add(1))
    assert runner.state.total == 1


def test_tracebacks_are_cut_at_their_start(runner: Runner) -> None:
    failed = runner.run(Add(1, fails=True))
    assert len(failed.error) <= TRACEBACK_CHARACTERS_MAX and failed.error.endswith("cannot add 1\n")


def test_a_state_that_grows_warns_once(runner: Runner) -> None:
    runner.run(Do("grow"))
    runner.run(Add(1))
    (warning,) = runner.warnings
    assert "agent a has grown to 70,0" in warning and "set on_error in class Adder" in warning


# ---- messages that cannot be handled --------------------------------------------------------------------------------


def test_an_unknown_message_type_names_type_sender_and_next_step(runner: Runner) -> None:
    failed = runner.run(Stranger())
    assert failed.is_final
    assert "agent 'a' (Adder) has no handler for messages of type 'Stranger', sent by 'b'" in failed.error
    assert "@snapline.handler" in failed.error


@pytest.mark.parametrize(
    "payload",
    [
        b"\x03Add" + msgspec.msgpack.encode({"amount": "many"}),
        b"\x03Add" + msgspec.msgpack.encode({"amount": 1})[:-1],
        b"\x03Add",
        b"\x03Add\x81",
        b"\xffshort",
        b"\x01\xff",
    ],
)
def test_a_message_that_does_not_decode_is_final_and_changes_nothing(runner: Runner, payload: bytes) -> None:
    failed = runner.run(payload=payload)
    assert isinstance(failed, ev.TurnFailed) and failed.is_final and runner.state == Sum()
    named = "a message of type 'Add' from 'b' does not decode (Expected `int`, got `str` - at `$.amount`)"
    assert (named in failed.error) is payload.endswith(b"many")


# ---- creation -------------------------------------------------------------------------------------------------------


def test_a_creating_message_makes_the_agent_and_starts_it(runner: Runner) -> None:
    image = encode_body_of(Adder(Sum(7)))
    ended = runner.run(what="create", agent="c", payload=creation_payload(f"{__name__}:Adder", image))
    assert isinstance(ended, ev.TurnEnded)
    assert runner.turns.object_of("c").state == Sum(7, ["started"])


def test_creating_a_class_that_is_gone_fails_for_good(runner: Runner) -> None:
    failed = runner.run(what="create", agent="c", payload=creation_payload(f"{__name__}:Gone", b""))
    assert failed.is_final and "there is no agent class" in failed.error
    later = runner.run(Add(1), agent="c")
    assert later.is_final and "agent 'c' was never created" in later.error


def encode_body_of(made: snapline.Agent) -> bytes:
    from snapline.agent_runtime.agent import agent_type

    return encode_state("c", made, agent_type(type(made)))


# ---- turns that wait ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "logged"), [("thread", "42"), ("coroutine", "answer"), ("awaitable", "answer")])
async def test_steps_run_beside_the_loop(runner: Runner, what: str, logged: str) -> None:
    ended = await runner.run_all(Slow(what))
    assert isinstance(ended, ev.TurnEnded) and ended.sends == [("other", encode_message(Do("done")))]
    assert runner.state.log == [logged]


async def test_a_failing_step_fails_the_turn(runner: Runner) -> None:
    failed = await runner.run_all(Slow("fail"))
    assert isinstance(failed, ev.TurnFailed) and "invalid literal" in failed.error and failed.on_error == "undo"


async def test_a_turn_cancelled_by_itself_has_failed(runner: Runner) -> None:
    """Only a plan may make a turn vanish: one that dies of a cancelled task it awaited would hang its agent for good."""
    failed = await runner.run_all(Slow("cancelled"))
    assert isinstance(failed, ev.TurnFailed) and "CancelledError" in failed.error


async def test_a_turn_that_is_undone_before_it_began_leaves_no_warning(runner: Runner) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        runner.run(Slow("forever"))
        runner.turns.forget_all()
        await asyncio.sleep(0)
        gc.collect()
    assert [str(each.message) for each in found] == []


async def test_a_plan_cancels_running_turns_and_they_report_nothing(runner: Runner) -> None:
    assert runner.run(Slow("forever")) is None
    await asyncio.sleep(0)
    runner.turns.forget_all()
    await asyncio.sleep(0.01)
    assert not runner.reports
    with pytest.raises(KeyError):
        runner.turns.object_of("a")


# ---- the context ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_context_is_good_for_its_own_turn_only(runner: Runner, fails: bool) -> None:
    runner.run(Add(1, fails=fails))
    ctx = Adder.contexts.pop()
    calls: list[Any] = [
        lambda: ctx.send("b", Add(1)),
        lambda: ctx.set_timer("t", 1, Add(1)),
        lambda: ctx.cancel_timer("t"),
        lambda: ctx.spawn("c", Adder(Sum())),
        ctx.stop,
        ctx.now,
        ctx.random,
        lambda: asyncio.run(ctx.step("s", dict)),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="turn of agent 'a' has ended"):
            call()


@pytest.fixture
def ctx() -> Context:
    return Context("a", 1, "b", TurnEnvironment())


def test_a_context_collects_what_the_turn_does(ctx: Context) -> None:
    ctx.send("b", Add(1))
    ctx.send("c", Add(2))
    ctx.set_timer("t", 1.5, Add(3))
    ctx.cancel_timer("u")
    ctx.stop()
    ctx.checkpoint()
    ctx.emit("totals", Add(4))
    ended = ctx.outcome()
    assert ended.sends == [("b", encode_message(Add(1))), ("c", encode_message(Add(2)))]
    assert ended.timers == [("t", 1_500_000_000, encode_message(Add(3)))]
    assert (ended.cancelled, ended.spawns, ended.stops) == (["u"], [], True)
    assert (ended.wants_checkpoint, ended.reply) == (True, b"")
    outputs = ended.outputs
    assert [output[:2] for output in outputs] == [("totals", encode_message(Add(4)))] and outputs[0][2] > 0


def test_a_context_that_only_sends_or_only_stops_says_so(ctx: Context) -> None:
    ctx.send("b", Add(1))
    assert ctx.outcome() == ev.TurnEnded("a", 1, [("b", encode_message(Add(1)))])
    ctx.stop()
    assert ctx.outcome() == ev.TurnEnded("a", 1, [("b", encode_message(Add(1)))], stops=True)


@pytest.mark.parametrize(("to", "words"), [(None, "is text, not None"), ("\ud800", "no lone surrogates")])
def test_a_receiver_whose_id_cannot_be_written_is_named(ctx: Context, to: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ctx.send(to, Add(1))


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "x" * 129, 7])
def test_topics_are_written_like_ids(ctx: Context, topic: str) -> None:
    with pytest.raises(UsageError, match="topic"):
        ctx.emit(topic, Add(1))


def test_the_last_word_on_a_timer_counts(ctx: Context) -> None:
    ctx.set_timer("t", 1, Add(1))
    ctx.cancel_timer("t")
    assert (ctx.outcome().timers, ctx.outcome().cancelled) == ([], ["t"])
    ctx.set_timer("t", 2, Add(2))
    assert [timer[:2] for timer in ctx.outcome().timers] == [("t", 2_000_000_000)]


def test_a_message_is_encoded_when_it_is_sent(ctx: Context) -> None:
    message = {"amount": 1}
    ctx.send("b", message)
    message["amount"] = 2
    assert ctx.outcome().sends[0][1] == encode_message({"amount": 1})


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e12])
def test_impossible_delays_are_refused(ctx: Context, delay: float) -> None:
    """A delay that no checkpoint can hold would stop all checkpoints."""
    with pytest.raises(UsageError, match="timer 't'"):
        ctx.set_timer("t", delay, Add(1))


def test_names_must_be_text(ctx: Context) -> None:
    """A number would be found out by the coordinator's codec, or by the next recovery."""
    with pytest.raises(UsageError, match="agent id"):
        ctx.send(7, Add(1))  # type: ignore[arg-type]  # that is the point
    with pytest.raises(UsageError, match="timer"):
        ctx.set_timer(7, 1, Add(1))  # type: ignore[arg-type]  # that is the point
    with pytest.raises(UsageError, match="agent id"):
        ctx.spawn(7, Adder(Sum()))  # type: ignore[arg-type]  # that is the point


def test_a_spawn_is_checked_at_once(ctx: Context) -> None:
    with pytest.raises(UsageError, match="'two words' is no valid agent id"):
        ctx.spawn("two words", Adder(Sum()))
    with pytest.raises(EncodingError, match="state of agent 'c'"):
        ctx.spawn("c", Adder(Sum(blob=object())))
    with pytest.raises(UsageError):
        ctx.spawn("c", Sum())  # type: ignore[arg-type]  # that is the point
    with pytest.raises(UsageError, match=r"agent 'c' does not come back as declared.*\$\.total"):
        ctx.spawn("c", Adder(Sum(total="many")))  # type: ignore[arg-type]  # that is the point
    assert ctx.outcome().spawns == []


def test_an_id_is_spawned_once_in_a_turn(ctx: Context) -> None:
    """Of two creations under one id one would be lost in silence."""
    ctx.spawn("c", Adder(Sum(1)))
    with pytest.raises(UsageError, match="agent 'c' is spawned twice in one turn"):
        ctx.spawn("c", Adder(Sum(2)))
    ctx.spawn("d", Adder(Sum(3)))
    assert [name for name, _, _ in ctx.outcome().spawns] == ["c", "d"]
