"""docs/examples.md: its fragment is the example's code, and the order desk runs as shown. `tests/house/test_texts.py` runs the other commands."""

import inspect
import json
from pathlib import Path
from textwrap import indent

import pytest
from tests.kit.shown_page import ROOT, free_port, shown

from snapline.examples import order_desk, refunds

BY_HOUSE = (" safe.jsonl", " unsafe.jsonl", "research_team:fleet", "domino:fleet")
"""Blocks that `tests/house/test_texts.py` runs."""

BY_OTHERS = ("make demo", "support_team:fleet")
"""Blocks for the test below, and for `tests/adapters/pydantic_agents/test_examples_page.py`."""


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_the_order_desk_answers_as_the_page_says(tmp_path: Path) -> None:
    ports = {port: f"{free_port()}" for port in ("8401", "8402")}
    with shown("docs/examples.md", tmp_path, ports) as page:
        assert indent(page.take("async def on_refund"), "    ") in inspect.getsource(refunds)
        for part in (*BY_HOUSE, *BY_OTHERS):
            page.take(part)
        *servers, curl = page.take("order_desk:fleet").replace(" \\\n", " ").splitlines()
        for command in servers:
            page.start(command)
        first, again = (page.shell(f"{curl} -s --retry 20 --retry-all-errors") for _ in range(2))
        answer = json.loads("".join(first[1]))
        assert answer["message"]["fields"] == {"id": "17", "amount": 2 * order_desk.PRICES["lamp"], "receipt": 1}, (
            answer
        )
        assert first == again and len((tmp_path / "payments.jsonl").read_text().splitlines()) == 1


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_demo_prints_the_lines_of_the_page(tmp_path: Path) -> None:
    """For one folder of modules: the whole standard library takes a machine of its own."""
    small = f"make -s -C {ROOT} demo ARGS='--source {ROOT}/src/snapline/storage'"
    with shown("docs/examples.md", tmp_path, {"$ make demo": f"$ {small}"}) as page:
        (demo,) = page.commands(small)
        page.left.clear()  # the test above runs them
        code, out, err = page.shell(demo.text)
    assert code == 0, err
    assert labels(out) == labels(demo.output)


def labels(lines: list[str]) -> list[str]:
    """Return the words before two spaces and the last line, without the ranked modules."""
    tables = "\n".join(lines).split("\nTOP MODULES")
    words = [line.partition("  ")[0] for line in tables[0].splitlines()]
    return [each for each in words if each] + [lines[-1].strip()]
