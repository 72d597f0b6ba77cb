"""R1: an input that was acknowledged takes effect exactly once, whatever dies and whatever is rolled back. R2: an answer that was told as
final is never taken back,
unless the bytes of a complete epoch are lost.

Clients tell what they offered and what they were answered; the books say which inputs the turns, and the dead letters, of each history
consumed. Every input has other bytes, so these are its name: numbers, keys and logs of the product are not looked at.
"""

from collections.abc import Iterable, Mapping

import msgspec

from snapline.sim.oracles.book_records import AgentHistory, Report, show
from snapline.sim.oracles.drops import Drops


class Offered(msgspec.Struct):
    """One input. `serial`: among those of its client. `acknowledged_ns`: 0 while it was not. `number`: as the client was told.
    `answer`: what its client was told as final; None: nothing. `is_given_up`: its client has gone on without an answer, so it may come after others."""

    agent: str
    client: str
    serial: int
    acknowledged_ns: int = 0
    number: int = 0
    is_given_up: bool = False
    answer: bytes | None = None


class InputOracle:
    """Of one run.

    Attributes:
        offered: by payload.
        drops: what was dropped when the fleet was taken back.
        has_fallen_back: behind a complete epoch, whose bytes are lost, or on purpose.
        has_lost_bytes: of a complete epoch, so that a plan started from an older one.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.has_fallen_back = self.has_lost_bytes = False
        self.offered: dict[bytes, Offered] = {}
        self.drops = Drops()

    def on_offered(self, agent: str, client: str, serial: int, payload: bytes) -> None:
        """A client is about to say this for the first time."""
        self.offered[payload] = Offered(agent, client, serial)

    def on_given_up(self, payload: bytes) -> None:
        """Its client does not wait for an answer any more."""
        self.offered[payload].is_given_up = True

    def on_answered(self, t_ns: int, payload: bytes, answer: bytes) -> None:
        """Its client was told what its turn has answered, for good; b"": nothing, or that it is a dead letter, which may be retried."""
        offered = self.offered[payload]
        if offered.answer not in (None, b"", answer) and not self.has_fallen_back:
            text = (
                f"{show(payload)} for {offered.agent} was answered {show(answer)} after {show(offered.answer or b'')}"
            )
            self._report("answers", "R2", t_ns, text)
        offered.answer = answer

    def on_fallen_back(self) -> None:
        """The fleet goes back on purpose, behind a complete epoch: answers that were final may be taken back."""
        self.has_fallen_back = True

    def on_bytes_lost(self) -> None:
        """An epoch that was complete is damaged, and a plan starts from an older one: effects since then may be called again, too."""
        self.has_fallen_back = self.has_lost_bytes = True

    def on_acknowledged(self, t_ns: int, payload: bytes, number: int) -> None:
        """A client has been told that it was taken, perhaps again."""
        offered = self.offered[payload]
        if offered.acknowledged_ns and offered.number != number:
            text = f"{show(payload)} for {offered.agent} was acknowledged as input {offered.number} and as {number}"
            self._report("inputs", "R1", t_ns, text)
        offered.acknowledged_ns, offered.number = offered.acknowledged_ns or t_ns, number

    def on_consumed(self, t_ns: int, history: AgentHistory, payload: bytes) -> None:
        """A turn, or the dead letters, of this history have consumed it; it stands last in there."""
        offered = self.offered.get(payload)
        if offered is None or offered.agent != history.agent:
            self._report("inputs", "R1", t_ns, f"{history.agent} consumed {show(payload)}, which nobody offered it")
        elif payload in history.inputs:
            self._report("inputs", "R1", t_ns, f"{history.agent} consumed input {show(payload)} twice")

    def check_end(self, t_ns: int, histories: Mapping[str, AgentHistory], living: Iterable[str], plan: int) -> None:
        """The fleet rests: what was acknowledged has had its effect, in the order in which each client was told; or was dropped, and has none."""
        there = dict.fromkeys(living)
        heard: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for payload, offered in self.offered.items():
            if not offered.acknowledged_ns or offered.agent not in there:
                continue
            history = histories.get(offered.agent)
            turn = history.inputs.get(payload) if history is not None else None
            if turn is None and self.drops.may_be_missing(plan, payload):
                if self.drops.is_told_as_taken(plan, payload):
                    text = f"input {show(payload)} for {offered.agent} was dropped, and its client was told that it is taken"
                    self._report("inputs", "R1", t_ns, text)
                continue
            if turn is None:
                text = f"input {show(payload)} was acknowledged to {offered.client} as number {offered.number}"
                self._report("inputs", "R1", t_ns, f"{text}, and {offered.agent} has never consumed it")
                continue
            if self.drops.was_dropped(plan, offered.agent, offered.acknowledged_ns, turn):
                text = f"input {show(payload)} was dropped when the fleet was taken back, and {offered.agent} has consumed it"
                self._report("inputs", "R1", t_ns, text)
            stands = history.replies.get(payload, b"") if history is not None else b""
            retold = history.answers_to_letters.get(payload, []) if history is not None else []
            if offered.answer not in (None, stands, *retold) and not self.has_fallen_back:
                text = f"input {show(payload)} was answered {show(offered.answer or b'')}, and {offered.agent} has answered {show(stands)}"
                self._report("answers", "R2", t_ns, text)
            if not offered.is_given_up:
                heard.setdefault((offered.client, offered.agent), []).append((offered.serial, turn))
        for (client, agent), found in heard.items():
            turns = [turn for _, turn in sorted(found)]
            if turns != sorted(turns):
                self._report("inputs", "R1", t_ns, f"{agent} consumed inputs of {client} in another order")
