"""Driver of a host with spans: turns and steps run within them. Imported where there are any."""

from opentelemetry import context as contexts

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import durable_events as de
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.driver import HostDriver
from snapline.agent_runtime.host.environment import HostEnvironment, TraceSink, Transport
from snapline.agent_runtime.host.epoch_files import LoadedLine
from snapline.agent_runtime.host.turn_spans import EFFECT, TracedEnvironment, TurnPlace, TurnSpans
from snapline.storage.log.record import LoggedInput
from snapline.telemetry.span_export import SpanExport


class SpanCarrier(HostDriver):
    """A `HostDriver` that makes spans of turns.

    Attributes:
        spans: spans of traced turns.
    """

    def __init__(
        self,
        host: str,
        fleet: Fleet,
        around: HostEnvironment,
        transport: Transport,
        *,
        export: SpanExport,
        trace: TraceSink | None,
        trace_every: int,
    ) -> None:
        world = TracedEnvironment(export)
        super().__init__(host, fleet, around, transport, world=world, trace=trace, trace_every=trace_every)
        self.spans = TurnSpans(export, self.turns.run, self.turns.type_of, self._place_of)
        self._run_turn = self.spans.run
        self._restored: dict[tuple[str, str], int] = {}
        """(Agent, sender) → last message in the plan's line or logs; sender "" for inputs."""

    def _turn_ended(self, event: ev.TurnEnded | ev.TurnFailed) -> None:
        super()._turn_ended(self.spans.ended(event))

    def _run_step(self, command: de.RunStep) -> None:
        opened = self.spans.open.get(command.agent)
        if opened is None:
            super()._run_step(command)
            return
        within = contexts.set_value(EFFECT, isinstance(command, de.RunEffect), opened.context)
        token = contexts.attach(within)
        try:
            super()._run_step(command)
        finally:
            contexts.detach(token)

    def _cancel_turns(self, command: ev.CancelTurns) -> None:
        self.spans.undone()
        super()._cancel_turns(command)

    def _loaded(self, command: ev.LoadAgents, outcome: LoadedLine | ev.LoadFailed) -> None:
        if isinstance(outcome, LoadedLine) and command.plan == self.core.plan:
            self._restored = _restored(outcome)
        super()._loaded(command, outcome)

    def _place_of(self, turn: ev.StartTurn) -> TurnPlace:
        agent = self.core.agents.get(turn.agent)
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
