"""What a host core is told and wants done for the sake of durable turns; see `events.py` for the rest."""

from snapline.agent_runtime.host.events import Command, Event


class RunStep(Command, frozen=True, gc=False):
    """Run the step of that name at which the agent's turn stands; `place`: its number in the journal, from 0."""

    agent: str
    incarnation: int
    place: int
    name: str


class StepEnded(Event, frozen=True, gc=False):
    """It has ended; `outcome` and `result` as in the journal."""

    agent: str
    incarnation: int
    place: int
    outcome: str
    result: bytes
