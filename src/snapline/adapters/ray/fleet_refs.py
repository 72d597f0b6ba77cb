"""Includes an actor's user-defined object in cuts, and provides the references that the object's calls to other members return.

If a class has async methods, it runs like one of Ray's async actors: all methods run in the event loop, and can interleave only at `await`
expressions. All other classes run one method at a time in a thread, so that a method may wait in `ray.get`. While a method waits in
`ray.get` for another member, cuts contain the object's state from the beginning of that method. After a recovery, the interrupted method is
rerun from this state before any other method runs. It makes the same calls and receives the same answers as before.

As with Ray's own references, a program may await the references of calls, pass them to `ray.get`, or drop them.

*Encoding.* Arguments, answers and actor states are encoded as JSON if JSON reproduces them exactly. All other values are pickled as in Ray.

A handle of an actor in the fleet is stored as the actor's name, because a restarted actor gets a new id in Ray (`ActorNames`). Decoding
returns a handle of the actor that currently has that name. In JSON, a handle is encoded as {"ray actor": name}.
"""

import asyncio
import contextlib
import contextvars
import inspect
import io
import json
import math
import pickle
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import grpc
import grpc.aio

from snapline.adapters.grpc.ledger import RUN, DivergedCallError, HandlerRun
from snapline.deploy.ray_cluster import load_ray
from snapline.errors import EncodingError, ExternalFailureError, SnaplineError, UsageError

if TYPE_CHECKING:
    from snapline.adapters.grpc.member_call import MemberCall


class ActorNames:
    """The actors of a fleet, in the namespace of this process's Ray job. Handles that Ray has returned are cached."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._handles: dict[str, Any] = {}
        self._known: dict[Any, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def handle(self, name: str) -> Any:
        """Return a handle of the actor with this name.

        Raises:
            ValueError: no actor currently has this name.
        """
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = load_ray().get_actor(name)
            self._known[handle._actor_id] = name
        return handle

    def forget(self, name: str) -> None:
        """Remove the cached handle of an actor that could not be reached, because a new actor may take over its name."""
        self._handles.pop(name, None)

    def renew(self) -> None:
        """Remove all cached handles after a recovery, so that actors are looked up again in Ray. `name_of` still recognizes handles of
        former actors."""
        self._handles.clear()

    def name_of(self, handle: Any) -> str | None:
        """Return the name of the handle's actor, or None if that actor does not belong to the fleet."""
        actor_id = handle._actor_id
        if actor_id not in self._known:
            for name in self._names:
                self._look(name)
        return self._known.get(actor_id)

    def _look(self, name: str) -> None:
        with contextlib.suppress(ValueError):  # the actor does not exist now
            self._known[load_ray().get_actor(name)._actor_id] = name


PICKLE_MARK = b"\x80"
"""First byte of a pickle. No JSON text begins with this byte."""

ACTOR = "ray actor"
"""Key that marks a handle in JSON. If a user's dictionary contains this key, it is pickled."""


class NotCapturable:
    """Base class of objects that belong to this process and cannot be captured in a checkpoint. `unkeepable` is the text of the error that
    is raised when an object of this class is to be captured. The text explains how to proceed."""

    unkeepable = ""


def packed(value: object, names: ActorNames, *, is_compared: bool = False) -> bytes:
    """Encode a value as bytes.

    `is_compared` requests that equal values have equal encodings in every process. Pickles cannot guarantee this completely, because shared
    strings and the order of sets depend on the process.

    Raises:
        EncodingError: the value contains an object that cannot be saved.
    """
    if is_tree(value, set()):
        return json.dumps(value, separators=(",", ":"), default=lambda handle: {ACTOR: _name(handle, names)}).encode()
    try:
        return _pickled(value, names, is_compared=is_compared)
    except EncodingError:
        raise
    except Exception as error:  # a user's class may raise anything
        raise EncodingError(f"{type(value).__qualname__}: {error}") from error


def packed_state(state: object, names: ActorNames, actor: str) -> bytes:
    """Encode the state of an actor's object, as returned by `__getstate__`.

    Raises:
        EncodingError: the state cannot be saved. The error names the attribute that cannot be saved.
    """
    try:
        return packed(state, names)
    except EncodingError as error:
        _blame(state, names, actor)
        raise EncodingError(f"the state of actor {actor!r} cannot be kept: {error}") from error


