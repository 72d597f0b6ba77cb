"""How many planted mistakes the general swarm finds in a minute: those of `planted.toml`, drawn without a look at the simulator.

    python -m benchmarks.sim_planted [NAME ...] [--seconds S] [--jobs N] [--check]

Each mutant is put into a scratch copy of the package. Seeds of the built-in template run there as `snapline sim sweep swarm` runs them, from 0 on, until
one does not pass or the time is over. The mutant counts as found only if that seed passes without it; a seed that fails without it too is left out,
and the sweep goes on. The time is real time of the sweep alone, with the start of its workers.

One line for each mutant: its name, the seed, the seconds, and what the sweep says of that seed. `--check` runs nothing, and says whether the set fits
the tree.
"""

import argparse
import ast
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from benchmarks.sim_unseen import PACKAGE, ROOT, Scratch

SET = Path(__file__).with_name("planted.toml")

SECONDS, JOBS = 60.0, 2
TEXT_CHARACTERS_MAX = 150


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A planted mistake.

    Attributes:
        file: path in the package.
        before: text that occurs once in the file; `after` replaces it.
        promise: the guarantee that the mutant breaks.
        killed_by: a unit test that fails with the mutant; "": none fails.
    """

    name: str
    file: str
    before: str
    after: str
    promise: str
    killed_by: str

    def text(self) -> str:
        """Return the whole file with the mistake in it."""
        return (PACKAGE / self.file).read_text().replace(self.before, self.after)


class _Planted(msgspec.Struct, forbid_unknown_fields=True):
    mutant: list[Mutant]


def read_mutants() -> list[Mutant]:
    """Return the whole set, in the order of the file."""
    return msgspec.toml.decode(SET.read_bytes(), type=_Planted).mutant


def problems_of(mutants: list[Mutant]) -> list[str]:
    """Return what does not fit the tree any more, one sentence each."""
    names = Counter([mutant.name for mutant in mutants])
    problems = [f"{name}: {count} mutants have this name" for name, count in names.items() if count > 1]
    for mutant in mutants:
        problems += [f"{mutant.name}: {problem}" for problem in _problems(mutant)]
    return problems


def _problems(mutant: Mutant) -> list[str]:
    path, problems = PACKAGE / mutant.file, []
    if not path.is_file():
        return [f"there is no file {mutant.file}"]
    count = path.read_text().count(mutant.before)
    if count != 1:
        problems.append(f"`before` occurs {count} times in {mutant.file}, not once")
    try:
        is_equal = ast.dump(ast.parse(mutant.text())) == ast.dump(ast.parse(path.read_text()))
    except SyntaxError as error:
        return [*problems, f"{mutant.file} is no Python with it: {error}"]
    if is_equal:
        problems.append("it changes nothing")
    if not mutant.promise:
        problems.append("it breaks no promise")
    file, _, test = mutant.killed_by.partition("::")
    if mutant.killed_by and not (
        (ROOT / file).is_file() and f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()
    ):
        problems.append(f"there is no test {mutant.killed_by}")
    return problems


# -- the sweep -------------------------------------------------------------------------------------------------------

DRIVER = """
import contextlib, json, signal, sys, time
from snapline.sim.search.pool import make_setup, run_tasks
from snapline.sim.search.swarm import STANDARD
from snapline.sim.search.worker import Task
first, end, left_out, jobs, limit_s = json.loads(sys.argv[1])

class Over(Exception):
    pass

def over(*_):
    raise Over

signal.signal(signal.SIGALRM, over)
began_s, done, found = time.monotonic(), [], None
skipped = frozenset(left_out)
tasks = [Task(seed) for seed in range(first, end) if seed not in skipped]
with contextlib.suppress(Over):
    with contextlib.closing(run_tasks(make_setup([STANDARD]), tasks, jobs=jobs)) as answers:
        if limit_s:
            signal.setitimer(signal.ITIMER_REAL, limit_s)
        for task, result in answers:
            done.append(task.seed)
            if result.verdict != "pass":
                signal.setitimer(signal.ITIMER_REAL, 0)
                oracle, text = "", "; ".join(result.pending) or result.error
                if result.violations:
                    oracle, text = result.violations[0].oracle, result.violations[0].text
                found = [task.seed, result.verdict, oracle, text]
                break
