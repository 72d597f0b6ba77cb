"""docs/one-cut.md shows the fleet as it is."""

from pathlib import Path

HERE = Path(__file__).parent


def test_the_page_shows_the_code_that_is_tested() -> None:
    page = (HERE.parents[2] / "docs" / "one-cut.md").read_text()
    code = "\n".join(file.read_text() for file in sorted(HERE.glob("*.py")))
    blocks = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    assert blocks
    for block in blocks:
        assert block in code, block
