"""Messages between the coordinator and hosts before a planned end or move of the fleet, a host or agents; see also `host_messages.py`."""

from snapline.messages.host_messages import Directive, HostMessage

SAME_SIGNAL_S = 0.2
"""Two signals to a process within this time count as one stop: a terminal or batch system and the launcher pass on the same signal."""


class Quiesce(Directive, frozen=True, gc=False):
    """Hold back inputs of clients, or calls of effects, until the next Quiesce, plan or stream. Answer with Quiesced if effects are held."""

    number: int
    holds_inputs: bool = False
    holds_effects: bool = False


class Quiesced(HostMessage, frozen=True, gc=False):
    """Effects held: no effect call is running on this host, and none will start until the hold of this number ends."""

    number: int


class WantLeave(HostMessage, frozen=True, gc=False):
    """The host wants to stop: it waits for a snapshot that holds what its agents have done."""

    reason: str = ""


class MayLeave(Directive, frozen=True, gc=False):
    """Epoch `epoch` holds what the host's agents had done when the host sent WantLeave."""

    epoch: int
