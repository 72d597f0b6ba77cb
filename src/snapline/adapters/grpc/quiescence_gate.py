"""Decide when a cut of a service with threaded handlers may be taken, and when its fleet may roll back. No I/O, no threads.

A thread is *inside* from its beginning to its end, except while it waits in a call of the member. Its work inside, between two of these waits, is
one atomic piece. Cuts and recoveries must not split a piece. So they need no thread to be inside, but threads may still be running. The gate is a
readers-writer lock (Courtois, Heymans and Parnas 1971): threads are the readers, which run in parallel as usual, and cuts are the writers.

- A cut that is requested shuts the gate: no thread enters, and the cut is taken when the last thread inside has ended or waits. Waiting threads
  enter between two cuts.
- Cuts alternate with threads. A thread inside may depend on a thread at the gate, for example on its lock, and never leave; or it may be inside for
  long, and all other threads would wait with the cut. So the gate is shut for PATIENCE_NS, then open for as long, then shut and open for twice
  as long each, and so on, until the cut is taken or its epoch has timed out. A cut is taken at the latest when the gate is shut for longer than a
  piece takes, and threads can run half of the time.
- A cut is wanted as long as it is requested. Its end is not reported: it is assumed when there was no request for LAPSE_NS.
- Threads cannot be killed. Threads from before a recovery may remain inside: here the rollback is complete when all of them have ended.

All methods are called in one thread, that of the loop. The caller must call `leave` and `end` in one piece with the thread's work: with the
call's entry in the ledger, and with the handler's answer.
"""

PATIENCE_NS = 50_000_000
"""Initial period of the gate: long compared to a piece, which only computes, and short compared to an epoch's time-out."""

LAPSE_NS = 25_000_000
"""Time without a request after which no cut is wanted: five times `member.READY_LOOK_S`."""


class QuiescenceGate:
    """See the module.

    Attributes:
        inside: numbers of the threads that are inside, a subset of `begun`.
        begun: number of each thread that has begun and not ended → its plan.
    """

    def __init__(self) -> None:
        self.inside: set[int] = set()
        self.begun: dict[int, int] = {}
        self._wanted_since_ns = 0
        self._asked_ns: int | None = None

    def ask(self, now_ns: int) -> bool:
        """Request a cut; return whether it may be taken now."""
        if not self._is_wanted(now_ns):
            self._wanted_since_ns = now_ns
        self._asked_ns = now_ns
        return not self.inside

    def open(self) -> None:
        """Open the gate: the cut was taken, or is not wanted any more."""
        self._asked_ns = None

    def may_enter(self, now_ns: int) -> bool:
        """Return whether a thread may enter; the caller must then call `enter` in the same piece."""
        if not self._is_wanted(now_ns):
            return True
        elapsed = (now_ns - self._wanted_since_ns) // PATIENCE_NS
        round_ = (
            1 << (elapsed // 2 + 1).bit_length() - 1
        )  # 1, 2, 4 …: length of the period for which the gate is shut and then open, in PATIENCE_NS
        return elapsed - 2 * (round_ - 1) >= round_

    def enter(self, thread: int, plan: int) -> None:
        """Mark a thread as inside. Its plan remains the one under which it began."""
        self.begun.setdefault(thread, plan)
        self.inside.add(thread)

    def leave(self, thread: int) -> None:
        """Mark a thread as waiting in a call. No effect on a thread that is outside."""
        self.inside.discard(thread)

    def end(self, thread: int) -> None:
        """Remove a thread that has ended."""
        self.inside.discard(thread)
        self.begun.pop(thread, None)

    def are_over(self, plan: int) -> bool:
        """Return whether all threads of other plans have ended."""
        return all(thread_plan == plan for thread_plan in self.begun.values())

    def _is_wanted(self, now_ns: int) -> bool:
        return self._asked_ns is not None and now_ns - self._asked_ns < LAPSE_NS
