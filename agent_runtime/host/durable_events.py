"""Events and commands of a host core for durable turns; see `events.py` for the rest."""

from snapline.agent_runtime.host.events import Command, Event


class RunStep(Command, frozen=True, gc=False):
    """Run the step of that name at which the agent's turn waits; `place`: its number in the journal, from 0."""

    agent: str
    incarnation: int
    place: int
    name: str


class RunEffect(RunStep, frozen=True, gc=False):
    """Run an effect, like a step.

    Attributes:
        key: outside key of the effect.
        is_in_doubt: an earlier call may have been made, and may still be running.
        undoes: for a compensation, the outside key of the effect that it undoes.
        wait_s: longest time that a call of the undone effect may still run; the compensation waits for it.
    """

    key: str
    is_in_doubt: bool
    undoes: str = ""
    wait_s: float = 0.0


class StepEnded(Event, frozen=True, gc=False):
    """End of a step or an effect.

    Attributes:
        outcome, result: see `JournalEntry`.
        time_ns: wall-clock time since 1970.
        late_s: for a failed effect, the longest time that its last call may still run.
    """

    agent: str
    incarnation: int
    place: int
    outcome: str
    result: bytes
    time_ns: int = 0
    late_s: float = 0.0
