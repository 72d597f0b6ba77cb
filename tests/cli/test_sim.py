"""`snapline sim …`: scenarios and seeds from the command line, runs and their folders, exit codes, the page."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.house.pages import commands_of, files_of
from tests.kit.command_line import Run
from tests.kit.shown_page import matches

from snapline import failpoints
from snapline.cli import sim
from snapline.cli.output import Printer
from snapline.cli.progress import RunProgress
from snapline.cli.sim_scenarios import ScenarioChanges, commit_of_code, parse_seeds, read_scenario
from snapline.cli.sim_sweeps import _sweep_code, show_summary
from snapline.errors import UsageError
from snapline.sim.explorer import exploration
from snapline.sim.explorer.state_search import Bounds
from snapline.sim.faults.fault_kinds import FAILPOINTS
from snapline.sim.faults.faults import describe_faults
from snapline.sim.report.run_folder import read_run
from snapline.sim.result import Violation
from snapline.sim.run import run as simulate
from snapline.sim.scenario import FaultPart, format_scenario, parse_scenario
from snapline.sim.search.swarm import BUILT_IN, draw
from snapline.sim.search.sweep import SweepSummary

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "simulation.md"

SMALL = """
name = "small"
fleet = { agents = 3, pattern = { name = "ring", messages = 30 }, trigger = { every = "200ms" } }
run = { until = "500ms" }
"""

CRASHING = (
    SMALL.replace("small", "crashing").replace("500ms", "1s") + '\n[[fault]]\ncrash = { host = "h1", at = "100ms" }\n'
)

FLEETS = "tests.sim.checked_fleets"
WRONG = (f"{FLEETS}:short_ping_pong", "--invariant", f"{FLEETS}:none_in_the_thirties")
"""Some seeds break the invariant."""

FLEET = """
import asyncio
import time

import msgspec
import snapline


class Ball(snapline.Message):
    hits: int


class Player(msgspec.Struct):
    other: str
    hits: int = 0


class Agent(snapline.Agent):
    state: Player

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.other == "b":
            ctx.send("b", Ball(hits=1))

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        BODY
        if message.hits < 50:
            ctx.send(ctx.sender, Ball(hits=message.hits + 1))


def fleet(every: str = "0.1") -> snapline.Fleet:
    agents = {"a": Agent(Player("b")), "b": Agent(Player("a"))}
    return snapline.Fleet("mine", agents=agents, triggers=[snapline.Every(seconds=float(every))])
