"""Events and commands of a host core that concern its log; see `events.py` for the rest."""

from snapline.agent_runtime.host.events import Command, Event
from snapline.storage.log.names import LogName
from snapline.storage.log.record import LoggedEntry, LoggedInput


class AppendBatch(Command, frozen=True, gc=False):
    """Make the next batch of this host's log durable, trying until its outcome is known. The answer is BatchAppended or LogSealed.

    `certificate`: certificate of the coordinator for this log, if batches are signed.
    """

    log: LogName
    number: int
    inputs: tuple[LoggedInput, ...]
    entries: tuple[LoggedEntry, ...] = ()
    certificate: bytes = b""


class BatchAppended(Event, frozen=True, gc=False):
    """A batch durable in its place."""

    log: LogName
    number: int


class LogSealed(Event, frozen=True, gc=False):
    """A batch refused, since another object is in its place: a later plan has ended the log, and the batch will never be in it."""

    log: LogName
    number: int


class LogStatusChanged(Event, frozen=True, gc=False):
    """A batch delayed on its way to this log: `problem` says why."""

    log: LogName
    problem: str
