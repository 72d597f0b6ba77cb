"""Text output of a sweep: one screen of it, or everything."""

from typing import Any

from snapline.cli.output import Document, DocumentTables, count, rows_of

TEXT_SHOWN_MAX, SINGLE_TEXT_MAX = 300, 600
"""Characters shown of each finding's text, and of the text of a single finding; `-o json` has all."""

FINDINGS_MAX = 2
"""Number of findings shown on one screen of 25 lines; each takes up to eight lines."""

WIDTH = 78
FIELD = 10
"""Widths of a line of the short form, and of its heading."""

ROUNDED = 100
"""Means of at least this value are shown as whole numbers."""

METRICS_SHOWN = {
    "turns": "turns",
    "recoveries": "recoveries",
    "epochs_complete": "epochs",
    "rollback_turns": "turns undone",
}
"""Metric name → its label in the short form."""


def show_summary(result: Document, tables: DocumentTables) -> None:
    """Print one screen: verdicts, the first findings, and situations that occurred or never did."""
    tables.line(_verdicts_line(result))
    findings, divergences = rows_of(result, "findings"), rows_of(result, "divergences")
    for finding in findings[:FINDINGS_MAX]:
        tables.line()
        _show_finding(finding, tables, SINGLE_TEXT_MAX if len(findings) == 1 else TEXT_SHOWN_MAX)
    if len(findings) > FINDINGS_MAX:
        tables.line(f"… {count(len(findings) - FINDINGS_MAX, 'more kind')} of findings: --verbose")
    tables.line()
    _field(tables, "passed", _means(result))
    _field(tables, "met", _drawn_faults(result))
    _field(tables, "never met", _never_hit_counts(result))
    checked = result["checked"]
    assert isinstance(checked, int)
    twice = (
        f"{len(divergences)} of {count(checked, 'run')} differ"
        if divergences
        else f"{count(checked, 'run')}, all the same"
    )
    _field(tables, "twice", twice if checked else "no run")
    for divergence in divergences[:1]:
        tables.line(_cut(" ".join(str(divergence["words"]).split()), TEXT_SHOWN_MAX))


def _field(tables: DocumentTables, name: str, words: str) -> None:
    if words:
        tables.line(f"{name:<{FIELD}}{_cut(words, WIDTH - FIELD)}")


def _cut(words: str, characters_max: int) -> str:
    return words if len(words) <= characters_max else f"{words[: characters_max - 1]}…"


def _means(result: Document) -> str:
    """Return the mean metrics of passed runs."""
    metrics = result["metrics"]
    if not isinstance(metrics, dict) or not metrics:
        return ""
    means = {word: metrics[name]["mean"] for name, word in METRICS_SHOWN.items() if name in metrics}
    return f"mean {', '.join(f'{mean:,.{int(mean < ROUNDED)}f} {word}' for word, mean in means.items())}"


def _drawn_faults(result: Document) -> str:
    """Return the faults that were drawn, the most frequent first."""
    drawn = result["drawn"]
    faults = drawn.get("faults", {}) if isinstance(drawn, dict) else {}
    drawn_faults = sorted(((runs, name) for name, runs in faults.items() if runs), key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{name} {runs}" for runs, name in drawn_faults)


def _never_hit_counts(result: Document) -> str:
    never, probes, drawn = result["never_hit"], result["probes"], result["drawn"]
    assert isinstance(never, list) and isinstance(probes, dict) and isinstance(drawn, dict)
    hit = sum(1 for hits in probes.values() if hits)
    parts = [f"{len(never)}/{len(never) + hit} situations"] if never else []
    for group in ("faults", "failpoints"):
        counts = drawn.get(group, {})
        missing = sum(1 for runs in counts.values() if not runs)
        parts += [f"{missing}/{len(counts)} {group}"] if missing else []
    return f"{', '.join(parts)} (--verbose)" if parts else ""


def show_all(result: Document, tables: DocumentTables) -> None:
    """Print everything."""
    tables.line(_verdicts_line(result))
    for finding in rows_of(result, "findings"):
        tables.line()
        _show_finding(finding, tables, SINGLE_TEXT_MAX)
    _show_metrics(result, tables)
    _show_drawn(result, tables)
    _show_checks(result, tables)


def _verdicts_line(result: Document) -> str:
    verdicts, runs, elapsed_s = result["verdicts"], result["runs"], result["elapsed_s"]
    assert isinstance(verdicts, dict) and isinstance(runs, int) and isinstance(elapsed_s, float)
    counts = ", ".join(f"{number:,} {verdict}" for verdict, number in verdicts.items() if number)
    stopped = ", stopped" if result["is_stopped"] else ""
    pace = f"{elapsed_s:.1f} s, {result['seeds_per_s']} runs/s"
    return f"{result['name']}: {count(runs, 'run')}{stopped}: {counts or 'none'} ({pace})"


def _show_finding(finding: Any, tables: DocumentTables, characters_max: int) -> None:  # Any: a row of the document
    guarantee = f" ({finding['guarantee']})" if finding["guarantee"] else ""
    seeds = ", ".join(map(str, finding["seeds"])) + (" …" if finding["count"] > len(finding["seeds"]) else "")
    tables.line(
        f"{finding['verdict']}: {finding['oracle']}{guarantee}, {count(finding['count'], 'run')}: seeds {seeds}"
    )
    text = " ".join(finding["text"].split())
    tables.line(f"    {_cut(text, characters_max)}")
    tables.line(f"    {finding['repeat']}")


def _show_metrics(result: Document, tables: DocumentTables) -> None:
    metrics = result["metrics"]
    if not isinstance(metrics, dict) or not metrics:
        return
    tables.line()
    tables.line("of the runs that passed:")
    rows = [
        [name, *(_number(of[key]) for key in ("mean", "low", "high", "p50", "p95", "max"))]
        for name, of in metrics.items()
        if of["max"] or of["mean"]
    ]
    tables.table(("METRIC", "MEAN", "95 % FROM", "TO", "MEDIAN", "P95", "MAX"), rows)


def _show_drawn(result: Document, tables: DocumentTables) -> None:
    """Print by group how many runs had which fault or setting."""
    drawn = result["drawn"]
    if not isinstance(drawn, dict) or not drawn:
        return
    tables.line()
    tables.line("what the runs were given (so many of them):")
    for group, counts in drawn.items():
        given = ", ".join(f"{name} {runs}" for name, runs in counts.items() if runs)
        tables.line(f"  {group}: {given or 'nothing'}")
    never = result["never_drawn"]
    assert isinstance(never, dict)
    parts = [f"{group}: {', '.join(names)}" for group, names in never.items()]
    tables.line(f"never given: {'; '.join(parts) or 'nothing'}")


def _number(value: object) -> str:
    return "?" if not isinstance(value, int | float) else f"{value:,.6g}"


def _show_checks(result: Document, tables: DocumentTables) -> None:
    tables.line()
    never = result["never_hit"]
    assert isinstance(never, list)
    tables.line(f"probes never hit: {', '.join(never) if never else 'none'}")
    divergences = rows_of(result, "divergences")
    checked = result["checked"]
    assert isinstance(checked, int)
    outcome = f"{len(divergences)} differ" if divergences else "all the same"
    tables.line(f"{count(checked, 'run')} made twice: {outcome}" if checked else "no run was made twice")
    for divergence in divergences:
        tables.line(str(divergence["words"]))