def _blame(state: object, names: ActorNames, actor: str) -> None:
    for name, value in (state if isinstance(state, dict) else {}).items():
        try:
            packed(value, names)
        except EncodingError as error:
            raise EncodingError(
                f"attribute {name!r} of actor {actor!r} cannot be kept: {error}. Leave it out in __getstate__, and make it anew in __setstate__"
            ) from error


def unpacked(payload: bytes, names: ActorNames) -> Any:
    """Decode an encoded value. Decoding a pickled value may execute code."""
    if not payload.startswith(PICKLE_MARK):
        if ACTOR.encode() not in payload:
            return json.loads(payload)
        return json.loads(payload, object_hook=lambda each: names.handle(each[ACTOR]) if ACTOR in each else each)
    unpickler = _pickling()[1](io.BytesIO(payload))
    unpickler.names = names
    return unpickler.load()


def is_tree(value: object, seen: set[int]) -> bool:
    """Return whether decoding the value's JSON yields exactly the same value. Actor handles count as values that JSON reproduces.

    For example, the answer is False if the same list occurs in two places, because decoding yields two lists.
    """
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return True
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]  # a float, by the line above
    if id(value) in seen:
        return kind is _handle_type()
    seen.add(id(value))
    if isinstance(value, list) and kind is list:
        return all(is_tree(inner, seen) for inner in value)
    if isinstance(value, dict) and kind is dict:
        return all(type(key) is str and key != ACTOR and is_tree(inner, seen) for key, inner in value.items())
    return kind is _handle_type()


@cache
def _handle_type() -> type:
    kind: type = import_module("ray.actor").ActorHandle
    return kind


def _name(handle: Any, names: ActorNames) -> str:
    name = names.name_of(handle)
    if name is None:
        raise EncodingError(f"{handle!r} is not of the fleet: keep its name, and use ray.get_actor")
    return name


def _pickled(value: object, names: ActorNames, *, is_compared: bool) -> bytes:
    for is_fast in (True, False) if is_compared else (False,):
        buffer = io.BytesIO()
        pickler = _pickling()[0](buffer)
        pickler.names, pickler.is_compared, pickler.fast = names, is_compared, is_fast
        try:
            pickler.dump(value)
            return buffer.getvalue()
        except (ValueError, RecursionError) as error:  # without a memo an object cannot contain itself
            if isinstance(error, EncodingError) or not is_fast:
                raise
    raise AssertionError("the last way returns or raises")


@cache
def _pickling() -> tuple[Any, Any]:
    """Return a pickler class and an unpickler class that work like Ray's, except that actors are stored by name. Ray is imported when this
    function is first called."""
    ray = load_ray()
    base: Any = import_module("ray.cloudpickle").CloudPickler

    class ByName(base):
        names: ActorNames
        is_compared = False

        def persistent_id(self, obj: object) -> object:
            if isinstance(obj, _handle_type()):
                return ["actor", _name(obj, self.names)]
            if isinstance(obj, ray.ObjectRef):
                raise EncodingError(f"{obj!r} is of this run of Ray: give, or keep, the value that it stands for")
            if isinstance(obj, NotCapturable):
                raise EncodingError(obj.unkeepable)
            if self.is_compared and isinstance(obj, set | frozenset) and type(obj) in (set, frozenset):
                return [type(obj).__name__, sorted(packed(each, self.names, is_compared=True) for each in obj)]
            return None

    class FromNames(pickle.Unpickler):
        names: ActorNames

        def persistent_load(self, pid: Any) -> Any:
            kind, given = pid
            if kind == "actor":
                return self.names.handle(given)
            return {"set": set, "frozenset": frozenset}[kind](unpacked(each, self.names) for each in given)

    return ByName, FromNames


class ActorCallError(ExternalFailureError):
    """A call between actors of a fleet got no answer, because the fleet has rolled back or ended."""


class RefMember(Protocol):
    """Interface that a reference requires from the actor that made the call."""

    loop: asyncio.AbstractEventLoop

    def start(self, work: Any) -> object:
        """Run a coroutine as a task that is cancelled when the fleet rolls back."""

    def opened(self, response: bytes) -> Any:
        """Decode the response to a call of a method. Return the method's result, or raise the error that the method raised."""


class WaitingLife(Protocol):
    """The interface of `ActorLife`, which documents the methods."""

    async def wait(self, references: "Sequence[FleetRef]", timeout_s: float | None) -> list[Any]: ...


