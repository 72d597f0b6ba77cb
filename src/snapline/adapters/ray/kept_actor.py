"""The user's object in a cut: what it consists of, when it may be captured, and how its methods run.

A class with async methods runs as Ray's async actors do: all methods in the event loop, each between two awaits alone. Any other class runs one method at a
time, in a thread, so that a method may wait in `ray.get`. While it waits for another member the cut has the object as it was when the method began: the
method is run again from there after a recovery, before any other, with the same calls and answers.
"""

import asyncio
import contextvars
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from snapline.adapters.grpc.handler_runs import RUN, HandlerRun
from snapline.adapters.grpc.ledger import DivergedCallError
from snapline.adapters.ray.actor_names import ActorNames
from snapline.adapters.ray.fleet_refs import METHOD, FleetRef, MethodRun
from snapline.adapters.ray.payloads import packed_state, unpacked
from snapline.deploy.ray_cluster import load_ray
from snapline.errors import SnaplineError

FIRST_LOOK_S = 0.005
"""After a recovery, between two looks at whether the interrupted method has come: its caller needs milliseconds to call it again."""


class NotCapturableError(SnaplineError):
    """A method waits, and how the object was when it began is not known."""


class Outcome:
    """Value or error of a method: an error with the lines of its traceback."""

    __slots__ = ("lines", "raised", "value")

    def __init__(self, value: object = None, raised: Exception | None = None, lines: str = "") -> None:
        self.value, self.raised, self.lines = value, raised, lines


class ActorLife:
    """An object between two recoveries. What a method of an earlier life still does in its thread changes an object that nobody has any more.

    Attributes:
        made: the user's object.
        turn: whoever runs a method of a class without async methods holds it.
        is_computing: such a method runs in its thread.
        waits_unkept: a method waits for another member, and is run again after a recovery, and `before` is not known.
        before: the object's state when the method began, which is run again.
        first: the request whose method waited in the cut that this life begins with: it finds the object as it was then, or would call something else.
    """

    def __init__(self, made: object, first: str = "") -> None:
        self.made, self.first = made, first
        self.turn = asyncio.Lock()
        self.is_computing = self.waits_unkept = False
        self.before: bytes | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="actor")

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run it; `is_computing` ends in one piece with what follows this. Who cancels it waits for its end: a thread cannot be stopped."""
        context = contextvars.copy_context()
        running = asyncio.get_running_loop().run_in_executor(self._thread, context.run, function)
        self.is_computing = True
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise
        finally:
            self.is_computing = False

    async def wait(self, references: Sequence[FleetRef], timeout_s: float | None) -> list[Any]:
        """A method in the thread waits in `ray.get`. From the piece in which the last answer is taken it computes again.

        Raises:
            Exception: what the method that was called has raised; Ray's GetTimeoutError.
        """
        run = RUN.get()
        self.is_computing = False
        self.waits_unkept = run is not None and run.handling is not None and self.before is None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return [await each for each in references]
        except TimeoutError:
            if limit.expired():
                raise load_ray().exceptions.GetTimeoutError(f"no answer within {timeout_s} s") from None
            raise
        finally:
            self.is_computing, self.waits_unkept = True, False

    def end(self) -> None:
        """End this life: another one begins."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class RecoverableActor:
    """The service that the member takes into cuts (`CutService`).

    Attributes:
        life: the object of now.
        is_threaded: its class has no async methods.
        begun: of the ledger (`CallLedger.begun`), as soon as there is one.
        restored: hears that the object is one of a cut.
    """

    def __init__(self, made: object, agent: str, names: ActorNames) -> None:
        self.is_threaded = not inspect.getmembers(type(made), inspect.iscoroutinefunction)
        self.life = ActorLife(made)
        self._agent, self._names = agent, names
        self.begun: Callable[[], Sequence[str]] = list
        self.restored: Callable[[], object] = list
        self._waiting: set[str] = (
            set()
        )  # methods that have waited in ray.get: of these the state is kept when they begin

    # ---- what the member asks -----------------------------------------------------------------------------------------

    def capture(self) -> bytes:
        """Raises SnaplineError: not now; another epoch is tried."""
        life = self.life
        if life.waits_unkept:
            raise NotCapturableError(
                f"actor {self._agent!r} waits in ray.get for the first time in this method; from now on its state is kept when that begins"
            )
        return life.before if life.before is not None else self._image()

    def restore(self, state: bytes) -> None:
        """A new object, made without `__init__`."""
        self.life.end()
        self._names.renew()
        kind = type(self.life.made)
        made = kind.__new__(kind)
        _fill(made, unpacked(state, self._names))
        first = self.begun() if self.is_threaded else ()
        self.life = ActorLife(made, first[0] if first else "")
        self.restored()

    def on_cut(self, epoch: int) -> None:
        """Nothing of an actor's."""

    def ready(self) -> bool:
        """Return whether no thread computes."""
        return not self.life.is_computing

    def _image(self) -> bytes:
        return packed_state(self.life.made.__getstate__(), self._names, self._agent)

    # ---- methods ----------------------------------------------------------------------------------------------------

    async def run(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a method; what it returns. Calls that it has not awaited are left to the member.

        Raises:
            DivergedCallError: it was run before, and has called something else then.
            Exception: what it raises.
        """
        run = MethodRun(self.life, method)
        METHOD.set(run)
        try:
            bound = getattr(self.life.made, method)
            if self.is_threaded:
                result = await self._in_turn(self.life, method, lambda: bound(*args, **kwargs))
            else:
                result = bound(*args, **kwargs)
                if inspect.isawaitable(result):
                    result = await result
        except BaseException:
            run.end()
            raise
        run.end()
        return result

    async def _in_turn(self, life: ActorLife, method: str, function: Callable[[], Any]) -> Any:
        run = RUN.get()
        await self._others_first(life, run)
        async with life.turn:
            if run is not None and run.handling is not None and method in self._waiting:
                life.before = self._image()
            try:
                return await life.in_thread(function)
            finally:
                life.before = None

    async def _others_first(self, life: ActorLife, run: HandlerRun | None) -> None:
        """Wait for the method that was interrupted. It comes, or its caller has given it up."""
        if run is not None and run.handling is not None and run.handling.id == life.first:
            life.first = ""
        while life.first and life.first in self.begun():
            await asyncio.sleep(FIRST_LOOK_S)

    def waits(self, method: str) -> None:
        """Note that this method has waited in `ray.get`."""
        self._waiting.add(method)

    async def outcome(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Outcome:
        """Run a method for a member: what it raises is an answer, too. Raises DivergedCallError."""
        try:
            return Outcome(await self.run(method, args, kwargs))
        except DivergedCallError:
            raise
        except Exception as error:
            return Outcome(raised=error, lines=traceback.format_exc())


def _fill(made: object, state: Any) -> None:
    """Set an object's state as pickle does."""
    put = getattr(made, "__setstate__", None)
    if put is not None:
        if state is not None:
            put(state)
        return
    slots: Mapping[str, object] = {}
    if isinstance(state, tuple):
        state, slots = state
    made.__dict__.update(state or {})
    for name, value in (slots or {}).items():
        setattr(made, name, value)
