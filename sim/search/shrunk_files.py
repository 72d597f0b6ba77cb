"""Files of a shrunk bug for the developer who fixes it: the scenario, a failing test, and the steps of shrinking.

<name>.toml        the scenario, for `snapline sim run`
choices.json       the choices that are not benign, for `snapline sim replay`
test_<name>.py     fails while the bug exists; keep it as a regression test
steps.txt          removed parts and remaining ones: faults, choices, entries of the journal
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from snapline.sim.choices import Record
from snapline.sim.report.files import choices_json
from snapline.sim.scenario import Scenario, format_scenario
from snapline.sim.search.shrink import Shrunk, Size

JOURNAL_MAX = 400
"""Maximum number of journal entries shown; a shrunk run usually has some tens."""

TEST = '''"""{title}

{evidence}
"""

from snapline.sim.choices import RecordedChoices
from snapline.sim.run import run
from snapline.sim.scenario import parse_scenario

SCENARIO = """
{scenario}"""

CHOICES = {choices}


def test_{name}() -> None:
    scenario = parse_scenario(SCENARIO, source="{name}")
    result = run(scenario, {seed}, choices=RecordedChoices(CHOICES){arguments})
    assert result.verdict == "pass", result.violations or result.pending or result.error
'''


def render(shrunk: Shrunk, *, keywords: Mapping[str, str] | None = None, journal: Sequence[str] = ()) -> dict[str, str]:
    """Return the contents of the files by name.

    Args:
        shrunk: the shrunk case.
        keywords: further arguments of the run, such as the name of a mutant.
        journal: journal entries of the shrunk run.
    """
    name = identifier(shrunk)
    return {
        f"{name.replace('_', '-')}.toml": format_scenario(shrunk.scenario),
        "choices.json": choices_json(shrunk.record).decode(),
        f"test_{name}.py": test_file(shrunk, name, keywords or {}),
        "steps.txt": "\n".join(shrink_report(shrunk, journal)) + "\n",
    }


def identifier(shrunk: Shrunk) -> str:
    """Return a Python name for the scenario and its seed."""
    slug = re.sub(r"[^a-z0-9]+", "_", shrunk.scenario.name.lower()).strip("_") or "scenario"
    return f"{slug}_seed_{shrunk.seed}"


def test_file(shrunk: Shrunk, name: str, keywords: Mapping[str, str]) -> str:
    """Return the source of a test that fails while the bug exists."""
    arguments = "".join(f", {keyword}={value!r}" for keyword, value in keywords.items())
    return TEST.format(
        title=f"Found by simulation and shrunk: {_quoted(shrunk.signature)}.",
        evidence=_quoted("\n".join(evidence(shrunk))),
        scenario=_quoted(format_scenario(shrunk.scenario)),
        choices=choices_literal(shrunk.record),
        name=name,
        seed=shrunk.seed,
        arguments=arguments,
    )


def choices_literal(record: Record) -> str:
    """Return the record as a Python literal with one choice per line."""
    if not record:
        return "{}"
    rows = [f"    ({stream!r}, {key!r}): {value}," for (stream, key), value in record.items()]
    return "\n".join(["{", *rows, "}"])


def evidence(shrunk: Shrunk) -> list[str]:
    """Return the failure, one sentence per line."""
    result = shrunk.result
    lines = [f"{violation.guarantee} {violation.oracle}: {violation.text}" for violation in result.violations]
    return lines or result.pending or [result.error]


def shrink_report(shrunk: Shrunk, journal: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of `steps.txt`: removed parts and remaining ones."""
    yield f"{shrunk.signature}: from {size_text(shrunk.before)} to {size_text(shrunk.size)}"
    yield f"in {shrunk.tries} runs, {shrunk.seconds:.1f} s"
    yield ""
    for step in shrunk.steps:
        yield f"  run {step.tries:>5}  {step.text:<32} {size_text(step.size)}"
    yield ""
    yield from evidence(shrunk)
    yield ""
    yield f"seed {shrunk.seed}, {_fleet_text(shrunk.scenario)}"
    for fault in shrunk.result.faults:
        yield f"  fault at {fault.at_ns / 1e9:.6f} s: {fault.text}"
    for (stream, key), value in shrunk.record.items():
        yield f"  choice {stream} {' '.join(str(part) for part in key)} = {value}"
    if journal:
        yield ""
        yield from (f"  {entry}" for entry in journal[-JOURNAL_MAX:])


def size_text(size: Size) -> str:
    return f"{size.choices} choices, {size.faults} faults, {size.messages} messages"


def _fleet_text(scenario: Scenario) -> str:
    fleet = scenario.fleet
    return f"{fleet.protocol}, {fleet.pattern.name}, {fleet.agents} agents on {fleet.hosts} hosts"


def _quoted(text: str) -> str:
    """Escape a text for a triple-quoted string."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
