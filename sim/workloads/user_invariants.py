"""A user's own invariants, added to any workload.

Theory of operation
-------------------
The invariant is called for every complete cut, after the simulator's oracles have verified that the cut is consistent.
`at_end` is called with the states of a fleet at rest. Rest is a stable property, detected by a complete quiet cut.

Results of both functions:

- None, a true value or "": the invariant holds.
- A sentence, a false value or a failed `assert`: a violation.
- Any other exception: the run is "broken", because the invariant gave no answer.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from snapline.agent_runtime.agent import Message
from snapline.agent_runtime.fleet import load_function
from snapline.agent_runtime.snapshots.snapshot_cut import Cut
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.workload import Choose, Workload

Invariant = Callable[[Cut], object]
AtEnd = Callable[[Mapping[str, object]], object]

STATE_SHOWN = 100
"""Number of characters shown of the state that an invariant read last."""

_Seen = TypeVar("_Seen")


def checked(inner: Workload, part: FleetPart) -> Workload:
    """Return the workload with the invariants that a scenario names.

    Raises:
        FleetDefinitionError: a named function does not exist.
    """
    if not part.invariant and not part.at_end:
        return inner
    invariant = load_function(part.invariant) if part.invariant else None
    return CheckedWorkload(inner, invariant=invariant, at_end=load_function(part.at_end) if part.at_end else None)


class CheckedWorkload(Workload):
    """Workload with a user's own invariants."""

    def __init__(self, inner: Workload, *, invariant: Invariant | None, at_end: AtEnd | None) -> None:
        super().__init__(inner.fleet, ends=inner.ends or at_end is not None, costs=inner.costs)
        self.inputs = inner.inputs
        self._inner = inner
        self._invariant, self._at_end = invariant, at_end
        self._quiet: Cut | None = None

    @property
    def takes_inputs(self) -> bool:
        return self.inputs is not None or self._inner.takes_inputs

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> Message | None:
        return self._inner.input_of(agent, client, serial, choose)

    def check_cut(self, cut: Cut) -> str | None:
        if self._at_end is not None and cut.is_quiet:
            self._quiet = cut
        broken = self._inner.check_cut(cut)
        if broken or self._invariant is None:
            return broken
        cut.states = read = _ReadStates(cut.states)
        return self._ask(self._invariant, cut, read=read)

    def is_done(self, states: Mapping[str, object]) -> bool:
        """Return whether the fleet is at rest. Idle hosts alone do not prove it, because timers may be set."""
        if self._inner.ends and not self._inner.is_done(states):
            return False
        return self._at_end is None or self._quiet is not None

    def check_end(self, states: Mapping[str, object]) -> str | None:
        broken = self._inner.check_end(states) if self._inner.ends else None
        if broken or self._at_end is None:
            return broken
        if self._quiet is not None and any(agent not in states for agent in self._quiet.states):
            states = dict(
                self._quiet.states
            )  # `stop_when` has ended the fleet: its hosts are gone, or have returned without agents
        read = _ReadStates(states)
        return self._ask(self._at_end, read, read=read, when="at the end: ")

    def _ask(
        self, question: Callable[[_Seen], object], seen: _Seen, *, read: "_ReadStates", when: str = ""
    ) -> str | None:
        name = getattr(question, "__name__", "the invariant").replace("<lambda>", "the invariant")
        try:
            answer = question(seen)
            if isinstance(answer, str):
                return f"{when}{answer}" if answer else None
            return (
                None if answer is None or answer else f"{when}{name} is {answer!r} ({_place_of(question)}{read.told()})"
            )
        except AssertionError as error:
            first, *others = (str(error) or "assert").splitlines()
            return "\n".join([f"{when}{name}: {first} ({_line_of(error)}{read.told()})", *others])
        except Exception as error:
            trace = error.__traceback__ and error.__traceback__.tb_next  # not this frame
            self.failure = "".join([f"{name} raised\n", *traceback.format_exception(type(error), error, trace)])
            return f"{when}{name} raised ({_line_of(error, below=1)}{read.told()})"


class _ReadStates(Mapping[str, object]):
    """States that record which of them was read last. A failing invariant usually concerns that state."""

    def __init__(self, states: Mapping[str, object]) -> None:
        self._states = states
        self._last: str | None = None

    def __getitem__(self, agent: str) -> object:
        self._last = agent
        return self._states[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def told(self) -> str:
        """Return a description of the state read last, to append to a code location."""
        if self._last is None:
            return "; it read no state"
        if self._last not in self._states:
            return f"; there is no agent {self._last!r}"
        try:
            shown = repr(self._states[self._last])
        except Exception as error:  # the user's own repr
            shown = f"<its repr raised {type(error).__name__}>"
        if len(shown) > STATE_SHOWN:
            shown = f"{shown[:STATE_SHOWN]}…"
        return f"; the last state it read: {self._last}, {' '.join(shown.split())}"


def _line_of(error: Exception, below: int | None = None) -> str:
    """Return the line that raised the error, or with `below` the line of the frame that many levels below ours."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = frames[-1] if below is None else frames[: below + 1][-1]
    return f"{frame.filename}:{frame.lineno}"


def _place_of(question: Callable[[_Seen], object]) -> str:
    """Return the place where a question is defined."""
    code = getattr(question, "__code__", None)
    return (
        f"{code.co_filename}:{code.co_firstlineno}" if code else getattr(type(question), "__qualname__", "a callable")
    )
