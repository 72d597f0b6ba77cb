"""Every error snapline raises, in one tree.

    SnaplineError
    ├── UsageError                 the caller misused this API
    │   ├── FleetDefinitionError    an invalid fleet definition
    │   ├── EncodingError           a message or state that cannot be encoded, or decoded as declared
    │   ├── MessageTooLargeError    above 16 MiB
    │   ├── InputRefusedError       an input that its agent will never accept
    │   │   └── HandlerNotPublicError   an input from the gateway without a public handler
    │   ├── DivergenceError         a durable turn whose replay differs
    │   └── NotFoundError           no such snapshot, agent or host
    │       └── AgentMissingError   no such agent, or it has stopped
    ├── PeerError                   a peer broke the protocol
    │   ├── ProtocolError           a gap, a bad column, an impossible number
    │   ├── OlderIncarnationError   a message of a replaced run
    │   └── ConnectionRejectedError the coordinator or a peer rejects this host
    └── ExternalFailureError        network, disk or time failed
        ├── TraceError              a trace that cannot be read, or contradicts itself
        ├── StoreError              the store cannot be read or written
        │   ├── StoreMissingError   there is no store at this place
        │   ├── StoreKeyError       the given key is not the store's key, or a key is missing
        │   └── DamagedDataError    stored bytes are damaged (G11)
        ├── CoordinatorUnavailableError
        │   └── AuthenticationError the certificates of the two sides do not trust each other
        ├── UnknownOutcomeError     timed out: the operation may or may not have happened
        │   ├── InputUnknownError   an input that may have been accepted
        │   └── AnswerMissingError  an accepted input whose answer did not arrive
        ├── InputDeadLetteredError  an input that became a dead letter
        ├── SnapshotAbortedError    a requested snapshot was aborted
        ├── InputRejectedError      an input that was not accepted in time
        ├── FleetEndedError         the fleet has ended and accepts no inputs
        ├── StepCancelledError      the result of a step is no longer needed
        ├── StepFailedError         a step of a durable turn raised
        │   └── EffectFailedError   an effect raised, and may have happened all the same
        ├── CircuitOpenError        a service failed repeatedly, and is not called for a while
        ├── WaitTimeoutError        a wait of a durable turn timed out
        ├── UnansweredCallError     a call whose turn ended without an answer
        ├── InputsError             some of many inputs have no receipt
        └── LogError                the coordinator's log cannot be trusted or written: the process must end

A message names the subject and the next step. `exit_code` is the exit code of the command line (docs/cli.md). Errors about an input
have its `agent` and `key`.
"""

from collections.abc import Sequence


class SnaplineError(Exception):
    """Base of all errors of snapline."""

    exit_code = 1


class UsageError(SnaplineError, ValueError):
    """The caller misused the interface."""

    exit_code = 2


class FleetDefinitionError(UsageError):
    """The definition of a fleet is invalid."""


class EncodingError(UsageError):
    """A message or state cannot be encoded, or cannot be decoded as its declared type."""

    exit_code = 1


class MessageTooLargeError(UsageError):
    """A message above 16 MiB."""


class InputRefusedError(UsageError):
    """The agent will never accept this input: no handler takes it, it does not match its declared type, or another input used its `key`."""

    agent = key = ""


class HandlerNotPublicError(InputRefusedError):
    """An input came through the gateway, and no handler marked `@snapline.handler(public=True)` takes it."""


class DivergenceError(UsageError):
    """The replay of a durable turn requests other steps than the first run did. Its agent stops until compatible code runs it."""


class NotFoundError(UsageError):
    """No such snapshot, agent or host."""

    exit_code = 4


class AgentMissingError(NotFoundError):
    """The agent is unknown or has stopped: the input was not accepted."""

    agent = key = ""


class PeerError(SnaplineError):
    """A peer broke the protocol."""


class ProtocolError(PeerError):
    """A gap, a bad column, an impossible number: the two sides disagree on what was sent."""


