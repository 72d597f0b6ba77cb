"""A circuit breaker as a part of an agent's state: a service that has failed again and again is not called for a while.

It is plain state. It counts results in the turn's journal, and its time is the context's: so a durable turn that is run again decides as it did,
checkpoints hold it, and a turn that fails permanently takes back its counts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from snapline.errors import CircuitOpenError, UsageError

_NS = 1_000_000_000


class Clock(Protocol):
    """The part of a context that the breaker needs."""

    def now(self) -> int: ...


class CircuitBreaker(msgspec.Struct):
    """A field of a state, one for each service: after `failures_max` failures in a row nothing is called for `open_s` seconds, then one call decides.

    `with self.state.bank.guard(ctx): await ctx.effect(…)`. Catch what the block raises: a turn that fails takes back its counts.

    Attributes:
        failures_max: number of failures in a row that open it, from 1 on.
        open_s: time for which it is open then.
        failures: in a row, up to now.
        opened_ns: since when it is open, in nanoseconds since 1970; 0: it is not.
    """

    failures_max: int = 5
    open_s: float = 60.0
    failures: int = 0
    opened_ns: int = 0

    def __post_init__(self) -> None:
        if self.failures_max < 1 or not self.open_s > 0:
            raise UsageError(
                f"a circuit breaker opens after 1 failure or more, for more than 0 seconds, not {self.failures_max} and {self.open_s:g}"
            )

    @contextmanager
    def guard(self, ctx: Clock) -> Iterator[None]:
        """Guard the calls of one service. Any error that the block raises counts as a failure, unless it is a misuse of ours.

        Raises:
            CircuitOpenError: too many have failed lately; the block is not run.
        """
        if self.opened_ns:
            left_s = self.open_s - (ctx.now() - self.opened_ns) / _NS
            if left_s > 0:
                raise CircuitOpenError(
                    f"{self.failures} calls in a row have failed: the next one may come in {left_s:.3g} s"
                )
        try:
            yield
        except UsageError:
            raise
        except Exception:
            self.failures += 1
            if self.failures >= self.failures_max:
                self.opened_ns = ctx.now()
            raise
        self.failures = self.opened_ns = 0