print("SWEPT", json.dumps([time.monotonic() - began_s, done, found]))
"""

SEEDS_MAX = 100_000
"""More seeds than a minute allows."""


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """A seed that did not pass."""

    seed: int
    verdict: str
    oracle: str
    text: str


class Swept(msgspec.Struct, frozen=True, array_like=True):
    """One sweep: `done` has the finished seeds, of which the last is `failed` if one failed."""

    elapsed_s: float
    done: list[int]
    failed: Failed | None


class Answer(msgspec.Struct):
    """Result of the swarm for one mutant; `skipped`: seeds that also fail without it."""

    elapsed_s: float = 0.0
    seeds: int = 0
    failed: Failed | None = None
    skipped: list[int] = []


def hunt(scratch: Scratch, mutant: Mutant, *, seconds: float, jobs: int) -> Answer:
    """Sweep with the mutant until a seed fails because of it, or the time is over."""
    answer, done = Answer(), list[int]()
    scratch.put(mutant.file, mutant.text())
    try:
        while answer.elapsed_s < seconds:
            swept = _sweep(scratch, [0, SEEDS_MAX, done, jobs, seconds - answer.elapsed_s], is_mutated=True)
            answer.elapsed_s += swept.elapsed_s
            done += swept.done
            answer.seeds = len(done)
            if swept.failed is None:
                break
            if _passes(scratch, swept.failed.seed):
                answer.failed = swept.failed
                break
            answer.skipped.append(swept.failed.seed)
    finally:
        scratch.put(mutant.file, (PACKAGE / mutant.file).read_text())
    return answer


def _passes(scratch: Scratch, seed: int) -> bool:
    """Whether the seed passes without the mutant."""
    return _sweep(scratch, [seed, seed + 1, [], 1, 0], is_mutated=False).failed is None


def _sweep(scratch: Scratch, task: list[object], *, is_mutated: bool) -> Swept:
    code, output = scratch.run(["-c", DRIVER, json.dumps(task)], is_mutated=is_mutated)
    for line in output.splitlines():
        if line.startswith("SWEPT "):
            return msgspec.json.decode(line.removeprefix("SWEPT "), type=Swept)
    raise RuntimeError(f"the sweep ended with exit code {code}: {output.strip()[-500:]}")


# -- the whole -------------------------------------------------------------------------------------------------------


def shown(mutant: Mutant, answer: Answer) -> str:
    """Return the line of one mutant."""
    failed, after = answer.failed, f"{answer.elapsed_s:5.1f} s, {answer.seeds} seeds"
    skipped = f"; left out, as they fail without it: {', '.join(map(str, answer.skipped))}" if answer.skipped else ""
    if failed is None:
        return f"{mutant.name:32} not found          {after}{skipped}"
    text = " ".join(failed.text.split())[:TEXT_CHARACTERS_MAX]
    oracle = f" {failed.oracle}" if failed.oracle else ""
    return f"{mutant.name:32} found, seed {failed.seed:<5} {after}  {failed.verdict}{oracle}: {text}{skipped}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants (default: all)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each mutant (default: %(default)g)")
    parser.add_argument("--jobs", type=int, default=JOBS, help="worker processes (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="only check the set against the tree")
    options = parser.parse_args()
    mutants = read_mutants()
    unknown = [name for name in options.names if name not in {mutant.name for mutant in mutants}]
    problems = problems_of(mutants) + [f"there is no mutant {name}" for name in unknown]
    if problems:
        sys.exit("\n".join(problems))
    chosen = [mutant for mutant in mutants if not options.names or mutant.name in options.names]
    if options.check:
        print(f"{len(chosen)} mutants fit the tree")
        return
    count = 0
    with tempfile.TemporaryDirectory(prefix="snapline-planted-") as folder:
        scratch = Scratch(Path(folder))
        for mutant in chosen:
            answer = hunt(scratch, mutant, seconds=options.seconds, jobs=options.jobs)
            count += answer.failed is not None
            print(shown(mutant, answer), flush=True)
    print(f"found {count} of {len(chosen)} ({100 * count / len(chosen):.0f} %)")


if __name__ == "__main__":
    main()
