"""Follows the requests that agents of SDKs make to models and tools: counts their tokens, and describes their spans.

A request is followed where it is really made, inside its step. An answer that a recovery finds in the journal or in a host log, or that a
fork takes from recorded answers, is no request. It counts no tokens, and no span describes it as a request.

Spans follow OpenTelemetry's conventions for generative AI (`gen_ai_spans.py`). These conventions still change, so that the environment
variable of OpenTelemetry must choose them. The metric has a name of ours, and does not depend on them.
"""

import contextlib
import contextvars
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from snapline.telemetry.metrics import COUNTER, Family, Readings, Value

CHAT, EXECUTE_TOOL = "chat", "execute_tool"

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
"""Environment variable of OpenTelemetry. It holds the names of conventions, separated by commas."""

GEN_AI = "gen_ai_latest_experimental"

MODEL_TOKENS = Family(
    "model_tokens_total",
    COUNTER,
    "tokens of requests that SDK agents made to models here, by direction (`input`, `output`)",
    "",
    ("agent", "model", "type"),
)
"""Metric of a host. `agent` is the name that an SDK's agent has in code, and not an agent of the fleet."""

PAIRS_MAX = 128
"""Maximum number of pairs of agent and model that are counted separately, since code may make up names. A monitoring system keeps each."""

OTHERS = ("other", "other")


class SdkRequest(msgspec.Struct, frozen=True):
    """A request of an SDK's agent.

    Attributes:
        operation: CHAT for a request to a model, or EXECUTE_TOOL.
        name: name of the model or of the tool.
        agent: name of the SDK's agent.
        details: further attributes of the span. They must not contain what was asked or answered.
        read: returns what the result of a request to a model tells of itself.
    """

    operation: str
    name: str
    agent: str
    details: dict[str, str]
    read: "Callable[[Any], Response] | None" = None

    def attributes(self) -> dict[str, str]:
        """Return the attributes of the request's span, except for those of the response."""
        return {
            "gen_ai.operation.name": self.operation,
            "gen_ai.agent.name": self.agent,
            "gen_ai.request.model" if self.operation == CHAT else "gen_ai.tool.name": self.name,
            **self.details,
        }


class Response(msgspec.Struct, frozen=True):
    """Figures and names that a model returns with its answer. `cached_tokens` of the input tokens came from the provider's cache."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    model: str = ""
    id: str = ""
    finish_reason: str = ""

    def attributes(self) -> dict[str, str | int | tuple[str, ...]]:
        """Return the attributes of the request's span that describe the response."""
        optional: dict[str, str | int | tuple[str, ...]] = {
            "gen_ai.usage.cache_read.input_tokens": self.cached_tokens,
            "gen_ai.response.model": self.model,
            "gen_ai.response.id": self.id,
            "gen_ai.response.finish_reasons": (self.finish_reason,) if self.finish_reason else (),
        }
        return {
            "gen_ai.usage.input_tokens": self.input_tokens,
            "gen_ai.usage.output_tokens": self.output_tokens,
            **{name: value for name, value in optional.items() if value},
        }


class TokenCounts:
    """Tokens that requests of this process have used, by agent, model and direction."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, str], list[int]] = {}

    def add(self, request: SdkRequest, response: Response) -> None:
        """Count the tokens of one request. Pairs of agent and model beyond `PAIRS_MAX` are counted together, as "other"."""
        pair = request.agent, request.name
        if pair not in self._tokens and len(self._tokens) >= PAIRS_MAX:
            pair = OTHERS
        counts = self._tokens.setdefault(pair, [0, 0])
        counts[0] += response.input_tokens
        counts[1] += response.output_tokens

    def read(self) -> Readings:
        """Return the current values of `MODEL_TOKENS`."""
        found: dict[tuple[str, ...], Value] = {
            (*pair, kind): float(count)
            for pair, counts in list(self._tokens.items())
            for kind, count in zip(("input", "output"), counts, strict=True)
        }
        return {MODEL_TOKENS.name: found} if found else {}


TOKENS = TokenCounts()
"""Counts of this process, which runs one host."""


def names_gen_ai() -> bool:
    """Return whether the environment asks for spans after the conventions for generative AI."""
    return GEN_AI in [name.strip() for name in os.environ.get(OPT_IN, "").split(",")]


def _are_spans_exported() -> bool:
    return "snapline.telemetry.span_export" in sys.modules


@contextlib.contextmanager
def following(request: SdkRequest | None, context: contextvars.Context) -> Iterator[Callable[[object], None]]:
    """Follow a request that is made in `context`. The caller calls the yielded function with the request's result."""
    response: list[Response] = []

    def answered(result: object) -> None:
        if request is not None and request.read is not None:
            with contextlib.suppress(
                KeyError, TypeError
            ):  # a result of another shape must not fail a request that has been paid
                response.append(request.read(result))
                TOKENS.add(request, response[0])

    if not _are_spans_exported():
        yield answered
        return
    from snapline.telemetry.gen_ai_spans import describe_step, enter_step

    entered = enter_step(context)
    if entered is None or request is None or not names_gen_ai():
        yield answered
        return
    span, outer = entered
    name = f"{request.operation} {request.name}"
    describe_step(span, outer, name, request.attributes(), is_remote=request.operation == CHAT)
    try:
        yield answered
    except Exception as error:
        span.set_attribute("error.type", type(error).__qualname__)
        raise
    if response:
        span.set_attributes(response[0].attributes())


@contextlib.contextmanager
def following_run(agent: str, begun_ns: int) -> Iterator[None]:
    """Follow a run of an SDK's agent in a durable turn. `begun_ns` is the run's begin, in nanoseconds since 1970."""
    if _are_spans_exported() and names_gen_ai():
        from snapline.telemetry.gen_ai_spans import agent_run

        with agent_run(agent, begun_ns):
            yield
    else:
        yield
