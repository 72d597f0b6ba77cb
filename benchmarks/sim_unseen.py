"""How many mistakes that nobody had in mind the swarm finds: mutants made blindly, from the syntax trees of the cores.

    python benchmarks/sim_unseen.py [--seed S] [--count N] [--seeds N] [--out FILE] [--only I,J] [--skip-tests]

A seeded draw picks `count` places among all that a mistake could be at: a comparison, a constant, a sum, a condition, a statement
that could be missing, two arguments, `min` and `max`. Each mutant is put into a scratch copy of the package and judged twice:

- by its own folder's unit tests (`tests/<folder>` without those that start processes; those of its own name first, up to the first
  that fails): what they kill is a mistake, what they let live may be none;
- by the swarm: seeds of the built-in template one after the other, until one does not pass with the mutant and passes without it.

One process at a time. `--out` keeps the answers, and a second call goes on from there, with more seeds for what was not found. The
last lines say which share of the killed was found, and name the others.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "snapline"
CORES = (
    "protocols/*.py",
    "channels/link.py",
    "agent_runtime/host/*.py",
    "agent_runtime/host/modes/*.py",
    "coordinator/leader/*/*.py",
    "coordinator/state/*.py",
    "storage/store/store.py",
    "storage/retention/retention*.py",
)
ADAPTERS = (
    *("driver", "checkpoint_files", "checkpoint_writer", "epoch_files", "process", "session"),
    *("environment", "trace", "turns"),
)
"""Files of `agent_runtime/host/` that only execute commands."""

SEED, COUNT, SEEDS = 20261122, 30, 2_000
TESTS_LIMIT_S = 900
TESTS_BROKEN_MAX = 5
"""Largest number of unit tests of a folder that may fail without a mutant: more mean that the tree is broken."""

SEED_LIMIT_S = 60.0
"""Time limit of a seed, in real time: a mutant may run for ever."""

NOT_UNITS = (
    *("channels/test_grpc_link.py", "security/test_transport.py", "messages/test_coordinator_client.py"),
    *("coordinator/test_process.py", "coordinator/test_server.py", "coordinator/test_backup.py"),
    *("coordinator/test_ten_thousand.py", "coordinator/test_doors.py", "coordinator/raft"),
    *("storage/test_object_servers.py", "storage/test_killed_chunks.py", "storage/capture"),
)
"""Skipped tests: they start processes or servers, or belong to another part."""

NOT_LOGIC = ("__repr__", "__str__", "validate", "describe")
"""Functions that describe or check, and do not affect behaviour."""

WORDS_ONLY = ("note", "_note_once", "debug", "info", "warning", "error")
"""Calls that only log or report."""


# -- mutants ---------------------------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """One change that can be made to a file: its line, what stands there, and what would."""

    file: str
    line: int
    kind: str
    before: str
    after: str

    @property
    def text(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.before}  ->  {self.after}"


FLIPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
SUMS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitOr: ast.BitAnd}


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(Kind, what would stand there instead) for one node; the node itself stays as it is."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in FLIPS:
            yield "comparison", _with(node, ops=[FLIPS[type(op)]()])
        case ast.Constant(value=bool(value)):
            yield "truth", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "off by one", ast.Constant(value + 1)
        case ast.BinOp(op=op, left=left) if type(op) in SUMS and not _is_text(left):
            yield "sum", _with(node, op=SUMS[type(op)]())
        case ast.BoolOp(op=op):
            yield "and, or", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", operand
        case ast.If(test=test) | ast.IfExp(test=test):
            yield "condition", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Expr(value=ast.Call(func=function)) if _name(function) not in WORDS_ONLY:
            yield "dropped", ast.Pass()
        case ast.AugAssign() | ast.Delete() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "dropped", ast.Pass()
        case ast.Call(func=ast.Name("min" | "max" as name)):
            yield "min, max", _with(node, func=ast.Name("max" if name == "min" else "min"))
        case ast.Call(args=[one, other, *rest]) if not isinstance(one, ast.Starred) and not isinstance(
            other, ast.Starred
        ):
            yield "swapped", _with(node, args=[other, one, *rest])
        case ast.Continue():
            yield "loop", ast.Break()
        case ast.Return(value=ast.Name() | ast.Attribute() | ast.Call()):
            yield "returned", ast.Return(ast.Constant(None))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_left_out(node: ast.AST) -> bool:
    """What no run depends on: checks of our own, errors' words, types, and what happens at import."""
    match node:
        case ast.Assert() | ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.AnnAssign(value=None):
            return True
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name in NOT_LOGIC
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.Expr(value=ast.Constant()):
            return True
    return False