"""


@pytest.fixture(autouse=True)
def own_modules(folder: Path) -> Iterator[None]:
    """What a test imports from its folder, the next one does not find. Others stay: numpy cannot be loaded twice."""
    paths = list(sys.path)
    yield
    sys.path[:] = paths
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{folder}/"):
            del sys.modules[name]


@pytest.fixture
def small(folder: Path) -> str:
    (folder / "small.toml").write_text(SMALL)
    (folder / "crashing.toml").write_text(CRASHING)
    return "small.toml"


def write_fleet(folder: Path, name: str, body: str = "self.state.hits = message.hits") -> str:
    (folder / f"{name}.py").write_text(FLEET.replace("BODY", body))
    return f"{name}:fleet"


def first_failing_seed(*arguments: str, run: Run) -> int:
    found: int = run("sim", "sweep", *arguments, "--seeds", "0:40", "--stop-after", 1, "--jobs", 0).json["findings"][0][
        "seeds"
    ][0]
    return found


# -- what is given ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), min_size=1, max_size=5))
def test_seeds_are_those_that_their_words_say(parts: list[tuple[int, int]]) -> None:
    text = ", ".join(f"{first}" if length == 1 else f"{first}:{first + length}" for first, length in parts)
    expected = [seed for first, length in parts for seed in range(first, first + length)]
    if any(length == 0 for _, length in parts) or len(set(expected)) < len(expected):
        with pytest.raises(UsageError, match="--seeds"):
            parse_seeds(text)
    else:
        assert list(parse_seeds(text)) == expected


def test_a_sweep_that_was_stopped_before_its_end_has_an_exit_code_of_its_own() -> None:
    verdicts = {"pass": 3, "undecided": 1, "violation": 0, "broken": 0}
    stopped = SweepSummary(name="s", runs=4, verdicts=verdicts, is_stopped=True)
    assert _sweep_code(stopped, range(10), None, is_strict=False) == 130
    stopped.verdicts["violation"] = 1
    assert _sweep_code(stopped, range(10), None, is_strict=False) == 6


@pytest.mark.parametrize("text", ["", "a", "1:", ":3", "-1", "1-3", "3:1", "1,,2", "0:99999999", "1:2:3", "٣"])
def test_what_are_no_seeds_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_seeds(text)


@given(seed=st.integers(0, 2000), name=st.sampled_from(sorted(BUILT_IN)), agents=st.integers(2, 6))
def test_options_hold_in_whatever_is_drawn(seed: int, name: str, agents: int) -> None:
    drawn = draw(ScenarioChanges(protocol="hmnr", pattern="grid", agents=agents, hosts=2).template(name), seed)
    assert (drawn.fleet.protocol, drawn.fleet.pattern.name) == ("hmnr", "grid")
    assert drawn.fleet.agents <= agents and drawn.fleet.hosts <= 2


def test_a_users_fleet_gets_inputs_clients_restores_and_moves(run: Run, folder: Path) -> None:
    write_fleet(folder, "spoken")
    (folder / "balls.jsonl").write_text('{"agent": "a", "type": "Ball", "fields": {"hits": 50}}\n' * 5)
    options = ("--inputs", "balls.jsonl", "--clients", 1, "--restores", 1, "--moves", 2, "--faults", "quiet")
    printed = run("sim", "run", "spoken:fleet", *options, "--print").out
    scenario = parse_scenario(printed, source="printed")
    assert (scenario.clients.count, scenario.clients.inputs, scenario.clients.inputs_from) == (1, 5, "balls.jsonl")
    assert (scenario.restores.times, scenario.run.moves) == (1, 2)
    done = run("sim", "run", "spoken:fleet", *options, "--no-folder")
    assert (done.code, done.json["verdict"]) == (0, "pass") and not (folder / "runs").exists()
    assert done.json["probes"]["send taken"] >= 5
    assert "--inputs balls.jsonl --clients 1 --restores 1 --moves 2" in done.json["repeat"]


def test_options_are_exact_where_nothing_is_drawn(small: str) -> None:
    fleet = ScenarioChanges(protocol="bcs", pattern="star", agents=4, hosts=3).template(small).fleet
    assert (fleet.protocol, fleet.pattern.name, fleet.agents, fleet.hosts) == ("bcs", "star", 4, 3)
    assert fleet.pattern.messages == 30, "what is not named stays"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.toml"], "there is no scenario 'nothing.toml'"),
        (["nothing:fleet"], "there is no module 'nothing'"),
        (["mine:nothing"], "nothing"),
        (["small.toml", "--arg", "a=b"], "--arg is for MODULE:FLEET"),
        (["small.toml", "--faults", "quiet"], "--faults is for MODULE:FLEET"),
        (["small.toml", "--inputs", "mine:balls"], "--inputs is for MODULE:FLEET"),
        (["mine:fleet", "--inputs", "mine:balls"], "inputs 'mine:balls' cannot be loaded"),
        (["mine:fleet", "--clients", "3"], "say which with --inputs"),
        (["small.toml", "--protocol", "magic"], 'fleet.protocol is "magic": use chandy-lamport'),
        (["quiet", "--pattern", "magic"], 'fleet.pattern.name is "magic": use ring'),
        (["mine:fleet", "--protocol", "bcs"], "--protocol is for built-in workloads"),
        (["mine:fleet", "--faults", "nothing"], "there is no scenario 'nothing'"),
        (["wrong.toml"], "wrong.toml: "),
        (["beyond.toml"], "1 of 1 hosts are lost for ever"),
        (["folder"], "there is no scenario 'folder'"),
    ],
)
def test_what_cannot_run_is_one_sentence_and_exit_code_2(
    run: Run, folder: Path, small: str, arguments: list[str], words: str
) -> None:
    write_fleet(folder, "mine")
    (folder / "folder").mkdir()
    (folder / "wrong.toml").write_text("[fleet]\nagent = 3\n")
    forever = 'fleet = { hosts = 1 }\n[[fault]]\ncrash = { restart_after = "" }\n'
    (folder / "beyond.toml").write_text(forever)
    for command in ("run", "sweep"):
        done = run("sim", command, *arguments)
        assert done.code == 2 and done.err.startswith("snapline: ") and words in done.err, done.err
        assert done.out == "" and done.err.count("\n") == 1
    assert not (folder / "runs").exists()


def test_printed_scenarios_are_read_back(run: Run, small: str) -> None:
    for name in (*BUILT_IN, small):
        printed = run("sim", "run", name, "--print")
        assert printed.code == 0 and parse_scenario(printed.out, source=name) == read_scenario(name)
    drawn = run("sim", "run", "swarm", "--print", "--seed", 5)
    assert parse_scenario(drawn.out, source="drawn") == draw(BUILT_IN["swarm"], 5)


# -- one run ------------------------------------------------------------------------------------------------------------


def test_a_run_writes_its_folder_and_says_what_the_simulator_says(run: Run, folder: Path, small: str) -> None:
    done = run("sim", "run", small, "--seed", 3)
    expected = simulate(read_scenario(small), 3)
    assert done.code == 0 and done.json["kind"] == "SimulationResult"
    assert (done.json["verdict"], done.json["trace_hash"]) == ("pass", expected.trace_hash)
    place = Path(done.json["folder"])
    assert place.parent == Path("runs/small") and (place.parent / "latest").resolve() == place.resolve()
    stored = read_run(place)
    assert (stored.result.trace_hash, stored.scenario) == (expected.trace_hash, read_scenario(small))
    assert stored.recording is not None and stored.recording.events and stored.choices
    assert done.json["repeat"] == "snapline sim run small.toml --seed 3"


def test_a_users_fleet_gets_faults_from_a_template_or_a_file(run: Run, folder: Path, small: str) -> None:
    fleet = write_fleet(folder, "good")
    done = run("sim", "run", fleet, "--faults", "crashing.toml", "--hosts", 2)
    assert done.code == 0 and [fault["text"] for fault in done.json["faults"]] == ["h1 is killed"]
    done = run("sim", "run", fleet, "--arg", "every=0.2", "--print")
    printed = parse_scenario(done.out, source="printed")
    assert (printed.name, printed.fleet.module, printed.fleet.arguments) == ("mine-crashes", fleet, {"every": "0.2"})
    assert printed.fleet.agents == 2 and printed.swarm is not None and printed.swarm.protocols == ["chandy-lamport"]


# -- the user's own invariants --------------------------------------------------------------------------------------------

GIVEN = (f"{FLEETS}:ping_pong", "--faults", "quiet", "--invariant", f"{FLEETS}:few_hits")


def test_an_invariant_of_the_command_line_is_asked_and_the_printed_line_asks_it_again(run: Run, folder: Path) -> None:
    done = run("sim", "run", *GIVEN)
    assert done.code == 6 and "few_hits: too many hits" in done.json["violations"][0]["text"]
    assert done.json["repeat"] == shlex.join(["snapline", "sim", "run", GIVEN[0], "--seed", "0", *GIVEN[1:]])
    again = run(*shlex.split(done.json["repeat"])[1:], "--no-folder")
    assert (again.code, again.json["trace_hash"]) == (6, done.json["trace_hash"])
    replayed = run("sim", "replay", done.json["folder"])
    assert replayed.code == 6 and replayed.json["is_same"] is True
    shrunk = run("sim", "shrink", done.json["folder"], "--time-limit", "500ms")
    assert shrunk.code == 0 and shrunk.json["signature"] == "violation workload"


def test_a_sweep_asks_an_invariant_in_its_processes(run: Run) -> None:
    done = run("sim", "sweep", *GIVEN, "--seeds", "0:2", "--jobs", 1)
    (finding,) = done.json["findings"]
    assert (done.code, finding["oracle"], finding["count"]) == (6, "workload", 2)
    assert f"--invariant {FLEETS}:few_hits" in finding["repeat"]


def test_the_states_at_rest_are_asked_too(run: Run) -> None:
    short = f"{FLEETS}:short_ping_pong"
    done = run("sim", "run", short, "--at-end", f"{FLEETS}:all_hits", "--invariant", f"{FLEETS}:hits_follow")
    assert done.code == 0 and f"--at-end {FLEETS}:all_hits" in done.json["repeat"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine:fleet", "--invariant", "mine"], "'mine' does not name a function: write MODULE:FUNCTION"),
        (["mine:fleet", "--invariant", "nothing:total"], "there is no module 'nothing'"),
        (["mine:fleet", "--invariant", "mine:nothing"], "module 'mine' has no 'nothing': name a function in it"),
        (["mine:fleet", "--at-end", "mine:__name__"], "mine:__name__ is a str: name a function"),
        (["quiet", "--invariant", "mine:fleet"], "--invariant is for MODULE:FLEET, and 'quiet' is a scenario"),
        (["small.toml", "--at-end", "mine:fleet"], "--at-end is for MODULE:FLEET"),
    ],
)
def test_what_is_no_invariant_is_one_sentence_and_exit_code_2(
    run: Run, folder: Path, small: str, arguments: list[str], words: str
) -> None:
    write_fleet(folder, "mine")
    for command in ("run", "sweep"):
        done = run("sim", command, *arguments)
        assert done.code == 2 and words in done.err and done.err.count("\n") == 1, done.err


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("self.state.hits = time.time_ns()", 6, "in another state than"),
        ("seen.append(1); self.state.hits = len(seen)", 6, "in another state than"),
        ("await asyncio.sleep(0.1)", 1, "wrap it in `await ctx.step"),
    ],
)
def test_agents_that_cannot_be_restored_are_found(run: Run, folder: Path, body: str, code: int, words: str) -> None:
    fleet = write_fleet(folder, f"bad{abs(hash(body))}", body)
    path = folder / f"{fleet.partition(':')[0]}.py"
    path.write_text(path.read_text() + "\n\nseen: list[int] = []\n")
    done = run("sim", "run", fleet, "--faults", "quiet")
    assert done.code == code and words in json.dumps(done.json), done.out
    if code == 1:
        shown = run("sim", "run", fleet, "--faults", "quiet", "-o", "table")
        assert shown.code == code and f"again  snapline sim run {fleet} --seed 0 --faults quiet\n" in shown.out


# -- again --------------------------------------------------------------------------------------------------------------


def test_a_folder_is_replayed_with_its_choices(run: Run, folder: Path, small: str) -> None:
    place = run("sim", "run", small, "--seed", 3).json["folder"]
    for name in (place, "runs/small", "runs/small/latest"):
        done = run("sim", "replay", name)
        assert done.code == 0 and done.json["is_same"] is True and done.json["folder"] == place
        assert done.json["is_checked"] is False
    choices = Path(place, "choices.json")
    found = json.loads(choices.read_text())
    found["choices"] = []
    choices.write_text(json.dumps(found))
    other = run("sim", "replay", place, "-o", "table")
    assert other.code == 0 and "not the same as recorded" in other.out, "other choices, another run"


def test_a_replay_warns_of_another_commit(run: Run, folder: Path, small: str) -> None:
    place = Path(run("sim", "run", small).json["folder"])
    result = json.loads((place / "result.json").read_text()) | {"commit": "older", "trace_hash": "other"}
    (place / "result.json").write_text(json.dumps(result))
    done = run("sim", "replay", place, "-o", "table")
    assert "not the same as recorded: that was trace other\n  the run was made at commit older" in done.out


def test_a_check_runs_in_another_interpreter(run: Run, small: str) -> None:
    done = run("sim", "replay", small, "--seed", 1)
    assert done.code == 0 and done.json["is_checked"] is True and done.json["divergence"] is None


def test_a_run_that_cannot_be_repeated_is_shown_from_both_sides(
    run: Run, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from snapline.sim.search import replay

    found = replay.Divergence(1, ["trace_hash"], (0, 1000), 7, ["before"], "here", "there")
    monkeypatch.setattr(replay, "check_determinism", lambda *_, **__: found)
    done = run("sim", "replay", small, "-o", "table")
    assert done.code == 1 and "first at entry 7" in done.out and "  - here\n  + there\n" in done.out


@pytest.mark.parametrize("verb", ["replay", "shrink", "coverage"])
def test_a_folder_is_not_changed_by_options(run: Run, small: str, verb: str) -> None:
    run("sim", "run", small)
    seeds = "--seeds" if verb == "coverage" else "--seed"
    for option in ([seeds, "3"], ["--protocol", "bcs"], ["--hosts", "2"]):
        done = run("sim", verb, "runs/small", *option)
        assert done.code == 2 and f"{option[0]} cannot change runs/small/" in done.err, done.err


@pytest.mark.slow
def test_a_failing_run_is_made_small(run: Run, folder: Path) -> None:
    seed = first_failing_seed(*WRONG, run=run)
    failing = run("sim", "run", *WRONG, "--seed", seed)
    assert failing.code == 6
    done = run("sim", "shrink", failing.json["folder"], "--time-limit", "1s")
    assert done.code == 0 and done.json["signature"] == f"violation {failing.json['violations'][0]['oracle']}"
    sizes = [sum(done.json[name].values()) for name in ("before", "after")]
    assert sizes[1] < sizes[0] and "run " in done.err
    place = Path(done.json["folder"])
    assert place == Path(failing.json["folder"], "shrunk")
    assert {"report.html", "spacetime.svg", "steps.txt", "config.toml", "choices.json"} <= {
        path.name for path in place.iterdir()
    }
    again = run("sim", "replay", place)
    assert again.code == 6 and again.json["is_same"] is True
    test = next(place.glob("test_*.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # the fleet's module is in `tests`
    wrong = test.read_text()
    for text, code in ((wrong, 1), (wrong.replace("none_in_the_thirties", "hits_follow"), 0)):
        test.write_text(text)
        ran = subprocess.run(command, env=environment, capture_output=True, check=False, text=True, timeout=60)
        assert ran.returncode == code and ("in the thirties" in ran.stdout) == bool(code), ran.stdout


def test_there_is_nothing_to_shrink_in_a_run_that_passes(run: Run, small: str) -> None:
    done = run("sim", "shrink", small)
    assert done.code == 2 and "there is nothing to shrink" in done.err
    assert run("sim", "shrink", small, "--time-limit", "0s").code == 2


# -- many runs ----------------------------------------------------------------------------------------------------------


def test_a_sweep_counts_what_single_runs_say(run: Run, folder: Path) -> None:
    done = run("sim", "sweep", *WRONG, "--seeds", "0:12", "--jobs", 0, "--csv", "metrics.csv", "--folder", "kept")
    template = ScenarioChanges(invariant=WRONG[2]).template(WRONG[0])
    verdicts = [simulate(draw(template, seed), seed).verdict for seed in range(12)]
    assert set(verdicts) == {"pass", "violation"}
    assert {name: count for name, count in done.json["verdicts"].items() if count} == {
        name: verdicts.count(name) for name in verdicts
    }
    assert done.code == 6 and done.json["verdict"] == "violation"
    rows = (folder / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [[str(seed), verdicts[seed]] for seed in range(12)]
    (kept,) = folder.glob("kept/*/*-sweep.json")
    assert json.loads(kept.read_text()) == done.json and f"wrote {kept.relative_to(folder)}" in done.err
    for finding in done.json["findings"]:
        again = run(*shlex.split(finding["repeat"])[1:], "--no-folder")
        assert again.code == 6 and finding["oracle"] in [one["oracle"] for one in again.json["violations"]]


def test_a_sweep_as_a_table(run: Run, small: str) -> None:
    done = run("sim", "sweep", *WRONG, "--seeds", "0:40", "--stop-after", 1, "--jobs", 0, "-o", "table")
    assert done.code == 6 and ", stopped: " in done.out.splitlines()[0]
    assert re.search(r"^violation: \S+ \(G\d+\), 1 run: seeds \d+$", done.out, re.MULTILINE)
    assert f"    snapline sim run {WRONG[0]} --seed " in done.out
    calm = run("sim", "sweep", small, "--seeds", "5", "--jobs", 0, "-o", "table", "--verbose")
    assert calm.code == 0 and calm.out.startswith("small: 1 run: 1 pass (") and "probes never hit: " in calm.out
    assert "?" in calm.out, "the interval of one run is unknown"


def rows(text: str, width: int = 80) -> int:
    """Of a terminal."""
    return sum(max(1, -(-len(line) // width)) for line in text.splitlines())


def test_a_run_that_passes_is_told_in_five_lines(run: Run, folder: Path) -> None:
    done = run("sim", "run", f"{FLEETS}:ping_pong", "--seed", 2, "--invariant", f"{FLEETS}:hits_follow", "-o", "table")
    lines = done.out.splitlines()
    assert done.code == 0 and [line.split()[0] for line in lines] == ["PASS", "ran", "met", "checked", "again"]
    assert re.match(r"ran +2 agents on 2 hosts, \d+ turns, [5-9]\d\d messages, [\d.]+ s of virtual time", lines[1])
    assert re.match(r"met +\d+ recover(y|ies), \d+ complete epochs; .*\bcrash\b", lines[2])
    assert lines[3] == f"checked  all guarantees, 2 agents run again; {FLEETS}:hits_follow"
    assert lines[4].startswith(
        f"again    snapline sim run {FLEETS}:ping_pong --seed 2 --invariant {FLEETS}:hits_follow; "
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["swarm", "--seeds", "0:3"], 0),
        ([f"{FLEETS}:short_ping_pong", "--seeds", "0:4"], 0),
        (
            [
                f"{FLEETS}:totalling",
                "--seeds",
                "0:3",
                "--invariant",
                f"{FLEETS}:few_hits",
                "--at-end",
                f"{FLEETS}:all_hits",
            ],
            6,
        ),
    ],
)
def test_a_sweep_fits_on_a_terminal(run: Run, arguments: list[str], code: int) -> None:
    done = run("sim", "sweep", *arguments, "--jobs", 0, "-o", "table")
    assert done.code == code and rows(done.out) <= 24, done.out
    assert re.search(r"^never met \d+/\d+ situations, \d+/\d+ faults.* \(--verbose\)$", done.out, re.MULTILINE)
    assert ("passed    " in done.out) == (code == 0)


def test_a_sweep_with_many_kinds_of_findings_fits_on_a_terminal() -> None:
    findings = [
        {
            "verdict": "violation",
            "oracle": f"o{n}",
            "guarantee": "G3",
            "count": 40,
            "seeds": list(range(10)),
            "text": "x" * 900,
            "repeat": "y" * 130,
        }
        for n in range(5)
    ]
    counts = {f"fault {n}": n for n in range(40)}
    result = {
        "name": "many",
        "runs": 100,
        "verdicts": {"violation": 100},
        "elapsed_s": 1.0,
        "seeds_per_s": 1.0,
        "is_stopped": False,
        "findings": findings,
        "metrics": {},
        "drawn": {"faults": counts, "failpoints": counts},
        "probes": {"a": 1},
        "never_hit": ["b"],
        "divergences": [],
        "checked": 5,
    }
    lines: list[str] = []
    show_summary(result, SimpleNamespace(line=lambda text="": lines.append(text)))  # type: ignore[arg-type]  # enough of tables
    assert rows("\n".join(lines)) <= 24 and "… 3 more kinds of findings: --verbose" in lines


def test_probes_that_nobody_hit_are_an_exit_code_for_who_asks(run: Run, small: str) -> None:
    for command in ("sweep", "coverage"):
        arguments = ["sim", command, small, "--seeds", "0:2", "--jobs", 0]
        assert run(*arguments).code == 0
        quiet = run(*arguments, "--require-probes", "-q")
        assert (quiet.code, quiet.err) == (3, ""), "nor any progress for who wants quiet"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "x"], "--seeds 'x' are no seeds"),
        (["--jobs", "2", "--on", "ray"], "--jobs is for processes of this machine"),
        (["--csv", "no/such/file.csv"], "there is no folder no/such"),
    ],
)
def test_sweeps_that_cannot_be(run: Run, small: str, arguments: list[str], words: str) -> None:
    done = run("sim", "sweep", small, *arguments)
    assert done.code == 2 and words in done.err


def test_ray_is_asked_for_by_name(run: Run, small: str) -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed")
    done = run("sim", "sweep", small, "--on", "ray")
    assert done.code == 2 and "snapline[ray]" in done.err


def test_coverage_counts_points_of_the_code(run: Run, small: str) -> None:
    before = failpoints.install
    done = run("sim", "coverage", "crashing.toml", "--seeds", "0:2", "--jobs", 0)
    assert failpoints.install is before
    passed = {row["name"]: row["passes"] for row in done.json["points"]}
    counted: dict[str, int] = {}
    failpoints.install(lambda name: counted.__setitem__(name, counted.get(name, 0) + 1))
    failpoints.failpoint("a")
    failpoints.install(None)
    assert counted == {"a": 1}, "hooks work as before"
    assert passed["store.pack.linked"] > 0
    assert set(passed) >= set(FAILPOINTS)
    assert set(done.json["points_never_passed"]) == {name for name, passes in passed.items() if not passes}
    hits = {row["name"]: row["hits"] for row in done.json["probes"]}
    assert hits["recovery"] == sum(
        simulate(read_scenario("crashing.toml"), seed).probes.get("recovery", 0) for seed in range(2)
    )
    assert done.json["verdicts"]["pass"] == 2


def test_coverage_of_a_folder_is_that_of_its_run(run: Run, small: str) -> None:
    made = run("sim", "run", "crashing.toml", "--seed", 1).json
    done = run("sim", "coverage", made["folder"])
    hits = {row["name"]: row["hits"] for row in done.json["probes"] if row["hits"]}
    assert (hits, done.json["runs"]) == (made["probes"], 1)
    assert "points never passed: " in run("sim", "coverage", made["folder"], "-o", "table").out


def test_a_comparison_recommends_with_reasons(run: Run, folder: Path, small: str) -> None:
    arguments = ["sim", "compare", small, "--protocols", "chandy-lamport,bcs", "--seeds", "0:3", "--jobs", 0]
    done = run(*arguments, "--failure-rates", "0,2", "--svg", "figure.svg")
    assert done.code == 0 and len(done.json["cells"]) == 4
    assert done.json["recommendation"]["protocol"] in ("chandy-lamport", "bcs")
    assert (folder / "figure.svg").read_text().startswith("<svg")
    calm = run(*arguments, "--failure-rates", "0", "-o", "table")
    assert calm.code == 0 and "no recommendation: " in calm.out
    assert calm.out.splitlines()[0].startswith("pattern ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--protocols", "magic"], "magic"),
        (["--protocols", ""], "--protocols"),
        (["--protocols", "bcs,"], "--protocols"),
        (["--protocols", "bcs,bcs"], "--protocols"),
        (["--patterns", "magic"], "--patterns names 'magic'"),
        (["--failure-rates", "0,often"], "--failure-rates has 'often'"),
        (["--failure-rates", "nan"], "--failure-rates has 'nan'"),
        (["--intervals", "soon"], "'soon' is not a duration"),
        (["--mtbf", "0s"], "--mtbf is '0s'"),
        (["--svg", "no/such.svg"], "there is no folder no"),
    ],
)
def test_comparisons_that_cannot_be(run: Run, small: str, arguments: list[str], words: str) -> None:
    done = run("sim", "compare", small, "--jobs", 0, *arguments)
    assert done.code == 2 and words in done.err, done.err


COMPARED = """
import msgspec
import snapline

