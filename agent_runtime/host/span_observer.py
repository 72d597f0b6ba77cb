"""Spans of a host: turns, steps and effects run within them. Imported where spans are exported."""

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import context as contexts

from snapline.agent_runtime.host import host_events as de
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.epoch_files import LoadedLine
from snapline.agent_runtime.host.observer import Execute, HostObserver, ObservedDriver
from snapline.agent_runtime.host.turn_spans import EFFECT, TurnPlace, TurnSpans
from snapline.storage.log.record import LoggedInput
from snapline.telemetry.span_export import SpanExport


class SpanObserver(HostObserver):
    """Observer of a host's driver that makes its spans.

    Attributes:
        spans: spans of traced turns.
    """

    spans: TurnSpans

    def __init__(self, export: SpanExport) -> None:
        self._export = export
        self._restored: dict[tuple[str, str], int] = {}
        """Last message in the line, or the logs, of the plan, by agent and sender, "" for inputs."""

    def attached(self, driver: ObservedDriver) -> None:
        self._core = driver.core
        self.spans = TurnSpans(self._export, driver.turns.run, driver.turns.type_of, self._place_of)
        driver.wrap_turns(lambda _: self.spans.run)

    def commands(self) -> Mapping[type[ev.HostOutput], Callable[[Any, Execute], None]]:
        return {de.RunStep: self._within_turn, de.RunEffect: self._within_turn, ev.CancelTurns: self._cancel_turns}

    def turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> ev.TurnEnded | ev.TurnFailed:
        return self.spans.ended(event)

    def _within_turn(self, command: de.RunStep, execute: Execute) -> None:
        """Run a step or an effect within the span of its turn."""
        opened = self.spans.open.get(command.agent)
        if opened is None:
            execute(command)
            return
        within = contexts.set_value(EFFECT, isinstance(command, de.RunEffect), opened.context)
        token = contexts.attach(within)
        try:
            execute(command)
        finally:
            contexts.detach(token)

    def _cancel_turns(self, command: ev.CancelTurns, execute: Execute) -> None:
        self.spans.undone()
        execute(command)

    def line_loaded(self, command: ev.LoadAgents, outcome: LoadedLine | ev.LoadFailed) -> None:
        if isinstance(outcome, LoadedLine) and command.plan == self._core.plan:
            self._restored = _restored(outcome)

    def _place_of(self, turn: ev.StartTurn) -> TurnPlace:
        agent = self._core.agents.get(turn.agent)
        entry = None if agent is None else agent.current
        if entry is None:
            return TurnPlace(0, False)
        inlet, mark, _ = entry
        if inlet is not None:
            number, sender = inlet.consumed + 1, inlet.sender
        elif isinstance(mark, LoggedInput):
            number, sender = mark.number, ""
        else:
            return TurnPlace(0, False)
        return TurnPlace(number, number <= self._restored.get((turn.agent, sender), 0))


def _restored(line: LoadedLine) -> dict[tuple[str, str], int]:
    newest = {(item.agent, ""): item.number for item in line.logged.inputs}
    for loaded in line.agents:
        if loaded.checkpoint is not None:
            for sender, messages in loaded.checkpoint.in_transit.items():
                if messages:
                    newest[loaded.agent, sender] = messages[-1].number
    return newest
