"""A host writes turn marks to a file while user code runs. If the host process dies, the marks show which turns were running.

Marks are written to a small memory-mapped file, which the kernel keeps no matter how the process dies. Marks are not synced to disk, so
after a power failure they may be lost or stale. Therefore a single death never disqualifies a turn (`DEATHS_TOLERATED_MIN`). Writing a mark
takes less than a microsecond per turn.

- *On the event loop* only one piece of user code runs at a time: a turn, a part of an async handler or step, or the encoding of a state. On
  the event loop, running user code is marked in slot 1.
- *In threads*, for example for steps, several pieces of user code may run at the same time. Each thread has its own slot. A thread that
  user code starts has no slot.
- A turn that awaits runs no code itself, but code elsewhere in the process may work for it. So the turn is marked if it is the only open
  turn. The mark counts only if no user code was running.

Turns in threads that will be refused after one more process death run one at a time, so that a death can be attributed to a single turn.
`ProcessMarks` writes the marks of a host process, and reports the marks of the previous process.
"""

import contextlib
import contextvars
import functools
import hashlib
import logging
import mmap
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.driver import HostDriver
from snapline.agent_runtime.host.driver_interfaces import RunTurn
from snapline.agent_runtime.host.failures import HEAD_BYTES, MessageSample, digest_of_turn
from snapline.agent_runtime.turn_environment import IN_THREAD
from snapline.channels.child_processes import exit_if_child
from snapline.errors import EncodingError
from snapline.folders import make_private
from snapline.messages.host_messages import CAPTURE, STOP_WHEN, Join, TurnDeath
from snapline.messages.payloads import CREATE, read_creation, split_message, unwrapped

SLOTS = 64
"""Number of slots, including the file's head. Threads for which no slot is left are not marked. asyncio's own pool has at most 32
threads."""

SLOT_BYTES = 2048
"""Size of a slot, which contains the head of a message and the ids of agent and sender."""

DEATHS_TOLERATED_MIN = 1
"""Number of deaths that are tolerated even if the agent's `retries` is smaller, since an operator may have killed the process, or the
machine may have failed."""

MAGIC = b"snapturn1"

LOOP_SLOT, ALONE_SLOT = 1, SLOTS - 1
"""Slot of the event loop, and slot of a turn that is the only open turn. Slot 0 is the file's head."""

REPORTED_TURNS_MAX, TYPE_CHARACTERS_MAX = 16, 200
"""Largest number of turns that are reported for one process, and largest length of a reported type name. With these limits the report fits
into one entry of the coordinator's log."""

_NOTHING = bytes(2)

WHOLE = -1

_LOOP_AT = LOOP_SLOT * SLOT_BYTES

_SIZES = [size.to_bytes(2, "big") for size in range(SLOT_BYTES - 1)]


class TurnMark(msgspec.Struct, frozen=True, array_like=True):
    """Content of a slot. `head`, `size_bytes` and `end` identify the turn's message as in `MessageSample`. If `size_bytes` is `WHOLE`,
    `head` contains the whole message."""

    agent: str
    what: str
    sender: str
    limit: int
    head: bytes
    size_bytes: int
    end: int

    def death(self, *, is_in_thread: bool) -> TurnDeath:
        """Convert the mark to a record for the coordinator, because the process has died."""
        sample = MessageSample(self.head)
        if self.size_bytes != WHOLE:
            sample.head, sample.size_bytes, sample.end = self.head, self.size_bytes, self.end
        digest = digest_of_turn(self.what, self.sender, sample)
        return TurnDeath(self.agent, self.what, self.sender, _type_in(self.head), digest, self.limit, is_in_thread)


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(TurnMark)


def limit_of(known: AgentType | None) -> int:
    """Return how many process deaths are tolerated in one turn of an agent of this class. `known` is None if the agent is being created."""
    return DEATHS_TOLERATED_MIN if known is None else max(known.retries, DEATHS_TOLERATED_MIN)


def mark_of(agent: str, what: str, sender: str, payload: bytes, limit: int) -> TurnMark:
    """Return the turn mark for a turn."""
    sample = MessageSample(payload)
    return TurnMark(agent, what, sender, limit, sample.head, sample.size_bytes, sample.end)


