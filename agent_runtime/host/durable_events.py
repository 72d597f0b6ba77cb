"""What a host core is told and wants done for the sake of durable turns; see `events.py` for the rest."""

from snapline.agent_runtime.host.events import Command, Event


class RunStep(Command, frozen=True, gc=False):
    """Run the step of that name at which the agent's turn stands; `place`: its number in the journal, from 0."""

    agent: str
    incarnation: int
    place: int
    name: str


class RunEffect(RunStep, frozen=True, gc=False):
    """The same of an effect; `key`: for the outside; `is_in_doubt`: an earlier call of it may have been made, and be on its way."""

    key: str
    is_in_doubt: bool


class StepEnded(Event, frozen=True, gc=False):
    """The step, or effect, has ended; `outcome` and `result` as in the journal, `time_ns`: wall-clock time since 1970."""

    agent: str
    incarnation: int
    place: int
    outcome: str
    result: bytes
    time_ns: int = 0
