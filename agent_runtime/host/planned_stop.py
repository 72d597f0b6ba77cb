"""Planned stop of a host after a signal: it waits for a snapshot of its agents' work (`coordinator/leader/fleet_end.py`), up to a limit."""

import asyncio
import logging
import signal
from collections.abc import Callable

from snapline.agent_runtime.host.session import Session
from snapline.messages.host_messages import SAME_SIGNAL_S, Directive, EndEpoch, MayLeave, WantLeave

NO_COORDINATOR_S = 5.0
"""Longest wait for a stream to a coordinator: an election or a restart takes one or two seconds."""

log = logging.getLogger("snapline.host")


class HostStop:
    """Planned stop of one process. `finish` ends it with an exit code; `has_agents` says whether there is anything to lose."""

    def __init__(
        self, session: Session, limit_s: float, has_agents: Callable[[], bool], finish: Callable[[int], None]
    ) -> None:
        self._session = session
        self._limit_s = limit_s
        self._has_agents = has_agents
        self._finish = finish
        self._asked_s: float | None = None
        self._code = 0
        self._reason = ""
        self._newest_complete = 0
        self._is_over = False

    def asked(self, number: signal.Signals) -> None:
        """Handle a signal: end after a last snapshot, or after the limit; at a second signal at once."""
        loop = asyncio.get_running_loop()
        if self._asked_s is not None and loop.time() < self._asked_s + SAME_SIGNAL_S:
            return
        code = 0 if number == signal.SIGTERM else 130
        if self._asked_s is not None or not self._limit_s or not self._has_agents():
            self._end(code)
            return
        self._asked_s, self._code, self._reason = loop.time(), code, number.name
        wait = f"for {self._limit_s:g} s at most; a second signal ends it at once"
        log.info("a last snapshot is taken before this host stops, %s", wait)
        self.welcomed()
        loop.call_later(self._limit_s, self._leave_unsaved)
        loop.call_later(NO_COORDINATOR_S, self._leave_without_coordinator)

    def welcomed(self) -> None:
        """Repeat the request on every new stream."""
        if self._asked_s is not None:
            self._session.send(WantLeave(self._reason))

    def directive_received(self, directive: Directive) -> None:
        """Check whether a directive of the coordinator allows the host to leave."""
        if isinstance(directive, EndEpoch) and directive.is_complete:
            self._newest_complete = max(self._newest_complete, directive.epoch)
        elif isinstance(directive, MayLeave) and self._asked_s is not None:
            log.info("epoch %d holds what the agents here have done", directive.epoch)
            self._end(self._code)

    def _leave_without_coordinator(self) -> None:
        if not self._session.is_open:
            self._leave_unsaved()

    def _leave_unsaved(self) -> None:
        if self._is_over:
            return
        assert self._asked_s is not None
        waited_s = asyncio.get_running_loop().time() - self._asked_s
        reason = "no coordinator answers"
        if self._session.is_open:
            reason = "effects are being called, or the store or another host is slow"
        loss = f"what the agents here have done since epoch {self._newest_complete} is lost, and effects that are being called will be in doubt"
        log.warning("no last snapshot within %.0f s (%s): %s", waited_s, reason, loss)
        self._end(self._code)

    def _end(self, code: int) -> None:
        self._is_over = True
        self._finish(code)