class OlderIncarnationError(PeerError):
    """A message belongs to an incarnation, host generation or plan that has been replaced (G9)."""

    exit_code = 5


class ConnectionRejectedError(PeerError):
    """The coordinator, or a peer, rejects this host permanently."""

    exit_code = 5


class ExternalFailureError(SnaplineError):
    """Network, disk or time failed."""


class TraceError(ExternalFailureError):
    """A line of a trace cannot be read, or contradicts earlier ones; the message names the lines."""

    exit_code = 6


class StoreError(ExternalFailureError):
    """The store cannot be read or written."""


class StoreMissingError(StoreError):
    """No store exists at this place."""

    exit_code = 10


class StoreKeyError(StoreError):
    """The given key is not the key of the store; or the store needs a key and none was given, or the other way round."""

    exit_code = 2


class DamagedDataError(StoreError):
    """Stored bytes differ from the bytes that were written (G11)."""

    exit_code = 6


class CoordinatorUnavailableError(ExternalFailureError):
    """No coordinator answers."""

    exit_code = 8


class AuthenticationError(CoordinatorUnavailableError):
    """The coordinator's address answers, but one side does not trust the authority of the other side's certificate."""

    exit_code = 5


class SnapshotAbortedError(ExternalFailureError):
    """The epoch of a requested snapshot was aborted or could not begin. Request it again."""


class UnknownOutcomeError(ExternalFailureError):
    """The operation timed out: it may or may not have happened."""

    exit_code = 9


class InputUnknownError(UnknownOutcomeError):
    """The input may have been accepted, or may still be. Sending it again with the same `key` is safe, and returns the outcome."""

    agent = key = ""


class AnswerMissingError(UnknownOutcomeError):
    """The input was accepted under `number`, but its answer did not arrive in time or is lost. Asking again with the same `key` is safe."""

    agent = key = ""
    number = 0


class InputDeadLetteredError(ExternalFailureError):
    """The input was accepted under `number`, but no turn could process it: it is a dead letter, and has no answer."""

    exit_code = 3
    agent = key = ""
    number = 0


class InputRejectedError(ExternalFailureError):
    """The input was not accepted in time, and will not be. Another attempt may succeed."""

    exit_code = 14
    agent = key = ""


class FleetEndedError(ExternalFailureError):
    """The fleet has ended, and did not accept the input."""

    exit_code = 13
    agent = key = ""


class StepCancelledError(ExternalFailureError):
    """The result of this attempt of a step is not needed: its turn was undone, or it took too long. Release all resources and return."""


class StepFailedError(ExternalFailureError):
    """A step of a durable turn raised in every attempt. `error` is the name of the exception's class, `reason` its message."""

    def __init__(self, message: str, *, step: str = "", error: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.step, self.error, self.reason = step, error, reason


class EffectFailedError(StepFailedError):
    """An effect raised in every attempt, and may have happened all the same. `key`: identifies the effect within its agent."""

    def __init__(self, message: str, *, step: str = "", error: str = "", reason: str = "", key: str = "") -> None:
        super().__init__(message, step=step, error=error, reason=reason)
        self.key = key


class CircuitOpenError(ExternalFailureError):
    """A service failed repeatedly, and is not called for a while (`CircuitBreaker`)."""


class WaitTimeoutError(ExternalFailureError, TimeoutError):
    """A durable turn's wait has timed out."""


class UnansweredCallError(ExternalFailureError):
    """No answer to this call will come: the called turn ended without one or failed, or the agent does not exist."""


class InputsError(ExternalFailureError):
    """Some of many inputs have no receipt. `outcomes` has the receipt or the error of each input, in their order."""

    def __init__(self, message: str, outcomes: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)


class LogError(ExternalFailureError):
    """The coordinator's log cannot be trusted or written. The process must end so that it does not contradict itself (G8)."""
