"""Breadth-first search through everything that a small fleet can do.

Theory of operation
-------------------
A *state* is a tuple of small integers, one for each *actor*: the agents and, as the last one, the coordinator. An actor's
integer stands for its *node*: its core's image, its books, and the queues of what is under way to it. So what an actor can
do next depends on its own node alone, and it changes nothing but that node and the queues of others. This is what makes the
search fast: `moves` (by node) and `arrivals` (by node and item) are worked out once, by the real cores, and then looked up.
There are a few thousand nodes where there are a hundred thousand states.

Only a crash looks at all nodes at once (`Model.crashes`), and so do the oracles (`Model.check`); the models memoise these by
pairs of nodes or by what little of a node they depend on.

States are kept whole, no digests: equal tuples are equal states, and no two states are ever taken for one. Predecessors
are two arrays, so a counterexample costs 16 bytes a state. Breadth first, and every fault is found on a step *from* a
state: standing still with work left counts as a step. Hence the first fault found is reached by as few steps as any.

What cannot be seen: a run that never ends. There is none: in all models every step uses something up (a send, an item in
a queue, an epoch, a crash), so no state is reached twice on a path, and a fleet at rest is all that a run can end in.
"""

from abc import abstractmethod
from array import array
from collections.abc import Iterator
from typing import Protocol

import msgspec

from snapline.errors import SnaplineError
from snapline.sim.explorer.interning import Interner, Memo

State = tuple[int, ...]

Outputs = tuple[tuple[int, int], ...]
"""(actor, item) for everything that leaves, in order."""

Move = tuple[int, int, Outputs]
"""Label, the actor's next node, what leaves."""


class Fault(Exception):
    """A guarantee does not hold.

    Attributes:
        oracle, guarantee, text: as in `sim.result.Violation`.
        label: the step that shows it; empty if it is a state.
    """

    def __init__(self, oracle: str, guarantee: str, text: str, label: str = "") -> None:
        super().__init__(text)
        self.oracle, self.guarantee, self.text, self.label = oracle, guarantee, text, label


class PossibleMove(msgspec.Struct, frozen=True):
    """One thing that an actor may do, before it is worked out: `kind` and `detail` are for the model, `label` for people."""

    label: str
    kind: str
    detail: int = 0


class Model(Protocol):
    """A fleet under one protocol. `NodeT` differs from actor to actor, so nodes are numbers here.

    Attributes:
        actors: how many; the last one is the coordinator.
        labels: what a step is called.
    """

    actors: int
    labels: Interner[str]

    @abstractmethod
    def start(self) -> State:
        """The state in which every run begins."""

    @abstractmethod
    def proposals(self, actor: int, node: int) -> Iterator[PossibleMove]:
        """Yield the moves that the actor may make at `node`."""

    @abstractmethod
    def carry_out(self, actor: int, node: int, proposal: PossibleMove) -> tuple[int, Outputs]:
        """Do it: the next node and what leaves."""

    @abstractmethod
    def arrive(self, actor: int, node: int, item: int) -> tuple[int, Outputs]:
        """An item reaches the actor: it joins a queue, or is worked on at once."""

    @abstractmethod
    def crashes(self, state: State) -> list[tuple[int, State]]:
        """Label and next state of every crash that is possible at `state`, its recovery included."""

    @abstractmethod
    def check(self, state: State) -> None:
        """Raise `Fault` if a guarantee does not hold in `state`."""

    @abstractmethod
    def unfinished(self, actor: int, node: int) -> str:
        """Return the work left at `node`, for the end of a run; empty: none."""


