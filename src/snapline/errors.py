"""All errors that snapline raises, as a tree of exception classes.

    SnaplineError
    ├── UsageError                 the caller misused the API
    │   ├── FleetDefinitionError    a fleet definition is invalid
    │   ├── EncodingError           a message or state cannot be encoded, or not decoded as declared
    │   ├── MessageTooLargeError    larger than 16 MiB
    │   ├── InputRefusedError       the agent will never accept the input
    │   │   └── HandlerNotPublicError   no public handler takes the gateway's input
    │   ├── DivergenceError         the replay of a durable turn differs from its first run
    │   └── NotFoundError           a snapshot, agent or host does not exist
    │       └── AgentMissingError   the agent does not exist or has stopped
    ├── PeerError                   a peer broke the protocol
    │   ├── ProtocolError           a gap, an invalid column or an impossible number
    │   ├── OlderIncarnationError   a message belongs to a replaced run
    │   └── ConnectionRejectedError the coordinator or a peer rejects this host
    └── ExternalFailureError        the network, a disk or a time limit failed
        ├── TraceError              a trace cannot be read or contradicts itself
        ├── StoreError              the store cannot be read or written
        │   ├── StoreMissingError   there is no store at the given location
        │   ├── StoreKeyError       the given key is not the store's, or a key is missing
        │   └── DamagedDataError    stored bytes are damaged (G11)
        ├── CoordinatorUnavailableError  no coordinator answers
        │   └── AuthenticationError one side does not trust the other's certificate
        ├── UnknownOutcomeError     timed out: the operation may or may not have happened
        │   ├── InputUnknownError   the input may have been accepted
        │   └── AnswerMissingError  an accepted input's answer did not arrive
        ├── InputDeadLetteredError  an accepted input became a dead letter
        ├── SnapshotAbortedError    a requested snapshot was aborted
        ├── InputRejectedError      the input was not accepted in time
        ├── FleetEndedError         the fleet has ended and accepts no inputs
        ├── StepCancelledError      the result of a step is no longer needed
        ├── StepFailedError         a step of a durable turn raised an exception
        │   └── EffectFailedError   an effect raised an exception, and may still have happened
        ├── GuardViolationError     a guard rejected a step's result or a turn's output
        ├── CircuitOpenError        a service failed repeatedly, and is not called for a while
        ├── WaitTimeoutError        a wait of a durable turn timed out
        ├── UnansweredCallError     the called turn ended without answering the call
        ├── InputsError             some of many inputs have no receipt
        └── LogError                the coordinator's log is unreliable or cannot be written

Each error message names what the error is about, and the next step for the user. `exit_code` is the exit code of the command line for this
error (docs/cli.md). Errors about an input have the input's `agent` and `key` as attributes.
"""

from collections.abc import Sequence


class SnaplineError(Exception):
    """Base class of all errors that snapline raises."""

    exit_code = 1


class UsageError(SnaplineError, ValueError):
    """The caller misused the API."""

    exit_code = 2


class FleetDefinitionError(UsageError):
    """The definition of a fleet is invalid."""


class EncodingError(UsageError):
    """A message or state cannot be encoded, or cannot be decoded as its declared type."""

    exit_code = 1


class MessageTooLargeError(UsageError):
    """A message is larger than 16 MiB."""


class InputRefusedError(UsageError):
    """The agent will never accept the input.

    No handler accepts the input, its content does not match the declared type, or another input has already used its `key`.
    """

    agent = key = ""


class HandlerNotPublicError(InputRefusedError):
    """An input arrived through the gateway, but no handler marked `@snapline.handler(public=True)` accepts it."""


class DivergenceError(UsageError):
    """A replayed durable turn requested different steps than during its first run. The agent stops until it runs compatible
    code."""


class NotFoundError(UsageError):
    """The requested snapshot, agent or host does not exist."""

    exit_code = 4


class AgentMissingError(NotFoundError):
    """The input was not accepted because the agent is unknown or has stopped."""

    agent = key = ""


class PeerError(SnaplineError):
    """A peer violated the protocol."""


class ProtocolError(PeerError):
    """Two processes disagree about what was sent. Examples are a gap in the sequence numbers, an invalid column and an impossible
    number."""


