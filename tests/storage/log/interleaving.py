"""Every order in which several processes can make their calls to one disk.

A process is a function that depends on nothing but what its calls return. So its state is the list of these answers: to let it make one more
call it is run again from the beginning, with the answers known so far, and left where it would make the call after that. A
state of the whole is what is on the disk, and the answers of each process. From each state each process takes each step once; what
comes of a step depends on the disk and on that process alone, so it is made once for all states that share these.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tests.storage.simulated_disk import Node, SimulatedDisk

from snapline.storage.disk.local_disk import DirectoryEntry
from snapline.storage.disk.record import Buffer
from snapline.storage.log.log_record import MARKS

STATES_MAX = 100_000

Answer = tuple[bool, Any]
"""Whether it was an error, and the value or the error. Values may be anything that a call returns."""


class LeftError(BaseException):
    """The process is left before this call."""


class SharedDisk:
    """The disk, for one step of one process. Files without a name are its own; calls that give or take names, or look, are answered.

    Some answers come at once, the others are steps: one step is made, and the process is left at the next. A file does not change, so
    to read it is a step only where it may be gone (`steps_to_read`), or for a mark. A listing is not taken in one instant: it is two
    steps, and has what was there at both, the least that it must have; with `sees_most`, what was there at one of them, the most
    that it may have. `at_once`: the rest is no step. Nothing is said here about crashes: syncs do nothing.
    """

    location = "shared"

    def __init__(self, disk: SimulatedDisk, answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        self.sees_most = False
        self.steps_to_read = False
        self.at_once = False
        self._disk = disk
        self._next = 0
        self._may_step = True
        self._files: list[bytes] = []

    def make_root(self) -> None:
        pass

    def make_directory(self, path: str) -> None:
        raise FileExistsError(path)

    def remove_directory(self, path: str) -> None:
        raise AssertionError("nobody removes directories of logs")

    def sync_directory(self, path: str) -> None:
        pass

    def open_temporary(self, directory: str, name: str) -> int:
        self._files.append(b"")
        return len(self._files) - 1

    def write(self, handle: int, pieces: Sequence[Buffer]) -> None:
        self._files[handle] += b"".join(pieces)

    def sync_data(self, handle: int) -> None:
        pass

    def close(self, handle: int) -> None:
        pass

    def link(self, handle: int, path: str) -> None:
        self._ask(lambda: self._link(self._files[handle], path), is_step=True)

    def unlink(self, path: str) -> None:
        self._ask(lambda: self._disk.unlink(path), is_step=True)

    def size(self, path: str) -> int:
        return int(self._ask(lambda: self._disk.size(path), is_step=self._may_be_gone(path)))

    def read(self, path: str, offset: int, length: int) -> bytes:
        return bytes(self._ask(lambda: self._disk.read(path, offset, length), is_step=self._may_be_gone(path)))

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        is_step = path.count("/") == 2  # Above the logs nothing comes or goes in these tests.
        before, after = (
            frozenset(self._ask(lambda: tuple(self._disk.list_directory(path)), is_step=is_step)) for _ in range(2)
        )
        return sorted(before | after if self.sees_most else before & after, key=lambda entry: entry.name)

    def _may_be_gone(self, path: str) -> bool:
        return self.steps_to_read or path.endswith(MARKS)

    def _link(self, data: bytes, path: str) -> None:
        handle = self._disk.open_temporary("", "")
        self._disk.write(handle, [data])
        try:
            self._disk.link(handle, path)
        finally:
            self._disk.close(handle)

    def _ask(self, call: Callable[[], object], *, is_step: bool) -> Any:
        if self._next == len(self.answers):
            if is_step and not self.at_once:
                if not self._may_step:
                    raise LeftError
                self._may_step = False
            self.answers.append(_answer(call))
        is_error, value = self.answers[self._next]
        self._next += 1
        if is_error:
            raise value
        return value


def _answer(call: Callable[[], object]) -> Answer:
    try:
        return False, call()
    except OSError as error:
        return True, error


Action = Callable[[SharedDisk], object]


class Process:
    """How far one has come; `result`: what its function returned in the end.

    Attributes:
        key: equal for processes that cannot be told apart.
    """

    def __init__(self, answers: Sequence[Answer] = (), *, has_ended: bool = False, result: object = None) -> None:
        self.answers = answers
        self.has_ended = has_ended
        self.result = result
        told = tuple((is_error, type(value) if is_error else value) for is_error, value in answers)
        self.key: object = (has_ended, told)


class Files:
    """What is on the disk. `key`: equal for disks that cannot be told apart."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes
        self.key = frozenset((path, node and node.data) for path, node in nodes.items())

    def disk(self) -> SimulatedDisk:
        """Return the disk."""
        disk = SimulatedDisk()
        disk.nodes = dict(self.nodes)
        return disk


class State(msgspec.Struct, frozen=True):
    """What is on the disk, and how far each process has come."""

    files: Files
    processes: tuple[Process, ...]

    def key(self) -> object:
        """Equal for states from which the same can happen."""
        return self.files.key, tuple([process.key for process in self.processes])


def make_step(files: Files, process: Process, action: Action) -> tuple[Files, Process]:
    """Return the disk and the process after one step of it."""
    disk = files.disk()
    shared = SharedDisk(disk, process.answers)
    try:
        result, has_ended = action(shared), True
    except LeftError:
        result, has_ended = None, False
    return Files(disk.nodes), Process(shared.answers, has_ended=has_ended, result=result)


def run_all(
    disk: SimulatedDisk, actions: Sequence[Action], check: Callable[[SimulatedDisk, list[object]], None]
) -> int:
    """Let the processes do what they do in every order; return how many different ends there are.

    `check` is given the disk and the results, which can be hashed, of each end that differs in these. What a function raises beside
    OSError ends everything.
    """
    first = State(Files(dict(disk.nodes)), tuple([Process() for _ in actions]))
    stack, known, ends = [first], {first.key()}, 0
    steps: dict[object, tuple[Files, Process]] = {}
    checked = set()
    while stack:
        state = stack.pop()
        running = [number for number, process in enumerate(state.processes) if not process.has_ended]
        if not running:
            ends += 1
            results = [process.result for process in state.processes]
            if (end := (state.files.key, tuple(results))) not in checked:
                checked.add(end)
                check(state.files.disk(), results)
        for number in running:
            process = state.processes[number]
            step = (number, state.files.key, process.key)
            if step not in steps:
                steps[step] = make_step(state.files, process, actions[number])
            files, process = steps[step]
            following = State(files, (*state.processes[:number], process, *state.processes[number + 1 :]))
            key = following.key()
            if key not in known:
                known.add(key)
                assert len(known) <= STATES_MAX, "too many states"
                stack.append(following)
    return ends
