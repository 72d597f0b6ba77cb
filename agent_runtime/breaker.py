"""Circuit breaker as part of an agent's state: a service that fails repeatedly is not called for a while.

The breaker is plain state: checkpoints contain it, and a turn that fails permanently reverts its counts. The breaker counts results in the
turn's journal and uses the context's time, so a repeated durable turn decides as before.
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
    """A field of an agent's state, one for each service. After `failures_max` failures in a row the service is not called for `open_s`
    seconds; then one trial call decides.

    `with self.state.bank.guard(ctx): await ctx.effect(…)`. Catch errors of the block: a turn that fails reverts its counts.

    Attributes:
        failures_max: number of failures in a row that open the breaker, at least 1.
        open_s: time for which the breaker stays open.
        failures: current number of failures in a row.
        opened_ns: time since when the breaker is open, in nanoseconds since 1970; 0: closed.
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
        """Guard the calls of one service. Any error of the block counts as a failure, except misuse of this API.

        Raises:
            CircuitOpenError: If too many calls failed recently; the block does not run.
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
