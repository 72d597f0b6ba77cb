"""Breadth-first search of all reachable states of a small fleet.

Theory of operation
-------------------
A *state* is a tuple with one small integer per *actor*. The actors are the agents and, last, the coordinator. The integer of an actor is
the number of its *node*, which is the actor's local state. A node contains the image of the actor's core, the actor's ledger (the
explorer's ground truth), and the queues of items in transit to the actor. So an actor's next moves depend only on its own node, and they
change only this node and the queues of other actors. The search is fast because the real cores compute each move and each arrival of an
item only once per node. Afterwards, the result is cached. A hundred thousand states consist of only a few thousand different nodes.

Only crashes (`Model.crashes`) and oracles (`Model.check`) depend on the nodes of all actors. The models cache the results of these methods
for pairs of nodes, or for the relevant part of a node.

States are stored in full and not as digests, so two different states never count as equal. Two arrays, which take 16 bytes per state, store
the predecessor of each state and the step from it, so counterexamples can be reconstructed. The search is breadth-first, and each violation
is detected in a step *from* a state. A halt with unfinished work also counts as a step. Hence no violation has a shorter path than the
first one found.

The search cannot find a run that never ends, but no such run exists. In all models, every step consumes a bounded resource, such as a send,
an item in a queue, an epoch or a crash. So no state occurs twice on a path, and every run ends in a state in which the fleet is idle.

`Interner` assigns numbers to large values such as nodes. Equal values get the same number, so a global state is a short tuple of integers.
`Bounds` limits the size of the explored fleet.
"""

from abc import abstractmethod
from array import array
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from snapline.errors import SnaplineError, UsageError

# -- interning ------------------------------------------------------------------------------------------------------------

ValueT = TypeVar("ValueT", bound=Hashable)
KeyT = TypeVar("KeyT", bound=Hashable)
ResultT = TypeVar("ResultT")
CoreT = TypeVar("CoreT")


class Interner(Generic[ValueT]):
    """Assigns the numbers 0, 1, 2, … to values, in the order of their first use.

    Attributes:
        values: all values, in the order of their numbers.
    """

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self.values: list[ValueT] = []
        self._numbers: dict[ValueT, int] = {}

    def of(self, value: ValueT) -> int:
        """Return the number of `value`, which is assigned when the value is first used."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Memo(dict[KeyT, ResultT]):
    """A dictionary that computes a missing value when it is looked up. Looking up a known key is as fast as in a plain dictionary."""

    __slots__ = ("_work_out",)

    def __init__(self, work_out: Callable[[KeyT], ResultT]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, key: KeyT) -> ResultT:
        result = self[key] = self._work_out(key)
        return result


def key_of(event: msgspec.Struct) -> bytes:
    """Encode an event, which may contain dictionaries, as a hashable key. The key includes the event's tag, which distinguishes types of
    events."""
    return msgspec.msgpack.encode(event)


class ValidatedCore(Protocol):
    """Interface of a core that checks its invariants and has a hashable image."""

    def validate(self) -> None: ...
    def freeze(self) -> Hashable: ...


def validated_image(core: ValidatedCore) -> Hashable:
    """Check the invariants of a core, and return its image."""
    core.validate()
    return core.freeze()


class CoreMemo(Generic[CoreT]):
    """Memo that caches the behaviour of one agent's core. The memo maps an image and an action to the next image and the result. The real
    core computes each entry only once."""

    def __init__(self, freeze: Callable[[CoreT], Hashable], restore: Callable[[Any], CoreT]) -> None:
        """Create a memo. `freeze` must validate a core and return its image, and `restore` must return a core for an image."""
        self.images: Interner[Any] = Interner()
        self._freeze, self._restore = freeze, restore
        self._results: dict[tuple[int, Hashable], tuple[int, Any]] = {}

    def enter(self, core: CoreT) -> int:
        """Return the number that identifies the image of a core."""
        return self.images.of(self._freeze(core))

    def run(self, image: int, key: Hashable, act: Callable[[CoreT], ResultT]) -> tuple[int, ResultT]:
        """Apply `act` to a core with this image. `key` identifies the action. Return the number of the image after the action, and the
        result of `act`."""
        memoised = self._results.get((image, key))
        if memoised is None:
            core = self._restore(self.images.values[image])
            result = act(core)
            memoised = self._results[image, key] = (self.enter(core), result)
        return memoised


# -- search ---------------------------------------------------------------------------------------------------------------

State = tuple[int, ...]

Outputs = tuple[tuple[int, int], ...]
"""(receiving actor, item) for each item sent, in order."""

Move = tuple[int, int, Outputs]
"""The label of a move, the actor's next node, and the outputs."""


