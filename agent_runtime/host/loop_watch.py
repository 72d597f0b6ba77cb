"""A thread that watches the host's event loop. The thread logs and reports code that blocks the loop, and ends the process if the loop is
blocked for too long.

Handlers run on the loop, so a blocking handler delays all other work on the host. A blocked host keeps its stream to the coordinator open,
which shows that the process is alive (`coordinator/leader/hosts/failure_detector.py`). From the loop's stack, this thread logs the agent,
handler and line that block the loop, first after a second and then less and less often. Each second the thread also reports to the
coordinator, for `snapline status`. The reports use a separate connection, because the stream may break while the loop is blocked.

While C code holds the GIL, this thread cannot run either, so it logs the blocking code afterwards. The thread gets the GIL before the
blocking code continues, so it still finds the blocking line. If C code holds the GIL beyond the limit, a timer in C (`faulthandler`) ends
the process some time after the limit.
"""

import asyncio
import contextlib
import faulthandler
import inspect
import linecache
import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import CodeType, FrameType

import grpc

import snapline
from snapline.agent_runtime.agent import AgentType
from snapline.agent_runtime.host.host_events import RunStep, StartTurn
from snapline.agent_runtime.host.turns import Turns
from snapline.messages.coordinator_client import LEADER_KEY, ReplicaChoice, trailing_metadata
from snapline.messages.wire import encode_request, path_of
from snapline.security.transport import Security

LOOP_BLOCKED_S = 1.0
"""Time after which the event loop counts as blocked if it has made no pass, and interval between reports on it."""

LOOK_S = 0.5
"""Time between two checks of a loop that is not blocked."""

LOG_INTERVAL_S_MAX = 60.0
"""Largest time between two log lines on the same blocking. Lines are logged after 1 s, 2 s, 4 s …, and then once a minute."""

GIL_BLOCKED_S = 1.0
"""If this thread wakes up later than requested by this time, the GIL counts as blocked."""

ANSWER_S = 1.0
"""Timeout of a report to a coordinator replica. The next report, a second later, then goes to the next replica."""

GIL_TIMER_SLACK_S = 5.0
"""Time between two restarts of the timer in C. The timer fires between one and two such times after the limit."""

CODE_CHARACTERS_MAX = 100
"""Largest number of characters that are shown of a line of code."""

HELD_EXIT_CODE = 15
"""Exit code of a process whose event loop was blocked for longer than `busy_limit_s`."""

log = logging.getLogger("snapline.host")

