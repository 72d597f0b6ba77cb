"""A durable turn that runs an SDK's agent on a host that exports spans, without a fleet. Steps and effects are really run, within their spans."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: pip install 'snapline[otel]'")

import msgspec
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import snapline
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.host_spans import EFFECT, TracedTurnEnvironment, TurnPlace, TurnSpans
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import Traceparent, encode_message, with_tail
from snapline.storage.log.answer_files import RecordedAnswer
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn
from snapline.telemetry.model_requests import MODEL_TOKENS, TOKENS
from snapline.telemetry.span_export import SpanExport

CALLER = Traceparent(0xA, 0xB, 9)

Run = Callable[[snapline.Context], Awaitable[Any]]
Key = tuple[str, str, bytes]
Answers = dict[Key, list[bytes]]


class Ask(snapline.Message):
    pass


class Number(msgspec.Struct):
    number: int


class Asker(snapline.Agent):
    state: Number

    @snapline.handler(durable=True)
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        turn = TURNS[self.state.number]
        turn.found = await turn.run(ctx)


class TracedTurn:
    """A turn in a process of its own, which begins it or goes on with `journal`.

    Attributes:
        found: what the run has returned.
        error: why the turn has failed, if it has.
    """

    def __init__(self, run: Run, reply: object, journal: Sequence[JournalEntry] | None = None) -> None:
        self.run = run
        self.journal = list(journal or ())
        self.found: Any = None
        self.error = ""
        self._is_begun = journal is not None
        self._reply = reply
        self._told = InMemorySpanExporter()
        self._export = SpanExport(0.0, role="host", name="h1", exporter=self._told)
        self._ended: asyncio.Queue[ev.StepEnded] = asyncio.Queue()
        asker = Asker(Number(len(TURNS)))
        TURNS.append(self)
        fleet = snapline.Fleet("askers", agents={"a": asker})
        world = TracedTurnEnvironment(self._export)
        self._turns = Turns(fleet, lambda event: None, print, world, step_ended=self._ended.put_nowait)
        self._turns.add("a", asker)
        self._spans = TurnSpans(
            self._export, self._turns.run, self._turns.type_of, lambda turn: TurnPlace(1, self._is_begun)
        )

    async def end(self, limit: int = 1000, answers: Answers | None = None) -> Any:
        """Run the turn to its end, or until so many entries are in the journal. `answers` are taken instead of running steps."""
        payload = with_tail(encode_message(Ask()), CALLER.tail())
        turn = ev.StartTurn("a", 1, "message", "z", payload)
        if self._is_begun:
            begun = SavedTurn("message", "z", payload, b"s" * 16, "", list(self.journal))
            turn = ev.StartTurn("a", 1, "segment", "z", payload, turn=begun)
        while True:
            ended = self._spans.run(turn)
            if isinstance(ended, ev.TurnFailed):
                self.error = ended.error
                return None
            assert isinstance(ended, ev.TurnEnded), ended
            if ended.pause is None:
                return self.found
            self.journal += ended.pause.entries
            requests = ended.pause.members or [ended.pause.waits]
            entries = [await self._entry(len(self.journal) + n, each, answers) for n, each in enumerate(requests)]
            self.journal += entries
            if len(self.journal) >= limit:
                return None
            more: dict[str, Any] = {"group": tuple(entries)} if ended.pause.members else {"found": entries[0]}
            turn = ev.StartTurn("a", 1, "segment", "z", payload, **more)

    async def _entry(self, place: int, request: JournalEntry, answers: Answers | None) -> JournalEntry:
        if request.kind == "call":
            return _done(request, "done", encode_message(self._reply))
        command = ev.RunStep("a", 1, place, request.name)
        if request.kind == "effect":
            command = ev.RunEffect("a", 1, place, request.name, "outside", False)
        if answers is not None:
            result = answers[request.kind, request.name, request.digest].pop(0)
            if request.kind == "effect":
                return _done(request, "adopted", result)
            answer = RecordedAnswer("a", "step", request.name, request.digest, 1, "done", result)
            command = ev.TakeAnswer("a", 1, place, request.name, answer)
        within = contexts.set_value(EFFECT, request.kind == "effect", self._spans.open["a"].context)
        token = contexts.attach(within)
        self._turns.run_step(command)
        contexts.detach(token)
        ended = await asyncio.wait_for(self._ended.get(), 20)
        return _done(request, ended.outcome, ended.result)

    def answers(self) -> Answers:
        """The answers in this turn's journal, as a fork takes them."""
        found: Answers = {}
        for entry in self.journal:
            found.setdefault((entry.kind, entry.name, entry.digest), []).append(entry.result)
        return found

    def spans(self) -> list[ReadableSpan]:
        """The spans that the process has exported, when it ends."""
        self._turns.forget_all()
        self._export.close()
        return list(self._told.get_finished_spans())


TURNS: list[TracedTurn] = []
"""All turns of this process: a state cannot hold a function."""


def _done(request: JournalEntry, outcome: str, result: bytes) -> JournalEntry:
    return JournalEntry(request.kind, request.name, request.digest, outcome, result)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def names_of(spans: Sequence[ReadableSpan]) -> Counter[str]:
    return Counter(span.name for span in spans)


def parents_of(spans: Sequence[ReadableSpan]) -> dict[str, set[str]]:
    """The name of the spans' parents, by the name of the spans."""
    known = {span.context.span_id: span.name for span in spans if span.context is not None}
    found: dict[str, set[str]] = {}
    for span in spans:
        parent = span.parent.span_id if span.parent is not None else 0
        found.setdefault(span.name, set()).add("caller" if parent == CALLER.span else known.get(parent, "nobody"))
    return found


def tokens() -> Counter[tuple[str, ...]]:
    """Tokens that this process has counted so far."""
    counts: Any = TOKENS.read().get(MODEL_TOKENS.name, {})
    return Counter({labels: int(count) for labels, count in counts.items()})