class Fault(Exception):
    """Raised when a model finds that a guarantee is violated.

    Attributes:
        oracle, guarantee, text: as in `sim.result.Violation`.
        label: label of the step that violates the guarantee. The label is empty if the violation belongs to a state and not to a step.
    """

    def __init__(self, oracle: str, guarantee: str, text: str, label: str = "") -> None:
        super().__init__(text)
        self.oracle, self.guarantee, self.text, self.label = oracle, guarantee, text, label


class ProposedMove(msgspec.Struct, frozen=True):
    """A move that an actor may make, and whose effect has not been computed yet. The model uses `kind` and `detail`, and `label` is for
    display."""

    label: str
    kind: str
    detail: int = 0


class Model(Protocol):
    """Model of a fleet that runs one protocol. In the interface, numbers identify nodes, because the types of nodes differ between actors.

    Attributes:
        actors: number of actors. The last actor is the coordinator.
    """

    actors: int
    labels: Interner[str]

    @abstractmethod
    def start(self) -> State:
        """Return the state in which every run starts."""

    @abstractmethod
    def proposals(self, actor: int, node: int) -> Iterator[ProposedMove]:
        """Yield the moves that the actor may make if its node is `node`."""

    @abstractmethod
    def carry_out(self, actor: int, node: int, proposal: ProposedMove) -> tuple[int, Outputs]:
        """Execute a move. Return the actor's next node and the items that it sends."""

    @abstractmethod
    def arrive(self, actor: int, node: int, item: int) -> tuple[int, Outputs]:
        """Deliver an item to the actor, which queues the item or handles it at once. Return the actor's next node and the items that it
        sends."""

    @abstractmethod
    def crashes(self, state: State) -> list[tuple[int, State]]:
        """Return, for every crash that is possible in `state`, its label and the state after the crash and the recovery."""

    @abstractmethod
    def check(self, state: State) -> None:
        """Raise `Fault` if a guarantee is violated in `state`."""

    @abstractmethod
    def unfinished(self, actor: int, node: int) -> str:
        """Describe the work that is unfinished at `node` at the end of a run. Return "" if no work is unfinished."""


class Transitions:
    """Computes the successors of a model's states, and caches each node's moves."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._moves = [Memo(_Worker(model, actor)) for actor in range(model.actors)]
        self._arrivals = [Memo(_ArrivalWorker(model, actor)) for actor in range(model.actors)]

    def _steps(self, state: State) -> list[tuple[int, State]]:
        """Return the label and the next state of every move that an actor can make in `state`.

        Raises:
            Fault: If a move violates a guarantee.
        """
        steps = []
        label = -1
        try:
            for actor, node in enumerate(state):
                for label, new, outputs in self._moves[actor][node]:
                    after = list(state)
                    after[actor] = new
                    if outputs:
                        self._spread(after, outputs)
                    steps.append((label, tuple(after)))
        except Fault as fault:
            fault.label = fault.label or self._model.labels.values[label]
            raise
        return steps

    def following_of(self, state: State) -> list[tuple[int, State]]:
        """Return the label and the next state of every move and crash that is possible in `state`.

        Raises:
            Fault: If a move or crash violates a guarantee, or if no move is possible although work is left.
        """
        following = self._steps(state)
        if not following:
            self._check_rest(state)
        try:
            following += self._model.crashes(state)
        except Fault as fault:
            fault.label = fault.label or "a crash"
            raise
        except (SnaplineError, AssertionError) as error:
            raise Fault("core", "core", str(error), "a crash") from error
        return following

    def _spread(self, after: list[int], outputs: Outputs) -> None:
        for actor, item in outputs:
            after[actor], more = self._arrivals[actor][after[actor], item]
            if more:
                self._spread(after, more)

    def _check_rest(self, state: State) -> None:
        """Check that no work is unfinished in a state in which no move is possible."""
        unfinished = [self._model.unfinished(actor, node) for actor, node in enumerate(state)]
        if any(unfinished):
            raise Fault("rest", "G10", "; ".join(filter(None, unfinished)), "nothing more happens")


class _Worker:
    """Callable that computes all possible moves of an actor at a given node."""

    __slots__ = ("actor", "model")

    def __init__(self, model: Model, actor: int) -> None:
        self.model, self.actor = model, actor

    def __call__(self, node: int) -> list[Move]:
        return [self._move(node, proposal) for proposal in self.model.proposals(self.actor, node)]

    def _move(self, node: int, proposal: ProposedMove) -> Move:
        try:
            new, outputs = self.model.carry_out(self.actor, node, proposal)
        except Fault as fault:
            fault.label = proposal.label
            raise
        except (SnaplineError, AssertionError) as error:
            raise Fault("core", "core", str(error), proposal.label) from error
        return self.model.labels.of(proposal.label), new, outputs


class _ArrivalWorker:
    """Callable that computes the effect of an arriving item on an actor."""

    __slots__ = ("actor", "model")

    def __init__(self, model: Model, actor: int) -> None:
        self.model, self.actor = model, actor

    def __call__(self, key: tuple[int, int]) -> tuple[int, Outputs]:
        try:
            return self.model.arrive(self.actor, *key)
        except (SnaplineError, AssertionError) as error:
            raise Fault("core", "core", str(error)) from error


class SearchResult(msgspec.Struct):
    """Outcome of a search. `path` contains the labels of the steps that lead to the violation, if one was found."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    is_complete: bool = False
    fault: Fault | None = None
    path: list[str] = []


