"""The screen *Simulation*: runs and sweeps in the folders of reports, and one sweep's failures by oracle."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import msgspec

from snapline.sim.report.formatting import VERDICTS, seconds
from snapline.view.formatting import NOTHING, age, count, plural, tone_of
from snapline.view.markup import Child, Markup, join, shown, tag
from snapline.view.page_frame import section, table
from snapline.view.sim_reports import FoundReports, FoundRun, FoundSweep, SweepFound

PLACE = "/simulation"

ROWS_MAX = 200
"""Largest number of runs in the table; a search finds the others."""

FINDINGS_MAX, PROBES_MAX = 100, 200

WHY_MAX = 300
"""Largest number of characters of the evidence in a table; the run's page has the rest."""

RUN_COLUMNS = (
    *(("Run", ""), ("Seed", "number"), ("Verdict", ""), ("Protocol or fleet", ""), ("Virtual time", "number")),
    *(("What went wrong", "wide"), ("Shrunk", ""), ("Written", "")),
)
SWEEP_COLUMNS = (
    *(("Sweep", ""), ("Verdict", ""), ("Runs", "number"), ("Pass", "number"), ("Violation", "number")),
    *(("Undecided", "number"), ("Broken", "number"), ("What failed", "wide"), ("Written", "")),
)
FINDING_COLUMNS = (
    *(("Oracle", ""), ("Verdict", ""), ("Runs", "number"), ("Seeds", "wide"), ("Evidence of the first", "wide")),
    ("Again", ""),
)


class RunSearch(msgspec.Struct, frozen=True):
    """Search for runs. `text`: part of a name, a protocol, an oracle or the evidence; `verdict`: exact match; "": all."""

    text: str = ""
    verdict: str = ""

    def finds(self, run: FoundRun) -> bool:
        """Return whether the run is one of them."""
        searched = f"{run.head.name} {run.head.seed} {run.protocol} {run.head.oracles} {run.head.why}".casefold()
        return self.text.casefold() in searched and self.verdict in ("", run.head.verdict)


def verdict_pill(verdict: str) -> Markup:
    """A verdict as a word with a colour, and its meaning."""
    meaning = VERDICTS.get(verdict)
    return tag("span", verdict or "unknown", class_=f"pill {tone_of('verdict', verdict)}", title=meaning)


def address(kind: str, place: str) -> str:
    """Return the address of a page below the screen."""
    return f"{PLACE}/{kind}/{quote(place)}"


def simulation_body(found: FoundReports, search: RunSearch, folders: Sequence[str]) -> Markup:
    """The whole screen."""
    title = tag("div", tag("h1", "Simulation"), tag("p", ", ".join(folders), class_="quiet"), class_="title")
    return join([title, _strips(found), _sweeps(found.sweeps), _runs(found, search)])


def _strips(found: FoundReports) -> list[Markup]:
    notices = [
        "The folders hold more than is looked at: give those of single scenarios." if found.is_cut else "",
        f"{plural(found.older, 'older run')} are not read." if found.older else "",
        f"{plural(found.unreadable, 'run')} cannot be read: of another release, or damaged."
        if found.unreadable
        else "",
    ]
    return [tag("p", each, class_="strip warn") for each in notices if each]


def _sweeps(sweeps: Sequence[FoundSweep]) -> Markup | None:
    if not sweeps:
        return None
    return section("sweeps", "Sweeps", table(SWEEP_COLUMNS, [_sweep(each) for each in sweeps], label="Sweeps"))


def _sweep(each: FoundSweep) -> Markup:
    facts = each.facts
    numbers = [facts.runs, *(facts.verdicts.get(verdict, 0) for verdict in VERDICTS)]
    failed = ", ".join([f"{finding.guarantee} {finding.oracle}".strip() for finding in facts.findings[:5]])
    return tag(
        "tr",
        tag("th", tag("a", facts.name, href=address("sweeps", each.place)), scope="row"),
        tag("td", verdict_pill(facts.verdict)),
        [tag("td", count(number), class_="number" if number else "number zero") for number in numbers],
        tag("td", shown(failed, WHY_MAX) or NOTHING, class_="wide"),
        tag("td", age(each.written_s)),
    )


def _runs(found: FoundReports, search: RunSearch) -> Markup:
    tops = [each for each in found.runs if not each.of]
    chosen = [each for each in tops if search.finds(each)]
    summary = plural(len(tops), "run") if len(chosen) == len(tops) else f"{len(chosen):,} of {plural(len(tops), 'run')}"
    summary += f", the newest {ROWS_MAX} are shown" if len(chosen) > ROWS_MAX else ""
    rows = [_run(each) for each in chosen[:ROWS_MAX]]
    none = "No run is found." if tops else "There is none: `snapline sim run` writes its reports to runs/."
    body = table(RUN_COLUMNS, rows, label="Runs") if rows else tag("p", none, class_="quiet")
    aside = tag("span", summary, class_="quiet", role="status")
    return section("runs", "Runs", _form(search) if tops else None, body, aside=aside)


