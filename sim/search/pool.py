"""Pool of worker processes on this machine. Results are yielded in the order of completion.

Each worker (`worker.py`) is a fresh interpreter with a known PYTHONHASHSEED, connected to the pool by one socket. The pool queues about
`AHEAD_S` seconds of work at each worker, so that no worker waits for the pool. The last tasks are assigned one by one, so that all workers
finish at about the same time.

If a worker dies, the pool assumes that the worker was executing its first unanswered task. The dead worker's task gets the verdict
"broken", its remaining tasks return to the queue, and a new worker is started. If a worker does not answer within a seed's time limit, the
pool kills the worker and proceeds as if it had died. So every task gets exactly one answer, no matter what its run does.
"""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from signal import Signals

import msgspec

from snapline.errors import SnaplineError, UsageError
from snapline.sim.result import Result
from snapline.sim.scenario import Scenario, format_scenario
from snapline.sim.search.worker import Runner, Setup, Task, Worker, broken, garbage_kept, name_of, perform_all

SEED_TIMEOUT_S = 120.0
"""Limit in real time for one seed. It is a hundred times the duration of a large run."""

GRACE_S = 5.0
"""Time that a worker has to end a timed-out run before the pool kills the worker."""

START_TIMEOUT_S = 120.0
"""Time limit for a new interpreter to start and import modules, even on a busy machine."""

AHEAD_S = 0.25
AHEAD_MAX = 256

JOBS_MAX = 1024

HASH_SEED = "0"
"""PYTHONHASHSEED for workers if this process has none. A fixed value makes a sweep reproducible."""

OTHER_HASH_SEED = "20260131"
"""Hash seed for repeating a run in the determinism check. Any other value would do as well."""

Answered = tuple[Task, Result]


def current_hash_seed() -> str:
    """Return the PYTHONHASHSEED that workers are started with."""
    hash_seed = os.environ.get("PYTHONHASHSEED", "")
    return hash_seed if hash_seed.isdecimal() else HASH_SEED


def other_hash_seed() -> str:
    """Return a hash seed that differs from `current_hash_seed()`."""
    return OTHER_HASH_SEED if current_hash_seed() != OTHER_HASH_SEED else HASH_SEED


def make_setup(
    templates: Iterable[Scenario], *, runner: Runner | None = None, seed_timeout_s: float = SEED_TIMEOUT_S
) -> Setup:
    """Return the settings to be sent to workers."""
    scenarios = list(templates)
    texts = [format_scenario(template) for template in scenarios]
    names = [template.name for template in scenarios]
    return Setup(name_of(runner), texts, names, seed_timeout_s, list(sys.path))


def run_in_process(setup: Setup, tasks: Iterable[Task]) -> Iterator[Answered]:
    """Execute tasks in this process, for example under a debugger. If a run crashes, this process crashes."""
    task_list = list(tasks)
    worker = Worker(setup)
    with garbage_kept():
        yield from zip(task_list, perform_all(worker, task_list), strict=True)


def run_tasks(
    setup: Setup, tasks: Iterable[Task], *, jobs: int, hash_seed: str | None = None
) -> Generator[Answered, None, None]:
    """Execute tasks in `jobs` worker processes, or in this process if `jobs` is 0. Closing the returned iterator kills the workers.

    Raises:
        UsageError: If `jobs` is out of range, or if the workers cannot load the runner.
    """
    if not 0 <= jobs <= JOBS_MAX:
        raise UsageError(f"jobs is {jobs}: use 0 for this process, or 1 to {JOBS_MAX}")
    if jobs == 0:
        yield from run_in_process(setup, tasks)
        return
    pool = WorkerPool(setup, tasks, jobs=jobs, hash_seed=hash_seed or current_hash_seed())
    try:
        yield from pool.run()
    finally:
        pool.close()


