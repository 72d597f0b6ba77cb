"""R1: an input that was acknowledged takes effect exactly once, whatever dies and whatever is rolled back. R2: an answer that was told as
final is never taken back,
unless the bytes of a complete epoch are lost.

Clients tell what they offered and what they were answered; the books say which inputs the turns, and the dead letters, of each history
consumed. Every input has other bytes, so these are its name: numbers, keys and logs of the product are not looked at.

What a client's core promises its program (`client/core.py`) is checked here too. It says "taken" only after a host has said so. What it says
was not taken is never consumed, unless it was given again. Inputs of one client for one agent that have a receipt are taken in the order in which they were
given, but for those that were in doubt once. Each send ends at its deadline. What it hands on as an answer a turn of the agent has given.
"""

from collections.abc import Iterable, Mapping

import msgspec

from snapline.sim.oracles.drops import Drops
from snapline.sim.oracles.ground_truth_records import AgentHistory, Report, show


class Offered(msgspec.Struct):
    """One input.

    Attributes:
        serial: place among those of its client, in the order in which they were given.
        acknowledged_ns: when its client got the receipt; 0 before. number: the one in the receipt.
        answer: the final answer that its client got; None: none yet.
        is_given_up: it was in doubt once, or no client waits for it, so it may come after others.
        is_denied: its client learned that it was certainly not accepted, and has not sent it again.
        is_consumed: in any history.
        is_told_buried: its client was informed of its dead letter.
        words: numbers under which hosts have accepted it.
        replies: what turns have answered to it, in any history.
    """

    agent: str
    client: str
    serial: int
    acknowledged_ns: int = 0
    number: int = 0
    is_given_up: bool = False
    answer: bytes | None = None
    is_denied: bool = False
    is_consumed: bool = False
    is_told_buried: bool = False
    words: list[int] = []
    replies: list[bytes] = []


