"""The command line as a whole: start-up, errors at its border, exit codes."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from docs import make_cli
from tests.kit.command_line import Run
from typer.testing import CliRunner

from snapline.cli.command import (
    OUTPUT_CLOSED,
    Display,
    SecurityOptions,
    check_address,
    check_addresses,
    command,
    parse_arguments,
    parse_peers,
)
from snapline.cli.coordinator import metrics_text
from snapline.cli.fleet import check_reference, load
from snapline.cli.main import COMMANDS, GROUPS, app
from snapline.cli.recovery import parse_failed
from snapline.errors import CoordinatorUnavailableError, FleetDefinitionError, SnaplineError, UsageError
from snapline.security.transport import Security

HEAVY = ("grpc", "numpy", "pysyncobj", "google.protobuf", "rich", "blake3", "lz4", "msgspec", "snapline.sim", "ray")
ASKED = ("", "run", "snapshot verify", "sim", "sim sweep")


def test_help_and_the_version_wait_for_no_heavy_library() -> None:
    code = f"""
import sys
from snapline.cli.main import app
for arguments in [*([*words.split(), "--help"] for words in {ASKED!r}), ["version"]]:
    try:
        app(arguments)
    except SystemExit as end:
        assert not end.code, end.code
    assert not [name for name in {HEAVY!r} if name in sys.modules], arguments
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)


def test_a_first_word_alone_is_as_among_all_and_imports_no_other() -> None:
    """One that is not known would be missing from the whole, which is made of these."""
    code = """
import sys
from snapline.__main__ import main
from snapline.cli.main import GROUPS, COMMANDS
modules = {word.module for word in {**GROUPS, **COMMANDS}.values()}
sys.argv = ["snapline", *sys.argv[1:], "--help"]
try:
    main()
finally:
    print([name for name in sorted(modules) if f"snapline.cli.{name}" in sys.modules], file=sys.stderr)
"""
    for words, imported in (
        (["host", "run"], ["hosts", "processes"]),
        (["status"], ["status"]),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, timeout=60
        )
        whole = CliRunner().invoke(app, [*words, "--help"], prog_name="snapline")
        assert done.stdout.split() == whole.stdout.split()
        assert done.stderr.strip() == str(imported)


