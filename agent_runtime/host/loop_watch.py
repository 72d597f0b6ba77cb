"""A thread that watches the host's event loop: code that holds it is logged and reported, and above a limit the process is ended.

Handlers run on the loop, so one that blocks holds up everything else here. The process still lives, as the coordinator sees by the host's stream
(`coordinator/leader/hosts/failure_detector.py`); this thread says *what* holds the loop: agent, handler and line, after a second and then less and
less often. Each second it also reports to the coordinator, on a connection of its own: for `snapline status`, and because the stream may break
meanwhile.

While C code holds Python's lock this thread does not run either. It logs that afterwards; it gets the lock before the code that held it goes on, so
the line is still there. A timer in C (`faulthandler`) ends the process if the lock is not given back until some time after the limit.
"""

import asyncio
import contextlib
import faulthandler
import linecache
import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

import grpc

import snapline
from snapline.messages.coordinator_client import LEADER_KEY
from snapline.messages.replica_turns import ReplicaTurns
from snapline.messages.wire import encode_request, path_of
from snapline.security.transport import Security

HELD_S = 1.0
"""Time after which a loop that does not come round counts as held and its holder is reported; and time between later reports."""

LOOK_S = 0.5
"""Time between two looks at a loop that comes round."""

SAID_AGAIN_S_MAX = 60.0
"""Largest time between two log lines: after 1 s, 2 s, 4 s …, and then once a minute."""

LOCKED_S = 1.0
"""Delay of this thread's wakeup from which on nobody else got Python's lock."""

ANSWER_S = 1.0
"""Time for a coordinator's replica to take a report; then the next one is called, one second later."""

LOCK_SLACK_S = 5.0
"""Time between two settings of the timer in C, so it fires between the limit and twice as long after it."""

CODE_CHARACTERS_MAX = 100
"""Largest number of characters shown of a line of code."""

HELD_EXIT_CODE = 15
"""Exit code of a process that has ended itself since its event loop was held for longer than `busy_limit_s`."""

log = logging.getLogger("snapline.host")

