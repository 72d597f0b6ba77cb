"""Describes requests to models and tools in spans, after OpenTelemetry's semantic conventions for generative AI, which are in development.

The span of a step becomes the span `chat MODEL` or `execute_tool TOOL`, so that a request has a single span. Its parent is the span
`invoke_agent AGENT` of the agent's run. A run continues after a recovery, as its durable turn does. Its span therefore has a derived id, and
is exported with the turn's span, by the process in which the turn ends.

Spans contain no prompts, no answers, and no arguments or results of tools.
"""

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context as contexts
from opentelemetry import trace

from snapline.telemetry.span_export import QuickSpan


def enter_step(context: contextvars.Context) -> tuple[QuickSpan, trace.Span] | None:
    """Make the running step's span the current span in `context`. Return it, with the span that was current in `context` before. Return
    None if the step is not traced."""
    span = trace.get_current_span()
    if not isinstance(span, QuickSpan):
        return None
    outer = context.run(trace.get_current_span)
    context.run(contexts.attach, contexts.get_current())
    return span, outer


def describe_step(
    span: QuickSpan, outer: trace.Span, name: str, attributes: Mapping[str, str], *, is_remote: bool
) -> None:
    """Let a step's span describe the request that the step makes. `outer` is the span of the agent's run, which becomes the parent."""
    if isinstance(outer, QuickSpan):
        span.parent = outer.ids
    span.set_attribute("snapline.step", span.name.partition(" ")[2])
    span.set_attributes(attributes)
    span.name = name
    span.kind = trace.SpanKind.CLIENT if is_remote else trace.SpanKind.INTERNAL


@contextmanager
def agent_run(agent: str, begun_ns: int) -> Iterator[None]:
    """Let a span of the agent's run be the current span. The span begins at `begun_ns`, in nanoseconds since 1970, and ends with the block.
    A run that its turn has undone has no span."""
    outer = trace.get_current_span()
    span = outer.begin_child(f"invoke_agent {agent}") if isinstance(outer, QuickSpan) else None
    if span is None:
        yield
        return
    span.set_attributes({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent})
    span.start_ns = begun_ns
    token = contexts.attach(trace.set_span_in_context(span))
    try:
        yield
    except Exception as error:
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(trace.StatusCode.ERROR, type(error).__qualname__)
        span.end()
        raise
    else:
        span.end()
    finally:
        contexts.detach(token)