def test_the_list_of_all_commands_imports_none() -> None:
    code = """
import sys
from snapline.__main__ import main
sys.argv = ["snapline", "--help"]
try:
    main()
finally:
    print(sorted(name for name in sys.modules if name == "asyncio" or name.startswith("snapline.cli.")), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "['snapline.cli.garbage_collection', 'snapline.cli.main']"
    assert all(f"\n  {name} " in done.stdout for name, word in {**COMMANDS, **GROUPS}.items() if not word.is_hidden)


def test_a_command_of_one_word_says_what_the_list_says_of_it() -> None:
    group = typer.main.get_command(app)
    for name, word in COMMANDS.items():
        shown = group.commands[name]  # type: ignore[attr-defined]
        assert shown.help.startswith(word.says) and shown.hidden == word.is_hidden, name


def test_the_version_is_a_command_and_an_option(run: Run) -> None:
    for words in (("version", "-o", "table"), ("--version",)):
        done = run(*words)
        assert (done.code, done.out, done.err) == (0, "snapline 0.1.0\n", "")
    assert run("version").json["kind"] == "Version", "json where there is no terminal"


def test_the_shell_completes_commands(run_process: Run) -> None:
    environment = {"_SNAPLINE_COMPLETE": "complete_bash", "COMP_WORDS": "snapline snapshot cr", "COMP_CWORD": "2"}
    assert run_process(environment=environment).out.split() == ["create"]


# -- the border -------------------------------------------------------------------------------------------------------


def outcome_of(body: Callable[[], None], environment: dict[str, str] | None = None) -> tuple[int, str]:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command(lambda: body()))
    done = CliRunner().invoke(app, [], env=environment)
    return done.exit_code, done.stderr


def every_error(base: type[SnaplineError] = SnaplineError) -> Iterator[type[SnaplineError]]:
    yield base
    for below in base.__subclasses__():
        yield from every_error(below)


@pytest.mark.parametrize("error", [error for error in every_error() if error.__module__ == "snapline.errors"])
def test_an_error_is_one_sentence_and_its_exit_code(error: type[SnaplineError]) -> None:
    def body() -> None:
        raise error("host h1 is\n  gone: start it")

    assert outcome_of(body) == (error.exit_code, "snapline: host h1 is gone: start it\n")


def test_a_bug_is_one_sentence_that_says_how_to_see_more() -> None:
    def body() -> None:
        raise ZeroDivisionError("division by zero")

    code, err = outcome_of(body)
    assert code == 1
    assert err == "snapline: unexpected ZeroDivisionError: division by zero (set SNAPLINE_TRACEBACK=1 to see where)\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), UsageError("x")])
def test_the_traceback_is_there_for_who_asks(error: Exception) -> None:
    def body() -> None:
        raise error

    code, err = outcome_of(body, {"SNAPLINE_TRACEBACK": "1"})
    assert code == (2 if isinstance(error, UsageError) else 1)
    assert "Traceback" in err and err.splitlines()[-1].startswith("snapline: ")


def test_a_path_that_cannot_be_used_is_misuse_and_a_full_disk_is_not() -> None:
    def touch() -> None:
        Path("/proc/x").touch()

    def fill() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/data/x")

    assert outcome_of(touch) == (2, "snapline: /proc/x cannot be used: No such file or directory\n")
    assert outcome_of(fill) == (1, "snapline: /data/x cannot be used: No space left on device\n")


def test_a_library_that_is_missing_is_named() -> None:
    def body() -> None:
        __import__("no_such_library")

    assert outcome_of(body) == (2, "snapline: that needs 'no_such_library', which is not installed\n")


def test_an_interrupt_ends_with_130() -> None:
    def body() -> None:
        raise KeyboardInterrupt

    assert outcome_of(body)[0] == 130


@pytest.mark.parametrize(
    "arguments", [("version", "-o", "json"), ("snapshot", "list", "-o", "json", "--store", "store")]
)
def test_a_reader_that_ends_early_ends_the_command_without_a_word(arguments: tuple[str, ...], store: Path) -> None:
    """`snapline … | head`, also of a command that would end with 3."""
    next((store / "refs" / "epochs").glob("*2")).write_bytes(b"damaged")
    read, write = os.pipe()
    os.close(read)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        [sys.executable, "-m", "snapline", *arguments],
        cwd=store.parent, env=environment, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(write)
    said = [line for line in ended.stderr.splitlines() if not line.startswith("snapline: ")]
    assert (ended.returncode, said) == (OUTPUT_CLOSED, [])


def test_an_interrupt_while_the_command_line_is_imported_is_no_traceback() -> None:
    """Half a second in which a hasty Ctrl-C is likely."""
    code = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from snapline.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_groups_of_options_become_options() -> None:
    seen: list[object] = []

    @command
    def show(display: Display, name: Annotated[str, typer.Argument()], trust: SecurityOptions) -> None:
        seen.extend((display, name, trust))

    app = typer.Typer(rich_markup_mode=None)
    app.command()(show)
    done = CliRunner().invoke(app, ["x", "--quiet", "--insecure"])
    assert done.exit_code == 0, done.stderr
    assert seen == [Display(quiet=True), "x", SecurityOptions(insecure=True)]


# -- misuse -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["run"],
        ["run", "a:b", "--hosts", "0"],
        ["snapshot", "list", "--nonsense"],
        ["snapshot", "list", "-o", "yaml"],
        ["status", "--coordinator", "127.0.0.1:1", "--timeout", "0"],
        ["host", "run"],
    ],
)
def test_misuse_ends_with_2(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["up", "a:b", "--hosts", "two"], "'--hosts': 'two' is not a whole number of 1 or more."),
        (
            ["up", "a:b", "--hosts", "2 is not in the range"],
            "'2 is not in the range' is not a whole number of 1 or more.",
        ),
        (["run", "a:b", "--hosts", "0"], "'--hosts': 0 is not a whole number of 1 or more."),
        (["demo", "--ui-port", "x"], "'--ui-port': 'x' is not a whole number from 0 to 65,535."),
        (["status", "--timeout", "x"], "'--timeout': 'x' is not a number from 0.1 to 86,400."),
        (["agent", "dead-letters", "drop", "a", "1", "b"], "'b' is not a whole number of 1 or more."),
        (["status", "-o", "yaml"], "'--output' / '-o': 'yaml' is not one of 'table', 'json'."),
    ],
)
def test_a_wrong_value_is_explained_in_plain_words(run: Run, arguments: list[str], sentence: str) -> None:
    done = run(*arguments)
    (line,) = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert (
        (done.code, done.out) == (2, "") and line.startswith("Error: Invalid value for '") and line.endswith(sentence)
    )


NUMBERS = [
    (each.words, option)
    for each in make_cli.walk(typer.main.get_command(app))
    if not each.is_group
    for option in each.command.params
    if option.param_type_name == "option" and option.type.name.startswith(("int", "float"))
]


@pytest.mark.parametrize(("words", "option"), NUMBERS, ids=lambda value: getattr(value, "name", value))
def test_each_option_that_takes_a_number_says_which(run: Run, words: str, option: Any) -> None:
    sentence = run(*words.split(), f"{option.opts[0]}=x").err.splitlines()[-1]
    assert re.search(r"'x' is not a (whole )?number( of| from|\.)", sentence)
    limits = [getattr(option.type, name, None) for name in ("min", "max")]
    shown = [f"{limit:,}".removesuffix(".0") for limit in limits if limit is not None]
    assert re.findall(r"[\d.,]+(?= to | or more|\.)", sentence) == shown


@pytest.mark.parametrize(
    "arguments",
    [
        *(["status"], ["status", "--stale"], ["snapshot", "create"]),
        *(["recovery", "line", "--failed", "a"], ["recovery", "history"], ["recovery", "report"]),
        *(["coordinator", "status"], ["coordinator", "members"], ["coordinator", "transfer-leader", "--to", "c1"]),
        ["coordinator", "backup", "file"],
    ],
)
def test_commands_for_a_coordinator_ask_for_one(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "--coordinator HOST:PORT" in done.err


def test_arguments_are_pairs() -> None:
    assert parse_arguments(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    assert parse_arguments(None) == {}


@pytest.mark.parametrize("pairs", [["a"], ["=1"], ["a b=1"], ["a=1", "a=2"]])
def test_arguments_that_are_none(pairs: list[str]) -> None:
    with pytest.raises(UsageError, match="--arg"):
        parse_arguments(pairs)


def test_failed_agents() -> None:
    assert parse_failed("") == []
    assert parse_failed("a, host:h1") == ["a", "host:h1"]


@pytest.mark.parametrize("failed", ["a,", "a b", "host:", "agent:x"])
def test_failed_agents_that_are_none(failed: str) -> None:
    with pytest.raises(UsageError):
        parse_failed(failed)


@pytest.mark.parametrize("address", ["127.0.0.1:7400", "[::1]:7400", "name:1", "unix:/x"])
def test_addresses(address: str) -> None:
    assert check_address(address, "--listen") == address


@pytest.mark.parametrize("address", ["", "7400", ":7400", "host", "host:", "host:x", "host:65536"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(UsageError, match="--listen"):
        check_address(address, "--listen")


def test_addresses_of_replicas() -> None:
    assert check_addresses("a:1, b:2,c:3", "--coordinator") == "a:1,b:2,c:3"
    for wrong, words in (("a:1,", "'' is no address"), ("a:1,b", "'b' is no address"), ("a:1,a:1", "twice")):
        with pytest.raises(UsageError, match=words):
            check_addresses(wrong, "--coordinator")


def test_peers() -> None:
    assert parse_peers("", "c1") == {}
    assert parse_peers("c2=b:2, c1=a:1,c3=[::1]:3", "c1") == {"c2": "b:2", "c1": "a:1", "c3": "[::1]:3"}
    assert parse_peers("c1=a:1", "c1") == {"c1": "a:1"}


@pytest.mark.parametrize(
    ("peers", "words"),
    [
        ("c1", "'c1' is not ID=HOST:PORT"),
        ("c1=a:1,c1=b:2,c3=c:3", "names c1 twice"),
        ("c1=a", "'a' is no address"),
        ("a b=a:1", "a b"),
        ("c2=a:1,c3=b:2,c4=c:3", "c1 is not among c2, c3, c4"),
        ("c1=a:1,c2=b:2", "1, 3 or 5 replicas; --peers names 2"),
    ],
)
def test_peers_that_are_none(peers: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_peers(peers, "c1")


def test_a_replica_that_is_called_wrongly_ends_with_2(run: Run) -> None:
    options = ("--data-dir", "d", "--store", "s", "--hosts", "1", "--id", "c9")
    done = run("coordinator", "run", *options, "--peers", "c1=a:1,c2=a:2,c3=a:3")
    assert (done.code, done.out) == (2, "") and "c9 is not among c1, c2, c3" in done.err


def test_counters_in_the_form_of_prometheus() -> None:
    found = {
        "raft_term": 3.0,
        "raft_commit_seconds_sum": 0.25,
        "raft_sync_seconds_count": 4.0,
        "raft_sync_seconds_sum": 0.5,
        "raft_commits_total": 7.0,
        'raft_commit_seconds_bucket{le="0.1"}': 6.0,
        'raft_commit_seconds_bucket{le="inf"}': 7.0,
    }
    assert (
        metrics_text({"metrics": found})
        == """\
