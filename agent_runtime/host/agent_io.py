"""One agent's inputs and outputs in a host core.

An agent's inputs from outside the fleet are numbered from 1, across all its hosts and incarnations. The agent's checkpoint contains the
number of the last input that was consumed, either by a turn or as a dead letter. After a recovery, all later inputs are redelivered from
the host log. The keys of consumed inputs are kept, within limits, to detect duplicates.

Outputs are also numbered, and each output is kept until the host knows that it has been released.
"""

import itertools
from collections import deque
from collections.abc import Iterable

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
"""Largest number of keys of consumed inputs that an agent remembers. They take some 60 KB in each of its checkpoints."""

KEYS_KEPT_NS = 3600 * 1_000_000_000
"""Largest age of a remembered key, relative to the newest key. It is far longer than any client retries."""

STEP_NS = 60 * 1_000_000_000
"""Largest time that counts between two consecutive keys (`storage/timestamps.py`). So after a clock jump at least the last sixty keys are
kept."""

REPLIES_BYTES_MAX = 1024 * 1024
"""Largest total size of the replies that an agent remembers, not counting the newest reply. Each of the agent's checkpoints contains these
replies."""

DIGEST_BYTES = 16


class PendingInput:
    """A numbered input that has not been consumed yet.

    Attributes:
        is_durable: whether the log contains the batch to which the input belongs.
        waiters: client requests to be answered when the input is durable, as pairs of a request and the input's index in that request.
        plan, batch: plan of the log that this host has written the input to, and number of the batch, or 0 if there is none.
    """

    __slots__ = ("batch", "input", "is_durable", "plan", "waiters")

    def __init__(self, logged: LoggedInput, *, is_durable: bool) -> None:
        self.input = logged
        self.is_durable = is_durable
        self.waiters: list[tuple[int, int]] = []
        self.plan = self.batch = 0


