"""What runs the blocks of a page runs them as they are written, and misses none."""

from pathlib import Path

import pytest
from tests.kit import shown_page
from tests.kit.shown_page import shown

pytestmark = pytest.mark.processes

PAGE = """
```python
# said.py
print("hello")
```

- in a list:

  ```console
  $ export WHO=you PORT=8080
  $ python said.py
  hello
  $ sh -c 'echo $WHO at $PORT; sleep 60' &
  $ echo ${WHO}r
  …r
  ```

```yaml
left: over
```
"""


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which its commands run."""
    monkeypatch.setattr(shown_page, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def test_a_page_runs_in_one_folder_and_ends_what_it_started(page: Path) -> None:
    with shown("page.md", page, {"8080": "9090"}) as run:
        assert run.run("python said.py") == [["hello"], ["you at 9090"], ["your"]]
        assert run.take("left") == "left: over\n"
        (process,) = run.background
        assert process.poll() is None
    assert process.poll() is not None


def test_a_block_that_is_left_over_is_missed(page: Path) -> None:
    with pytest.raises(AssertionError, match=r"page.md: no test runs .*left: over"), shown("page.md", page) as run:
        run.take("python said.py")


def test_other_output_and_a_replacement_that_is_not_shown_are_errors(page: Path) -> None:
    (page.parent / "page.md").write_text(PAGE.replace('("hello")', '("goodbye")'))
    with pytest.raises(AssertionError, match=r"page.md: \$ python said.py\ngoodbye"), shown("page.md", page) as run:
        run.run("python said.py")
    with pytest.raises(AssertionError, match=r"page\.md does not show 7070"), shown("page.md", page, {"7070": ""}):
        pass