# TYPE snapline_raft_term gauge
snapline_raft_term 3
# TYPE snapline_raft_sync_seconds summary
snapline_raft_sync_seconds_count 4
snapline_raft_sync_seconds_sum 0.5
# TYPE snapline_raft_commits_total counter
snapline_raft_commits_total 7
# TYPE snapline_raft_commit_seconds histogram
snapline_raft_commit_seconds_bucket{le="0.1"} 6
snapline_raft_commit_seconds_bucket{le="+Inf"} 7
snapline_raft_commit_seconds_sum 0.25
snapline_raft_commit_seconds_count 7
"""
    )
    assert metrics_text({}) == ""


def test_who_is_trusted() -> None:
    one, two, three = Path("a"), Path("b"), Path("c")
    assert isinstance(SecurityOptions().security(), Security) and not SecurityOptions().security().is_tls
    assert SecurityOptions(one, two, three).security().is_tls
    SecurityOptions().security().check_listen_address("127.0.0.1:0")
    SecurityOptions(insecure=True).security().check_listen_address("0.0.0.0:0")
    for contradiction in (
        SecurityOptions(one),
        SecurityOptions(one, two),
        SecurityOptions(tls_ca=one),
        SecurityOptions(one, two, three, True),
    ):
        with pytest.raises(UsageError):
            contradiction.security()


# -- MODULE:FLEET -----------------------------------------------------------------------------------------------------

FLEETS = """
import snapline