class InputOracle:
    """Input oracle of one run.

    Attributes:
        offered: by payload.
        drops: inputs dropped by restores.
        has_fallen_back: behind a complete epoch, whose bytes are lost, or on purpose.
        has_lost_bytes: of a complete epoch, so that a plan started from an older one.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.has_fallen_back = self.has_lost_bytes = False
        self.offered: dict[bytes, Offered] = {}
        self.drops = Drops()
        self._ordered: dict[tuple[str, str], list[Offered]] = {}
        """Client and agent → inputs with a receipt that were never in doubt."""

    # ---- what is given --------------------------------------------------------------------------------------------

    def on_offered(self, agent: str, client: str, serial: int, payload: bytes) -> None:
        """A client is about to say this for the first time."""
        self.offered[payload] = Offered(agent, client, serial)

    def on_offered_again(self, payload: bytes, serial: int) -> None:
        """Note that the client sends the input again, after all its earlier ones."""
        offered = self.offered[payload]
        if offered.is_denied:
            offered.serial = serial
        offered.is_denied = False

    def on_given_up(self, payload: bytes) -> None:
        """Note that the client waits no longer, or was answered "unknown"."""
        self.offered[payload].is_given_up = True

    # ---- what hosts say, and what clients are told ----------------------------------------------------------------

    def on_taken(self, payload: bytes, plan: int, number: int, *, is_repeated: bool) -> None:
        """Note that a host of this plan answers that it has accepted the input, or had it before."""
        self.drops.on_taken(plan, payload, is_repeated=is_repeated)
        self.offered[payload].words.append(number)

    def on_acknowledged(self, t_ns: int, payload: bytes, number: int) -> None:
        """Check a receipt that a client got, perhaps again."""
        offered = self.offered[payload]
        if number not in offered.words:
            text = f"{offered.client} was told that {show(payload)} is input {number} of {offered.agent}, and no host has said so"
            self._report("inputs", "R1", t_ns, text)
        if offered.acknowledged_ns and offered.number != number:
            text = f"{show(payload)} for {offered.agent} was acknowledged as input {offered.number} and as {number}"
            self._report("inputs", "R1", t_ns, text)
        is_first = not offered.acknowledged_ns
        offered.acknowledged_ns, offered.number = offered.acknowledged_ns or t_ns, number
        if is_first and not offered.is_given_up:
            self._check_order(t_ns, offered)

    def _check_order(self, t_ns: int, offered: Offered) -> None:
        others = self._ordered.setdefault((offered.client, offered.agent), [])
        for other in others:
            if (other.serial < offered.serial) != (other.number < offered.number) and not self.has_fallen_back:
                text = f"inputs {offered.serial} and {other.serial} of {offered.client} are inputs {offered.number} and {other.number} of {offered.agent}"
                self._report("inputs", "R1", t_ns, f"{text}: in another order than they were given")
        others.append(offered)

    def on_denied(self, t_ns: int, payload: bytes, why: str) -> None:
        """Check the answer to a client that an input was certainly not accepted since its last send."""
        offered = self.offered[payload]
        if offered.acknowledged_ns or offered.is_given_up:
            return  # an earlier send of it may have been taken
        offered.is_denied = True
        if offered.is_consumed:
            text = f"{offered.client} was told that {show(payload)} was not taken ({why}), and {offered.agent} has consumed it"
            self._report("inputs", "R1", t_ns, text)

    def on_overdue(self, t_ns: int, client: str, what: str) -> None:
        """Report a program's wait that has not ended by its deadline."""
        self._report("inputs", "R1", t_ns, f"{client} has heard nothing of {what}, and its time is over")

    def on_missing(self, t_ns: int, client: str, agent: str) -> None:
        """Report the answer to a client that an agent has stopped, or does not exist, though it always existed."""
        self._report("inputs", "R1", t_ns, f"{client} was told that {agent} is not there, and it has never stopped")

    # ---- answers --------------------------------------------------------------------------------------------------

    def on_replied(self, payload: bytes, reply: bytes) -> None:
        """A turn has answered this to it."""
        offered = self.offered.get(payload)
        if offered is not None:
            offered.replies.append(reply)

    def on_answered(self, t_ns: int, payload: bytes, answer: bytes) -> None:
        """Check a final answer of an input's turn, as its client received it; b"": none."""
        offered = self.offered[payload]
        if offered.answer not in (None, b"", answer) and not self.has_fallen_back:
            text = (
                f"{show(payload)} for {offered.agent} was answered {show(answer)} after {show(offered.answer or b'')}"
            )
            self._report("answers", "R2", t_ns, text)
        offered.answer = answer

    def on_answered_early(self, t_ns: int, payload: bytes, answer: bytes) -> None:
        """Check an answer of a turn that may be undone, as the client received it; b"": none."""
        offered = self.offered[payload]
        if answer and answer not in offered.replies:
            text = f"{show(payload)} for {offered.agent} was answered {show(answer)}, which no turn has answered"
            self._report("answers", "R2", t_ns, text)

    def on_told_buried(self, payload: bytes) -> None:
        """Note that the client was informed of its dead letter."""
        self.offered[payload].is_told_buried = True

    def on_fallen_back(self) -> None:
        """The fleet goes back on purpose, behind a complete epoch: answers that were final may be taken back."""
        self.has_fallen_back = True

    def on_bytes_lost(self) -> None:
        """An epoch that was complete is damaged, and a plan starts from an older one: effects since then may be called again, too."""
        self.has_fallen_back = self.has_lost_bytes = True

    # ---- what agents do -------------------------------------------------------------------------------------------

    def on_consumed(self, t_ns: int, history: AgentHistory, payload: bytes) -> None:
        """A turn, or the dead letters, of this history have consumed it; it stands last in there."""
        offered = self.offered.get(payload)
        if offered is None or offered.agent != history.agent:
            self._report("inputs", "R1", t_ns, f"{history.agent} consumed {show(payload)}, which nobody offered it")
        elif payload in history.inputs:
            self._report("inputs", "R1", t_ns, f"{history.agent} consumed input {show(payload)} twice")
        elif offered.is_denied:
            text = f"{history.agent} consumed input {show(payload)}, of which {offered.client} was told that it was not taken"
            self._report("inputs", "R1", t_ns, text)
        if offered is not None:
            offered.is_consumed = True

    def check_end(self, t_ns: int, histories: Mapping[str, AgentHistory], living: Iterable[str], plan: int) -> None:
        """The fleet rests: what was acknowledged has had its effect, in the order in which each client was told; or was dropped, and has none."""
        there = dict.fromkeys(living)
        heard: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for payload, offered in self.offered.items():
            if not offered.acknowledged_ns:
                continue
            if offered.agent not in there:
                is_over = not there  # a fleet that has ended may leave inputs behind
                if not is_over and not offered.is_consumed and not self.drops.may_be_missing(plan, payload):
                    text = f"input {show(payload)} was acknowledged to {offered.client}, and {offered.agent} has stopped without it"
                    self._report("inputs", "R1", t_ns, text)
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
            was_letter = history is not None and any(letter.payload == payload for letter in history.letters)
            if offered.is_told_buried and not was_letter and not self.has_fallen_back:
                text = f"{offered.client} was told that input {show(payload)} is a dead letter, and {offered.agent} never had it"
                self._report("answers", "R2", t_ns, text)
            if not offered.is_given_up:
                heard.setdefault((offered.client, offered.agent), []).append((offered.serial, turn))
        for (client, agent), found in heard.items():
            turns = [turn for _, turn in sorted(found)]
            if turns != sorted(turns):
                self._report("inputs", "R1", t_ns, f"{agent} consumed inputs of {client} in another order")
