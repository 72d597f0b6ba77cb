"""Requests that few turns make: most only send, and answer. A context makes one of these when it is first needed."""

from snapline.agent_runtime.host.host_events import Emission, Spawn


class RareRequests:
    """Requests besides the sends of one turn, or segment of one."""

    __slots__ = ("cancelled", "outputs", "spawns", "timers", "wants_checkpoint")

    def __init__(self) -> None:
        self.timers: list[tuple[str, int, bytes]] = []
        self.cancelled: list[str] = []
        self.spawns: dict[str, Spawn] = {}
        self.outputs: list[Emission] = []
        self.wants_checkpoint = False
