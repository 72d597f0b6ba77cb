"""What a handler may ask of the runtime.

Nothing a context is asked takes effect before the turn ends: sends, timers, spawns and the stop are collected here and
stand or fall with the turn. A context is good for its own turn only.
"""

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.encoding import encode_message
from snapline.agent_runtime.fleet import check_state_image, encode_state
from snapline.agent_runtime.host.events import Emission, Spawn
from snapline.errors import MisuseError
from snapline.ids import check_id

_Result = TypeVar("_Result")

DELAY_S_MAX = 3e9
"""A hundred years: its nanoseconds still fit into a checkpoint's 64 bits."""


class Outside:
    """Time, chance and the outside as handlers see them; the simulator puts a stand-in here."""

    def now_ns(self) -> int:
        return time.time_ns()

    def random(self) -> float:
        return random.random()

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        if inspect.iscoroutinefunction(function):
            return await function()
        outcome = await asyncio.to_thread(function)
        if inspect.isawaitable(outcome):
            return await outcome
        return outcome


class Context:
    """One turn's view of the runtime: what it asks for is done when the turn ends well, and not at all otherwise.

    Attributes:
        agent: id of the agent itself.
        incarnation: number of its life; each restart has a higher one.
        sender: id of the agent that sent the message; the agent's own for timers and `on_start`; of an input from outside `@` and the
            client's name.
    """

    __slots__ = (
        "_cancelled",
        "_is_open",
        "_outputs",
        "_reply",
        "_sends",
        "_spawns",
        "_stops",
        "_timers",
        "_wants_checkpoint",
        "_world",
        "agent",
        "incarnation",
        "sender",
    )

    def __init__(self, agent: str, incarnation: int, sender: str, world: Outside) -> None:
        self.agent = agent
        self.incarnation = incarnation
        self.sender = sender
        self._world = world
        self._sends: list[tuple[str, bytes]] = []
        self._timers: list[tuple[str, int, bytes]] = []
        self._cancelled: list[str] = []
        self._spawns: dict[str, Spawn] = {}
        self._stops = False
        self._wants_checkpoint = False
        self._reply: bytes | None = None
        self._outputs: list[Emission] = []
        self._is_open = True

    def send(self, to: str, message: object) -> None:
        """Send `message` to agent `to` when the turn ends. It is encoded at once.

        Raises:
            EncodingError: it cannot be encoded.
            MessageTooLargeError: it is above 16 MiB.
        """
        self._check_open()
        if not isinstance(to, str):
            raise MisuseError(f"an agent id is text, this one is a {type(to).__qualname__}")
        self._sends.append((to, encode_message(message)))

    def reply(self, message: object) -> None:
        """Answer the client whose input this turn takes (`Client.ask`). It is encoded at once.

        The answer belongs to the turn: a recovery that undoes the turn undoes it. A client gets it when a complete epoch holds
        the turn, or, if it asked for that, at the end of the turn.

        Raises:
            MisuseError: this turn is for no input, or has answered already.
            EncodingError: it cannot be encoded.
            MessageTooLargeError: it is above 16 MiB.
        """
        self._check_open()
        if not self.sender.startswith("@"):
            raise MisuseError(
                f"ctx.reply answers inputs from outside, and this turn is {self.sender!r}'s: use ctx.send"
            )
        if self._reply is not None:
            raise MisuseError("ctx.reply was called twice in one turn: an input has one answer")
        self._reply = encode_message(message)

    def emit(self, topic: str, message: object) -> None:
        """Say `message` to the outside under `topic` (`Client.outputs`). It is encoded at once.

        An output belongs to the turn. It is released when a complete epoch holds the turn, each once, and is never taken back then:
        a recovery undoes turns, and with them only outputs that nobody has been told. Until then it is part of the agent's
        state, and an agent that stops stays until its outputs are released.

        Args:
            topic: written like an id: 1 to 128 characters out of letters, digits, '_', '.' and '-'.

        Raises:
            MisuseError: it is no topic.
            EncodingError: it cannot be encoded.
            MessageTooLargeError: it is above 16 MiB.
        """
        self._check_open()
        if not isinstance(topic, str):
            raise MisuseError(f"a topic is text, this one is a {type(topic).__qualname__}")
        self._outputs.append((check_id(topic, "topic"), encode_message(message), self._world.now_ns()))

    def set_timer(self, name: str, delay_s: float, message: object) -> None:
        """Send `message` to the agent itself after `delay_s` seconds. The same name again replaces the timer.

        Timers are part of the agent's state: after a recovery the rest of the delay is waited again.
        """
        self._check_open()
        if not isinstance(name, str):
            raise MisuseError(f"timer {name!r} is named by a {type(name).__qualname__}: use text")
        if not 0 <= delay_s <= DELAY_S_MAX:
            raise MisuseError(f"timer {name!r}: the delay must be from 0 to {DELAY_S_MAX:.0e} seconds, it is {delay_s}")
        if name in self._cancelled:
            self._cancelled.remove(name)
        self._timers.append((name, round(delay_s * 1e9), encode_message(message)))

    def cancel_timer(self, name: str) -> None:
        """Forget the timer of that name, if there is one."""
        self._check_open()
        self._timers = [timer for timer in self._timers if timer[0] != name]
        self._cancelled.append(name)

    def spawn(self, agent: str, made: Agent) -> None:
        """Create agent `agent` on this host when the turn ends, before the turn's sends leave.

        Ids are never used twice in the life of a fleet: if `agent` exists or has existed, the creation becomes a dead
        letter of this agent, or of the one that exists: after a recovery both may have been asked for. What is sent to it
        goes to the one that exists, or is a dead letter too, as is what this agent had sent it before it asked.

        Raises:
            MisuseError: this turn has spawned that id already, or the state cannot be saved, or not as declared.
        """
        self._check_open()
        if not isinstance(agent, str) or not isinstance(made, Agent):
            raise MisuseError(
                f"ctx.spawn takes an agent id and a snapline.Agent, not a {type(agent).__qualname__} "
                f"and a {type(made).__qualname__}"
            )
        if agent in self._spawns:
            raise MisuseError(f"agent {agent!r} is spawned twice in one turn: an id stands for one agent, for ever")
        kind = agent_type(type(made))
        image = encode_state(agent, made, kind)
        check_state_image(agent, made, kind, image)
        self._spawns[check_id(agent)] = (agent, kind.kind, image)

    def stop(self) -> None:
        """End this agent after the turn. What is sent to it afterwards becomes a dead letter."""
        self._check_open()
        self._stops = True

    def checkpoint(self) -> None:
        """Take a checkpoint of this agent after the turn, whatever its policy says.

        For fleets whose agents checkpoint on their own (uncoordinated and communication-induced protocols); in
        coordinated ones it has no effect: there the coordinator decides, for all agents at once.
        """
        self._check_open()
        self._wants_checkpoint = True

    def now(self) -> int:
        """Wall-clock time in nanoseconds since 1970."""
        self._check_open()
        return self._world.now_ns()

    def random(self) -> float:
        """A random number, 0 ≤ x < 1."""
        self._check_open()
        return self._world.random()

    @overload
    async def step(self, name: str, function: Callable[[], Awaitable[_Result]]) -> _Result: ...

    @overload
    async def step(self, name: str, function: Callable[[], _Result]) -> _Result: ...

    async def step(self, name: str, function: Callable[[], Any]) -> Any:  # the function's own result
        """Run outside I/O: `function` in a thread, or awaited if it is a coroutine function.

        The turn waits, the host does not: other agents run on. Checkpoints wait for the turn's end. A turn that is
        undone and tried again, or repeated by a recovery, runs its steps again.
        """
        self._check_open()
        return await self._world.step(name, function)

    def _check_open(self) -> None:
        if not self._is_open:
            raise MisuseError(f"the turn of agent {self.agent!r} has ended: use a context in its own turn only")

    def close(self) -> None:
        """The turn has ended; the runtime calls this."""
        self._is_open = False

    def outcome(
        self,
    ) -> tuple[
        list[tuple[str, bytes]], list[tuple[str, int, bytes]], list[str], list[Spawn], bool, bool, bytes, list[Emission]
    ]:
        """Sends, timers, cancelled timers, spawns, whether the agent stops and wants a checkpoint, its answer, or b"", and outputs."""
        return (
            self._sends,
            self._timers,
            self._cancelled,
            list(self._spawns.values()),
            self._stops,
            self._wants_checkpoint,
            self._reply or b"",
            self._outputs,
        )