_LIBRARY = tuple([sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")])
_OURS = tuple(snapline.__path__)
_EXAMPLES = tuple([str(Path(folder, "examples")) for folder in _OURS])


class BusyReports:
    """Reports to the coordinator which code blocks this host's event loop. All methods are called from a thread other than the event
    loop's."""

    def __init__(self, address: str, security: Security, *, host: str, instance: str) -> None:
        self._turns = ReplicaChoice(
            [replica.strip() for replica in address.split(",") if replica.strip()], security.may_dial
        )
        self._security = security
        self._host = host
        self._instance = instance
        self._channel: grpc.Channel | None = None
        self._dialled = ""

    def busy(self, busy_s: float, what: str) -> None:
        """Report that the host is alive and its event loop is blocked. A failed report is dropped, since the next report follows soon."""
        self._call("ReportHostBusy", busy_ns=round(busy_s * 1e9), what=what)

    def ends(self, reason: str) -> None:
        """Report that the host is about to exit."""
        self._call("ReportHostExit", reason=reason)

    def close(self) -> None:
        """Close the connection because the event loop runs again."""
        if self._channel is not None:
            self._channel.close()
        self._channel, self._dialled = None, ""

    def _call(self, call: str, **fields: object) -> None:
        request = encode_request(call, host=self._host, instance=self._instance, **fields)
        for _ in range(2):  # a follower names the leader
            try:
                ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._open().unary_unary(path_of(call))
                ask(request, timeout=ANSWER_S)
            except grpc.RpcError as error:
                metadata = trailing_metadata(error)
                if LEADER_KEY not in metadata:
                    self._turns.is_silent(self._turns.current)
                    return
                self._turns.on_not_leader(self._turns.current, str(metadata[LEADER_KEY]))
            except Exception as error:  # for example a certificate that is being renewed
                log.debug("a report did not leave: %s", error)
                return
            else:
                return

    def _open(self) -> grpc.Channel:
        if self._channel is None or self._dialled != self._turns.current:
            self.close()
            self._dialled = self._turns.current
            self._channel = self._security.open_blocking_channel(self._dialled, role="coordinator", name="coordinator")
        return self._channel


class LoopWatch:
    """Watches the event loop of the thread that creates the object.

    `holder` is called with the code objects on the loop's stack, innermost first. `holder` returns a description of the running agent's
    code, such as "agent a1, handler on_go", or "" if no agent's code is running.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reports: BusyReports,
        holder: Callable[[list[CodeType]], str],
        *,
        limit_s: float | None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._reports = reports
        self._holder = holder
        self._limit_s = limit_s
        self._end = end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="snapline-loop-watch", daemon=True)
        self._timer_s = 0.0
        self._went_on_s = 0.0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the event loop while the block runs."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()

    # ---- watcher thread -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._went_on_s = time.monotonic()
        try:
            self._watch_until_stopped()
        finally:
            if self._limit_s is not None:
                faulthandler.cancel_dump_traceback_later()

    def _watch_until_stopped(self) -> None:
        while not self._stopped.is_set():
            self._set_timer()
            came_round = threading.Event()
            try:
                self._loop.call_soon_threadsafe(came_round.set)
            except RuntimeError:  # the loop is closed
                return
            asked_s = time.monotonic()
            self._wait(came_round, LOOP_BLOCKED_S)
            if not came_round.is_set():
                self._wait_for(came_round, asked_s)
            self._wait(self._stopped, LOOK_S)

    def _wait(self, event: threading.Event, seconds: float) -> None:
        """Wait for the event, and log a warning if the thread wakes up much later than requested. A late wakeup means that this thread
        could not get the GIL."""
        began_s = self._went_on_s
        event.wait(seconds)
        self._went_on_s = time.monotonic()
        waited_s = self._went_on_s - began_s
        if waited_s >= seconds + GIL_BLOCKED_S:
            holder = self._describe() or self._describe_others() or "nothing of the fleet's"
            log.warning(
                "for %.1f s no other thread could run: C code held Python's lock, or the process was stopped. Now runs %s",
                waited_s,
                holder,
            )

    def _wait_for(self, came_round: threading.Event, asked_s: float) -> None:
        """Report the blocking code until the event loop runs again. Time during which the whole process was stopped does not count towards
        the blocking limit."""
        held_s, say_s, holder = LOOP_BLOCKED_S, 0.0, ""
        while not came_round.is_set() and not self._stopped.is_set():
            holder = self._describe() or holder
            if held_s >= say_s:
                advice = (
                    ""
                    if say_s
                    else ": all other agents of this host wait. What blocks belongs in a thread: in ctx.step, or @snapline.handler(thread=True)"
                )
                log.warning("%s has held the event loop for %.1f s%s", holder, time.monotonic() - asked_s, advice)
                say_s = held_s + min(held_s, LOG_INTERVAL_S_MAX)
            if self._limit_s is not None and held_s >= self._limit_s:
                self._give_up(holder)
            self._reports.busy(time.monotonic() - asked_s, holder)
            self._went_on_s = time.monotonic()  # a report may take long
            self._set_timer()
            self._wait(came_round, LOOP_BLOCKED_S)
            held_s += LOOP_BLOCKED_S
        self._reports.close()
        log.warning("%s held the event loop for %.1f s, and has let go", holder, time.monotonic() - asked_s)

    def _give_up(self, what: str) -> None:
        reason = f"{what} has held the event loop for longer than busy_limit_s ({self._limit_s:g} s)"
        log.error("%s: this process ends. Raise busy_limit_s of the fleet if that is to take so long", reason)
        self._reports.ends(reason)
        for handler in logging.getLogger().handlers:
            handler.flush()
        self._end(HELD_EXIT_CODE)

    def _set_timer(self) -> None:
        """Restart the C timer if it is due, because it ends the process when it expires."""
        if self._limit_s is None:
            return
        now_s = time.monotonic()
        if now_s - self._timer_s >= GIL_TIMER_SLACK_S:
            self._timer_s = now_s
            with contextlib.suppress(RuntimeError, ValueError, OSError):  # the process has no stderr
                faulthandler.dump_traceback_later(self._limit_s + 2 * GIL_TIMER_SLACK_S, exit=True)

    def _describe(self) -> str:
        """Describe the code that blocks the loop, with its file and line. Return "" if the loop is idle."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return ""
        frames = list(_outwards(frame))
        holder = self._holder([outer.f_code for outer in frames])
        place = next((outer for outer in frames if _is_users(outer.f_code.co_filename)), None)
        if not holder and place is None and _is_waiting(frames):
            return ""
        return f"{holder or 'something'} ({_place_of(place or frame)})"

    def _describe_others(self) -> str:
        """Describe users' code that runs in other threads, for example a step, a `stop_when` function or code that decodes a state."""
        others = [frame for thread, frame in sys._current_frames().items() if thread != self._loop_thread]
        user_frames = [next((x for x in _outwards(frame) if _is_users(x.f_code.co_filename)), None) for frame in others]
        return "; ".join([_place_of(frame) for frame in user_frames if frame is not None])


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_users(file: str) -> bool:
    """Return whether the file contains users' code. Code of libraries and of snapline, except its examples, does not count."""
    return file.startswith(_EXAMPLES) or not file.startswith(("<", *_LIBRARY, *_OURS))


def _is_waiting(frames: list[FrameType]) -> bool:
    """Return whether the event loop is waiting for events."""
    return frames[0].f_code.co_filename.endswith("selectors.py")


def _place_of(frame: FrameType) -> str:
    file, line = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(file, line).strip()[:CODE_CHARACTERS_MAX]
    return f"{file}:{line}, in {frame.f_code.co_qualname}" + (f": {code}" if code else "")


def describe_running(
    at: StartTurn | RunStep | None,
    codes: Collection[CodeType],
    type_of: Callable[[str], AgentType | None],
    *,
    in_task: str,
    imaged: str,
) -> str:
    """Describe the agent and the handler or step that is running. Return "" if no agent's code is running.

    Args:
        at: turn or step that was started last and has not returned, or None.
        type_of: function that returns the description of an agent's class.
        in_task: agent whose turn or step the current task runs, or "" if there is none.
        imaged: agent whose state was encoded last.
    """
    if Turns.capture.__code__ in codes:
        return f"agent {imaged}, the image of its state"
    match at:
        case RunStep():
            return f"agent {at.agent}, step {at.name}"
        case StartTurn():
            agent = at.agent
        case None:
            agent = in_task
    return f"agent {agent}, {_handler_in(type_of(agent), codes) or 'its turn'}" if agent else ""


def _handler_in(known: AgentType | None, codes: Collection[CodeType]) -> str:
    if known is None:
        return ""
    if getattr(known.agent_class.on_start, "__code__", None) in codes:
        return "on_start"
    names = [x.name for x in known.handlers.values() if inspect.unwrap(x.function).__code__ in codes]
    return f"handler {names[0]}" if names else ""
