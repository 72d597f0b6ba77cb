"""docs/examples.md: its demo prints what it shows. `tests/house/test_texts.py` runs the other commands."""

from pathlib import Path

import pytest
from tests.house.pages import ROOT
from tests.kit.shown_page import shown


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_demo_prints_the_lines_of_the_page(tmp_path: Path) -> None:
    """For one folder of modules: the whole standard library takes a machine of its own."""
    small = f"make -s -C {ROOT} demo ARGS='--source {ROOT}/src/snapline/storage'"
    with shown("docs/examples.md", tmp_path, {"$ make demo": f"$ {small}"}) as page:
        (demo,) = page.commands(small)
        page.left.clear()  # tests/house/test_texts.py and tests/adapters/pydantic_agents run them
        code, out, err = page.shell(demo.text)
    assert code == 0, err
    assert labels(out) == labels(demo.output)


def labels(lines: list[str]) -> list[str]:
    """Return the words before two spaces and the last line, without the ranked modules."""
    tables = "\n".join(lines).split("\nTOP MODULES")
    words = [line.partition("  ")[0] for line in tables[0].splitlines()]
    return [each for each in words if each] + [lines[-1].strip()]