def walk(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """(Parent, field, place in a list, node) for all that may change, in the order of the source."""
    for field, value in ast.iter_fields(node):
        if field in (
            "annotation",
            "returns",
            "decorator_list",
            "type_params",
            "bases",
            "keywords_",
            "pattern",
            "defaults",
        ):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _is_left_out(child):
                yield node, field, index, child
                yield from walk(child)


class Change(msgspec.Struct, frozen=True):
    """One place in a parsed file: in `parent.field`, at `at` if that is a list, `changed` may stand for `node`."""

    tree: ast.AST
    parent: ast.AST
    field: str
    at: int | None
    node: ast.AST
    kind: str
    changed: ast.AST


def changes_in(file: str) -> list[Change]:
    """Every change of a file. Only inside of functions: constants are limits, not logic."""
    tree = ast.parse((PACKAGE / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and not _is_left_out(node)]
    changes_by_line = dict[int, list[Change]]()
    for function in functions:
        for parent, field, at, node in walk(function):
            changes = [Change(tree, parent, field, at, node, kind, changed) for kind, changed in changes_of(node)]
            # Swapping equal arguments changes nothing. List each change once: functions may be nested.
            changes_by_line[id(node)] = [change for change in changes if ast.dump(change.changed) != ast.dump(node)]
    return [change for changes in changes_by_line.values() for change in changes]


def text_with(change: Change) -> str:
    """The whole file with the change made; the tree is as before afterwards."""
    _put(change, change.changed)
    try:
        return ast.unparse(ast.fix_missing_locations(change.tree))
    finally:
        _put(change, change.node)


def _put(change: Change, node: ast.AST) -> None:
    if change.at is None:
        setattr(change.parent, change.field, node)
    else:
        getattr(change.parent, change.field)[change.at] = node


def _shown(node: ast.AST) -> str:
    text = ast.unparse(ast.fix_missing_locations(copy.copy(node))).partition("\n")[0]
    return text if len(text) <= 90 else text[:89] + "…"


def choose(seed: int, count: int) -> list[tuple[Place, str]]:
    """So many places, each as likely as any other, in the order in which they were drawn."""
    files = [str(path.relative_to(PACKAGE)) for pattern in CORES for path in files_of(pattern)]
    all_changes = [(file, change) for file in files for change in changes_in(file)]
    drawn = random.Random(seed).sample(all_changes, count)
    return [(_place(file, change), text_with(change)) for file, change in drawn]


def files_of(pattern: str) -> list[Path]:
    """The cores that a pattern stands for."""
    paths = sorted(path for path in PACKAGE.glob(pattern) if path.parent.name != "host" or path.stem not in ADAPTERS)
    assert paths, f"{pattern} matches no file: has a package moved?"
    assert all((PACKAGE / f"agent_runtime/host/{stem}.py").is_file() for stem in ADAPTERS), (
        "an adapter has another name"
    )
    return paths


def _place(file: str, change: Change) -> Place:
    line = getattr(change.node, "lineno", 0)
    return Place(file, line, change.kind, _shown(change.node), _shown(change.changed))


# -- judges ----------------------------------------------------------------------------------------------------------


class Verdict(msgspec.Struct):
    """What became of one mutant.

    Attributes:
        killed_by: the first unit test that fails; "" is none, None: not asked.
        tests_s: real time of the unit tests.
        seeds: how many the swarm has run. found_at: the seed that did not pass; None: all passed.
        found_by: verdict and oracle of that seed.
    """

    place: Place
    killed_by: str | None = None
    tests_s: float = 0.0
    seeds: int = 0
    found_at: int | None = None
    found_by: str = ""
    skipped: list[int] = []


class Scratch:
    """A copy of the package in which one file at a time is mutated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, folder / "snapline", symlinks=False, ignore=ignored)

    def put(self, file: str, text: str) -> None:
        path = self.folder / "snapline" / file
        path.write_text(text)
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()

    def run(self, arguments: list[str], *, is_mutated: bool = True, limit_s: float | None = None) -> tuple[int, str]:
        paths = str(self.folder) if is_mutated else str(ROOT / "src")
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                check=False,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return -1, ""
        return done.returncode, done.stdout + done.stderr


def ask_tests(scratch: Scratch, place: Place, verdict: Verdict) -> None:
    """The folder's unit tests, those named like the file first. One that fails without the mutant too says nothing."""
    folder, stem = Path(place.file).parts[0], Path(place.file).stem
    near = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests" / folder).glob(f"test_*{stem}*.py"))]
    options = ["-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    options += [f"--ignore=tests/{test}" for test in NOT_UNITS]
    began_s = time.monotonic()
    for _ in range(TESTS_BROKEN_MAX):
        failed = _first_failed(scratch, [*options, *near, f"tests/{folder}"])
        if "::" not in failed or _first_failed(scratch, [*options, failed], is_mutated=False) == "":
            break
        options.append(f"--deselect={failed}")
    verdict.killed_by = failed
    verdict.tests_s = round(time.monotonic() - began_s, 1)


def _first_failed(scratch: Scratch, arguments: list[str], *, is_mutated: bool = True) -> str:
    """The test that fails, or what else was said; "" if all pass."""
    code, output = scratch.run(arguments, is_mutated=is_mutated, limit_s=TESTS_LIMIT_S)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if code in (0, -1):
        return "" if code == 0 else "time-out"
    return failed[0].split(" ", 1)[1].split(" - ")[0] if failed else output.strip()[-200:]


DRIVER = """
import gc, json, sys
from snapline.sim.search.pool import make_setup
from snapline.sim.search.swarm import STANDARD
from snapline.sim.search.worker import Task, Worker, collect_if_due, garbage_kept
first, end, limit_s, skipped = json.loads(sys.argv[1])
worker = Worker(make_setup([STANDARD], seed_timeout_s=limit_s))
with garbage_kept():
    for seed in range(first, end):
        if seed in skipped:
            continue
        result = worker.perform(Task(seed))
        collect_if_due()
        if result.verdict != "pass":
            why = result.violations[0].oracle if result.violations else (result.pending or [result.error[-150:]])[0]
            text = result.violations[0].text if result.violations else ""
            print("FOUND", json.dumps([seed, result.verdict, why, text]))
            break
"""


def ask_swarm(scratch: Scratch, verdict: Verdict, seeds: int) -> None:
    """Seeds from where it stopped last; a seed that does not pass without the mutant either says nothing."""
    while verdict.found_at is None and verdict.seeds < seeds:
        failing = _first_failing(scratch, [verdict.seeds, seeds, SEED_LIMIT_S, verdict.skipped], is_mutated=True)
        if failing is None:
            verdict.seeds = seeds
            return
        seed, how, why, text = failing
        if _first_failing(scratch, [seed, seed + 1, SEED_LIMIT_S, []], is_mutated=False) is not None:
            verdict.skipped.append(seed)
            verdict.seeds = seed + 1
            continue
        verdict.seeds, verdict.found_at = seed + 1, seed
        verdict.found_by = f"{how}: {why}" + (f" ({text[:120]})" if how == "violation" else "")


def _first_failing(scratch: Scratch, task: list[object], *, is_mutated: bool) -> tuple[int, str, str, str] | None:
    code, output = scratch.run(["-c", DRIVER, json.dumps(task)], is_mutated=is_mutated)
    for line in output.splitlines():
        if line.startswith("FOUND "):
            seed, how, why, text = json.loads(line.removeprefix("FOUND "))
            return seed, how, why, text
    if code == 0:
        return None
    first = task[0]
    assert isinstance(first, int)
    return first, "broken", f"the package cannot be loaded: {output.strip()[-150:]}", ""


# -- the whole -------------------------------------------------------------------------------------------------------


def judge_all(options: argparse.Namespace, scratch: Scratch) -> list[Verdict]:
    known = _known(options.out)
    verdicts: list[Verdict] = []
    for number, (place, text) in enumerate(choose(options.seed, options.count)):
        verdict = known.get(place.text) or Verdict(place)
        verdicts.append(verdict)
        if options.only and number not in options.only:
            continue
        scratch.put(place.file, text)
        if not options.skip_tests and verdict.killed_by is None:
            ask_tests(scratch, place, verdict)
        if not options.skip_swarm:
            ask_swarm(scratch, verdict, options.seeds)
        scratch.put(place.file, (PACKAGE / place.file).read_text())
        print(f"{number:3} {_line(verdict)}", flush=True)
        _keep(options.out, [*known.values(), *[each for each in verdicts if each.place.text not in known]])
    return verdicts


def _known(out: Path | None) -> dict[str, Verdict]:
    if out is None or not out.exists():
        return {}
    return {each.place.text: each for each in msgspec.json.decode(out.read_bytes(), type=list[Verdict])}


def _keep(out: Path | None, verdicts: list[Verdict]) -> None:
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(verdicts)))


def _line(verdict: Verdict) -> str:
    killed = {None: "not asked", "": "lets it live"}.get(verdict.killed_by, f"killed by {verdict.killed_by}")
    outcome = f"found at seed {verdict.found_at}, {verdict.found_by}" if verdict.found_by else "not found"
    return f"{verdict.place.text}\n      unit tests: {killed} ({verdict.tests_s} s)\n      swarm: {outcome}; {verdict.seeds} seeds"


def summarise(verdicts: list[Verdict]) -> None:
    killed = [verdict for verdict in verdicts if verdict.killed_by]
    found_by_swarm = [verdict for verdict in killed if verdict.found_at is not None]
    alive = [verdict for verdict in verdicts if verdict.killed_by == ""]
    print(
        f"\n{len(verdicts)} mutants, {len(killed)} killed by unit tests; of those the swarm finds {len(found_by_swarm)}",
        end="",
    )
    print(f" ({100 * len(found_by_swarm) / len(killed):.0f} %)" if killed else "")
    more = sum(verdict.found_at is not None for verdict in alive)
    print(f"{len(alive)} survive the unit tests; of those the swarm finds {more}")
    for verdict in killed:
        if verdict.found_at is None:
            print(f"not found in {verdict.seeds} seeds: {verdict.place.text}")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw of mutants")
    parser.add_argument("--count", type=int, default=COUNT, help="mutants")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the swarm, for each mutant")
    parser.add_argument("--out", type=Path, help="JSON file of answers, read first and written after each mutant")
    parser.add_argument("--only", type=_numbers, help="numbers of mutants")
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--skip-swarm", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    options = parser.parse_args()
    if options.list:
        for number, (place, _) in enumerate(choose(options.seed, options.count)):
            print(f"{number:3} {place.text}")
        return
    with tempfile.TemporaryDirectory(prefix="snapline-mutants-") as folder:
        summarise(judge_all(options, Scratch(Path(folder))))


if __name__ == "__main__":
    main()
