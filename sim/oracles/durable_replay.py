"""Replay of durable turns (G3): a handler replayed from its journal makes the same requests in the same order, and leaves the same state.

Theory of operation
-------------------
A recovery replays the handler of a durable turn from the turn's first state, and answers its requests from the journal. Crashes in the middle of a
turn are rare, so this oracle replays every durable turn of a user's fleet that has ended after a wait. It restores a fresh object as a recovery
would, uses the turn's journal entries, and discards all effects. A handler that makes another request diverges from its journal, here or in a
recovery (`DivergenceError`). Both are the same violation, and the report names agent, handler and line.

Turns are not replayed if they never waited, failed, are compensations, or have a state that cannot be restored.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from snapline.agent_runtime.agent import Agent, AgentType, Handler
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import SegmentEnd, TurnJournal, read_call
from snapline.agent_runtime.encoding import encode_ordered
from snapline.agent_runtime.fleet import own_modules, restore_agent
from snapline.agent_runtime.host.events import StartTurn, TurnEnded, TurnFailed
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.errors import DivergenceError
from snapline.messages.payloads import split_message
from snapline.sim.oracles.divergence_reasons import INSTEAD, DivergenceReasons, place_of, relative
from snapline.sim.oracles.ground_truth_records import Report
from snapline.storage.log.record import LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn

_ADVICE = ": a durable handler must"
"""Start of the advice in the product's message; the oracle replaces the advice with its own."""


class _Clock(TurnEnvironment):
    """Clock that returns the times that the turn's last segment read."""

    def __init__(self, draws: Sequence[object]) -> None:
        self._left = [draw for draw in draws if isinstance(draw, int)]
        self.journal: TurnJournal | None = None

    def now_ns(self) -> int:
        assert self.journal is not None
        return self._left.pop(0) if self.journal.is_beyond and self._left else 0


class DurableRun(msgspec.Struct):
    """A durable turn: its cause, its first state, and the outcomes of its requests."""

    what: str
    sender: str
    payload: bytes
    state: bytes
    entries: list[JournalEntry]
    logged: tuple[LoggedEntry, ...]
    seed: bytes = b""
    is_repeated: bool = False


class DurableOracle:
    """Durable-turn oracle of one run of the world. `is_again`: replay turns; otherwise only divergences found by recoveries are reported."""

    def __init__(self, report: Report, suspects: DivergenceReasons, *, is_again: bool) -> None:
        self._report = report
        self._suspects = suspects
        self._is_again = is_again
        self._runs: dict[tuple[str, int], DurableRun] = {}

    def on_started(self, turn: StartTurn, state: bytes) -> None:
        """Record the begin of a turn or of its next segment. `state`: the agent's encoded state."""
        if not self._is_again:
            return
        place, saved = (turn.agent, turn.incarnation), turn.turn
        if saved is not None:
            run = DurableRun(saved.what, saved.sender, saved.payload, state, list(saved.journal), turn.logged)
            run.seed, run.is_repeated = saved.seed, True
            self._runs[place] = run
        elif turn.what != "segment":
            self._runs[place] = DurableRun(turn.what, turn.sender, turn.payload, state, [], turn.logged)
        elif turn.found is not None and place in self._runs:
            self._runs[place].entries.append(turn.found)

    def on_failed(self, t_ns: int, failed: TurnFailed, turn: StartTurn, known: AgentType | None) -> None:
        """Report a handler that diverged in its replay after a recovery. Other failures only end the record of the turn."""
        payload = self._runs.pop((failed.agent, failed.incarnation), None)
        if not failed.is_divergent:
            return
        begin_payload = (
            turn.turn.payload if turn.turn is not None else turn.payload if payload is None else payload.payload
        )
        difference = failed.error.strip().rpartition("\n")[2].partition(": ")[2]
        self._say(t_ns, failed.agent, known, begin_payload, difference)

    def on_ended(
        self, t_ns: int, ended: TurnEnded, known: AgentType | None, made: Agent, draws: Sequence[object]
    ) -> None:
        """Record the end of a segment; at the end of the turn, replay it."""
        run = self._runs.get((ended.agent, ended.incarnation))
        if run is None:
            return
        if ended.pause is not None:
            run.entries += ended.pause.entries
            run.seed = ended.pause.seed
            return
        del self._runs[ended.agent, ended.incarnation]
        if not ended.is_durable or not run.seed or known is None:
            return
        difference = _departs(ended, run, known, made, draws)
        if difference:
            self._say(t_ns, ended.agent, known, run.payload, difference)

    def _say(self, t_ns: int, agent: str, known: AgentType | None, payload: bytes, said: str) -> None:
        handler = _handler_of(known, payload)
        named, why = "its handler", f"draw chance and time from {INSTEAD}"
        if handler is not None and known is not None:
            named = place_of(known.agent_class, handler.name)
            reasons = self._suspects.reasons(known.agent_class, handler.name)
            why = f"it {'; it '.join([reason for _, reason in reasons])}" if reasons else why
        said = relative(said.partition(_ADVICE)[0])
        text = f"{agent}: {named}, run again by the journal of its turn, departs from it: {said}; {why}"
        self._report("replay", "G3", t_ns, text)


