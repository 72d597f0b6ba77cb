"""Operators' requests about hosts, and the leader's answers."""

from snapline.coordinator.leader.events import AnswerTool, Event


class ForgetHostRequested(Event, frozen=True, gc=False):
    """An operator's request to forget a host; answered by `AnswerForgetHost` with the same number."""

    request: int
    host: str


class EndHostRequested(Event, frozen=True, gc=False):
    """An operator's request to end the present run of a host."""

    host: str


class MovesRequested(Event, frozen=True, gc=False):
    """An operator's request to move agents; answered by `AnswerMoves` with the same number when the hosts are marked.

    Attributes:
        drained: hosts that agents are to leave.
        resumed: hosts that may take agents again.
        is_even: spread the agents evenly over all hosts.
    """

    request: int
    drained: tuple[str, ...]
    resumed: tuple[str, ...]
    is_even: bool


class AnswerForgetHost(AnswerTool, frozen=True, gc=False):
    """Answer: the host's record is removed, or the host is back. `refused`: why the record is kept."""

    refused: str = ""


class AnswerMoves(AnswerTool, frozen=True, gc=False):
    """Answer: the drain marks are in the log. `refused`: why not; `plan`: the present plan; `is_moving`: the next plan moves agents."""

    refused: str = ""
    plan: int = 0
    is_moving: bool = False


class CoordinatorStopRequested(Event, frozen=True, gc=False):
    """Request to stop this coordinator after a last epoch (`departures.py`)."""