class Ball(snapline.Message):
    hits: int

class Player(msgspec.Struct):
    other: str
    last: int

class Plays(snapline.Agent):
    state: Player

    async def on_start(self, ctx: snapline.Context) -> None:
        if ctx.agent == "a":
            ctx.send(self.state.other, Ball(1))

    @snapline.handler
    async def on_ball(self, message: Ball, ctx: snapline.Context) -> None:
        if message.hits != self.state.last:
            ctx.send(self.state.other, Ball(message.hits + 1))

def fleet(last="8"):
    agents = {"a": Plays(Player("b", int(last))), "b": Plays(Player("a", int(last)))}
    return snapline.Fleet("play", agents=agents, protocol="hmnr", stop_when=lambda cut: cut.is_quiet)
"""


def test_a_users_fleet_is_compared_under_other_protocols_and_triggers_than_its_own(run: Run, folder: Path) -> None:
    (folder / "compared_fleet.py").write_text(COMPARED)
    arguments = ["--protocols", "chandy-lamport,bcs", "--seeds", "0:2", "--jobs", "0", "--failure-rates", "0"]
    done = run("sim", "compare", "compared_fleet:fleet", "--arg", "last=12", *arguments)
    assert [cell["setting"]["protocol"] for cell in done.json["cells"]] == ["chandy-lamport", "bcs"], done.err
    assert done.json["patterns"] == ["compared_fleet:fleet"]
    assert all(cell["passed"] == 2 and all(cell["values"]["finish_s"]) for cell in done.json["cells"]), done.json
    assert run("sim", "compare", "compared_fleet:fleet", "--patterns", "bank").code == 2


def test_a_users_fleet_that_never_rests_is_not_compared_and_told_why(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim, "WORK_WITHIN", "2s")
    (folder / "compared_fleet.py").write_text(COMPARED)
    arguments = ["--protocols", "bcs", "--seeds", "0:1", "--jobs", "0", "--failure-rates", "0"]
    done = run("sim", "compare", "compared_fleet:fleet", "--arg", "last=0", *arguments)
    assert done.code == 3 and "only work that ends can be compared" in done.json["note"]


# -- without a run ------------------------------------------------------------------------------------------------------


def test_a_small_fleet_is_explored(run: Run) -> None:
    done = run("sim", "explore", "--protocol", "bcs", "--agents", 2)
    assert done.code == 0 and done.json["explorations"][0]["is_complete"] is True
    given_up = run("sim", "explore", "--protocol", "bcs", "--states-max", 10, "-o", "table")
    assert given_up.code == 3 and "given up" in given_up.out
    assert run("sim", "explore", "--protocol", "magic").code == 2
    assert run("sim", "explore", "--agents", 1).code == 2


def test_the_shortest_way_to_a_violation_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    violation = Violation("cut", "G1", 2, "an orphan")
    found = exploration.Exploration("bcs", Bounds(), 9, 9, 2, False, violation, ["a sends", "b records"], 0.5)
    monkeypatch.setattr(exploration, "explore", lambda *_: found)
    done = run("sim", "explore", "--protocol", "bcs", "-o", "table")
    assert done.code == 6 and "bcs: G1 cut: an orphan\nthe shortest way there, 2 steps:\n    1  a sends\n" in done.out


def test_scripts_are_compared_and_rewritten(run: Run, folder: Path) -> None:
    golden = (ROOT / "tests/scenarios/new-channel.txt").read_text()
    script = folder / "new.txt"
    script.write_text(golden)
    assert run("sim", "script", script).code == 0
    script.write_text(golden.replace("epoch=1", "epoch=2", 1) if "epoch=1" in golden else golden + "x")
    changed = run("sim", "script", script, "-o", "table")
    assert changed.code in (2, 6)
    script.write_text(golden.rstrip().rpartition("\n")[0] + "\n")
    differs = run("sim", "script", script, "-o", "table")
    assert differs.code == 6 and "differs" in differs.out and "as run" in differs.out
    assert run("sim", "script", script, "--rewrite").json["scripts"][0]["is_written"] is True
    assert script.read_text() == golden and run("sim", "script", script).code == 0
    assert run("sim", "script", folder / "none.txt").code == 2


def test_a_report_is_made_again_and_exported(run: Run, folder: Path, small: str) -> None:
    place = Path(run("sim", "run", small).json["folder"])
    (place / "report.html").unlink()
    done = run("sim", "report", place, "--shiviz", "s.log", "--perfetto", "p.json", "-o", "table")
    assert done.code == 0 and f"wrote {place}/report.html\nwrote s.log\nwrote p.json\n" in done.out
    assert (place / "report.html").read_text().startswith("<!doctype html>") or (place / "report.html").exists()
    assert json.loads((folder / "p.json").read_text()) and (folder / "s.log").read_text().startswith("(?<host>")
    for name in ("trace.jsonl.gz", "timeline.json"):
        (place / name).unlink()
    assert "holds no trace" in run("sim", "report", place, "--shiviz", "s.log").err
    assert run("sim", "report", "runs").code == 2 and run("sim", "report", "nowhere").code == 2


def test_lists(run: Run) -> None:
    assert {row["name"] for row in run("sim", "workloads").json["workloads"]} >= {"bank", "ring", "domino"}
    found = run("sim", "faults").json
    assert [(row["class"], row["word"], row["text"]) for row in found["words"]] == describe_faults()
    assert found["failpoints"] == list(FAILPOINTS)
    assert "disk: bit-flip" in run("sim", "faults", "-o", "table").out


# -- around it ----------------------------------------------------------------------------------------------------------


def test_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    progress = RunProgress(Printer(), 200, clock=lambda: now_s)
    for number in range(100):
        now_s += 0.125
        progress.ended("violation" if number == 7 else "pass")
    progress.end()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2, "one each five seconds"
    assert lines[0] == "[####                    ] 40 of 200 runs, 8.0/s, 20 s left, 1 violation"
    assert lines[1].startswith("[#########               ] 80 of 200 runs, 8.0/s, 15 s left")


def test_the_commit_is_that_of_our_checkout() -> None:
    def no_git(*_: object, **__: object) -> "subprocess.CompletedProcess[str]":
        raise FileNotFoundError

    assert commit_of_code(no_git) == "v0.1.0"
    assert re.fullmatch(r"[0-9a-f]{12,40}(-dirty)?|v0\.1\.0", commit_of_code())


# -- the page -----------------------------------------------------------------------------------------------------------


def test_the_page_names_every_word_key_and_point() -> None:
    page = PAGE.read_text()
    for kind, word, text in describe_faults():
        assert f"| `{word}` | {text} |" in page and f"\n| {kind} | `" in page
    keys = dict(re.findall(r"^\| `([a-z]+)` \| (`at`.*) \|$", page, re.MULTILINE))
    for part in msgspec.structs.fields(FaultPart):
        struct = next(kind for kind in part.type.__args__ if kind is not type(None))
        named = re.findall(r"`([a-z_]+)(?: = [^`]*)?`", keys[part.name])
        assert named == [key.encode_name for key in msgspec.structs.fields(struct)], part.name
    for head, tails in re.findall(r"^- `([a-z.]+\.)` (.*)$", page, re.MULTILINE):
        page += "".join(f"{head}{tail} " for tail in re.findall(r"`([a-z]+)`", tails))
    assert [point for point in FAILPOINTS if f"{point} " not in page] == []


def test_the_commands_of_the_page_run_and_print_what_it_shows(run: Run, folder: Path) -> None:
    page = PAGE.read_text()
    for name, text in files_of(page).items():
        (folder / name).write_text(text)
        assert not name.endswith(".toml") or format_scenario(parse_scenario(text, source=name))
    commands = commands_of(page)
    assert len(commands) >= 12
    for command, after in zip(commands, [*commands[1:], None], strict=True):
        if command.text == "echo $?":
            continue
        expected = int(after.output[0]) if after is not None and after.text == "echo $?" else 0
        words = shlex.split(command.text)
        assert words[:2] == ["snapline", "sim"], "so that it can be run in this process"
        form = [] if "--print" in words else ["-o", "table"]
        form += ["--jobs", "0"] if words[2] in ("sweep", "coverage", "compare") else []
        done = run(*words[1:], *form)
        where = f"simulation.md:{command.line}: $ {command.text}"
        assert done.code == expected, f"{where}\nended with {done.code}\n{done.out}{done.err}"
        assert matches(command.output, done.out.splitlines()), f"{where}\nprinted\n{done.out}"
