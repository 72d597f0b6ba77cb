"""Circuit breaker for an agent's state: after repeated failures, a service is not called for a while.

The breaker is part of the agent's state, so checkpoints contain it. A turn that fails permanently does not change the breaker's counts. The
breaker counts only results that are in the turn's journal, and it uses the context's time. A rerun durable turn therefore makes the same
decisions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from snapline.errors import CircuitOpenError, UsageError

_NS = 1_000_000_000


class Clock(Protocol):
    """Interface that `CircuitBreaker` requires from a context."""

    def now(self) -> int: ...


class CircuitBreaker(msgspec.Struct):
    """A circuit breaker for one service, kept as a field of an agent's state. After `failures_max` consecutive failures, the service is not
    called for `open_s` seconds. Then one trial call decides whether the breaker closes.

    Use the breaker as `with self.state.bank.guard(ctx): await ctx.effect(…)`, and catch the errors that the block raises, or give it to
    `ctx.step` together with a fallback. If the errors are not caught, the turn fails and the breaker's counts are reverted.

    Attributes:
        failures_max: number of consecutive failures that open the breaker, at least 1.
        open_s: time in seconds for which the breaker stays open.
        failures: current number of consecutive failures.
        opened_ns: time at which the breaker opened, in nanoseconds since 1970, or 0 if it is closed.
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
        """Guard calls to one service. Any error that the guarded block raises counts as a failure, except `UsageError`.

        Raises:
            CircuitOpenError: If the breaker is open. If the breaker is open, the guarded block does not run.
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