class Search:
    """A search. `run` may be called only once."""

    def __init__(self, model: Model, states_max: int) -> None:
        self.model = model
        self._transitions = Transitions(model)
        self.states_max = states_max
        self.found = SearchResult()
        self._seen: set[State] = set()
        self._parents = array("q")
        self._labels = array("q")

    def run(self) -> SearchResult:
        """Search until all states have been visited, a violation is found, or `states_max` is reached."""
        outcome, frontier = self.found, [self.model.start()]
        self._enter(frontier[0], -1, -1)
        try:
            self.model.check(frontier[0])
        except Fault as fault:
            outcome.fault = fault
        number = 0
        while frontier and not outcome.fault and len(self._seen) < self.states_max:
            frontier = self._layer(frontier, number)
            number = len(self._seen) - len(frontier)
            outcome.depth += bool(frontier)
        outcome.states = len(self._seen)
        outcome.is_complete = not frontier and outcome.fault is None
        return outcome

    def _enter(self, state: State, parent: int, label: int) -> None:
        self._seen.add(state)
        self._parents.append(parent)
        self._labels.append(label)

    def _layer(self, frontier: list[State], number: int) -> list[State]:
        """Return all new successors of the states in this layer, which together form the next layer. `number` is the number of the first
        state in this layer."""
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


# -- bounds ---------------------------------------------------------------------------------------------------------------

AGENTS_MAX = 6
"""Maximum number of agents. With more agents, the states do not fit into a machine's memory even if each agent sends only one message."""


class Bounds(msgspec.Struct, frozen=True):
    """Limits on the size of an explored fleet and of its runs.

    Attributes:
        agents: number of agents, at least two.
        sends: maximum number of messages that each agent sends in total. A send that a recovery has undone does not count towards the
            limit.
        crashes: maximum number of crashes in a run. Each crash is followed by a recovery.
        epochs: maximum number of epochs or rounds in a run, for coordinated protocols.
        checkpoints: maximum number of basic checkpoints per agent, for autonomous protocols. Forced checkpoints do not count towards the
            limit.
        states_max: number of states after which the search stops.
    """

    agents: int = 3
    sends: int = 1
    crashes: int = 1
    epochs: int = 1
    checkpoints: int = 1
    states_max: int = 5_000_000

    def __post_init__(self) -> None:
        if not 2 <= self.agents <= AGENTS_MAX:
            raise UsageError(f"agents is {self.agents}: explore a fleet of 2 to {AGENTS_MAX} agents")
        for name in ("sends", "crashes", "epochs", "checkpoints"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}: give 0 or more")
        if self.states_max < 1:
            raise UsageError(f"states_max is {self.states_max}: give at least 1")