def _handler_of(known: AgentType | None, payload: bytes) -> Handler | None:
    try:
        name, _ = split_message(read_call(payload)[1])
    except Exception:  # the payload cannot be read
        return None
    return known.handlers.get(name) if known is not None else None


def _departs(ended: TurnEnded, run: DurableRun, known: AgentType, made: Agent, draws: Sequence[object]) -> str:
    """Return how the replayed turn differs; "" if it does not, or if it cannot be replayed."""
    handler, clock = _handler_of(known, run.payload), _Clock(draws)
    if handler is None or not handler.is_durable:
        return ""
    call, message = read_call(run.payload)
    first = SavedTurn(run.what, run.sender, run.payload, run.seed, "", run.entries)
    journal = clock.journal = TurnJournal(b"", first, run.logged, own_modules=own_modules(known.agent_class, ()))
    ctx = Context(ended.agent, ended.incarnation, run.sender, clock)
    ctx.begin(call=call, journal=journal)
    try:
        replayed = restore_agent(known.agent_class, run.state)
        decoded = handler.decoder.decode(split_message(message)[1])
    except Exception:  # the state cannot be restored: the capture checks report that
        return ""
    difference = _asks(handler.function(replayed, decoded, ctx), journal)
    if difference or (draws and any(entry.kind == "effect" for entry in run.entries) and run.is_repeated):
        return difference  # effects read the clock too, and their reads cannot be told apart
    outcome = ctx.outcome(is_durable=True)
    if [to for to, _ in outcome.sends] != [to for to, _ in ended.sends]:
        return f"it sends {len(outcome.sends)} messages at its end, not {len(ended.sends)}"
    return "it leaves another state than it did" if _differ(known, replayed, made) else ""


def _asks(coroutine: Any, journal: TurnJournal) -> str:
    """Run the handler to its end from the journal; return how it diverges, or ""."""
    try:
        request = coroutine.send(None)
    except StopIteration:
        journal.end()
        return str(journal.divergence) if journal.divergence is not None else ""
    except DivergenceError as error:
        return str(journal.divergence or error)
    except Exception as error:
        return (
            str(journal.divergence) if journal.divergence is not None else f"it raises {type(error).__name__}: {error}"
        )
    frame = coroutine.cr_frame
    place = f", at {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
    with contextlib.suppress(Exception):  # a handler that refuses to close is left suspended
        coroutine.close()
    if not isinstance(request, SegmentEnd):
        return f"it awaits a {type(request).__qualname__}{place}"
    return (
        str(journal.divergence)
        if journal.divergence
        else f"it asks for {request.waits.kind} {request.waits.name!r}{place}, where it had ended"
    )


def _differ(known: AgentType, again: Agent, made: Agent) -> bool:
    """Return whether the states differ, also after decoding them as a restore would."""
    images = [encode_ordered(agent.state) for agent in (again, made)]
    if images[0] == images[1]:
        return False
    try:
        decoded = [encode_ordered(known.state_decoder.decode(image)) for image in images]
    except Exception:  # the state does not decode: the capture checks report that
        return False
    return decoded[0] != decoded[1]
