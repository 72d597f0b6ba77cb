"""Settings: flag before environment before file before default, key by key; and the commands that show them."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.command_line import Run

from snapline.cli.command import Connection
from snapline.cli.settings import CONTEXT_FILE, DEFAULTS, FILE, UserSettings
from snapline.errors import ExternalFailureError, NotFoundError, UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without settings of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "CONTEXT", *(key.upper() for key in DEFAULTS)):
        monkeypatch.delenv(f"SNAPLINE_{name}", raising=False)
    return tmp_path


SOURCES = ("flag", "environment", "context", "up", "default")


@given(st.lists(st.sampled_from(SOURCES), unique=True), st.sampled_from(sorted(DEFAULTS)))
def test_the_first_source_that_says_something_is_believed(said: list[str], key: str) -> None:
    tables = {name: {key: name} for name in ("context", "up") if name in said}
    written = "".join(f'[{"context.prod" if name == "context" else name}]\n{key} = "{name}"\n' for name in tables) + (
        "" if "context" in said else "[context.prod]\n"
    )
    Path(FILE).write_text(written)
    environment: Mapping[str, str] = {f"SNAPLINE_{key.upper()}": "environment"} if "environment" in said else {}
    found = UserSettings("prod", environment).get(key, "flag" if "flag" in said else None)
    first = next((name for name in SOURCES if name in said), "default")
    assert found.value == (DEFAULTS[key] if first == "default" else first)
    assert (
        found.origin
        == {
            "flag": f"--{key.replace('_', '-')}",
            "environment": f"SNAPLINE_{key.upper()}",
            "context": f"{FILE} [context.prod]",
            "up": f"{FILE} [up]",
            "default": "default",
        }[first]
    )


def test_without_a_file_all_is_default() -> None:
    assert {setting.key: setting.value for setting in UserSettings(environment={}).all()} == DEFAULTS


def test_a_context_is_given_by_option_environment_or_use(folder: Path) -> None:
    Path(FILE).write_text("[context.prod]\nhosts = 8\n[context.test]\nhosts = 2\n")
    assert UserSettings(environment={}).get("hosts").value == DEFAULTS["hosts"]
    UserSettings(environment={}).use("test")
    assert UserSettings(environment={}).get("hosts").value == "2"
    assert UserSettings(environment={"SNAPLINE_CONTEXT": "prod"}).get("hosts").value == "8"
    assert UserSettings("test", {"SNAPLINE_CONTEXT": "prod"}).get("hosts").value == "2"
    UserSettings(environment={}).use("")
    assert UserSettings(environment={}).get("hosts").origin == "default"
    assert (folder / CONTEXT_FILE).read_text() == "\n"


def test_a_context_that_is_not_there_is_named() -> None:
    Path(FILE).write_text("[context.prod]\n")
    with pytest.raises(NotFoundError, match=r"snapline.toml has no context 'test': it has prod"):
        UserSettings("test").get("hosts")
    with pytest.raises(NotFoundError, match="no context 'test'"):
        UserSettings().use("test")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[up", "snapline.toml cannot be read"),
        ("[up]\nhost = 3\n", r"\[up\]: there is no setting 'host'"),
        ("[context.prod]\ncoordinator = 1\n", r"\[context.prod\]: there is no setting 'coordinator'"),
        ("[down]\n", "there is no table 'down'"),
        ("context = 3\n", "there is no table 'context'"),
        ("up = 3\n", "up is no table"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(content: str, words: str) -> None:
    Path(FILE).write_text(content)
    with pytest.raises(UsageError, match=words):
        UserSettings()


def test_a_list_in_the_file_is_as_the_option_has_it() -> None:
    Path(FILE).write_text('[context.west]\nmachines = ["ann@north", "south"]\n')
    assert UserSettings("west").get("machines").value == "ann@north,south"


def test_a_file_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNAPLINE_CONFIG", "nowhere.toml")
    with pytest.raises(UsageError, match=r"SNAPLINE_CONFIG names nowhere.toml, which is not there"):
        UserSettings()


def test_the_command_says_who_said_so(run: Run) -> None:
    Path(FILE).write_text('[up]\non = "ray"\n[context.prod]\nhosts = 8\n')
    assert run("config", "context", "use", "prod").code == 0
    shown = run("config", "show", "--origin", "-o", "json").json
    origins = {row["key"]: (row["value"], row["origin"]) for row in shown["settings"]}
    assert shown["context"] == "prod"
    assert origins["on"] == ("ray", "snapline.toml [up]")
    assert origins["hosts"] == ("8", "snapline.toml [context.prod]")
    assert origins["store"] == ("", "default")
    listed = run("config", "context", "list", "-o", "json").json
    assert listed["contexts"] == [{"name": "prod", "in_use": True}]
    assert run("config", "context", "use", "test").code == NotFoundError.exit_code


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--on", "ray"], 2, "--data-dir: name a folder"),
        (["--on", "ssh"], 2, "--data-dir: name a folder"),
        (["--coordinators", "2"], 2, "1, 3 or 5 coordinators"),
        (["--insecure", "--tls", "certificates"], 2, "--insecure contradicts --tls"),
        (["--tls", "certificates"], 2, "a fleet on this machine speaks in plaintext on loopback"),
        (["--name", "no/name"], 2, "no/name"),
    ],
)
def test_what_is_wrong_with_up_is_said(arguments: list[str], code: int, words: str, run: Run) -> None:
    outcome = run("up", "snapline.examples.hello:fleet", *arguments, "--dry-run")
    assert outcome.code == code and words in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("fleet", "code", "words"),
    [
        ("flet", "", "module 'bank' has no 'flet'"),
        ("fleet", "fleet = (", "module 'bank' does not parse"),
        ("fleet", "import nothere", "module 'bank' needs 'nothere', which is not installed"),
        (
            "fleet",
            "print('Hello')\nfleet = 1 / 0",
            "module 'bank' cannot be imported: ZeroDivisionError: division by zero (bank.py, line 2)",
        ),
        ("fleet", "import json\njson.loads('{')", "(bank.py, line 2)"),
        ("fleet", "import sys\nsys.exit(3)", "it calls sys.exit(3) (bank.py, line 2)"),
        ("fleet", "def fleet():\n    raise SystemExit(3)", "bank:fleet raised SystemExit: 3 (bank.py, line 2)"),
        ("fleet", "fleet = 1", "bank:fleet"),
    ],
)
def test_a_definition_that_does_not_load_is_refused_before_anything_starts(
    fleet: str, code: str, words: str, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "bank", raising=False)
    monkeypatch.syspath_prepend(folder)
    (folder / "bank.py").write_text(code)
    outcome = run("up", f"bank:{fleet}")
    assert outcome.code == 2 and words in outcome.err and not outcome.out and "process" not in outcome.err
    assert not (folder / "runs").exists()


def test_a_setting_from_the_file_that_is_no_number_is_named_with_its_place(run: Run) -> None:
    Path(FILE).write_text('[up]\nhosts = "three"\n')
    outcome = run("up", "snapline.examples.hello:fleet", "--dry-run")
    assert outcome.code == 2 and "snapline.toml [up]: hosts = 'three' is no number" in outcome.err


def test_what_processes_log_is_a_setting(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*arguments: str) -> str:
        plan = run("up", "snapline.examples.hello:fleet", *arguments, "--dry-run", "-o", "json").json
        return " ".join(plan["command"].partition("--log-format ")[2].split()[:3])

    assert told() == "text --log-level info"
    Path("snapline.toml").write_text('[up]\nlog_format = "json"\nlog_level = "debug"\n')
    assert told() == "json --log-level debug"
    monkeypatch.setenv("SNAPLINE_LOG_LEVEL", "error")
    assert told() == "json --log-level error"
    assert told("--log-level", "warning", "--log-format", "text") == "text --log-level warning"
    monkeypatch.setenv("SNAPLINE_LOG_FORMAT", "xml")
    refused = run("up", "snapline.examples.hello:fleet", "--dry-run")
    assert refused.code == 2 and "SNAPLINE_LOG_FORMAT: log_format = 'xml' is none: text, json" in refused.err


def test_a_dry_run_says_what_would_run_and_leaves_nothing(run: Run, folder: Path) -> None:
    arguments = ["--on", "ray", "--data-dir", "/data", "--hosts", "4", "--store", "s3://bucket", "--insecure"]
    plan = run("up", "snapline.examples.hello:fleet", *arguments, "--dry-run", "-o", "json").json
    assert (plan["on"], plan["hosts"], plan["store"]) == ("ray", 4, "s3://bucket")
    assert "host run --coordinator COORDINATOR --id h1" in plan["command"] and "--insecure" in plan["command"]
    trusted = ("--on", "ray", "--data-dir", "/data", "--tls", "certificates", "--tls-domain", "shop")
    plan = run("up", "snapline.examples.hello:fleet", *trusted, "--dry-run", "-o", "json").json
    assert "own.crt" in plan["command"] and plan["command"].endswith("--tls-domain shop")
    assert list(folder.iterdir()) == []


def test_commands_ask_the_fleet_in_the_folder_that_up_takes_by_default(run: Run, folder: Path) -> None:
    assert "which fleet? Give --coordinator" in run("status").err
    (folder / "runs" / "fleet").mkdir(parents=True)
    (folder / "runs" / "fleet" / "coordinator.json").write_text('{"address": "127.0.0.1:1"}')
    asked = run("status", "--timeout", "1")
    assert asked.code == 8 and "no coordinator answers at 127.0.0.1:1" in asked.err


def test_what_is_not_up_cannot_be_taken_down(run: Run) -> None:
    outcome = run("down")
    assert outcome.code == NotFoundError.exit_code and "no fleet is up in runs/fleet" in outcome.err
    assert run("down", "--dry-run").code == NotFoundError.exit_code
    Path(FILE).write_text("[up]\nhosts = 2\n")
    asked = run("status")
    assert asked.code == NotFoundError.exit_code
    assert (
        "no fleet is up in runs/fleet: start one with `snapline up`, or name another folder by --data-dir" in asked.err
    )


def test_errors_name_the_setting_of_the_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = run("status").err
    assert all(way in sentence for way in ("--data-dir", "--coordinator", "SNAPLINE_DATA_DIR", f"data_dir in {FILE}"))
    Path(FILE).write_text('[up]\ndata_dir = "here"\n')
    assert f"no fleet is up in here (data_dir from {FILE} [up]): start one" in run("status").err
    monkeypatch.setenv("SNAPLINE_DATA_DIR", "there")
    asked = run("status")
    assert asked.code == NotFoundError.exit_code
    assert "no fleet is up in there (data_dir from SNAPLINE_DATA_DIR): start one" in asked.err


def test_commands_for_the_fleet_of_the_settings_use_the_operator_s_certificate_of_their_folder(
    folder: Path, run: Run
) -> None:
    assert run("auth", "init", "keys", "--tls-domain", "bank").code == 0
    assert not Connection().security().is_tls
    Path(FILE).write_text('[up]\ntls = "keys"\ntls_domain = "bank"\n')
    mine = Connection().security()
    assert (mine.is_tls, mine.domain) == (True, "bank")
    assert mine.authority() == Path("keys/ca.crt").read_bytes()
    for other in (Connection(insecure=True), Connection(coordinator="127.0.0.1:1"), Connection(data_dir=Path("run"))):
        assert not other.security().is_tls
    Path("keys/operator-operator.key").unlink()
    with pytest.raises(ExternalFailureError, match=r"operator-operator\.key"):
        Connection().security().authority()
