"""One agent's inputs and outputs in a host core.

Inputs from outside are numbered from 1 over all the agent's hosts and incarnations. The agent's checkpoint contains the number of the last
input that was consumed, by a turn or as a dead letter. After a recovery later inputs are delivered again from the host log. The keys of
consumed inputs are kept, within limits.

Outputs are numbered too, and kept until their release is known.
"""

import itertools
from collections import deque

import msgspec

from snapline.agent_runtime.host.host_events import Emission
from snapline.agent_runtime.message_encoding import without_tail
from snapline.errors import ProtocolError
from snapline.storage.disk.record import digest_of
from snapline.storage.log.log_record import LoggedInput
from snapline.storage.packs.checkpoint import (
    DROPPED_REPLY,
    NO_INPUTS,
    NO_OUTPUTS,
    KnownKey,
    SavedInputs,
    SavedOutput,
    SavedOutputs,
)
from snapline.storage.timestamps import ages_ns, step_ns

KEYS_KEPT = 1000
"""Largest number of keys of consumed inputs that an agent remembers: some 60 KB in each of its checkpoints."""

KEYS_KEPT_NS = 3600 * 1_000_000_000
"""Largest age of a key, relative to the newest one: far longer than any client retries."""

STEP_NS = 60 * 1_000_000_000
"""Largest counted step from one key to the next (`storage/timestamps.py`): after a clock jump at least the last sixty keys are kept."""

REPLIES_BYTES_MAX = 1024 * 1024
"""Largest size of remembered answers, without the newest one. Each of the agent's checkpoints contains these answers."""

DIGEST_BYTES = 16


class PendingInput:
    """A numbered input that is not consumed yet.

    Attributes:
        is_durable: the input's batch is in the log.
        waiters: requests to answer when the input is durable, as (request, index of the input in the request).
    """

    __slots__ = ("input", "is_durable", "waiters")

    def __init__(self, logged: LoggedInput, *, is_durable: bool) -> None:
        self.input = logged
        self.is_durable = is_durable
        self.waiters: list[tuple[int, int]] = []


