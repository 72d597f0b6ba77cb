"""HTML report of a run: verdict, evidence, timeline, space-time diagram, metrics, probes, and commands that repeat the run.

The page is one file and needs no network. Its content security policy forbids network access and scripts. The page
follows the reader's light or dark scheme. All text from a run is escaped (`style.text`). The same run always gives the
same bytes.
"""

from collections.abc import Iterable, Iterator

import msgspec

from snapline.diagrams.style import clean, picture, shortened, text
from snapline.diagrams.style import page as framed
from snapline.sim.report.run_diagrams import draw_run, draw_timeline
from snapline.sim.result import GUARANTEES, VERDICTS, Result, Violation, count, seconds, value_words
from snapline.sim.world.recording import Recording

EVENTS_MAX = 2_000
"""Maximum number of events in the page's diagram; more events make a browser slow. `spacetime.svg` contains more events."""

VIOLATIONS_MAX, FAULTS_MAX, ROWS_MAX = 50, 200, 500
"""Maximum number of rows per list; `result.json` contains all of them."""

WORDS_MAX = 4_000
"""Maximum number of characters of a single text, such as a traceback."""

SIGNS = {"pass": "✓", "violation": "✗", "undecided": "?", "broken": "!"}


class Page(msgspec.Struct, frozen=True):
    """Contents of the report page.

    Attributes:
        config: scenario with all drawn values, in TOML.
        schema: version of the scenario format.
        commit: commit of the code, "" if unknown.
        heal_ns: time at which all faults were healed.
        within_ns: time that the fleet may take to finish its work after that.
        catalogue: all existing probes with their meanings.
    """

    result: Result
    recording: Recording | None
    config: str
    schema: int
    commit: str
    heal_ns: int = 0
    within_ns: int = 0
    catalogue: dict[str, str] = {}


STYLE = """:root { --pass: #1a7f37; --violation: #cf222e; --undecided: #9a6700; --broken: #8250df; }
@media (prefers-color-scheme: dark) { :root { --pass: #3fb950; --violation: #ff7b72; --undecided: #d29922;
 --broken: #a371f7; } }
header { display: flex; flex-wrap: wrap; gap: 8px 20px; align-items: center; }
.verdict { display: inline-block; padding: 4px 14px; border-radius: 999px; border: 2px solid currentColor;
 font-weight: 650; }
.pass { color: var(--pass); } .violation { color: var(--violation); } .undecided { color: var(--undecided); }
.broken { color: var(--broken); }
dl { display: flex; flex-wrap: wrap; gap: 8px 32px; margin: 16px 0; }
dt { color: var(--quiet); font-size: 12.5px; } dd { margin: 0; font-variant-numeric: tabular-nums; }
.card { border: 1px solid var(--edge); border-left: 4px solid var(--violation); border-radius: 6px; padding: 10px 14px;
 margin: 10px 0; background: var(--panel); }
.timeline svg { min-width: 760px; width: 100%; height: auto; }
.at-end { direction: rtl; } .at-end svg { direction: ltr; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 0 40px; }
table { width: 100%; }
"""


def page(of: Page) -> str:
    """Return the page as the text of one HTML file."""
    result = of.result
    name = text(result.name)
    timeline = draw_timeline(result, of.recording, heal_ns=of.heal_ns, within_ns=of.within_ns)
    body = f"""<main>
<header>
<h1>{name} <span class="quiet">seed {result.seed}</span></h1>
<p class="verdict {result.verdict}"><span aria-hidden="true">{SIGNS[result.verdict]}</span> {result.verdict}</p>
</header>
<p>{text(VERDICTS[result.verdict])}</p>
{_joined(_evidence(result))}
<dl>
{_joined(_facts(of))}
</dl>

<h2>Faults and liveness</h2>
{picture(timeline, name="timeline", kind="timeline")}
<details><summary>Faults as carried out</summary>
{_joined(_faults(result))}
</details>

<h2>Space and time</h2>
{_diagram(of)}

<div class="columns">
<section>
<h2>Metrics</h2>
{_joined(_metrics(result))}
</section>
<section>
<h2>Probes</h2>
{_joined(_probes(of))}
</section>
</div>

<h2>Run it again</h2>
{_joined(_reproduce(of))}
<details><summary>The scenario as drawn</summary>
<pre tabindex="0">{_lines(of.config)}</pre>
</details>
</main>"""
    return framed(title=f"{name}, seed {result.seed}: {result.verdict}", body=body, style=STYLE)


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _lines(words: str) -> str:
    """Escape a text of several lines for `<pre>`."""
    return "\n".join(text(line) for line in words.expandtabs(4).split("\n"))


# -- what happened ------------------------------------------------------------------------------------------------------


def _facts(of: Page) -> Iterator[str]:
    result = of.result
    facts = [
        ("virtual time", seconds(result.virtual_ns)),
        ("events", f"{result.events:,}"),
        ("messages", f"{result.messages:,}"),
        ("faults", f"{len(result.faults):,}"),
        ("CPU", f"{result.cpu_s:.2f} s"),
        ("trace hash", shortened(result.trace_hash, 17) or "none"),
    ]
    if of.recording is not None:
        outcomes = [span.outcome for span in of.recording.epochs.values()]
        facts.insert(4, ("epochs", f"{outcomes.count('complete'):,} of {len(outcomes):,} complete"))
    for name, value in facts:
        yield f"<div><dt>{name}</dt><dd>{text(value)}</dd></div>"


