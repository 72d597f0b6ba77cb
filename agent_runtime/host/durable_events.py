"""Events and commands of a host core for durable turns; see `events.py` for the rest."""

from snapline.agent_runtime.host.events import Command, Event


class RunStep(Command, frozen=True, gc=False):
    """Run the step of that name at which the agent's turn waits; `place`: its number in the journal, from 0."""

    agent: str
    incarnation: int
    place: int
    name: str


class RunEffect(RunStep, frozen=True, gc=False):
    """Run an effect in the same way.

    Attributes:
        key: the outside key.
        is_in_doubt: an earlier call of it may have been made, and be on its way.
        undoes: of a compensation: the outside key of what it undoes.
        wait_s: how long a call of that may be on its way; it is undone afterwards.
    """

    key: str
    is_in_doubt: bool
    undoes: str = ""
    wait_s: float = 0.0


class StepEnded(Event, frozen=True, gc=False):
    """The end of a step, or effect.

    Attributes:
        outcome, result: as in the journal.
        time_ns: wall-clock time since 1970.
        late_s: of an effect that has failed: how long its last call may be on its way.
    """

    agent: str
    incarnation: int
    place: int
    outcome: str
    result: bytes
    time_ns: int = 0
    late_s: float = 0.0
