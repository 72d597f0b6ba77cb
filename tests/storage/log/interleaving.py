"""Every order in which several processes can make their calls to one disk.

Each process is a thread that stops before each call that others could see or be seen by, and goes on when it is told to. A run
is the list of who was told; all lists are tried, the first choices first, each run from the beginning. Two runs that
come to the same disk with the same things seen by each process go on in the same way: the second is given up.
"""

import threading
from collections.abc import Callable, Sequence

from tests.storage.simulated_disk import SimulatedDisk

from snapline.storage.store.disk import DirectoryEntry
from snapline.storage.store.record import Buffer

RUNS_MAX = 200_000
STEPS_MAX = 200
WAIT_S = 60.0


class GivenUpError(BaseException):
    """This run goes on as another one did."""


Action = Callable[["SharedDisk"], None]


class Process:
    """One thread, which has the word or waits for it."""

    def __init__(self, number: int, action: Action, disk: SimulatedDisk) -> None:
        self.number = number
        self.seen: list[object] = []
        self.has_ended = False
        self.error: BaseException | None = None
        self._may_go = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self._is_given_up = False
        self._action = action
        self._disk = disk
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Run up to the first call."""
        self._thread.start()
        self._wait(self._has_stopped)

    def step(self) -> None:
        """Make one call, and run up to the next."""
        self._may_go.release()
        self._wait(self._has_stopped)

    def give_up(self) -> None:
        """End the thread."""
        self._is_given_up = True
        if not self.has_ended:
            self._may_go.release()
        self._thread.join(WAIT_S)

    def stop(self) -> None:
        """In the thread: wait for the word."""
        self._has_stopped.release()
        self._wait(self._may_go)
        if self._is_given_up:
            raise GivenUpError

    def _run(self) -> None:
        try:
            self._action(SharedDisk(self._disk, self))
        except GivenUpError:
            pass
        except BaseException as error:
            self.error = error
        self.has_ended = True
        self._has_stopped.release()

    @staticmethod
    def _wait(semaphore: threading.Semaphore) -> None:
        assert semaphore.acquire(timeout=WAIT_S), "a thread hangs"


class SharedDisk:
    """A process's view of the disk. Files without a name are its own, so it stops where names are given, taken or looked at.

    A listing is not taken in one instant: it stops twice, and has what was there at both moments, the least that it must have; with
    `sees_most`, what was there at one of them, the most that it may have. A file does not change, so to read it is a stop only where
    it may be gone (`stops_to_read`), or for the mark. Nothing is said here about crashes: syncs do nothing.
    """

    sees_most = False
    stops_to_read = False

    def __init__(self, disk: SimulatedDisk, process: Process) -> None:
        self._disk = disk
        self._process = process
        self.location = disk.location

    def make_root(self) -> None:
        self._disk.make_root()

    def make_directory(self, path: str) -> None:
        self._disk.make_directory(path)

    def remove_directory(self, path: str) -> None:
        raise AssertionError("nobody removes directories of logs")

    def sync_directory(self, path: str) -> None:
        pass

    def open_temporary(self, directory: str, name: str) -> int:
        return self._disk.open_temporary(directory, name)

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        self._disk.write(handle, pieces)

    def sync_data(self, handle: int) -> None:
        self._disk.sync_data(handle)

    def close(self, handle: int) -> None:
        self._disk.close(handle)

    def link(self, handle: int, path: str) -> None:
        self._process.stop()
        self._process.seen.append(("link", path in self._disk.nodes))
        self._disk.link(handle, path)

    def unlink(self, path: str) -> None:
        self._process.stop()
        self._process.seen.append(("unlink", path in self._disk.nodes))
        self._disk.unlink(path)

    def size(self, path: str) -> int:
        self._look_at(path)
        return self._disk.size(path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        self._look_at(path)
        return self._disk.read(path, offset, length)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        if path.count("/") < 2:
            return self._disk.list_directory(path)  # Nothing comes or goes there in these tests.
        self._process.stop()
        before = self._names(path)
        self._process.seen.append(("list", before))
        self._process.stop()
        after = self._names(path)
        names = before | after if self.sees_most else before & after
        self._process.seen.append(("listed", names))
        return sorted(names, key=lambda entry: entry.name)

    def _look_at(self, path: str) -> None:
        if self.stops_to_read or path.endswith("/0"):
            self._process.stop()
        self._process.seen.append(path in self._disk.nodes)

    def _names(self, path: str) -> frozenset[DirectoryEntry]:
        return frozenset(self._disk.list_directory(path))


def run_all(world: Callable[[], tuple[SimulatedDisk, list[Action], Callable[[], None]]]) -> int:
    """Run every order; return how many runs came to an end.

    `world` returns a new disk, what each process does, and the check after a whole run; processes may not raise.
    """
    known: set[object] = set()
    prefix: list[int] = []
    ends = 0
    for _ in range(RUNS_MAX):
        disk, actions, check = world()
        processes = [Process(number, action, disk) for number, action in enumerate(actions)]
        choices, is_whole = _run(disk, processes, prefix, known)
        if is_whole:
            ends += 1
            check()
        while choices and choices[-1][0] == choices[-1][1][-1]:
            choices.pop()
        if not choices:
            return ends
        *earlier, (chosen, runnable) = choices
        prefix = [choice for choice, _ in earlier] + [runnable[runnable.index(chosen) + 1]]
    raise AssertionError("too many orders")


def _run(
    disk: SimulatedDisk, processes: list[Process], prefix: list[int], known: set[object]
) -> tuple[list[tuple[int, list[int]]], bool]:
    """Follow `prefix`, then always the first; return each choice with what could be chosen, and whether all have ended."""
    for process in processes:
        process.start()
    choices: list[tuple[int, list[int]]] = []
    for step in range(STEPS_MAX):
        runnable = [process.number for process in processes if not process.has_ended]
        for process in processes:
            if process.error is not None:
                raise process.error
        if not runnable:
            return choices, True
        if step >= len(prefix):
            state = _state(disk, processes)
            if state in known:
                break
            known.add(state)
        chosen = prefix[step] if step < len(prefix) else runnable[0]
        choices.append((chosen, runnable))
        processes[chosen].step()
    else:
        raise AssertionError("a process does not end")
    for process in processes:
        process.give_up()
    return choices, False


def _state(disk: SimulatedDisk, processes: list[Process]) -> object:
    files = frozenset((path, node.data if node else b"") for path, node in disk.nodes.items())
    return files, tuple((process.has_ended, tuple(process.seen)) for process in processes)