def default_marks(coordinator: str, host: str) -> str:
    """Return the default path of a host's file for turn marks, or "" if no folder is accessible only to this user."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"snapline-marks-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return ""
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    key = hashlib.sha256(f"{coordinator} {host}".encode()).hexdigest()[:16]
    return str(folder / f"{host}-{key}.marks") if is_ours else ""


def read_marks(path: Path) -> tuple[str, tuple[TurnDeath, ...]]:
    """Return the id of the run that left turn marks in a file, and the turns during which that run died. Return "" and no turns if there is
    no file or the run left no marks."""
    try:
        content = path.read_bytes()
    except OSError:
        return "", ()
    if not content.startswith(MAGIC) or len(content) < SLOTS * SLOT_BYTES:
        return "", ()
    instance = content[len(MAGIC) : SLOT_BYTES].rstrip(b"\0").decode(errors="replace")
    marks = {slot: mark for slot in range(1, SLOTS) if (mark := _mark_in(content, slot)) is not None}
    ran = {slot: mark for slot, mark in marks.items() if slot != ALONE_SLOT} or marks
    died_in: dict[tuple[str, bytes], TurnDeath] = {}
    for slot, mark in ran.items():
        death = mark.death(is_in_thread=slot not in (LOOP_SLOT, ALONE_SLOT))
        died_in.setdefault((death.agent, death.digest), death)
    return (instance, tuple(died_in.values())[:REPORTED_TURNS_MAX]) if died_in else ("", ())


def _mark_in(content: bytes, slot: int) -> TurnMark | None:
    offset = slot * SLOT_BYTES
    size = int.from_bytes(content[offset : offset + 2], "big")
    try:
        return _decoder.decode(content[offset + 2 : offset + 2 + size]) if size else None
    except (msgspec.DecodeError, UnicodeDecodeError):  # damaged by a power failure
        return None


def _type_in(head: bytes) -> str:
    """Return the message's type name or, for a creation message, the kind of the new agent. Return "" if the turn has no message, as for
    `on_start`."""
    try:
        name = read_creation(head)[0] if head[:1] == CREATE else split_message(unwrapped(head))[0]
        return name[:TYPE_CHARACTERS_MAX]
    except (IndexError, UnicodeDecodeError):
        return ""


class TurnMarks:
    """Writes the turn marks of this process.

    `is_suspect` returns whether a turn will be refused after one more process death.
    """

    def __init__(self, is_suspect: Callable[[TurnMark], bool] = lambda mark: False) -> None:
        self._is_suspect = is_suspect
        self._slots: mmap.mmap | bytearray = bytearray(SLOTS * SLOT_BYTES)
        self._path: Path | None = None
        self._free = list(range(LOOP_SLOT + 1, ALONE_SLOT))
        self._open: dict[int, TurnMark] = {}
        self._one_at_a_time = threading.RLock()  # reentrant, since a thread may enter twice

    # ---- the file ---------------------------------------------------------------------------------------------------

    def open(self, path: Path, instance: str) -> None:
        """Start writing marks to a new file, after the previous run's marks have been reported.

        Raises:
            OSError: If the file cannot be created.
        """
        make_private(path.parent)
        scratch = path.with_name(f"{path.name}.{instance}")
        descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, SLOTS * SLOT_BYTES)
            slots = mmap.mmap(descriptor, SLOTS * SLOT_BYTES)
        finally:
            os.close(descriptor)
        slots[: len(MAGIC)] = MAGIC
        head = instance.encode()[: SLOT_BYTES - len(MAGIC)]
        slots[len(MAGIC) : len(MAGIC) + len(head)] = head
        scratch.replace(path)
        self._slots, self._path = slots, path
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def close(self) -> None:
        """Remove the file because the process ends normally, so no turn has caused its end."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._slots, self._path = bytearray(SLOTS * SLOT_BYTES), None

    def _leave_to_parent(self) -> None:
        """Stop using the file in a forked child, because it belongs to the parent process."""
        self._slots, self._path = bytearray(SLOTS * SLOT_BYTES), None

    # ---- on the event loop --------------------------------------------------------------------------------------------

    def begin(self, mark: TurnMark) -> None:
        """Record on the event loop's slot that user code starts to run."""
        self._write(LOOP_SLOT, mark)

    def begin_turn(self, agent: str, what: str, sender: str, payload: bytes, limit: int) -> None:
        """Do the same as `begin` for a turn, but as fast as possible, because each turn calls this method."""
        if len(payload) > HEAD_BYTES:
            self.begin(mark_of(agent, what, sender, payload, limit))
            return
        data = _encode((agent, what, sender, limit, payload, WHOLE, 0))
        size, slots = len(data), self._slots
        if size < len(_SIZES):
            slots[_LOOP_AT + 2 : _LOOP_AT + 2 + size] = data
            slots[_LOOP_AT : _LOOP_AT + 2] = _SIZES[size]

    def end(self) -> None:
        """Erase the event loop's mark because user code no longer runs there."""
        self._slots[_LOOP_AT : _LOOP_AT + 2] = _NOTHING

    def around(self, mark: TurnMark, coroutine: "Coroutine[Any, Any, None]") -> "Coroutine[Any, Any, None]":
        """Wrap a coroutine so that its turn is marked whenever the coroutine runs."""
        return _Marked(self, mark, coroutine)

    def opened(self, place: int, mark: TurnMark) -> None:
        """Register a turn that may await as open."""
        self._open[place] = mark
        self._mark_alone()

    def closed(self, place: int) -> None:
        """Unregister an open turn because it has ended."""
        self._open.pop(place, None)
        self._mark_alone()

    def _mark_alone(self) -> None:
        if len(self._open) == 1:
            self._write(ALONE_SLOT, next(iter(self._open.values())))
        else:
            self._erase(ALONE_SLOT)

    # ---- in threads -----------------------------------------------------------------------------------------------------

    def enter(self, mark: TurnMark) -> None:
        """Attribute all code that threads run for the current context to this turn."""
        IN_THREAD.set(functools.partial(self.in_thread, mark))

    def in_thread(self, mark: TurnMark, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Call the function in this thread, with the turn marked in a slot during the call."""
        with self._one_at_a_time if self._is_suspect(mark) else contextlib.nullcontext():
            try:
                slot = self._free.pop()
            except IndexError:
                slot = 0
            if slot:
                self._write(slot, mark)
            try:
                return function(*arguments, **named)
            finally:
                exit_if_child()
                if slot:
                    self._erase(slot)
                    self._free.append(slot)

    def _write(self, slot: int, mark: TurnMark) -> None:
        """Write a mark to a slot, with its size last, so that the slot is either complete or empty if the process dies at any point."""
        data, offset = _encode(mark), slot * SLOT_BYTES
        size, slots = len(data), self._slots
        if size < len(_SIZES):
            slots[offset + 2 : offset + 2 + size] = data
            slots[offset : offset + 2] = _SIZES[size]

    def _erase(self, slot: int) -> None:
        self._slots[slot * SLOT_BYTES : slot * SLOT_BYTES + 2] = _NOTHING


THREADS_MAX = 64
"""Largest number of threads for steps, as many as a group has members. Threads start when they are needed."""


class TurnThreads(ThreadPoolExecutor):
    """The thread pool that runs `asyncio.to_thread` calls. While one of its threads works, the turn that called `to_thread` is marked."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return super().submit(IN_THREAD.get(), fn, *args, **kwargs)


class _Marked(Coroutine[Any, Any, None]):
    """Wraps a coroutine. The turn is marked while the coroutine runs, and is registered as open until the coroutine ends."""

    def __init__(self, marks: TurnMarks, mark: TurnMark, coroutine: Coroutine[Any, Any, None]) -> None:
        self._marks = marks
        self._mark = mark
        self._coroutine = coroutine
        marks.opened(id(self), mark)

    def send(self, value: Any) -> Any:
        return self._run(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._run(self._coroutine.throw, *error)

    def _run(self, go_on: Callable[..., Any], *arguments: Any) -> Any:
        self._marks.begin(self._mark)
        has_ended = True
        try:
            result = go_on(*arguments)
            has_ended = False
            return result
        finally:
            exit_if_child()
            self._marks.end()
            if has_ended:
                self._marks.closed(id(self))

    def close(self) -> None:
        self._marks.closed(id(self))
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()


STOP_DEATHS_TOLERATED = 2
"""Number of process deaths that are tolerated in `stop_when`, the same as the default for messages. After one more death, `stop_when` is
not called again, and the fleet ends with this as the reason."""

log = logging.getLogger("snapline.host")


class ProcessMarks:
    """Writes the turn marks of one host process, and reports the turn marks of the previous process."""

    def __init__(self, driver: HostDriver, path: str, *, host: str, instance: str) -> None:
        """`path` is the path of the file for turn marks, or "" for no file, in which case the marks are lost when this process ends."""
        self._driver = driver
        self._path = Path(path) if path else None
        self._host = host
        self._instance = instance
        self._marks = TurnMarks(self._is_suspect)
        self._died, self._died_in = read_marks(self._path) if self._path is not None else ("", ())
        driver.wrap_turns(self._marked)
        self.end = self._marks.end
        self.close = self._marks.close

    # ---- previous process -------------------------------------------------------------------------------------------

    def hello(self, join: Join) -> Join:
        """Return `join` with the turns during which the previous process died, until the coordinator has received them."""
        return msgspec.structs.replace(join, died=self._died, died_in=self._died_in)

    def begin(self) -> None:
        """Start writing this process's own marks, after the coordinator has received the previous process's marks."""
        for death in self._died_in:
            log.warning("the process of host %s before this one died while %s", self._host, death.describe())
        self._died, self._died_in = "", ()
        try:
            if self._path is not None:
                self._marks.open(self._path, self._instance)
        except OSError as error:
            log.warning("no marks in %s: %s; of a message that kills this process nobody will know", self._path, error)

    # ---- running code -------------------------------------------------------------------------------------------------

    def threads(self) -> TurnThreads:
        """Return a thread pool for the event loop, whose threads are marked with the turns for which they work."""
        return TurnThreads(THREADS_MAX, thread_name_prefix="asyncio")

    def task_of(
        self, at: ev.StartTurn | ev.RunStep, coroutine: Coroutine[Any, Any, None], context: contextvars.Context
    ) -> Coroutine[Any, Any, None]:
        """Wrap the coroutine of a turn or a step so that the turn is marked while the coroutine runs."""
        mark = self._mark(at)
        context.run(self._marks.enter, mark)
        return self._marks.around(mark, coroutine)

    def capturing(self, agent: str) -> None:
        """Mark that the agent's state is about to be encoded.

        Raises:
            EncodingError: If too many processes have died while encoding this agent's state.
        """
        death = self._driver.core.turn_ends.deaths.against(agent, CAPTURE, agent, b"")
        if death is not None:
            raise EncodingError(f"the state of agent {agent!r} is not saved: {death.sentence()}")
        self._marks.begin_turn(agent, CAPTURE, agent, b"", limit_of(self._driver.turns.type_of(agent)))

    def evaluating(self, function: Callable[[], object]) -> Callable[[], object]:
        """Wrap a call of the fleet's `stop_when`, so that the call is marked while it runs."""
        return functools.partial(
            self._marks.in_thread, mark_of("", STOP_WHEN, "", b"", STOP_DEATHS_TOLERATED), function
        )

    def _marked(self, run: RunTurn) -> RunTurn:
        marks, begin, end, type_of = self._marks, self._marks.begin_turn, self._marks.end, self._driver.turns.type_of

        def marked(turn: ev.StartTurn) -> ev.Event | None:
            if turn.what == "segment":
                marks.begin(self._mark(turn))
            else:
                begin(turn.agent, turn.what, turn.sender, turn.payload, limit_of(type_of(turn.agent)))
            try:
                return run(turn)
            finally:
                end()

        return marked

    def _mark(self, at: ev.StartTurn | ev.RunStep) -> TurnMark:
        """Return the turn mark for a turn or, for a step or a segment, the mark of the turn to which it belongs."""
        limit = limit_of(self._driver.turns.type_of(at.agent))
        if isinstance(at, ev.StartTurn) and at.what != "segment":
            return mark_of(at.agent, at.what, at.sender, at.payload, limit)
        turn = self._driver.core.agents[at.agent].turn
        assert turn is not None, f"no turn of {at.agent} goes on"
        return mark_of(at.agent, turn.what, turn.sender, turn.payload, limit)

    def _is_suspect(self, mark: TurnMark) -> bool:
        known = self._driver.core.turn_ends.deaths.known
        death = known.get((mark.agent, mark.death(is_in_thread=True).digest)) if known else None
        return death is not None and death.times >= death.limit