_LIBRARY = tuple([sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")])
_OURS = tuple(snapline.__path__)
_EXAMPLES = tuple([str(Path(folder, "examples")) for folder in _OURS])


class BusyReports:
    """Reports to the coordinator, from a thread, about the code that holds this host."""

    def __init__(self, address: str, security: Security, *, host: str, instance: str) -> None:
        self._turns = ReplicaTurns([each.strip() for each in address.split(",") if each.strip()], security.may_dial)
        self._security = security
        self._host = host
        self._instance = instance
        self._channel: grpc.Channel | None = None
        self._dialled = ""

    def busy(self, busy_s: float, what: str) -> None:
        """Report that the host lives, and is busy. A report that fails is dropped: the next one comes soon."""
        self._call("ReportHostBusy", busy_ns=round(busy_s * 1e9), what=what)

    def ends(self, reason: str) -> None:
        """Report that the host ends itself."""
        self._call("ReportHostExit", reason=reason)

    def close(self) -> None:
        """Close the connection: the loop runs again."""
        if self._channel is not None:
            self._channel.close()
        self._channel, self._dialled = None, ""

    def _call(self, call: str, **fields: object) -> None:
        request = encode_request(call, host=self._host, instance=self._instance, **fields)
        for _ in range(2):  # a replica that does not lead names the leader
            try:
                ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._open().unary_unary(path_of(call))
                ask(request, timeout=ANSWER_S)
            except grpc.RpcError as error:
                told = dict(getattr(error, "trailing_metadata", lambda: None)() or ())
                if LEADER_KEY not in told:
                    self._turns.is_silent(self._turns.current)
                    return
                self._turns.leads_elsewhere(self._turns.current, str(told[LEADER_KEY]))
            except Exception as error:  # certificates that are being renewed, an address that must not be dialled
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
    """Watcher of the loop on whose thread it is made.

    `holder` names what runs there, by the code on the loop's stack, innermost first: such as "agent a1, handler on_go", or "".
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
        """Watch while inside."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()

    # ---- on its thread --------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._went_on_s = time.monotonic()
        try:
            self._look_again_and_again()
        finally:
            if self._limit_s is not None:
                faulthandler.cancel_dump_traceback_later()

    def _look_again_and_again(self) -> None:
        while not self._stopped.is_set():
            self._set_timer()
            came_round = threading.Event()
            try:
                self._loop.call_soon_threadsafe(came_round.set)
            except RuntimeError:  # the loop is closed
                return
            asked_s = time.monotonic()
            self._wait(came_round, HELD_S)
            if not came_round.is_set():
                self._wait_for(came_round, asked_s)
            self._wait(self._stopped, LOOK_S)

    def _wait(self, event: threading.Event, seconds: float) -> None:
        """Wait, and log a wakeup much later than requested: this thread has not got Python's lock, then or since the wait before."""
        began_s = self._went_on_s
        event.wait(seconds)
        self._went_on_s = time.monotonic()
        waited_s = self._went_on_s - began_s
        if waited_s >= seconds + LOCKED_S:
            what = self._describe() or self._describe_others() or "nothing of the fleet's"
            log.warning(
                "for %.1f s no other thread could run: C code held Python's lock, or the process was stopped. Now runs %s",
                waited_s,
                what,
            )

    def _wait_for(self, came_round: threading.Event, asked_s: float) -> None:
        """Report the holder until the loop comes round. A process that was stopped meanwhile has not held it: each second is counted once."""
        held_s, say_s, what = HELD_S, 0.0, ""
        while not came_round.is_set() and not self._stopped.is_set():
            what = self._describe() or what
            if held_s >= say_s:
                advice = (
                    ""
                    if say_s
                    else ": all other agents of this host wait. What blocks belongs in a thread: in ctx.step, or @snapline.handler(thread=True)"
                )
                log.warning("%s has held the event loop for %.1f s%s", what, time.monotonic() - asked_s, advice)
                say_s = held_s + min(held_s, SAID_AGAIN_S_MAX)
            if self._limit_s is not None and held_s >= self._limit_s:
                self._give_up(what)
            self._reports.busy(time.monotonic() - asked_s, what)
            self._went_on_s = time.monotonic()  # a report may take its time
            self._set_timer()
            self._wait(came_round, HELD_S)
            held_s += HELD_S
        self._reports.close()
        log.warning("%s held the event loop for %.1f s, and has let go", what, time.monotonic() - asked_s)

    def _give_up(self, what: str) -> None:
        reason = f"{what} has held the event loop for longer than busy_limit_s ({self._limit_s:g} s)"
        log.error("%s: this process ends. Raise busy_limit_s of the fleet if that is to take so long", reason)
        self._reports.ends(reason)
        for handler in logging.getLogger().handlers:
            handler.flush()
        self._end(HELD_EXIT_CODE)

    def _set_timer(self) -> None:
        """Set the timer in C anew: it fires if this thread does not come back to do so."""
        if self._limit_s is None:
            return
        now_s = time.monotonic()
        if now_s - self._timer_s >= LOCK_SLACK_S:
            self._timer_s = now_s
            with contextlib.suppress(RuntimeError, ValueError, OSError):  # no stderr
                faulthandler.dump_traceback_later(self._limit_s + 2 * LOCK_SLACK_S, exit=True)

    def _describe(self) -> str:
        """Name the holder of the loop, and its place in the code."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return ""
        frames = list(_outwards(frame))
        holder = self._holder([each.f_code for each in frames])
        place = next((each for each in frames if _is_users(each.f_code.co_filename)), None)
        if not holder and place is None and _is_waiting(frames):
            return ""
        return f"{holder or 'something'} ({_place_of(place or frame)})"

    def _describe_others(self) -> str:
        """Name users' code that runs in other threads: steps, `stop_when`, states that are decoded."""
        others = [frame for thread, frame in sys._current_frames().items() if thread != self._loop_thread]
        found = [next((x for x in _outwards(frame) if _is_users(x.f_code.co_filename)), None) for frame in others]
        return "; ".join([_place_of(frame) for frame in found if frame is not None])


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_users(file: str) -> bool:
    """Return whether the file is neither ours nor a library's. Examples are written as users write."""
    return file.startswith(_EXAMPLES) or not file.startswith(("<", *_LIBRARY, *_OURS))


def _is_waiting(frames: list[FrameType]) -> bool:
    """Return whether the loop waits for something to do."""
    return frames[0].f_code.co_filename.endswith("selectors.py")


def _place_of(frame: FrameType) -> str:
    file, line = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(file, line).strip()[:CODE_CHARACTERS_MAX]
    return f"{file}:{line}, in {frame.f_code.co_qualname}" + (f": {code}" if code else "")
