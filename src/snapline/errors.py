"""Every error snapline raises, in one tree.

    SnaplineError
    ├── UsageError                 you misused this API: mend the call
    │   ├── FleetDefinitionError    a fleet that cannot be run as written
    │   ├── EncodingError           a message or state that cannot be encoded, or decoded as declared
    │   ├── MessageTooLargeError    above 16 MiB
    │   ├── InputRefusedError       an input that its agent will never take
    │   │   └── HandlerNotPublicError   one from the gateway, and no public handler takes it
    │   ├── DivergenceError         a durable turn that does not repeat itself
    │   └── NotFoundError           no such snapshot, agent or host
    │       └── AgentMissingError   no such agent, or it has stopped
    ├── PeerError                   a peer broke the protocol
    │   ├── ProtocolError           a gap, a bad column, an impossible number
    │   ├── OlderIncarnationError   something of a run that has been replaced
    │   └── ConnectionRejectedError         the coordinator or a peer refuses this host
    └── ExternalFailureError                  the world failed: network, disk, time
        ├── TraceError              a trace that cannot be read, or contradicts itself
        ├── StoreError              the store cannot be read or written
        │   ├── StoreMissingError   there is no store at this place
        │   ├── StoreKeyError       the store has another key than was given, or one and none was given
        │   └── DamagedDataError    bytes that are not what was written (G11)
        ├── CoordinatorUnavailableError
        │   └── AuthenticationError       somebody is there, and the certificates do not trust each other
        ├── UnknownOutcomeError     timed out: it may or may not have happened
        │   ├── InputUnknownError   an input that may have been taken
        │   └── AnswerMissingError  an input that was taken, and whose answer was not heard
        ├── InputDeadLetteredError        an input that became a dead letter
        ├── SnapshotAbortedError    a snapshot that was asked for is none
        ├── InputRejectedError      an input that was not taken in time
        ├── FleetEndedError         nobody takes anything any more
        ├── StepCancelledError      nobody waits for a step any more
        ├── StepFailedError         a durable turn's step raised
        │   └── EffectFailedError   its effect did: it may have been done all the same
        ├── CircuitOpenError        a service has failed again and again: it is left alone for a while
        ├── WaitTimeoutError        a durable turn has waited long enough
        ├── UnansweredCallError     a call whose turn has ended without an answer
        ├── InputsError             some of many inputs have no receipt
        └── LogError                the coordinator's log cannot be trusted or written: the process must end

A message names the thing and the next step. `exit_code` is what the command line exits with (docs/cli.md). Errors about an input
have the names of its `agent` and `key`.
"""

from collections.abc import Sequence


class SnaplineError(Exception):
    """Base of all errors of snapline."""

    exit_code = 1


class UsageError(SnaplineError, ValueError):
    """The caller misused the interface."""

    exit_code = 2


class FleetDefinitionError(UsageError):
    """A fleet that cannot be run as it is written."""


class EncodingError(UsageError):
    """A message or state that cannot be encoded, or decoded as its declared type."""

    exit_code = 1


class MessageTooLargeError(UsageError):
    """A message above 16 MiB."""


class InputRefusedError(UsageError):
    """An input that its agent will never take: there is no handler for it, it is not as declared, or its `key` was used for another one."""

    agent = key = ""


class HandlerNotPublicError(InputRefusedError):
    """An input that came through the gateway, and that no handler takes which is marked `@snapline.handler(public=True)`."""


class DivergenceError(UsageError):
    """A durable turn that was begun earlier asks for something else than it did then. Its agent stands until other code runs it."""


class NotFoundError(UsageError):
    """No such snapshot, agent or host."""

    exit_code = 4


class AgentMissingError(NotFoundError):
    """The agent is unknown or has stopped: the input was not accepted."""

    agent = key = ""


class PeerError(SnaplineError):
    """A peer broke the protocol."""


class ProtocolError(PeerError):
    """A gap, a bad column, an impossible number: the peer and we disagree on what was sent."""


