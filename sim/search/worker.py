"""Worker process that runs seeds for the pool.

Sweeps, comparisons and the determinism check use worker processes. On Ray, the same code runs in a Ray task. A worker first receives the
settings that all its runs share (`Setup`), and then tasks. A task is only a few bytes long, because the worker draws the scenario from the
seed.

Only the name of the runner is sent, and every process imports the runner by name, so the runner must be a module-level function.

Garbage is collected only between runs, never during a run (simulation.md, section 1). If a run takes longer than `seed_timeout_s` of real
time, SIGALRM ends the run, and the error names the current line of code. SIGALRM works only in the main thread, and cannot interrupt code
that never returns to the interpreter. If SIGALRM cannot interrupt a run, the pool kills the worker shortly afterwards.
"""

import gc
import importlib
import importlib.util
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, ModuleType
from typing import Protocol

import msgspec

from snapline.errors import UsageError
from snapline.sim.choices import Choices
from snapline.sim.result import Result
from snapline.sim.scenario import Scenario, parse_scenario
from snapline.sim.search.swarm import draw

CONTAINERS_MAX = 100_000
"""Number of container objects after which garbage is collected. They take about ten megabytes, so both memory and
collection time are limited."""

KIND_MAX = 120
"""Number of characters of an error message that distinguish kinds of errors."""

TEMPLATES_MAX = 64
"""Number of parsed templates that a worker keeps. A comparison's seeds arrive cell by cell, so few templates are needed at a time."""


class Runner(Protocol):
    """Function that runs one seed, such as `snapline.sim.run.run` or a fake for tests. A failure inside the run is reported in the result
    and never raised as an exception."""

    def __call__(self, scenario: Scenario, seed: int, *, choices: Choices | None = None) -> Result: ...


class JournalRunner(Protocol):
    """Runner that can also store a range of journal entries in `Result.journal`."""

    def __call__(
        self, scenario: Scenario, seed: int, *, choices: Choices | None = None, window_at: int | None = None
    ) -> Result: ...


class RunnerName(msgspec.Struct, frozen=True):
    """Name that other processes use to import a runner. `file` is set if other processes might not find the module on their import path, as
    with a test module."""

    module: str = "snapline.sim.run"
    name: str = "run"
    file: str = ""


class Setup(msgspec.Struct, frozen=True):
    """A worker's settings, which it receives before its first task. `templates` are scenarios as TOML text, and `names` are the scenarios'
    names."""

    runner: RunnerName
    templates: list[str]
    names: list[str]
    seed_timeout_s: float
    paths: list[str]


class Task(msgspec.Struct, frozen=True):
    """A seed to run with a template. If `window_at` is set, the result must contain the journal piece with this index."""

    seed: int
    template: int = 0
    window_at: int | None = None


class SeedTimeoutError(BaseException):
    """Raised if a seed exceeds its time limit. The class does not derive from Exception, so that an exception handler in user code does not
    catch it."""


def name_of(runner: Runner | None) -> RunnerName:
    """Return the name that other processes use to import a runner. None means `snapline.sim.run.run`.

    Raises:
        UsageError: If other processes cannot import the runner.
    """
    if runner is None:
        return RunnerName()
    module, name = getattr(runner, "__module__", ""), getattr(runner, "__qualname__", "")
    if not module or not name or "<" in name:
        raise UsageError(f"{runner!r} cannot be found by another process: write it as a function of a module")
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return RunnerName(module, name, str(Path(file).absolute()) if file else "")


def load_runner(name: RunnerName) -> Runner:
    """Import the runner that has this name."""
    target: object = _module_of(name)
    for part in name.name.split("."):
        target = getattr(target, part)
    assert callable(target), f"{name} is no function"
    return target


def _module_of(name: RunnerName) -> ModuleType:
    if name.module in sys.modules and name.module != "__main__":
        return sys.modules[name.module]
    if name.module != "__main__":
        try:
            return importlib.import_module(name.module)
        except ModuleNotFoundError:
            if not name.file:
                raise
    alias = f"snapline_runner_{Path(name.file).stem}"
    spec = importlib.util.spec_from_file_location(alias, name.file)
    assert spec is not None and spec.loader is not None, f"{name.file} is not a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    spec.loader.exec_module(module)
    return module