def _evidence(result: Result) -> Iterator[str]:
    for violation in result.violations[:VIOLATIONS_MAX]:
        yield from _violation(violation)
    if len(result.violations) > VIOLATIONS_MAX:
        yield f"<p>… and {len(result.violations) - VIOLATIONS_MAX:,} more: <code>result.json</code> has all.</p>"
    if result.pending:
        yield "<h3>Missing at the end</h3>\n<ul>"
        yield from (f"<li>{_words(words)}</li>" for words in result.pending[:ROWS_MAX])
        yield "</ul>"
    if result.error:
        yield f'<h3>Error</h3>\n<pre tabindex="0">{_words(result.error)}</pre>'


def _violation(violation: Violation) -> Iterator[str]:
    promise = GUARANTEES.get(violation.guarantee, "")
    yield '<article class="card">'
    yield f"<h3>{text(violation.guarantee)} <span>· {text(violation.oracle)} · {seconds(violation.t_ns)}</span></h3>"
    yield f"<p>{_words(violation.text)}</p>"
    if promise:
        yield f'<p class="quiet">Promised: {text(promise)}</p>'
    yield "</article>"


def _words(words: str) -> str:
    return _lines(words if len(words) <= WORDS_MAX else words[:WORDS_MAX] + "…")


def _diagram(of: Page) -> str:
    if of.recording is None:
        return '<p class="quiet">The run was not recorded: run it again with a recording to see the events.</p>'
    # The cause of the end is at the right edge. With right-to-left direction, a browser shows that edge first.
    is_at_end = bool(of.result.violations)
    svg = draw_run(of.recording, of.result, events_max=EVENTS_MAX, is_read_from_end=is_at_end)
    return picture(svg, kind="at-end" if is_at_end else "")


def _faults(result: Result) -> Iterator[str]:
    if not result.faults:
        yield '<p class="quiet">None.</p>'
        return
    rows = [
        (text(fault.kind), text(fault.text), seconds(fault.at_ns), seconds(fault.until_ns) if fault.until_ns else "–")
        for fault in result.faults[:FAULTS_MAX]
    ]
    yield from _table(("kind", "what", "from", "until"), rows, numbers=(2, 3))
    if len(result.faults) > FAULTS_MAX:
        yield f"<p>… and {len(result.faults) - FAULTS_MAX:,} more: <code>faults.toml</code> has all.</p>"


# -- numbers ------------------------------------------------------------------------------------------------------------


def _metrics(result: Result) -> Iterator[str]:
    if not result.metrics:
        yield '<p class="quiet">None.</p>'
        return
    names = sorted(result.metrics)[:ROWS_MAX]
    yield from _table(
        ("metric", "value"), [(text(name), value_words(result.metrics[name])) for name in names], numbers=(1,)
    )


def _probes(of: Page) -> Iterator[str]:
    hits = {name: hit for name, hit in sorted(of.result.probes.items()) if hit}
    never = [name for name in sorted({**of.catalogue, **of.result.probes}) if not hits.get(name)]
    yield f"<p>{count(len(hits), 'probe')} hit, {len(never):,} not in this run.</p>"
    if hits:
        rows = [(_probe(name, of), f"{hit:,}") for name, hit in list(hits.items())[:ROWS_MAX]]
        yield from _table(("hit", "times"), rows, numbers=(1,))
    if never:
        yield f"<details><summary>Never hit ({len(never):,})</summary>\n<ul>"
        yield from (f"<li>{_probe(name, of)}</li>" for name in never[:ROWS_MAX])
        yield "</ul></details>"


def _probe(name: str, of: Page) -> str:
    meaning = of.catalogue.get(name, "")
    return f'{text(name)} <span class="quiet">{text(meaning)}</span>' if meaning else text(name)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, numbers: tuple[int, ...]) -> Iterator[str]:
    """Yield a table whose cells are already markup. `numbers` lists the columns that are aligned to the right."""
    mark = ['class="number"' if index in numbers else "" for index in range(len(columns))]
    head = "".join(f'<th scope="col" {mark[index]}>{name}</th>' for index, name in enumerate(columns))
    yield f'<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>'
    for row in rows:
        yield "<tr>" + "".join(f"<td {mark[index]}>{cell}</td>" for index, cell in enumerate(row)) + "</tr>"
    yield "</tbody></table></div>"


def _reproduce(of: Page) -> Iterator[str]:
    """Yield the commands that repeat the run. They are relative to the run's folder, so they stay correct if the folder is moved."""
    yield "<p>In this folder:</p>"
    yield f'<pre tabindex="0">snapline sim replay .\nsnapline sim run config.toml --seed {of.result.seed}</pre>'
    commit = f"<code>{text(clean(of.commit))}</code>" if of.commit else "unknown"
    yield f"<p>Commit {commit}, scenario schema {of.schema}, trace hash <code>{text(of.result.trace_hash) or 'none'}</code>.</p>"