class Transitions:
    """Successors of a model's states, computed once for each node."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._moves = [Memo(_Worker(model, actor)) for actor in range(model.actors)]
        self._arrivals = [Memo(_ArrivalWorker(model, actor)) for actor in range(model.actors)]

    def _steps(self, state: State) -> list[tuple[int, State]]:
        """Label and next state of everything that actors can do.

        Raises:
            Fault: one of these steps shows a violation.
        """
        found = []
        label = -1
        try:
            for actor, node in enumerate(state):
                for label, new, outputs in self._moves[actor][node]:
                    after = list(state)
                    after[actor] = new
                    if outputs:
                        self._spread(after, outputs)
                    found.append((label, tuple(after)))
        except Fault as fault:
            fault.label = fault.label or self._model.labels.values[label]
            raise
        return found

    def following_of(self, state: State) -> list[tuple[int, State]]:
        """Label and next state of all that can happen: steps and crashes.

        Raises:
            Fault: one of these shows a violation, or nothing more happens and something was left to do.
        """
        found = self._steps(state)
        if not found:
            self._check_rest(state)
        try:
            found += self._model.crashes(state)
        except Fault as fault:
            fault.label = fault.label or "a crash"
            raise
        except (SnaplineError, AssertionError) as error:
            raise Fault("core", "core", str(error), "a crash") from error
        return found

    def _spread(self, after: list[int], outputs: Outputs) -> None:
        for actor, item in outputs:
            after[actor], more = self._arrivals[actor][after[actor], item]
            if more:
                self._spread(after, more)

    def _check_rest(self, state: State) -> None:
        """Check, when nothing can happen any more, that everything was done."""
        left = [self._model.unfinished(actor, node) for actor, node in enumerate(state)]
        if any(left):
            raise Fault("rest", "G10", "; ".join(filter(None, left)), "nothing more happens")


class _Worker:
    """Works out all moves of one actor at one node."""

    __slots__ = ("actor", "model")

    def __init__(self, model: Model, actor: int) -> None:
        self.model, self.actor = model, actor

    def __call__(self, node: int) -> list[Move]:
        return [self._move(node, proposal) for proposal in self.model.proposals(self.actor, node)]

    def _move(self, node: int, proposal: PossibleMove) -> Move:
        try:
            new, outputs = self.model.carry_out(self.actor, node, proposal)
        except Fault as fault:
            fault.label = proposal.label
            raise
        except (SnaplineError, AssertionError) as error:
            raise Fault("core", "core", str(error), proposal.label) from error
        return self.model.labels.of(proposal.label), new, outputs


class _ArrivalWorker:
    """Works out what an arriving item does to one actor."""

    __slots__ = ("actor", "model")

    def __init__(self, model: Model, actor: int) -> None:
        self.model, self.actor = model, actor

    def __call__(self, key: tuple[int, int]) -> tuple[int, Outputs]:
        try:
            return self.model.arrive(self.actor, *key)
        except (SnaplineError, AssertionError) as error:
            raise Fault("core", "core", str(error)) from error


class Found(msgspec.Struct):
    """The outcome of a search; `path` leads to the fault."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    is_complete: bool = False
    fault: Fault | None = None
    path: list[str] = []


class Search:
    """One search. `run` once."""

    def __init__(self, model: Model, states_max: int) -> None:
        self.model = model
        self._transitions = Transitions(model)
        self.states_max = states_max
        self.found = Found()
        self._seen: set[State] = set()
        self._parents = array("q")
        self._labels = array("q")

    def run(self) -> Found:
        """Search until all is seen, a fault is found, or there are `states_max` states."""
        found, frontier = self.found, [self.model.start()]
        self._enter(frontier[0], -1, -1)
        try:
            self.model.check(frontier[0])
        except Fault as fault:
            found.fault = fault
        number = 0
        while frontier and not found.fault and len(self._seen) < self.states_max:
            frontier = self._layer(frontier, number)
            number = len(self._seen) - len(frontier)
            found.depth += bool(frontier)
        found.states = len(self._seen)
        found.is_complete = not frontier and found.fault is None
        return found

    def _enter(self, state: State, parent: int, label: int) -> None:
        self._seen.add(state)
        self._parents.append(parent)
        self._labels.append(label)

    def _layer(self, frontier: list[State], number: int) -> list[State]:
        """Go one step on from every state of a layer; `number` is that of its first."""
        seen, parents, labels = self._seen, self._parents, self._labels
        following_of, check = self._transitions.following_of, self.model.check
        following: list[State] = []
        transitions = 0
        label = -1
        for parent, state in enumerate(frontier, number):
            try:
                after = following_of(state)
                for label, new in after:
                    if new not in seen:
                        check(new)
                        seen.add(new)
                        parents.append(parent)
                        labels.append(label)
                        following.append(new)
            except Fault as fault:
                self._note_fault(fault, parent, label)
                return []
            transitions += len(after)
            if len(seen) >= self.states_max:
                break
        self.found.transitions += transitions
        return following

    def _note_fault(self, fault: Fault, number: int, label: int) -> None:
        last = fault.label or self.model.labels.values[label]
        self.found.fault = fault
        self.found.path = [*self._path_to(number), last]

    def _path_to(self, number: int) -> list[str]:
        path = []
        while (label := self._labels[number]) >= 0:
            path.append(self.model.labels.values[label])
            number = self._parents[number]
        return path[::-1]