class AgentInputs:
    """One agent's inputs.

    Attributes:
        consumed: number of the input that was consumed last.
        numbered: highest input number that has been assigned.
        waiting: inputs with numbers after `consumed` and up to `numbered`, by key.
        keys: keys of consumed inputs, oldest first.
        reply_bytes: total size of the replies that are kept with the keys.
        span_ns: time in nanoseconds between the oldest and the newest key.
        retries: mapping from the key of the operator command that retried a dead letter to the key of the dead letter's input.
        released: number of the last input known to be consumed in a complete epoch, such that its turn and the turns of all earlier inputs
            have ended.
        early: inputs that a durable turn has taken, so that they have ended before earlier inputs: number, and the newest epoch that had
            begun then.
        early_released: those of them that are known to have ended in a complete epoch or in a durable commit.
    """

    __slots__ = (
        *("consumed", "early", "early_released", "keys", "numbered", "released"),
        *("reply_bytes", "retries", "span_ns", "waiting"),
    )

    def __init__(self, saved: SavedInputs = NO_INPUTS) -> None:
        self.consumed = self.numbered = saved.number
        self.released = saved.settled
        self.early: dict[int, int] = {}
        ended = [known.number for known in saved.keys if not known.is_open and known.number > saved.settled]
        self.early_released: dict[int, None] = dict.fromkeys(ended)
        self.waiting: dict[str, PendingInput] = {}
        self.keys = {known.key: known for known in saved.keys}
        self.retries = {known.retried_by: known.key for known in saved.keys if known.retried_by}
        self.reply_bytes = sum([len(known.reply) for known in saved.keys])
        self.span_ns = max(ages_ns([known.admitted_ns for known in saved.keys], STEP_NS))

    def saved(self) -> SavedInputs:
        """Return the data to be saved in a checkpoint: the number of the last consumed input, and the keys."""
        return SavedInputs(self.consumed, list(self.keys.values()))

    def is_released(self, number: int) -> bool:
        """Return whether no recovery can undo the end of this input, which has ended."""
        return number <= self.released or number in self.early_released

    def release(self, number: int) -> None:
        """Record that all inputs up to this number have ended for good."""
        self.released = max(self.released, number)
        if self.early or self.early_released:
            self.early = {each: begun for each, begun in self.early.items() if each > number}
            self.early_released = {each: None for each in self.early_released if each > number}

    def release_early(self, numbers: Iterable[int]) -> None:
        """Record that inputs have ended for good, although earlier ones have not."""
        for number in [number for number in numbers if number in self.early]:
            del self.early[number]
            self.early_released[number] = None

    def add(self, logged: LoggedInput, *, is_durable: bool) -> PendingInput:
        """Add the next input, which was either just numbered or found in a log."""
        if logged.number != self.numbered + 1:
            raise ProtocolError(f"input {logged.number} of {logged.agent} follows {self.numbered}")
        self.numbered = logged.number
        pending = self.waiting[logged.key] = PendingInput(logged, is_durable=is_durable)
        return pending

    def withdraw(self, pending: PendingInput) -> None:
        """Remove an input that will never be durable, and those after it, so that their numbers are assigned again."""
        del self.waiting[pending.input.key]
        self.numbered = min(self.numbered, pending.input.number - 1)

    def drop(self, logged: LoggedInput) -> None:
        """Consume an input without running a turn, after an operator or handler has rolled back the fleet. The input's key is remembered,
        because clients may resend the input.

        A gap between dropped inputs is not an error, because earlier inputs may have been deleted from the logs.
        """
        self.consumed, self.numbered = logged.number - 1, logged.number
        self.consume(logged, is_dead_lettered=True, reply=DROPPED_REPLY)

    def consume(
        self, logged: LoggedInput, *, is_dead_lettered: bool, reply: bytes = b"", is_open: bool = False
    ) -> None:
        """Consume the next input. If `is_open` is set, the input's turn is still running. Otherwise the turn has ended, or the input
        has become a dead letter."""
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
        """Record that the turn of an already consumed input has ended."""
        known = self.keys[key]
        self.keys[key] = msgspec.structs.replace(known, is_dead_lettered=is_dead_lettered, reply=reply, is_open=False)
        self.reply_bytes += len(reply)
        self._forget_replies(key)

    def retried(self, key: str, by: str) -> None:
        """Record that the operator command with key `by` has retried the dead letter of the input with key `key`."""
        known = self.keys.get(key)
        if known is not None:
            self.retries.pop(known.retried_by, None)
            self.retries[by] = key
            self.keys[key] = msgspec.structs.replace(known, retried_by=by)

    def answered(self, key: str) -> KnownKey | None:
        """Return the record with the reply to a consumed input. The reply comes from the input's own turn or from the last retry of its
        dead letter. Return None if the key is unknown."""
        known = self.keys.get(key)
        return self.keys.get(known.retried_by, known) if known is not None else None

    def _forget_keys(self) -> None:
        """Forget the oldest keys above the limits. Keys are forgotten in the order of consumption and not by time, so that a replay forgets
        the same keys."""
        keys = self.keys
        while len(keys) > KEYS_KEPT or self.span_ns > KEYS_KEPT_NS:
            oldest, following = itertools.islice(keys.values(), 2)
            if oldest.is_open:
                break
            self.span_ns -= step_ns(oldest.admitted_ns, following.admitted_ns, STEP_NS)
            self.retries.pop(oldest.retried_by, None)
            self.reply_bytes -= len(keys.pop(oldest.key).reply)

    def _forget_replies(self, newest: str) -> None:
        """Forget the replies to the oldest inputs if all replies together exceed the size limit. The newest reply is always kept, because
        its client has not received it yet."""
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
        number: number of the agent's newest output.
        pending: outputs that are not yet known to be released. The numbers of the pending outputs are consecutive and end with `number`.
        size_bytes: total size of the pending outputs' payloads.
    """

    __slots__ = ("number", "pending", "size_bytes")

    def __init__(self, saved: SavedOutputs = NO_OUTPUTS) -> None:
        self.number = saved.number
        self.pending = deque(saved.pending)
        self.size_bytes = sum([len(output.payload) for output in saved.pending])

    def saved(self) -> SavedOutputs:
        """Return the outputs to be saved in a checkpoint."""
        return SavedOutputs(self.number, list(self.pending))

    def add(self, emission: Emission) -> None:
        """Assign a number to an output, and add it to the pending outputs."""
        topic, payload, emitted_ns = emission
        self.number += 1
        self.pending.append(SavedOutput(self.number, topic, payload, emitted_ns))
        self.size_bytes += len(payload)

    def release(self, number: int) -> None:
        """Remove all outputs up to this number, because an epoch has released them."""
        while self.pending and self.pending[0].number <= number:
            self.size_bytes -= len(self.pending.popleft().payload)

    def holds(self, number: int) -> bool:
        """Return whether the output with this number is still pending."""
        return bool(self.pending) and self.pending[0].number <= number <= self.number

    def validate(self) -> None:
        first = self.number - len(self.pending) + 1
        assert [output.number for output in self.pending] == list(range(first, self.number + 1))
        assert self.size_bytes == sum([len(output.payload) for output in self.pending])
