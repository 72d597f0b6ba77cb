"""Checks approvals: a turn goes on only with an answer that somebody gave to exactly its question, and what people have learned as final
stays true."""

import msgspec

from snapline.agent_runtime.durable import DONE
from snapline.messages.approvals import TAKEN, AnswerOutcome
from snapline.sim.oracles.ground_truth_records import Report
from snapline.storage.packs.checkpoint import JournalEntry


class GivenAnswer(msgspec.Struct, frozen=True):
    """An answer that a simulated person has given."""

    approval: str
    is_granted: bool


class ApprovalOracle:
    """Oracle that checks the approvals in one run."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._given: dict[str, GivenAnswer] = {}
        self._finals: dict[str, str] = {}
        """Approval → the key of the answer whose author has learned that it is taken, for good."""

    def on_given(self, approval: str, key: str, *, is_granted: bool) -> None:
        """Record that a person gives an answer, whose note is `key`."""
        self._given[key] = GivenAnswer(approval, is_granted)

    def on_final(self, t_ns: int, key: str, outcome: AnswerOutcome) -> None:
        """Record what a person has learned about an answer, which no recovery may undo."""
        if outcome.status != TAKEN:
            return
        approval = self._given[key].approval
        before = self._finals.setdefault(approval, key)
        if before != key:
            self._report("approvals", "G3", t_ns, f"approval {approval} has taken two answers: {before} and {key}")

    def on_decided(self, t_ns: int, agent: str, approval: str, entry: JournalEntry) -> None:
        """Check a decision with which a turn goes on under the newest plan."""
        key = ""
        if entry.outcome == DONE:
            is_granted, key = msgspec.msgpack.decode(entry.result, type=tuple[bool, str])
            if self._given.get(key) != GivenAnswer(approval, is_granted):
                text = f"{agent} goes on with an answer that nobody has given to approval {approval}: {key}"
                self._report("approvals", "G3", t_ns, text)
        final = self._finals.get(approval)
        if final is not None and final != key:
            text = f"{agent} goes on with {key or 'the expiry'} of approval {approval}, and {final} was taken for good"
            self._report("approvals", "G3", t_ns, text)

    def on_fallen_back(self) -> None:
        """Forget what is final, because the fleet returns to before a complete epoch."""
        self._finals.clear()