class OlderIncarnationError(PeerError):
    """Something of an incarnation, host start or plan that has been replaced (G9)."""

    exit_code = 5


class ConnectionRejectedError(PeerError):
    """The coordinator, or a peer, refuses this host for good."""

    exit_code = 5


class ExternalFailureError(SnaplineError):
    """Network, disk or time failed."""


class TraceError(ExternalFailureError):
    """A line of a trace that cannot be read, or contradicts earlier ones; the message names the lines."""

    exit_code = 6


class StoreError(ExternalFailureError):
    """The store cannot be read or written."""


class StoreMissingError(StoreError):
    """No store exists at this place."""

    exit_code = 10


class StoreKeyError(StoreError):
    """The store is encrypted or signed with another key than was given; or it is and none was given, or the other way round."""

    exit_code = 2


class DamagedDataError(StoreError):
    """Bytes that are not what was written (G11)."""

    exit_code = 6


class CoordinatorUnavailableError(ExternalFailureError):
    """No coordinator answers."""

    exit_code = 8


class AuthenticationError(CoordinatorUnavailableError):
    """Something answers where the coordinator should be, and one side's certificate is not of an authority that the other trusts."""

    exit_code = 5


class SnapshotAbortedError(ExternalFailureError):
    """The epoch of a snapshot that was asked for was aborted, or none could begin. Ask again."""


class UnknownOutcomeError(ExternalFailureError):
    """Timed out: it may or may not have happened."""

    exit_code = 9


class InputUnknownError(UnknownOutcomeError):
    """An input that may have been taken, or may be yet. To give it again with the same `key` is safe, and tells."""

    agent = key = ""


class AnswerMissingError(UnknownOutcomeError):
    """An input was taken under its `number`, and its answer was not heard in time, or cannot be any more. To ask again with the same `key` is safe."""

    agent = key = ""
    number = 0


class InputDeadLetteredError(ExternalFailureError):
    """An input was taken under its `number`, and no turn of its agent could take it: it is among the dead letters, and has no answer."""

    exit_code = 3
    agent = key = ""
    number = 0


class InputRejectedError(ExternalFailureError):
    """An input that was certainly not taken in the time that there was; another attempt may do better."""

    exit_code = 14
    agent = key = ""


class FleetEndedError(ExternalFailureError):
    """The fleet has ended: nobody takes anything any more, and the input was not taken."""

    exit_code = 13
    agent = key = ""


class StepCancelledError(ExternalFailureError):
    """Nobody waits for this attempt of a step any more: its turn was undone, or it took too long. Let go of everything, and end."""


class StepFailedError(ExternalFailureError):
    """A step of a durable turn has raised, each time that it was tried. `error` is the class's name, `reason` what it said."""

    def __init__(self, message: str, *, step: str = "", error: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.step, self.error, self.reason = step, error, reason


class EffectFailedError(StepFailedError):
    """An effect has raised, each time that it was tried. It may have been done all the same. `key`: what it is known by within its agent."""

    def __init__(self, message: str, *, step: str = "", error: str = "", reason: str = "", key: str = "") -> None:
        super().__init__(message, step=step, error=error, reason=reason)
        self.key = key


class CircuitOpenError(ExternalFailureError):
    """Calls of a service have failed again and again: for a while nobody calls it (`CircuitBreaker`)."""


class WaitTimeoutError(ExternalFailureError, TimeoutError):
    """A durable turn's wait has timed out."""


class UnansweredCallError(ExternalFailureError):
    """The turn that was to answer a call has ended without an answer or failed, or there is no such agent: no answer will come."""


class InputsError(ExternalFailureError):
    """Some of many inputs have no receipt. `outcomes` has one entry for each input in their order: its receipt, or its error."""

    def __init__(self, message: str, outcomes: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)


class LogError(ExternalFailureError):
    """The coordinator's log cannot be trusted or written; the process must end rather than contradict itself (G8)."""
