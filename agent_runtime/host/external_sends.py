"""What an agent says that did not come of a turn of its own."""

from snapline.agent_runtime.host.events import Event


class MessagesTold(Event, frozen=True, gc=False):
    """Something that an agent stands for has changed, outside of any turn, and says this to other agents: state and sends are of one piece.

    `sends`: receivers and encoded messages.
    """

    agent: str
    incarnation: int
    sends: tuple[tuple[str, bytes], ...]