class AgentInputs:
    """One agent's inputs.

    Attributes:
        consumed: number of the last consumed input.
        numbered: last number assigned.
        waiting: inputs with numbers after `consumed`, up to `numbered`, by key.
        keys: keys of consumed inputs, oldest first.
        reply_bytes: size of the answers kept with the keys.
        span_ns: time from the oldest key to the newest.
        retries: key of an operator command that retried a dead letter → key of the dead letter's input.
        released: number of the last input known to be consumed in a complete epoch, in which its turn and all earlier turns have ended.
    """

    __slots__ = ("consumed", "keys", "numbered", "released", "reply_bytes", "retries", "span_ns", "waiting")

    def __init__(self, saved: SavedInputs = NO_INPUTS) -> None:
        self.consumed = self.numbered = saved.number
        self.released = saved.settled
        self.waiting: dict[str, PendingInput] = {}
        self.keys = {known.key: known for known in saved.keys}
        self.retries = {known.retried_by: known.key for known in saved.keys if known.retried_by}
        self.reply_bytes = sum([len(known.reply) for known in saved.keys])
        self.span_ns = max(ages_ns([known.admitted_ns for known in saved.keys], STEP_NS))

    def saved(self) -> SavedInputs:
        """Return the inputs in the form for a checkpoint."""
        return SavedInputs(self.consumed, list(self.keys.values()))

    def add(self, logged: LoggedInput, *, is_durable: bool) -> PendingInput:
        """Add the next input, which was just numbered or was found in a log."""
        if logged.number != self.numbered + 1:
            raise ProtocolError(f"input {logged.number} of {logged.agent} follows {self.numbered}")
        self.numbered = logged.number
        pending = self.waiting[logged.key] = PendingInput(logged, is_durable=is_durable)
        return pending

    def drop(self, logged: LoggedInput) -> None:
        """Drop an input without a turn, after a deliberate rollback of the fleet. The key stays known, since clients may repeat it.

        Logs may have lost earlier inputs, so a gap among dropped inputs is not an error.
        """
        self.consumed, self.numbered = logged.number - 1, logged.number
        self.consume(logged, is_dead_lettered=True, reply=DROPPED_REPLY)

    def consume(
        self, logged: LoggedInput, *, is_dead_lettered: bool, reply: bytes = b"", is_open: bool = False
    ) -> None:
        """Consume the next input: after its turn, as a dead letter, or, if `is_open`, before its turn has ended."""
        if logged.number != self.consumed + 1:
            raise ProtocolError(f"input {logged.number} of {logged.agent} is consumed after {self.consumed}")
        self.consumed = logged.number
        self.waiting.pop(logged.key, None)
        digest = digest_of(without_tail(logged.payload))[:DIGEST_BYTES]
        known = KnownKey(logged.key, logged.number, digest, logged.admitted_ns, is_dead_lettered, reply, is_open)
        newest = next(reversed(self.keys.values()), known)
        self.span_ns += step_ns(newest.admitted_ns, known.admitted_ns, STEP_NS)
        self.keys[logged.key] = known
        self.reply_bytes += len(reply)
        self._forget_keys()
        self._forget_replies(logged.key)

    def close(self, key: str, *, is_dead_lettered: bool, reply: bytes) -> None:
        """Record that the turn of this input has ended."""
        known = self.keys[key]
        self.keys[key] = msgspec.structs.replace(known, is_dead_lettered=is_dead_lettered, reply=reply, is_open=False)
        self.reply_bytes += len(reply)
        self._forget_replies(key)

    def retried(self, key: str, by: str) -> None:
        """Record that the operator command with the other key has given the input's dead letter a new turn."""
        known = self.keys.get(key)
        if known is not None:
            self.retries.pop(known.retried_by, None)
            self.retries[by] = key
            self.keys[key] = msgspec.structs.replace(known, retried_by=by)

    def answered(self, key: str) -> KnownKey | None:
        """Return the key under which the answer to a consumed input is kept: from its own turn, or from the last turn of its dead
        letter."""
        known = self.keys.get(key)
        return self.keys.get(known.retried_by, known) if known is not None else None

    def _forget_keys(self) -> None:
        """Drop the oldest keys, by consumption order rather than time, so that a replay drops the same ones."""
        keys = self.keys
        while len(keys) > KEYS_KEPT or self.span_ns > KEYS_KEPT_NS:
            oldest, following = itertools.islice(keys.values(), 2)
            if oldest.is_open:
                break
            self.span_ns -= step_ns(oldest.admitted_ns, following.admitted_ns, STEP_NS)
            self.retries.pop(oldest.retried_by, None)
            self.reply_bytes -= len(keys.pop(oldest.key).reply)

    def _forget_replies(self, newest: str) -> None:
        """Drop the answers of the oldest inputs if the answers are too large. The newest answer is never dropped, since its client has not
        received it."""
        if self.reply_bytes <= REPLIES_BYTES_MAX:
            return
        for known in [known for known in self.keys.values() if known.key != newest]:
            if self.reply_bytes <= REPLIES_BYTES_MAX:
                return
            if not known.is_dropped:
                self.reply_bytes -= len(known.reply)
                self.keys[known.key] = msgspec.structs.replace(known, reply=b"")


class AgentOutputs:
    """One agent's outputs.

    Attributes:
        number: number of the last output.
        pending: outputs whose release is not known, with ascending numbers up to `number`, without gaps.
        size_bytes: size of the pending payloads.
    """

    __slots__ = ("number", "pending", "size_bytes")

    def __init__(self, saved: SavedOutputs = NO_OUTPUTS) -> None:
        self.number = saved.number
        self.pending = deque(saved.pending)
        self.size_bytes = sum([len(output.payload) for output in saved.pending])

    def saved(self) -> SavedOutputs:
        """Return the outputs in the form for a checkpoint."""
        return SavedOutputs(self.number, list(self.pending))

    def add(self, emission: Emission) -> None:
        """Add the next output."""
        topic, payload, emitted_ns = emission
        self.number += 1
        self.pending.append(SavedOutput(self.number, topic, payload, emitted_ns))
        self.size_bytes += len(payload)

    def release(self, number: int) -> None:
        """Drop the outputs up to this number, which an epoch has released."""
        while self.pending and self.pending[0].number <= number:
            self.size_bytes -= len(self.pending.popleft().payload)

    def holds(self, number: int) -> bool:
        """Return whether this output is still pending, since its release is not known."""
        return bool(self.pending) and self.pending[0].number <= number <= self.number

    def validate(self) -> None:
        first = self.number - len(self.pending) + 1
        assert [output.number for output in self.pending] == list(range(first, self.number + 1))
        assert self.size_bytes == sum([len(output.payload) for output in self.pending])
