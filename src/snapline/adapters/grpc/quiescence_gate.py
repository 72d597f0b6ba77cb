"""Decide whether a cut of a service with handlers in threads may be taken, and whether its fleet may go back. No I/O, no threads.

A thread is *inside* from its beginning to its end, except while it waits in a call of the member's: what it does inside, between two of these waits, is
one piece. A cut, and a recovery, find no half of a piece. For that they need nobody inside, not that nobody runs: a readers-writer gate (Courtois, Heymans
and Parnas 1971), with threads as readers, which run in parallel as before, and cuts as writers.

- A cut that wants in shuts the gate: nobody comes in, and it is taken when the last one inside has ended or waits. Waiters come in between two cuts.
- It takes turns with threads. One inside may wait for one that waits at the gate, for its lock perhaps, and never come out; or be inside for long,
  and everybody else would wait with the cut. So the gate is shut for PATIENCE_NS, then open for as long, then shut and open for twice as long each,
  and so on, until the cut is taken or its epoch has timed out. A cut is taken at the latest when the gate is shut for longer than a piece takes;
  and threads have half of the time.
- A cut is wanted as long as it is asked for. Nobody says when it is not any more: that is so when it has not been asked for LAPSE_NS.
- Threads cannot be killed. Those of before a recovery may be inside behind it: the fleet has gone back here when all of them have ended.

Everything is said to the gate in one thread, the loop's; it is the caller's duty to say `leave` and `end` in one piece with what the thread has done: with the
call's place in the ledger, and the handler's answer.
"""

PATIENCE_NS = 50_000_000
"""Time that is long next to a piece, which is computing, and short next to an epoch's time-out."""

LAPSE_NS = 25_000_000
"""Time without a question after which no cut is wanted: five times `member.READY_LOOK_S`."""


class QuiescenceGate:
    """See the module.

    Attributes:
        inside: numbers of threads that are inside; of those that have begun.
        begun: number of each thread that has begun and not ended → the plan of which it is.
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
        """Open the gate: the cut is taken, or wanted no more."""
        self._asked_ns = None

    def may_enter(self, now_ns: int) -> bool:
        """Return whether a thread may come in. If so, it is in when `enter` is called in the same piece."""
        if not self._is_wanted(now_ns):
            return True
        passed = (now_ns - self._wanted_since_ns) // PATIENCE_NS
        round_ = (
            1 << (passed // 2 + 1).bit_length() - 1
        )  # 1, 2, 4 …: the gate is shut for so long, then open, counted in PATIENCE_NS
        return passed - 2 * (round_ - 1) >= round_

    def enter(self, thread: int, plan: int) -> None:
        """Mark a thread as inside. Its plan stays the one in which it began."""
        self.begun.setdefault(thread, plan)
        self.inside.add(thread)

    def leave(self, thread: int) -> None:
        """Mark a thread as waiting in a call. No effect on one that is outside."""
        self.inside.discard(thread)

    def end(self, thread: int) -> None:
        """Remove a thread that has ended, and comes in no more."""
        self.inside.discard(thread)
        self.begun.pop(thread, None)

    def are_over(self, plan: int) -> bool:
        """Return whether all threads of other plans have ended."""
        return all(each == plan for each in self.begun.values())

    def _is_wanted(self, now_ns: int) -> bool:
        return self._asked_ns is not None and now_ns - self._asked_ns < LAPSE_NS