class Nothing(snapline.Agent):
    state: int

def make(size="1"):
    return snapline.Fleet("made", agents={f"a{i}": Nothing(0) for i in range(int(size))})

def wrong():
    return 3

number = 3
"""


@pytest.fixture
def module(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder; its name is the test's own, as modules stay imported."""
    name = f"fleets_{abs(hash(request.node.nodeid))}"
    (folder / f"{name}.py").write_text(FLEETS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.parametrize("reference", ["", "module", ":fleet", "module:"])
def test_what_names_no_fleet(reference: str) -> None:
    with pytest.raises(FleetDefinitionError, match="MODULE:FLEET"):
        check_reference(reference)
    with pytest.raises(FleetDefinitionError, match="MODULE:FLEET"):
        load(reference, {})


@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.module", "snapline.no_such_module"])
def test_modules_that_are_not_there(name: str) -> None:
    with pytest.raises(FleetDefinitionError, match=f"there is no module '{name}'"):
        check_reference(f"{name}:fleet")


def test_modules_of_the_current_folder_are_found_but_not_run(folder: Path, module: str) -> None:
    (folder / f"{module}.py").write_text("raise AssertionError('imported')")
    check_reference(f"{module}:fleet")


def test_a_package_that_cannot_be_imported(folder: Path, module: str) -> None:
    (folder / f"{module}_p").mkdir()
    (folder / f"{module}_p" / "__init__.py").write_text("import no_such_dependency")
    with pytest.raises(FleetDefinitionError, match="needs 'no_such_dependency'"):
        check_reference(f"{module}_p.inside:fleet")


@pytest.mark.parametrize(
    ("attribute", "arguments", "words"),
    [
        ("nothing", {}, "has no 'nothing'"),
        ("number", {}, "is a int"),
        ("wrong", {}, "returned a int"),
        ("make", {"weight": "1"}, "--arg does not fit"),
        ("make", {"size": "many"}, "--arg size=many raised ValueError: invalid literal"),
    ],
)
def test_what_is_wrong_with_a_fleet_is_one_sentence(
    module: str, attribute: str, arguments: dict[str, str], words: str
) -> None:
    with pytest.raises(FleetDefinitionError, match=words):
        load(f"{module}:{attribute}", arguments)


def test_run_tells_a_misspelt_module_before_it_writes_anything(run: Run, folder: Path) -> None:
    done = run("run", "no_such_module:fleet", "--hosts", "2")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("snapline: there is no module 'no_such_module'")
    assert list(folder.iterdir()) == []


def test_a_host_with_a_wrong_fleet_ends_with_2(run: Run, module: str, folder: Path) -> None:
    arguments = ["--coordinator", "127.0.0.1:1", "--id", "h1", "--store", "s", "--fleet", f"{module}:nothing"]
    done = run("host", "run", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"snapline: module {module!r} has no 'nothing'")


# -- a coordinator that is not there ------------------------------------------------------------------------------------


def test_no_coordinator_ends_with_8_in_time(run: Run) -> None:
    pytest.importorskip("snapline.messages.coordinator_client")
    done = run("status", "--coordinator", "127.0.0.1:1", "--timeout", "5")
    assert (done.code, done.out) == (CoordinatorUnavailableError.exit_code, "")
    assert "127.0.0.1:1" in done.err and "Traceback" not in done.err


def test_output_into_a_closed_pipe_is_no_traceback(store: Path) -> None:
    """`snapline snapshot list | head -0`."""
    command_line = f"{sys.executable} -m snapline snapshot show --store {store} | true"
    done = subprocess.run(["bash", "-c", command_line], capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr
