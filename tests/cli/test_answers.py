"""Tables of `snapline answers`: a request with other arguments is shown as such."""

import pytest

from snapline.cli import answers
from snapline.cli.output import OutputFormat, Printer

FIRST, SECOND = "3c0f4e5d6a7b8c9d", "77ab000000000001"


def row(arguments: str, *results: str | None, name: str = "model") -> dict[str, object]:
    request = {"agent": "planner", "kind": "step", "name": name, "arguments": arguments, "occurrence": 1}
    return {**request, "results": list(results)}


def shown(capsys: pytest.CaptureFixture[str], *rows: dict[str, object]) -> list[str]:
    comparison = {"fleets": [], "same": 0, "different": list(rows)}
    Printer(OutputFormat.TABLE).result(comparison, answers._show_comparison)
    return capsys.readouterr().out.splitlines()[1:]


def test_a_fleet_that_asked_with_other_arguments_is_distinguished_from_one_that_did_not_ask(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert shown(capsys, row(FIRST, "Lovely.", None, None), row(SECOND, None, "Rainy.", None)) == [
        f"planner  step model  1.  arguments {FIRST}",
        "  1: Lovely.",
        f"  2: not asked with these arguments, but with {SECOND}",
        "  3: not asked",
        f"planner  step model  1.  arguments {SECOND}",
        f"  1: not asked with these arguments, but with {FIRST}",
        "  2: Rainy.",
        "  3: not asked",
    ]


@pytest.mark.parametrize(
    "other",
    [row(SECOND, None, "Rainy.", name="tool"), row(SECOND, "Rainy.", "Crowded."), row(FIRST, None, "Rainy.")],
    ids=["another name", "all fleets asked it", "the same arguments, more often"],
)
def test_other_requests_are_no_request_with_other_arguments(
    capsys: pytest.CaptureFixture[str], other: dict[str, object]
) -> None:
    assert shown(capsys, row(FIRST, "Lovely.", None), other)[2] == "  2: not asked"


def test_arguments_that_are_none_and_many_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    many = [row(f"{number:016x}", None, "Rainy.") for number in range(3)]
    lines = shown(capsys, row("", "Lovely.", None), *many)
    assert lines[0] == "planner  step model  1."
    assert lines[2] == "  2: not asked with these arguments, but with 0000000000000000 and 2 more"
    assert lines[4] == "  1: not asked with these arguments, but with none"


def test_exported_answers_are_listed_with_the_digest_of_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {**row(FIRST), "outcome": "done", "result": "Lovely."}
    Printer(OutputFormat.TABLE).result({"answers": [answer]}, answers._show)
    assert capsys.readouterr().out == f"planner  step model  1.  arguments {FIRST}  done: Lovely.\n"