class MethodRun:
    """One execution of a method in this process.

    Attributes:
        life: the `ActorLife` of the object on which the method runs.
        error: error of a call that was not made, because the rerun method tried to make a different call than in its first run. None if all
            calls were made.
    """

    def __init__(self, life: WaitingLife, method: str) -> None:
        self.life, self.method = life, method
        self.error: DivergedCallError | None = None
        self._held: WeakSet[FleetRef] = WeakSet()

    def add(self, reference: "FleetRef") -> None:
        """Register the reference that belongs to a call by this method."""
        self._held.add(reference)

    def end(self) -> None:
        """Let the member receive the answers to all calls that the method did not await. Raise DivergedCallError if `error` is set."""
        for reference in list(self._held):
            reference.leave()
        if self.error is not None:
            raise self.error


METHOD: ContextVar[MethodRun | None] = ContextVar("METHOD", default=None)


class FleetRef(NotCapturable):
    """Reference to the result of a call to another member.

    The method that made the call, or one of its tasks, can await the reference only once. If the reference is dropped, the member receives
    the answer in place of the method.

    Attributes:
        error: the reason why the call was not made. None if the call was made.
    """

    unkeepable = "a call of another actor of the fleet is given, or kept: await it, and give or keep what it returns"

    def __init__(self, member: RefMember, run: MethodRun, make: Callable[[], "MemberCall"], what: str) -> None:
        """Create the reference, and schedule the call. `make` makes the call, and runs in the member's event loop. `what` describes the
        call in error messages."""
        self.error: Exception | None = None
        self._member, self._run, self._what = member, run, what
        self._call: MemberCall | None = None
        self._is_awaited = self._is_left = False
        run.add(self)
        if is_in(member.loop):
            self._make(make)
        else:
            member.loop.call_soon_threadsafe(self._make, make)

    def _make(self, make: Callable[[], "MemberCall"]) -> None:
        try:
            self._call = make()
        except DivergedCallError as error:
            self.error = self._run.error = error
        except grpc.aio.AioRpcError as error:
            self.error = ActorCallError(str(error.details()))

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def _response(self) -> Any:
        if self.error is not None:
            raise self.error
        if self._is_awaited or self._is_left:
            raise UsageError(
                f"the answer to {self._what} was taken already: a call is awaited once, and by the method that made it"
            )
        self._is_awaited = True
        assert self._call is not None, "made before anything else that its thread asks of the loop"
        try:
            response: bytes = await self._call
        except grpc.aio.AioRpcError as error:
            raise ActorCallError(f"{self._what}: {error.details()}") from None
        return self._member.opened(response)

    def leave(self) -> None:
        """Let the member receive the answer, unless the reference has already been awaited."""
        if self._call is not None and not self._is_awaited and not self._is_left:
            self._is_left = True
            self._member.start(_taken(self._call))

    def __del__(self) -> None:
        if self._call is not None and not self._is_awaited and not self._is_left and not self._member.loop.is_closed():
            self._member.loop.call_soon_threadsafe(_take, self._member, self._call)


def _take(member: RefMember, call: "MemberCall") -> None:
    member.start(_taken(call))


async def _taken(call: "MemberCall") -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):  # the fleet was rolled back: no caller waits
        await call.answer()


