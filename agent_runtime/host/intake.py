"""Keeps requests that the core has not answered, and batches of the host log that are being written to the store.

Each batch is encoded once. The same bytes are appended again until the outcome is known: either the log contains the batch, or a later plan
has sealed the log at that position. If the outcome is unknown for long, the host core is notified and accepts no more inputs.
"""

import logging
from collections.abc import Callable, Sequence

from msgspec import UNSET

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.driver_interfaces import HostEnvironment
from snapline.errors import SnaplineError
from snapline.messages.client_requests import InputOutcome
from snapline.storage.log.log_record import LogBatch, PreparedBatch

LATE_S = 1.0
"""Time after which a batch counts as late. Two syncs normally take some milliseconds, so a second indicates a problem."""

RETRY_S = 0.5
"""Time from a failed attempt to the next attempt. It is short, since clients wait."""

Then = Callable[[tuple[InputOutcome, ...]], None]
"""Callback that gets the outcomes of a client's request."""

log = logging.getLogger("snapline.host")


class _Flight:
    """A batch of the host log that may or may not have been appended. `prepared` is the encoded batch, or None until the first attempt
    encodes it."""

    __slots__ = ("command", "failures", "is_decided", "prepared")

    def __init__(self, command: ev.AppendBatch) -> None:
        self.command = command
        self.prepared: PreparedBatch | None = None
        self.failures = 0
        self.is_decided = False


class Intake:
    """Keeps unanswered requests and the batches of the host log that are being written. At most one of the batches belongs to the current
    plan's log, and all other batches belong to the logs of earlier plans."""

    def __init__(
        self, environment: HostEnvironment, feed: Callable[[ev.Event], None], *, keeps_answers: bool = False
    ) -> None:
        """Create the intake. With `keeps_answers`, the results of steps in each batch are kept when the batch is deleted."""
        self._keeps_answers = keeps_answers
        self._environment = environment
        self._feed = feed
        self._is_over = False
        self._requests: dict[int, Then] = {}
        self._asks: dict[int, Callable[[ev.AskAnswer], None]] = {}
        self._views: dict[int, Callable[[ev.AnswerView], None]] = {}
        self._open_waits: dict[int, Callable[[ev.AnswerOpenWaits], None]] = {}
        self._waiting: dict[int, Callable[[ev.AnswerWaiting], None]] = {}
        self._count = 0

    def stop(self) -> None:
        """Stop writing batches."""
        self._is_over = True

    # ---- requests -------------------------------------------------------------------------------------------------

    def offer(self, client: str, inputs: Sequence[ev.OfferedInput], then: Then) -> None:
        """Offer inputs to the core. The callback `then` receives one outcome for each input when all outcomes are known, or is never called
        if the host ends first."""
        self._count += 1
        self._requests[self._count] = then
        self._feed(ev.InputsOffered(self._count, client, self._environment.wall_ns(), tuple(inputs)))

    def answer(self, command: ev.AnswerInputs) -> None:
        """Pass the core's outcomes to the request's callback."""
        self._requests.pop(command.request)(command.answers)

    def ask(self, agent: str, key: str, then: Callable[[ev.AskAnswer], None], *, is_early: bool) -> None:
        """Request the outcome of the input with this key. The callback `then` receives the outcome, or is never called if the host ends
        first."""
        self._count += 1
        self._asks[self._count] = then
        self._feed(ev.ReplyAwaited(self._count, agent, key, is_early))

    def answer_ask(self, command: ev.AnswerAsk) -> None:
        """Pass the core's answer to the request's callback."""
        self._asks.pop(command.request)(command.answer)

    def view(self, agent: str, then: Callable[[ev.AnswerView], None], *, is_settled: bool) -> None:
        """Request a view of an agent. The callback `then` receives the view before the agent changes again, or is never called if the host
        ends first."""
        self._count += 1
        self._views[self._count] = then
        self._feed(ev.ViewRequested(self._count, agent, is_settled))

    def answer_view(self, command: ev.AnswerView) -> None:
        """Pass the view to the request's callback."""
        self._views.pop(command.request)(command)

    def open_waits(self, then: Callable[[ev.AnswerOpenWaits], None]) -> None:
        """Request the effects and approvals that agents wait for. The callback `then` receives the core's answer."""
        self._count += 1
        self._open_waits[self._count] = then
        self._feed(ev.OpenWaitsRequested(self._count))

    def answer_open_waits(self, command: ev.AnswerOpenWaits) -> None:
        """Pass the core's answer about effects and approvals to the request's callback."""
        self._open_waits.pop(command.request)(command)

    def waiting(self, then: Callable[[ev.AnswerWaiting], None]) -> None:
        """Request the agents with waiting work. The callback `then` receives the core's answer."""
        self._count += 1
        self._waiting[self._count] = then
        self._feed(ev.WaitingAgentsRequested(self._count))

    def answer_waiting(self, command: ev.AnswerWaiting) -> None:
        """Pass the core's answer about waiting agents to the request's callback."""
        self._waiting.pop(command.request)(command)

    # ---- batches --------------------------------------------------------------------------------------------------

    def append(self, command: ev.AppendBatch) -> None:
        """Write a batch to its log in the background, and retry until its outcome is known."""
        flight = _Flight(command)
        self._try(flight)
        self._environment.call_later(LATE_S, lambda: self._look(flight))

    def _try(self, flight: _Flight) -> None:
        if not self._is_over:
            self._environment.in_log(lambda: self._attempt(flight), then=lambda outcome: self._tried(flight, outcome))

    def _attempt(self, flight: _Flight) -> bool | str:
        """Try to append the batch. This method runs in a thread. Return True if the log contains the batch, False if it never will, or an
        error text if the outcome is unknown."""
        command = flight.command
        try:
            store = self._environment.open_store()
            if flight.prepared is None:
                batch = LogBatch(
                    list(command.inputs),
                    list(command.entries) or UNSET,
                    list(command.commits) or UNSET,
                    self._keeps_answers or UNSET,
                )
                flight.prepared = store.prepare_batch(command.log, command.number, batch, command.certificate)
            return store.append_batch(flight.prepared)
        except (SnaplineError, OSError) as error:
            return str(error)

    def _tried(self, flight: _Flight, outcome: bool | str) -> None:
        command = flight.command
        if isinstance(outcome, str):
            if not flight.failures:
                log.warning("the host log cannot be written, trying again and again: %s", outcome)
            flight.failures += 1
            self._feed(ev.LogStatusChanged(command.log, outcome))
            self._environment.call_later(RETRY_S, lambda: self._try(flight))
            return
        flight.is_decided = True
        if flight.failures:
            log.info("the host log can be written again, after %d tries", flight.failures)
        decided = ev.BatchAppended if outcome else ev.LogSealed
        self._feed(decided(command.log, command.number))

    def _look(self, flight: _Flight) -> None:
        if not flight.is_decided:
            self._feed(ev.LogStatusChanged(flight.command.log, f"the store has not answered for {LATE_S:g} s"))
