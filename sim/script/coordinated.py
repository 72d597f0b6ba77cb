"""What fleets with cuts of their own have in common: complete cuts, and holding them against what really happened."""

import msgspec

from snapline.sim.script.book import RestartLine, ScriptedMessage, channels_in_words
from snapline.sim.script.fleet import COORDINATOR, ScriptedFleet
from snapline.sim.script.text import ScriptCommand
from snapline.sim.script.verbs import Verb


class ScriptedCut(msgspec.Struct, frozen=True):
    """A complete cut: by agent its checkpoint (0 for one that is unborn in it), and the channel states as recorded.

    Attributes:
        gone: agents that had left before; what they did is inside, what is sent to them is a dead letter.
    """

    numbers: dict[str, int]
    in_transit: list[ScriptedMessage]
    unborn: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class CoordinatedFleet(ScriptedFleet):
    """A fleet that goes back to its last complete cut as a whole.

    Attributes:
        cuts: the complete ones by number; 0 is the initial states.
        cut_word: what a cut is called here.
    """

    cut_word = "epoch"
    cuts: dict[int, ScriptedCut]

    def _verbs(self) -> dict[str, Verb]:
        return super()._verbs() | {
            "marker": Verb("marker AGENT->AGENT", lambda command: self._do_marker(command, overtakes=False)),
            "overtake": Verb("overtake AGENT->AGENT", lambda command: self._do_marker(command, overtakes=True)),
        }

    def _do_marker(self, command: ScriptCommand, *, overtakes: bool) -> None:
        raise NotImplementedError

    def _keeps_survivors(self) -> bool:
        return False

    def _do_line(self, command: ScriptCommand) -> None:
        """The same whoever fails; `failed` is only checked."""
        self._agents(command, command.options.get("failed", "all"))
        number = max(self.cuts)
        self._trace.append(f"{self.cut_word} {number}: {self._in_words(self.cuts[number])}")

    def _keep(self, number: int, cut: ScriptedCut) -> None:
        """The cut is complete."""
        self.cuts[number] = cut
        self._trace.append(f"{self.cut_word} {number}: {self._in_words(cut)}")
        self._trace += self._faults(number, cut)

    def _in_words(self, cut: ScriptedCut) -> str:
        numbers = (f"{agent}={'unborn' if agent in cut.unborn else number}" for agent, number in cut.numbers.items())
        return f"cut {' '.join(numbers)}; in transit: {channels_in_words(cut.in_transit)}"

    def _faults(self, number: int, cut: ScriptedCut) -> list[str]:
        """G1 and G2 by the books."""
        line = self._book_line(cut)
        found = [f"{self.cut_word} {number} IS WRONG: {name} is an orphan" for name in self.book.orphans(line)]
        expected = [message for message in self.book.in_transit(line) if message.receiver not in cut.gone]
        if channels_in_words(expected) != channels_in_words(cut.in_transit):
            found.append(f"{self.cut_word} {number} IS WRONG: really in transit: {channels_in_words(expected)}")
        return found

    def _book_line(self, cut: ScriptedCut) -> RestartLine:
        """Who had left keeps all it did; who came later has done nothing."""
        return {agent: None if agent in cut.gone else cut.numbers.get(agent, 0) for agent in self.book.agents}

    def _go_back(self) -> None:
        """The whole fleet to the last complete cut."""
        number = max(self.cuts)
        cut = self.cuts[number]
        self._say(COORDINATOR, f"recovery to {self.cut_word} {number}")
        self._forget_all_outside(cut)
        self._set_back(self._book_line(cut), cut.in_transit)

    def _forget_all_outside(self, cut: ScriptedCut) -> None:
        """Agents that no message inside the cut has made are not there yet; who left since is there again."""
        receivers = [message.receiver for message in cut.in_transit]
        for agent in list(self.agents.values()):
            if agent.name in cut.gone:
                agent.phase = "gone"
            elif agent.name in cut.numbers and (agent.name not in cut.unborn or agent.name in receivers):
                agent.phase = "living"
            else:
                del self.agents[agent.name]
                self._say(agent.name, "Forget()")