def is_in(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the caller runs in this event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def ray_get(
    plain: Callable[..., Any], loop: asyncio.AbstractEventLoop, waits: Callable[[str], None]
) -> Callable[..., Any]:
    """Return a version of `ray.get` that also accepts references to calls between members. Before a method waits, `waits` is called with
    the method's name."""

    def get(object_refs: Any, *, timeout: float | None = None, **options: Any) -> Any:
        if isinstance(object_refs, FleetRef):
            return got([object_refs], timeout)[0]
        if not isinstance(object_refs, list) or not any(isinstance(each, FleetRef) for each in object_refs):
            return plain(object_refs, timeout=timeout, **options)
        ours = iter(got([each for each in object_refs if isinstance(each, FleetRef)], timeout))
        return [
            next(ours) if isinstance(each, FleetRef) else plain(each, timeout=timeout, **options)
            for each in object_refs
        ]

    def got(references: Sequence[FleetRef], timeout_s: float | None) -> list[Any]:
        run = METHOD.get()
        if run is None or is_in(loop):
            raise UsageError(
                "ray.get of a call within the fleet is for methods of classes without async ones: await it here"
            )
        waits(run.method)
        return asyncio.run_coroutine_threadsafe(run.life.wait(references, timeout_s), loop).result()

    get.__doc__ = plain.__doc__
    return get


FIRST_LOOK_S = 0.005
"""Pause in seconds between two checks, after a recovery, whether the interrupted method has been called again. The caller repeats the call
within milliseconds."""


class NotCapturableError(SnaplineError):
    """The object cannot be captured now. A method is waiting, and the object's state at the beginning of that method was not saved."""


class Outcome:
    """The return value or error of a method. `lines` is the error's traceback."""

    __slots__ = ("lines", "raised", "value")

    def __init__(self, value: object = None, raised: Exception | None = None, lines: str = "") -> None:
        self.value, self.raised, self.lines = value, raised, lines


class ActorLife:
    """The user's object between two recoveries. If a method still runs in its thread after a recovery, it can change only the discarded
    object of the earlier life.

    Attributes:
        turn: lock that a method holds while it runs, if the class has no async methods.
        is_computing: whether a method is running in the thread and is not waiting in `ray.get`.
        waits_without_saved_state: whether a method that would be rerun after a recovery waits for another member, although the object's
            state at its beginning was not saved.
        before: the object's state at the beginning of the running method, from which the method would be rerun after a recovery. None if
            this state was not saved.
        first: id of the request whose method was waiting when the cut was taken from which this life begins. This method must run before
            all other methods. Otherwise, it could make different calls than in its first run. Empty if no method was waiting.
    """

    def __init__(self, made: object, first: str = "") -> None:
        self.made, self.first = made, first
        self.turn = asyncio.Lock()
        self.is_computing = self.waits_without_saved_state = False
        self.before: bytes | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="actor")

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run the function in the object's thread, and return the function's result.

        `is_computing` is reset atomically with the caller's next work. If the caller is cancelled, the cancellation takes effect only when
        the function has ended.
        """
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
        """Wait for the answers on behalf of the method that is waiting in `ray.get` in the thread.

        The method counts as computing again from the iteration of the event loop in which it receives the last answer.

        Raises:
            Exception: the error that a called method raised, or Ray's GetTimeoutError.
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
        """End this life of the object, because a recovery begins a new one."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class RecoverableActor:
    """The service that the member includes in cuts (`CutService`). The service wraps the user's object.

    Attributes:
        is_threaded: whether the object's class has no async methods, in which case its methods run in a thread.
        begun: the method `CallLedger.begun` of the member's ledger, or a function that returns an empty list if the ledger does not exist
            yet.
        restored: function that is called after the object has been restored from a cut.
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
        """Return the object's state. Raise SnaplineError if the state cannot be captured now. In that case, the object is captured in a
        later epoch."""
        life = self.life
        if life.waits_without_saved_state:
            raise NotCapturableError(
                f"actor {self._agent!r} waits in ray.get for the first time in this method; from now on its state is kept when that begins"
            )
        return life.before if life.before is not None else self._image()

    def restore(self, state: bytes) -> None:
        """Create a new object from the given state, without calling `__init__`."""
        self.life.end()
        self._names.renew()
        kind = type(self.life.made)
        made = kind.__new__(kind)
        _fill(made, unpacked(state, self._names))
        interrupted = self.begun() if self.is_threaded else ()
        self.life = ActorLife(made, interrupted[0] if interrupted else "")
        self.restored()

    def on_cut(self, epoch: int) -> None:
        """Do nothing, because actors need no notification of cuts."""

    def ready(self) -> bool:
        """Return whether a cut may be taken. A cut may be taken if no method is computing in the thread."""
        return not self.life.is_computing

    def _image(self) -> bytes:
        return packed_state(self.life.made.__getstate__(), self._names, self._agent)

    # ---- methods ----------------------------------------------------------------------------------------------------

    async def run(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a method of the object and return the method's result. The member receives the answers to calls that the method did not
        await.

        Raises:
            DivergedCallError: the rerun method made different calls than its first run.
            Exception: the error that the method raised.
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
        """Wait until the method that the recovery interrupted has been called again, or until its caller has given up."""
        if run is not None and run.handling is not None and run.handling.id == life.first:
            life.first = ""
        while life.first and life.first in self.begun():
            await asyncio.sleep(FIRST_LOOK_S)

    def waits(self, method: str) -> None:
        """Record that this method waits in `ray.get`. From now on, the object's state is saved whenever this method begins."""
        self._waiting.add(method)

    async def outcome(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Outcome:
        """Run a method called by another member, and return the method's result or error. Raise DivergedCallError if the rerun method made
        different calls than its first run."""
        try:
            return Outcome(await self.run(method, args, kwargs))
        except DivergedCallError:
            raise
        except Exception as error:
            return Outcome(raised=error, lines=traceback.format_exc())


def _fill(made: object, state: Any) -> None:
    """Set an object's state in the same way as `pickle` does."""
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
