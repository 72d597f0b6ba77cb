"""The user's object in a cut: its state, when it may be captured, and how its methods run.

A class with async methods runs like Ray's async actors: all methods run in the event loop, and interleave only at awaits. Any other class runs one
method at a time in a thread, so that a method may wait in `ray.get`. While it waits for another member, the cut holds the object as it was when the
method began. After a recovery that method is rerun from there, before any other, with the same calls and answers.
"""

import asyncio
import contextvars
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from snapline.adapters.grpc.ledger import RUN, DivergedCallError, HandlerRun
from snapline.adapters.ray.fleet_refs import METHOD, FleetRef, MethodRun
from snapline.adapters.ray.payloads import ActorNames, packed_state, unpacked
from snapline.deploy.ray_cluster import load_ray
from snapline.errors import SnaplineError

FIRST_LOOK_S = 0.005
"""Pause between two checks, after a recovery, whether the interrupted method was called again; its caller needs milliseconds for that."""


class NotCapturableError(SnaplineError):
    """A method waits, and the object's state at its beginning was not saved."""


class Outcome:
    """Value or error of a method; `lines`: traceback of the error."""

    __slots__ = ("lines", "raised", "value")

    def __init__(self, value: object = None, raised: Exception | None = None, lines: str = "") -> None:
        self.value, self.raised, self.lines = value, raised, lines


class ActorLife:
    """An object between two recoveries. If a method of an earlier life still runs in its thread, it changes a discarded object.

    Attributes:
        made: the user's object.
        turn: lock held by a method of a class without async methods while it runs.
        is_computing: such a method runs in its thread.
        waits_unkept: a method waits for another member and will be rerun after a recovery, but `before` is unknown.
        before: state of the object at the beginning of the method that will be rerun.
        first: request whose method was waiting in the cut that this life begins with. It must run first, or it would make other calls than before.
    """

    def __init__(self, made: object, first: str = "") -> None:
        self.made, self.first = made, first
        self.turn = asyncio.Lock()
        self.is_computing = self.waits_without_saved_state = False
        self.before: bytes | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="actor")

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run the function in a thread. `is_computing` is reset atomically with the caller's continuation. If cancelled it waits for the thread."""
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
        """Wait in `ray.get` on behalf of the method in the thread. It computes again, atomically, when the last answer is taken.

        Raises:
            Exception: the error raised by the called method; Ray's GetTimeoutError.
        """
        run = RUN.get()
        self.is_computing = False
        self.waits_without_saved_state = run is not None and run.handling is not None and self.before is None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return [await reference for reference in references]
        except TimeoutError:
            if limit.expired():
                raise load_ray().exceptions.GetTimeoutError(f"no answer within {timeout_s} s") from None
            raise
        finally:
            self.is_computing, self.waits_without_saved_state = True, False

    def end(self) -> None:
        """End this life; another one begins."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class RecoverableActor:
    """The service that the member includes in cuts (`CutService`).

    Attributes:
        life: current life of the object.
        is_threaded: its class has no async methods.
        begun: the ledger's `CallLedger.begun`, once the ledger exists.
        restored: called when the object was restored from a cut.
    """

    def __init__(self, made: object, agent: str, names: ActorNames) -> None:
        self.is_threaded = not inspect.getmembers(type(made), inspect.iscoroutinefunction)
        self.life = ActorLife(made)
        self._agent, self._names = agent, names
        self.begun: Callable[[], Sequence[str]] = list
        self.restored: Callable[[], object] = list
        self._waiting: set[str] = (
            set()
        )  # methods that have waited in ray.get before: the object's state is saved when they begin

    # ---- interface for the member -------------------------------------------------------------------------------------

    def capture(self) -> bytes:
        """Return the state. Raises SnaplineError if not possible now; a later epoch is tried."""
        life = self.life
        if life.waits_without_saved_state:
            raise NotCapturableError(
                f"actor {self._agent!r} waits in ray.get for the first time in this method; from now on its state is kept when that begins"
            )
        return life.before if life.before is not None else self._image()

    def restore(self, state: bytes) -> None:
        """Create a new object from the state, without calling `__init__`."""
        self.life.end()
        self._names.renew()
        kind = type(self.life.made)
        made = kind.__new__(kind)
        _fill(made, unpacked(state, self._names))
        interrupted = self.begun() if self.is_threaded else ()
        self.life = ActorLife(made, interrupted[0] if interrupted else "")
        self.restored()

    def on_cut(self, epoch: int) -> None:
        """Do nothing."""

    def ready(self) -> bool:
        """Return whether no thread computes."""
        return not self.life.is_computing

    def _image(self) -> bytes:
        return packed_state(self.life.made.__getstate__(), self._names, self._agent)

    # ---- methods ----------------------------------------------------------------------------------------------------

    async def run(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a method and return its result. Calls that it has not awaited are left to the member.

        Raises:
            DivergedCallError: the method was rerun and made other calls than before.
            Exception: the error raised by the method.
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
        """Wait until the interrupted method is called again, or its caller has given up."""
        if run is not None and run.handling is not None and run.handling.id == life.first:
            life.first = ""
        while life.first and life.first in self.begun():
            await asyncio.sleep(FIRST_LOOK_S)

    def waits(self, method: str) -> None:
        """Note that this method has waited in `ray.get`."""
        self._waiting.add(method)

    async def outcome(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Outcome:
        """Run a method for a member; an error of the method is part of the outcome. Raises DivergedCallError."""
        try:
            return Outcome(await self.run(method, args, kwargs))
        except DivergedCallError:
            raise
        except Exception as error:
            return Outcome(raised=error, lines=traceback.format_exc())


def _fill(made: object, state: Any) -> None:
    """Set an object's state as pickle does."""
    setstate = getattr(made, "__setstate__", None)
    if setstate is not None:
        if state is not None:
            setstate(state)
        return
    slots: Mapping[str, object] = {}
    if isinstance(state, tuple):
        state, slots = state
    made.__dict__.update(state or {})
    for name, value in (slots or {}).items():
        setattr(made, name, value)
