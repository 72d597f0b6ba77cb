"""Messages of the coordinator and hosts before the fleet, a host or agents end or move on purpose; as `host_messages.py`."""

from snapline.messages.host_messages import Directive, HostMessage

SAME_SIGNAL_S = 0.2
"""Two signals to a process so close together are one stop: a terminal, or a batch system, and the launcher pass on the same."""


class Quiesce(Directive, frozen=True, gc=False):
    """Hold inputs of clients back, or calls of effects, until the next Quiesce, plan or stream. Answer with Quiesced if effects are held."""

    number: int
    holds_inputs: bool = False
    holds_effects: bool = False


class Quiesced(HostMessage, frozen=True, gc=False):
    """Effects held: none is being called here, and none will be until the hold of this number ends."""

    number: int


class WantLeave(HostMessage, frozen=True, gc=False):
    """The host is to stop: it waits for a snapshot that holds what its agents have done."""

    reason: str = ""


class MayLeave(Directive, frozen=True, gc=False):
    """Epoch `epoch` holds what the host's agents had done when it said WantLeave."""

    epoch: int