class Process:
    """The pool's view of a worker process.

    Attributes:
        waiting: tasks that the worker has received but not answered yet. The worker is executing the first task in this list.
        since_s: monotonic time when the worker last answered, or when an idle worker received a task.
    """

    def __init__(self, setup: Setup, hash_seed: str) -> None:
        self.connection, theirs = Pipe()
        command = [sys.executable, "-m", "snapline.sim.search.worker", str(theirs.fileno())]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        try:
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        finally:
            theirs.close()
        self.waiting: deque[Task] = deque()
        self.is_ready = False
        self.since_s = time.monotonic()
        self.send(setup)

    def send(self, what: Setup | list[Task]) -> None:
        """Send settings or tasks to the worker. Errors are ignored, because a dead worker is detected when its answer is read."""
        with suppress(OSError):
            self.connection.send_bytes(msgspec.msgpack.encode(what))

    def hand(self, tasks: list[Task]) -> None:
        if not self.waiting:
            self.since_s = time.monotonic()
        self.waiting.extend(tasks)
        self.send(tasks)

    def limit_s(self, seed_timeout_s: float) -> float | None:
        """Return the monotonic time by which the worker must have started or must answer, or None if there is no time limit or nothing to
        do."""
        if not self.is_ready:
            return self.since_s + START_TIMEOUT_S
        return self.since_s + seed_timeout_s + GRACE_S if self.waiting and seed_timeout_s > 0 else None

    def close(self, *, grace_s: float = 0.0) -> str:
        """Wait up to `grace_s` seconds for the process to exit, and then kill it. Return a phrase that describes how the process ended."""
        self.connection.close()
        try:
            code = self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return "was killed because it did not answer"
        return f"was ended by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class WorkerPool:
    """Distributes tasks to worker processes, and collects the results.

    Attributes:
        seed_s: estimated time that a process needs per seed, in seconds. The value is 0 until the first answer arrives.
    """

    def __init__(self, setup: Setup, tasks: Iterable[Task], *, jobs: int, hash_seed: str) -> None:
        self._setup = setup
        self._queue = deque(tasks)
        self._jobs = max(1, min(jobs, len(self._queue)))
        self._hash_seed = hash_seed
        self._processes: dict[Connection, Process] = {}
        self._decode = msgspec.msgpack.Decoder(Result).decode
        self.seed_s = 0.0

    def run(self) -> Iterator[Answered]:
        """Yield each task and its result, in the order of completion."""
        while self._queue or any(process.waiting for process in self._processes.values()):
            while self._queue and len(self._processes) < self._jobs:
                process = Process(self._setup, self._hash_seed)
                self._processes[process.connection] = process
            yield from self._receive_results()

    def close(self) -> None:
        """Kill all remaining processes."""
        for process in self._processes.values():
            process.close()
        self._processes.clear()

    def _receive_results(self) -> Iterator[Answered]:
        for connection in wait(list(self._processes), timeout=self._wait_timeout_s()):
            assert isinstance(connection, Connection)
            process = self._processes[connection]
            try:
                answer = connection.recv_bytes()
            except (EOFError, OSError):
                yield from self._remove_dead_worker(
                    process, grace_s=GRACE_S
                )  # the socket closes shortly before the process exits
                continue
            if process.is_ready:
                yield self._take(process, answer)
            else:
                self._on_ready(process, answer)
            self._refill(process)
        now_s = time.monotonic()
        for process in list(self._processes.values()):
            limit_s = process.limit_s(self._setup.seed_timeout_s)
            if limit_s is not None and limit_s < now_s:
                yield from self._remove_dead_worker(process)

    def _wait_timeout_s(self) -> float:
        limits = [process.limit_s(self._setup.seed_timeout_s) for process in self._processes.values()]
        known_limits = [limit_s for limit_s in limits if limit_s is not None]
        return max(0.0, min(known_limits, default=time.monotonic() + 1.0) - time.monotonic()) + 0.01

    def _on_ready(self, process: Process, said: bytes) -> None:
        if said:
            raise UsageError(f"the workers cannot run {self._setup.runner.name}: {said.decode()}")
        process.is_ready = True

    def _take(self, process: Process, said: bytes) -> Answered:
        now_s = time.monotonic()
        took_s = now_s - process.since_s
        self.seed_s = 0.9 * self.seed_s + 0.1 * took_s if self.seed_s else took_s
        process.since_s = now_s
        return process.waiting.popleft(), self._decode(said)

    def _refill(self, process: Process) -> None:
        """Send the worker enough tasks for about `AHEAD_S` seconds. When few tasks are left, send fewer, so that other workers get some."""
        ahead = min(AHEAD_MAX, int(AHEAD_S / self.seed_s) if self.seed_s else 1, len(self._queue) // self._jobs)
        if len(process.waiting) <= ahead // 2 and self._queue:
            count = min(max(1, ahead - len(process.waiting)), len(self._queue))
            process.hand([self._queue.popleft() for _ in range(count)])

    def _remove_dead_worker(self, process: Process, *, grace_s: float = 0.0) -> Iterator[Answered]:
        """Remove a worker that has died or does not answer. The worker's current task gets the verdict "broken", and its remaining tasks
        return to the queue."""
        del self._processes[process.connection]
        cause = process.close(grace_s=grace_s)
        if not process.is_ready:
            raise SnaplineError(f"a worker {cause} before it had begun: see its standard error")
        if not process.waiting:
            return
        task = process.waiting.popleft()
        self._queue.extendleft(reversed(process.waiting))
        error = f"the process that ran it {cause}; run this seed alone to see why"
        yield task, broken(self._setup.names[task.template], task.seed, error)
