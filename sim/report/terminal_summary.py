"""Outcome of a run as text for a terminal: one screen, the most important parts first.

There are at most `LINES_MAX` lines of at most `WIDTH` characters; omitted items are counted. Control characters in a user's
error are removed.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from snapline.diagrams.style import clean, shortened
from snapline.sim.result import ExecutedFault, Result, Violation, count, seconds, time_span
from snapline.sim.scenario import Scenario

WIDTH = 96
BRIEF_WIDTH = 160
"""Maximum width of the lines of `brief_summary`."""

LINES_MAX = 24
"""Maximum number of lines: the height of the smallest common terminal."""

VIOLATIONS_MAX, PENDING_MAX, FAULTS_MAX = 3, 5, 5
TEXT_LINES_MAX = 5
"""Maximum number of lines of one violation or error."""

_Item = TypeVar("_Item")


def summarise(result: Result) -> str:
    """Return the outcome in at most `LINES_MAX` lines, with a newline at the end."""
    size = f"{count(result.events, 'event')}, {count(result.messages, 'message')}"
    lines = [
        shortened(clean(f"{result.verdict.upper()}  {result.name}, seed {result.seed}"), WIDTH),
        f"{seconds(result.virtual_ns)} of virtual time in {result.cpu_s:.2f} s CPU: {size}",
        shortened(clean(exercised(result)), WIDTH),
        *_several(result.violations, VIOLATIONS_MAX, _violation, "more violation"),
        *_several(result.pending, PENDING_MAX, _pending, "more thing missing", "more things missing"),
        *_wrapped(result.error, "error: "),
        *_unstubbed_steps(result),
        *_several(result.faults, FAULTS_MAX, _fault, "more fault"),
        *_probes(result),
    ]
    if result.trace_hash:
        lines.append(f"trace {shortened(clean(result.trace_hash), 40)}")
    if len(lines) > LINES_MAX:
        lines[LINES_MAX - 1 :] = ["…"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def brief_summary(result: Result, scenario: Scenario) -> str:
    """Return four lines about a run that passed: verdict, size, events met, and checks."""
    fleet, figures, hits = scenario.fleet, result.metrics, result.probes
    turns, epochs = int(figures.get("turns", 0)), int(figures.get("epochs_complete", 0))
    agents = f"{count(fleet.agents, 'agent')} on {count(fleet.hosts, 'host')}"
    size = f"{agents}, {count(turns, 'turn')}, {count(result.messages, 'message')}"
    size += f", {result.virtual_ns / 1e9:.1f} s of virtual time in {result.cpu_s:.2f} s CPU"
    recoveries = hits.get("recovery", 0)
    events = [f"{recoveries} {'recovery' if recoveries == 1 else 'recoveries'}", f"{count(epochs, 'complete epoch')}"]
    events += [", ".join(kinds_of(result.faults)) or "no fault"]
    checks = [f"all guarantees, {count(hits.get('replayed', 0), 'agent')} run again"]
    checks += [name for name in (fleet.invariant, fleet.at_end) if name]
    checks += [*_unstubbed_steps(result)]
    lines = [f"{result.verdict.upper()}  {result.name}, seed {result.seed}", f"ran      {size}"]
    lines += [f"met      {', '.join(events[:2])}; {events[2]}", f"checked  {'; '.join(checks)}"]
    return "".join([f"{shortened(clean(line), BRIEF_WIDTH)}\n" for line in lines])


def exercised(result: Result) -> str:
    """Return a line with the numbers of turns, epochs and recoveries, and the kinds of faults."""
    counts = {
        "turn": int(result.metrics.get("turns", 0)),
        "epoch": int(result.metrics.get("epochs_complete", 0)),
        "recovery": int(result.metrics.get("recoveries", 0)),
    }
    parts = [f"{number} {name if number == 1 else _plural(name)}" for name, number in counts.items()]
    kinds = kinds_of(result.faults)
    return f"exercised: {', '.join(parts)}; faults: {', '.join(kinds) or 'none'}"


def _plural(name: str) -> str:
    return "recoveries" if name == "recovery" else f"{name}s"


def kinds_of(faults: Iterable[ExecutedFault]) -> list[str]:
    """Return the kinds of faults that were carried out. A fault that waits at a failpoint never reached was not."""
    return list(dict.fromkeys(_kind(fault) for fault in faults if "whoever" not in fault.text))


def _kind(fault: ExecutedFault) -> str:
    return fault.text.partition(" ")[0] if fault.kind == "failpoint" else fault.kind


def _violation(violation: Violation) -> Iterator[str]:
    yield shortened(clean(f"{violation.guarantee} {violation.oracle}, at {seconds(violation.t_ns)}"), WIDTH)
    yield from _wrapped(violation.text, "  ")


def _pending(words: str) -> Iterator[str]:
    yield shortened(clean(f"missing: {words}"), WIDTH)


def _fault(fault: ExecutedFault) -> Iterator[str]:
    when = time_span(fault.at_ns, fault.until_ns) if fault.until_ns else f"at {seconds(fault.at_ns)}"
    yield shortened(clean(f"fault: {fault.text or fault.kind}"), WIDTH - len(when) - 2) + f", {when}"


def _unstubbed_steps(result: Result) -> Iterator[str]:
    """Yield a line that lists the steps without stubs, which really ran."""
    if result.unstubbed_steps:
        names = ", ".join(result.unstubbed_steps)
        yield shortened(clean(f"no stubs (Fleet(simulate=…)), so these steps really ran: {names}"), WIDTH)


def _probes(result: Result) -> Iterator[str]:
    hit = [name for name, hits in sorted(result.probes.items()) if hits]
    if hit:
        yield shortened(clean(f"{count(len(hit), 'probe')} hit: {', '.join(hit)}"), WIDTH)


def _several(
    items: Sequence[_Item], items_max: int, lines: Callable[[_Item], Iterator[str]], more: str, many: str = ""
) -> Iterator[str]:
    """Yield the lines of the first items, and the number of further ones."""
    for item in items[:items_max]:
        yield from lines(item)
    remaining = len(items) - items_max
    if remaining > 0:
        yield f"  … {remaining:,} {many or more + 's'}" if remaining > 1 else f"  … 1 {more}"


def _wrapped(words: str, before: str) -> Iterator[str]:
    if not words:
        return
    flat = clean(" ".join(words.split()))
    yield from textwrap.wrap(
        flat,
        WIDTH,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        max_lines=TEXT_LINES_MAX,
        placeholder=" …",
    )