class OlderIncarnationError(PeerError):
    """A message belongs to an incarnation, host generation or plan that has been replaced (G9)."""

    exit_code = 5


class ConnectionRejectedError(PeerError):
    """The coordinator or a peer permanently rejects this host."""

    exit_code = 5


class ExternalFailureError(SnaplineError):
    """The network or a disk failed, or a time limit was exceeded."""


class TraceError(ExternalFailureError):
    """A line of a trace is invalid or contradicts earlier lines. The error message contains the line numbers."""

    exit_code = 6


class StoreError(ExternalFailureError):
    """The store cannot be read or written."""


class StoreMissingError(StoreError):
    """No store exists at the given location."""

    exit_code = 10


class StoreKeyError(StoreError):
    """The encryption key is wrong or missing, or a key was given although the store is not encrypted."""

    exit_code = 2


class DamagedDataError(StoreError):
    """The stored bytes differ from the bytes that were written (G11)."""

    exit_code = 6


class CoordinatorUnavailableError(ExternalFailureError):
    """No coordinator replies at the given address."""

    exit_code = 8


class AuthenticationError(CoordinatorUnavailableError):
    """The coordinator replies, but one of the two processes does not trust the certificate authority of the other's certificate."""

    exit_code = 5


class SnapshotAbortedError(ExternalFailureError):
    """The epoch of a requested snapshot was aborted or could not be started. Request the snapshot again."""


class UnknownOutcomeError(ExternalFailureError):
    """The operation timed out, so it may or may not have taken effect."""

    exit_code = 9


class InputUnknownError(UnknownOutcomeError):
    """The input may have been accepted, or may be accepted later. Resending the input with the same `key` is safe and returns the
    outcome."""

    agent = key = ""


class AnswerMissingError(UnknownOutcomeError):
    """The input was accepted under `number`, but its answer did not arrive in time or was lost.

    Requesting the answer again with the same `key` is safe.
    """

    agent = key = ""
    number = 0


class InputDeadLetteredError(ExternalFailureError):
    """The input was accepted under `number`, but no turn was able to process it. The input is now a dead letter and has no answer."""

    exit_code = 3
    agent = key = ""
    number = 0


class InputRejectedError(ExternalFailureError):
    """The input was not accepted in time, and this attempt can no longer be accepted. A new attempt may succeed."""

    exit_code = 14
    agent = key = ""


class FleetEndedError(ExternalFailureError):
    """The input was not accepted because the fleet has ended."""

    exit_code = 13
    agent = key = ""


class StepCancelledError(ExternalFailureError):
    """The result of this attempt to run a step is no longer needed.

    The turn that contains the step was undone, or the attempt took too long. Release all resources and return.
    """


class StepFailedError(ExternalFailureError):
    """A step of a durable turn raised an exception in every attempt.

    `error` is the name of the exception class, and `reason` is the exception's message.
    """

    def __init__(self, message: str, *, step: str = "", error: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.step, self.error, self.reason = step, error, reason


class EffectFailedError(StepFailedError):
    """An effect raised an exception in every attempt, but may nevertheless have taken effect. `key` identifies the effect among all effects
    of its agent."""

    def __init__(self, message: str, *, step: str = "", error: str = "", reason: str = "", key: str = "") -> None:
        super().__init__(message, step=step, error=error, reason=reason)
        self.key = key


class GuardViolationError(ExternalFailureError):
    """The guard of a step has rejected what the step's function returned (`Context.step`), or the guard of a handler what the turn would
    send, emit or reply (`handler`)."""


class CircuitOpenError(ExternalFailureError):
    """A service has failed repeatedly, so calls to it are suspended for some time (`CircuitBreaker`)."""


class WaitTimeoutError(ExternalFailureError, TimeoutError):
    """A wait operation in a durable turn has timed out."""


class UnansweredCallError(ExternalFailureError):
    """A call will never be answered, because the called turn failed or ended without an answer, or the called agent does not exist."""


class InputsError(ExternalFailureError):
    """Several inputs were sent together, and some of them have no receipt. `outcomes` contains the receipt or error of each input, in the
    order of the inputs."""

    def __init__(self, message: str, outcomes: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)


class LogError(ExternalFailureError):
    """The coordinator's log is unreliable or cannot be written. The process must then exit, because it could otherwise contradict its
    earlier messages (G8)."""
