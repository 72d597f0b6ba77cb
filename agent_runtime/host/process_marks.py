"""Turn marks of a host process (`turn_marks.py`), and its report of the marks of the previous process."""

import contextvars
import functools
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.driver import HostDriver
from snapline.agent_runtime.host.host_events import RunStep
from snapline.agent_runtime.host.observer import RunTurn
from snapline.agent_runtime.host.turn_marks import (
    TurnMark,
    TurnMarks,
    TurnThreads,
    limit_of,
    mark_of,
    read_marks,
)
from snapline.errors import EncodingError
from snapline.messages.host_messages import Join
from snapline.messages.turn_deaths import CAPTURE, STOP_WHEN

STOP_DEATHS_TOLERATED = 2
"""Deaths tolerated in `stop_when`, the default for messages too. After one more, `stop_when` is not called again, and the fleet ends with that
reason."""

log = logging.getLogger("snapline.host")


class ProcessMarks:
    """Turn marks of one host process; `driver` drives its agents."""

    def __init__(self, driver: HostDriver, path: str, *, host: str, instance: str) -> None:
        """`path`: the file's path; "": there is none, and nothing outlives this process."""
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
        """Return `join` with the turns in which the process before died, until the coordinator knows them."""
        return msgspec.structs.replace(join, died=self._died, died_in=self._died_in)

    def begin(self) -> None:
        """Switch to this process's own marks: the coordinator has those of the previous process."""
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
        """Return the event loop's own threads, marked."""
        return TurnThreads(thread_name_prefix="asyncio")

    def task_of(
        self, at: ev.StartTurn | RunStep, coroutine: Coroutine[Any, Any, None], context: contextvars.Context
    ) -> Coroutine[Any, Any, None]:
        """Return the coroutine of a turn or a step that runs in this context, marked."""
        mark = self._mark(at)
        context.run(self._marks.enter, mark)
        return self._marks.around(mark, coroutine)

    def capturing(self, agent: str) -> None:
        """Mark that an image of the agent's state is about to be taken.

        Raises:
            EncodingError: too many processes have died while imaging this agent.
        """
        death = self._driver.core.turn_ends.deaths.against(agent, CAPTURE, agent, b"")
        if death is not None:
            raise EncodingError(f"the state of agent {agent!r} is not saved: {death.sentence()}")
        self._marks.begin_turn(agent, CAPTURE, agent, b"", limit_of(self._driver.turns.type_of(agent)))

    def evaluating(self, function: Callable[[], object]) -> Callable[[], object]:
        """Return the call of the fleet's predicate, marked."""
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

    def _mark(self, at: ev.StartTurn | RunStep) -> TurnMark:
        """Return the mark of the turn, or of that to which the step, or the segment, belongs."""
        limit = limit_of(self._driver.turns.type_of(at.agent))
        if isinstance(at, ev.StartTurn) and at.what != "segment":
            return mark_of(at.agent, at.what, at.sender, at.payload, limit)
        turn = self._driver.core.agents[at.agent].turn
        assert turn is not None, f"no turn of {at.agent} goes on"
        return mark_of(at.agent, turn.what, turn.sender, turn.payload, limit)

    def _is_suspect(self, mark: TurnMark) -> bool:
        known = self._driver.core.turn_ends.deaths.known
        death = known.get((mark.agent, mark.death(is_beside=True).digest)) if known else None
        return death is not None and death.times >= death.limit
