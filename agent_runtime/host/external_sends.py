"""Sends of an agent that do not come from a turn of its own."""

from snapline.agent_runtime.host.events import Event


class ExternalSends(Event, frozen=True, gc=False):
    """Sends outside of any turn, because something that the agent represents has changed. State and sends take effect together.

    `sends`: receivers and encoded messages.
    """

    agent: str
    incarnation: int
    sends: tuple[tuple[str, bytes], ...]
