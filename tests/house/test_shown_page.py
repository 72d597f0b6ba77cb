"""The reader of a page finds its commands and files; what runs its blocks runs them as they are written, and misses none."""

from pathlib import Path

import pytest
from tests.house import pages
from tests.house.pages import commands_of, files_of
from tests.kit.shown_page import for_this_machine, matches, run_on_terminal, shown

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


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which its commands run."""
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def test_a_page_runs_in_one_folder_and_ends_what_it_started(page: Path) -> None:
    with shown("page.md", page, {"8080": "9090"}) as run:
        assert run.run("python said.py") == [[], ["hello"], ["you at 9090"], ["your"]]
        assert run.take("left") == "left: over\n"
        (process,) = run.background
        assert process.poll() is None
    assert process.poll() is not None


def test_a_page_runs_in_its_order_with_the_files_of_another(page: Path) -> None:
    (page.parent / "files.md").write_text(PAGE)
    text = "```console\n$ test -f said.py\n```\n\n## Two\n\n```console\n$ false\n(exit code 1)\n$ echo b\nb\n```\n\n## Three\n"
    (page.parent / "page.md").write_text(text)
    with shown("page.md", page, files_from="files.md") as run:
        assert run.run_all() == 3
        assert run.ran == ["test -f said.py", "false", "echo b"]
    with shown("page.md", page, section="Two") as run:
        assert run.run_all() == 2


def test_a_command_that_does_not_end_is_an_error(page: Path) -> None:
    (page.parent / "page.md").write_text("```console\n$ sleep 60\n```\n")
    with pytest.raises(AssertionError, match=r"not ended after 0.1 s"), shown("page.md", page, limit_s=0.1) as run:
        run.run_all()


@pytest.mark.parametrize(
    "block", ["```\nsnapline up\n```\n", "- so\n\n  ```yaml\n  a: 1\n  ```\n", "```console\n```\n"]
)
def test_a_block_that_is_of_no_commands_is_missed(page: Path, block: str) -> None:
    (page.parent / "page.md").write_text(f"```console\n$ true\n```\n\n```toml\n# snapline.toml\n[up]\n```\n\n{block}")
    with pytest.raises(AssertionError, match=r"page.md: no test runs \[Block\(line=.."), shown("page.md", page) as run:
        assert run.run_all() == 1


def test_a_block_that_is_left_over_is_missed(page: Path) -> None:
    with pytest.raises(AssertionError, match=r"page.md: no test runs .*left: over"), shown("page.md", page) as run:
        run.take("python said.py")


def test_other_output_and_a_replacement_that_is_not_shown_are_errors(page: Path) -> None:
    (page.parent / "page.md").write_text(PAGE.replace('("hello")', '("goodbye")'))
    with pytest.raises(AssertionError, match=r"page.md:11: \$ python said.py\ngoodbye"), shown("page.md", page) as run:
        run.run("python said.py")
    with pytest.raises(AssertionError, match=r"page\.md does not show 7070"), shown("page.md", page, {"7070": ""}):
        pass


SHOWN = """
```console
$ printf 'a\\nb c\\n'
a
b …
$ test -t 1 && \\
> echo terminal
...
$ exit 3
(exit code 3)
```
```python
# shown.py
print(1)
```
```python
print(2)
```
"""


def test_commands_and_files_are_found_in_a_page() -> None:
    first, second, third = commands_of(SHOWN)
    assert (third.text, third.output, third.code, first.code) == ("exit 3", [], 3, 0)
    assert (first.text, first.output) == (r"printf 'a\nb c\n'", ["a", "b …"])
    assert (second.text, second.output) == ("test -t 1 && \\\necho terminal", ["..."])
    assert files_of(SHOWN) == {"shown.py": "# shown.py\nprint(1)\n"}


def test_addresses_of_this_machine_get_free_ports() -> None:
    first, second, third, last = for_this_machine(
        "127.0.0.1:7400, --port 7400, 127.0.0.1:0, 127.0.0.1:80", {"80": "81"}
    ).split(", ")
    assert first[10:] == second[7:] != "7400" and (third, last) == ("127.0.0.1:0", "127.0.0.1:81")


def test_commands_run_on_a_terminal(tmp_path: Path) -> None:
    first, second, _ = commands_of(SHOWN)
    assert run_on_terminal(first.text, tmp_path) == (0, ["a", "b c"], "")
    assert run_on_terminal(second.text, tmp_path) == (0, ["terminal"], "")


@pytest.mark.parametrize(
    ("shown", "printed", "is_match"),
    [
        (["a"], ["a  "], True),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a"], False),
        (["a … c"], ["a b c"], True),
        (["a … c"], ["a b d"], False),
        (["a", "…", "d"], ["a", "b", "c", "d"], True),
        (["a", "…", "d"], ["a", "d"], True),
        (["…"], [], True),
        (["a.c"], ["abc"], False),
    ],
)
def test_wildcards(shown: list[str], printed: list[str], is_match: bool) -> None:
    assert matches(shown, printed) is is_match