def _form(search: RunSearch) -> Markup:
    text = tag(
        "input",
        type="search",
        name="q",
        value=search.text,
        placeholder="Name, protocol, oracle, evidence",
        aria_label="Search",
    )
    options = [tag("option", each, value=each, selected=each == search.verdict) for each in VERDICTS]
    verdicts = tag("select", tag("option", "all verdicts", value=""), *options, name="verdict", aria_label="Verdict")
    return tag("form", text, verdicts, tag("button", "Search"), method="get", action=PLACE, class_="search")


def _run(each: FoundRun) -> Markup:
    head = each.head
    why: list[Child] = [tag("b", f"{head.oracles} "), shown(head.why, WHY_MAX)] if head.why else [NOTHING]
    pair = tag("a", "side by side", href=address("pairs", each.place)) if each.shrunk else None
    return tag(
        "tr",
        tag("th", tag("a", head.name, href=address("runs", each.place)), scope="row"),
        tag("td", str(head.seed), class_="number"),
        tag("td", verdict_pill(head.verdict)),
        tag("td", each.protocol),
        tag("td", seconds(head.virtual_ns), class_="number"),
        tag("td", why, class_="wide"),
        tag("td", pair),
        tag("td", age(each.written_s)),
    )


# ---- one sweep ------------------------------------------------------------------------------------------------------


def sweep_body(sweep: FoundSweep, runs: Sequence[FoundRun]) -> Markup:
    """Draw one sweep; `runs`: runs with reports, to which seeds link."""
    facts = sweep.facts
    about = [plural(facts.runs, "run"), f"{facts.elapsed_s:.1f} s", *(["stopped"] if facts.is_stopped else [])]
    title = tag(
        "div",
        *(tag("h1", facts.name), verdict_pill(facts.verdict), tag("p", " · ".join(about), class_="quiet")),
        class_="title",
    )
    tiles = [
        tag(
            "div",
            tag("dt", verdict),
            tag("dd", count(facts.verdicts.get(verdict, 0))),
            tag("dd", meaning, class_="more"),
        )
        for verdict, meaning in VERDICTS.items()
    ]
    places = {(each.head.name, each.head.seed): each.place for each in reversed(runs) if not each.of}
    rows = [_finding(each, facts.name, places) for each in facts.findings[:FINDINGS_MAX]]
    body = table(FINDING_COLUMNS, rows, label="Failures") if rows else tag("p", "No run failed.", class_="quiet")
    more = len(facts.findings) - FINDINGS_MAX
    findings = section(
        "findings", "Failures by oracle", body, tag("p", f"and {more:,} more", class_="quiet") if more > 0 else None
    )
    return join([_back(), title, tag("dl", tiles, class_="figures"), findings, _checks(sweep)])


def _finding(each: SweepFound, name: str, places: Mapping[tuple[str, int], str]) -> Markup:
    seeds: list[Child] = []
    for seed in each.seeds:
        place = places.get((name, seed))
        seeds += [tag("a", str(seed), href=address("runs", place)) if place else str(seed), " "]
    return tag(
        "tr",
        tag("th", f"{each.guarantee} {each.oracle}".strip(), scope="row"),
        tag("td", verdict_pill(each.verdict)),
        tag("td", count(each.count), class_="number"),
        tag("td", seeds, "…" if each.count > len(each.seeds) else None, class_="wide seeds"),
        tag("td", shown(each.text, WHY_MAX), class_="wide"),
        tag("td", tag("code", shown(each.repeat, WHY_MAX))),
    )


def _checks(sweep: FoundSweep) -> Markup:
    facts = sweep.facts
    never = ", ".join(facts.never_hit[:PROBES_MAX]) or "none"
    more = f", and {len(facts.never_hit) - PROBES_MAX:,} more" if len(facts.never_hit) > PROBES_MAX else ""
    twice = (
        f"{plural(facts.checked, 'run')} made twice: {plural(len(facts.divergences), 'differs', 'differ')}."
        if facts.checked
        else "No run was made twice."
    )
    return section("checks", "What the runs met", tag("p", f"Probes that no run hit: {never}{more}."), tag("p", twice))


def _back() -> Markup:
    return tag("p", tag("a", "All reports", href=PLACE))