class Worker:
    """Executes tasks one after another.

    Attributes:
        is_alarming: whether SIGALRM can interrupt a run in this process.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._runner = load_runner(setup.runner)
        self._templates: dict[int, Scenario] = {}
        self.is_alarming = threading.current_thread() is threading.main_thread() and setup.seed_timeout_s > 0

    def perform(self, task: Task) -> Result:
        """Run one seed. Errors are reported in the result. Only exceptions such as KeyboardInterrupt propagate to the caller."""
        name = self._setup.names[task.template]
        try:
            scenario = draw(self._template(task.template), task.seed)
            with self._time_limit():
                return self._run(scenario, task)
        except SeedTimeoutError as error:
            return broken(name, task.seed, str(error))
        except Exception as error:
            return broken(name, task.seed, f"{type(error).__name__}: {error}")

    def _run(self, scenario: Scenario, task: Task) -> Result:
        if task.window_at is None:
            return self._runner(scenario, task.seed)
        return journaled(self._runner, scenario, task.seed, task.window_at)

    def _template(self, index: int) -> Scenario:
        template = self._templates.get(index)
        if template is None:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            template = parse_scenario(self._setup.templates[index], source=self._setup.names[index])
            self._templates[index] = template
        return template

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        if not self.is_alarming:
            yield
            return
        limit_s = self._setup.seed_timeout_s

        def on_alarm(number: int, frame: FrameType | None) -> None:
            raise SeedTimeoutError(f"no end after {limit_s:g} s of real time, at {_place(frame)}")

        before = signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def journaled(runner: Runner, scenario: Scenario, seed: int, window_at: int) -> Result:
    """Run a seed, and store the requested piece of the journal in the result. If the runner does not support journal pieces, the result has
    no journal."""
    # Type: ignore[assignment]  # checked below: a runner without journal support rejects the keyword.
    call: JournalRunner = runner  # type: ignore[assignment]
    try:
        return call(scenario, seed, window_at=window_at)
    except TypeError as error:
        if "window_at" not in str(error):
            raise
        return runner(scenario, seed)


def broken(name: str, seed: int, error: str) -> Result:
    """Return a result with the verdict "broken" for a run that raised an error instead of returning a result."""
    return Result(name=name, seed=seed, verdict="broken", error=error)


def error_kind(error: str) -> str:
    """Return a key that is the same for all errors with the same cause: the exception type from a traceback's last line, or otherwise the
    message with all numbers masked."""
    last = error.strip().rpartition("\n")[2]
    kind = re.match(r"[A-Za-z_.]+(?=: )", last)
    return kind.group() if kind else re.sub(r"[0-9]+(\.[0-9]+)?", "#", last)[:KIND_MAX]


def _place(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown place"


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Execute a block without automatic garbage collection. Explicit collections within the block ignore all objects that existed before
    the block."""
    was_enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def collect_if_due() -> None:
    """Collect garbage if many container objects have been created since the last collection. Called between two runs."""
    if gc.get_count()[0] > CONTAINERS_MAX:
        gc.collect()


def perform_all(worker: Worker, tasks: Sequence[Task]) -> Iterator[Result]:
    """Execute a group of tasks, and yield the results."""
    for task in tasks:
        yield worker.perform(task)
        collect_if_due()


# -- the process ------------------------------------------------------------------------------------------------------


def serve(connection: Connection) -> None:
    """Execute groups of tasks that arrive on a connection, until the connection closes.

    The first answer is "" if the worker is ready, and otherwise the reason why the worker cannot start. Each result is sent immediately, so
    that if the worker dies, the pool knows which seed the worker was running.
    """
    setup = msgspec.msgpack.decode(connection.recv_bytes(), type=Setup)
    sys.path[:] = setup.paths
    try:
        worker = Worker(setup)
    except Exception as error:
        connection.send_bytes(f"{type(error).__name__}: {error}".encode())
        return
    connection.send_bytes(b"")
    encode = msgspec.msgpack.Encoder().encode
    chunks = msgspec.msgpack.Decoder(list[Task])
    with garbage_kept():
        while True:
            for result in perform_all(worker, chunks.decode(connection.recv_bytes())):
                connection.send_bytes(encode(result))


def main(arguments: Sequence[str]) -> None:
    """Entry point of the command `python -m snapline.sim.search.worker DESCRIPTOR`, where DESCRIPTOR is the file descriptor of the socket
    to the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool handles Ctrl-C and stops its workers
    try:
        serve(Connection(int(arguments[0])))
    except (EOFError, ConnectionError):
        os._exit(0)  # the pool has exited or closed the connection


if __name__ == "__main__":
    main(sys.argv[1:])
