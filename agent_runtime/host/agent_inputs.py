"""What a host core keeps of one agent's inputs from outside: which were taken, which wait, and the keys of those that are done.

Inputs of an agent are numbered 1, 2, 3 … over all its owners and lives. The number of the last one that a turn, or the dead
letters, consumed is in the agent's checkpoint; those beyond it come again from the host log.
"""

import itertools

import msgspec

from snapline.agent_runtime.traceparents import without_tail
from snapline.errors import ProtocolError
from snapline.storage.ages import ages_ns, step_ns
from snapline.storage.log.record import LoggedInput
from snapline.storage.packs.checkpoint import DROPPED, NO_INPUTS, KnownKey, SavedInputs
from snapline.storage.store.record import digest_of

KEYS_KEPT = 1000
"""Keys of consumed inputs that an agent remembers at most: some 60 KB in each of its checkpoints."""

KEYS_KEPT_NS = 3600 * 1_000_000_000
"""How much older than the newest one they may be: far longer than any client repeats a request."""

STEP_NS = 60 * 1_000_000_000
"""From one key to the next no more counts (`storage/ages.py`): after a jump of the clock the last sixty are known at the least."""

REPLIES_BYTES_MAX = 1024 * 1024
"""Of answers that an agent remembers, but for the newest: they are in each of its checkpoints."""

DIGEST_BYTES = 16


class PendingInput:
    """An input that has its number and is not consumed.

    Attributes:
        is_durable: its batch is in the log.
        waiters: requests to be told when it is, as (request, place of the input in it).
    """

    __slots__ = ("input", "is_durable", "waiters")

    def __init__(self, logged: LoggedInput, *, is_durable: bool) -> None:
        self.input = logged
        self.is_durable = is_durable
        self.waiters: list[tuple[int, int]] = []


class AgentInputs:
    """One agent's inputs.

    Attributes:
        consumed: number of the last one consumed.
        numbered: the last number given.
        waiting: by key, those between.
        keys: of consumed ones, oldest first.
        reply_bytes: of their answers.
        span_ns: from the oldest of them to the newest.
        retries: the operator's words that tried dead letters again, by key → the key of the letter's input.
        released: the last one that a complete epoch is known to hold as consumed, with the end of its turn and of all before.
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
        """As a checkpoint holds it."""
        return SavedInputs(self.consumed, list(self.keys.values()))

    def add(self, logged: LoggedInput, *, is_durable: bool) -> PendingInput:
        """The next input: numbered just now, or found in a log."""
        if logged.number != self.numbered + 1:
            raise ProtocolError(f"input {logged.number} of {logged.agent} follows {self.numbered}")
        self.numbered = logged.number
        pending = self.waiting[logged.key] = PendingInput(logged, is_durable=is_durable)
        return pending

    def drop(self, logged: LoggedInput) -> None:
        """It has no turn: the fleet went back on purpose, and inputs are dropped. Its key stays known, for who says it again.

        Logs that have lost some hold others: nobody misses what is dropped.
        """
        self.consumed, self.numbered = logged.number - 1, logged.number
        self.consume(logged, is_buried=True, reply=DROPPED)

    def consume(self, logged: LoggedInput, *, is_buried: bool, reply: bytes = b"", is_open: bool = False) -> None:
        """The next one has had its turn, is a dead letter, or, `is_open`, is consumed before its turn has ended."""
        if logged.number != self.consumed + 1:
            raise ProtocolError(f"input {logged.number} of {logged.agent} is consumed after {self.consumed}")
        self.consumed = logged.number
        self.waiting.pop(logged.key, None)
        digest = digest_of(without_tail(logged.payload))[:DIGEST_BYTES]
        known = KnownKey(logged.key, logged.number, digest, logged.admitted_ns, is_buried, reply, is_open)
        newest = next(reversed(self.keys.values()), known)
        self.span_ns += step_ns(newest.admitted_ns, known.admitted_ns, STEP_NS)
        self.keys[logged.key] = known
        self.reply_bytes += len(reply)
        self._forget_keys()
        self._forget_replies(logged.key)

    def close(self, key: str, *, is_buried: bool, reply: bytes) -> None:
        """The turn of this one has ended."""
        known = self.keys[key]
        self.keys[key] = msgspec.structs.replace(known, is_buried=is_buried, reply=reply, is_open=False)
        self.reply_bytes += len(reply)
        self._forget_replies(key)

    def retried(self, key: str, by: str) -> None:
        """Its dead letter has a turn again, for the operator's word of the other key."""
        known = self.keys.get(key)
        if known is not None:
            self.retries.pop(known.retried_by, None)
            self.retries[by] = key
            self.keys[key] = msgspec.structs.replace(known, retried_by=by)

    def answered(self, key: str) -> KnownKey | None:
        """What has the answer to a consumed input: its own turn, or the last one that its dead letter had."""
        known = self.keys.get(key)
        return self.keys.get(known.retried_by, known) if known is not None else None

    def _forget_keys(self) -> None:
        """Follows from what was consumed, not from when: a replay forgets the same."""
        keys = self.keys
        while len(keys) > KEYS_KEPT or self.span_ns > KEYS_KEPT_NS:
            oldest, following = itertools.islice(keys.values(), 2)
            if oldest.is_open:
                break
            self.span_ns -= step_ns(oldest.admitted_ns, following.admitted_ns, STEP_NS)
            self.retries.pop(oldest.retried_by, None)
            self.reply_bytes -= len(keys.pop(oldest.key).reply)

    def _forget_replies(self, newest: str) -> None:
        """Those of the oldest inputs, if they are too many; never the one just given: who waits for it has not heard it."""
        if self.reply_bytes <= REPLIES_BYTES_MAX:
            return
        for known in [known for known in self.keys.values() if known.key != newest]:
            if self.reply_bytes <= REPLIES_BYTES_MAX:
                return
            if not known.is_dropped:
                self.reply_bytes -= len(known.reply)
                self.keys[known.key] = msgspec.structs.replace(known, reply=b"")
