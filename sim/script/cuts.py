"""Common part of protocols that produce cuts: complete cuts, and their comparison with the ground truth."""

from collections.abc import Callable

import msgspec

from snapline.sim.script.script_text import ScriptCommand, Verb
from snapline.sim.script.scripted_fleet import (
    COORDINATOR,
    LINE_USAGE,
    RestartLine,
    ScriptedAgent,
    ScriptedFleet,
    ScriptedMarker,
    ScriptedMessage,
    format_channels,
)


class ScriptedCut(msgspec.Struct, frozen=True):
    """Complete cut.

    Attributes:
        numbers: checkpoint of each agent; 0 for an agent that is unborn in the cut.
        in_transit: recorded channel states.
        unborn: agents that are unborn in the cut.
        gone: agents that had left before. Their actions are inside the cut; messages to them are dead letters.
    """

    numbers: dict[str, int]
    in_transit: list[ScriptedMessage]
    unborn: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class ScriptedCuts:
    """Complete cuts of a fleet that is rolled back to the last of them as a whole.

    Attributes:
        by_number: complete cuts by number; 0 holds the initial states.
    """

    def __init__(self, fleet: ScriptedFleet, word: str) -> None:
        """`word`: name of a cut in the trace."""
        self._fleet = fleet
        self._word = word
        self.by_number = {0: ScriptedCut(dict.fromkeys(fleet.book.agents, 0), [])}

    def verbs(self, do_marker: Callable[[ScriptedAgent, str, ScriptedMarker], None]) -> dict[str, Verb]:
        """Return the commands for cuts. `do_marker`: function that makes an agent receive a marker of a sender."""

        def take(command: ScriptCommand, *, overtakes: bool) -> None:
            sender, receiver = self._fleet.channel(command)
            agent = self._fleet.agent(command, receiver)
            do_marker(agent, sender, self._fleet.take_marker(command, overtakes=overtakes))

        return {
            "line": Verb(LINE_USAGE, self._do_line),
            "marker": Verb("marker AGENT->AGENT", lambda command: take(command, overtakes=False)),
            "overtake": Verb("overtake AGENT->AGENT", lambda command: take(command, overtakes=True)),
        }

    def _do_line(self, command: ScriptCommand) -> None:
        """Print the last cut as the recovery line. The line does not depend on `failed`, which is only validated."""
        self._fleet.agents_of(command, command.options.get("failed", "all"))
        number = max(self.by_number)
        self._fleet.trace.append(f"{self._word} {number}: {self._format(self.by_number[number])}")

    def keep(self, number: int, cut: ScriptedCut) -> None:
        """Store a complete cut, and write it and its errors to the trace."""
        self.by_number[number] = cut
        self._fleet.trace.append(f"{self._word} {number}: {self._format(cut)}")
        self._fleet.trace += self._faults(number, cut)

    def _format(self, cut: ScriptedCut) -> str:
        numbers = (f"{agent}={'unborn' if agent in cut.unborn else number}" for agent, number in cut.numbers.items())
        return f"cut {' '.join(numbers)}; in transit: {format_channels(cut.in_transit)}"

    def _faults(self, number: int, cut: ScriptedCut) -> list[str]:
        """Return violations of G1 and G2 by the ground truth."""
        line = self._book_line(cut)
        faults = [f"{self._word} {number} IS WRONG: {name} is an orphan" for name in self._fleet.book.orphans(line)]
        expected = [message for message in self._fleet.book.in_transit(line) if message.receiver not in cut.gone]
        if format_channels(expected) != format_channels(cut.in_transit):
            faults.append(f"{self._word} {number} IS WRONG: really in transit: {format_channels(expected)}")
        return faults

    def _book_line(self, cut: ScriptedCut) -> RestartLine:
        """Return the cut as a line: an agent that had left keeps its actions; an agent created later has none."""
        return {agent: None if agent in cut.gone else cut.numbers.get(agent, 0) for agent in self._fleet.book.agents}

    def recover_fleet(self) -> None:
        """Set the whole fleet back to the last complete cut."""
        number = max(self.by_number)
        cut = self.by_number[number]
        self._fleet.say(COORDINATOR, f"recovery to {self._word} {number}")
        self._forget_all_outside(cut)
        self._fleet.roll_back(self._book_line(cut), cut.in_transit)

    def _forget_all_outside(self, cut: ScriptedCut) -> None:
        """Remove agents that were not created inside the cut, and bring back those that left after it."""
        receivers = [message.receiver for message in cut.in_transit]
        for agent in list(self._fleet.agents.values()):
            if agent.name in cut.gone:
                agent.phase = "gone"
            elif agent.name in cut.numbers and (agent.name not in cut.unborn or agent.name in receivers):
                agent.phase = "living"
            else:
                del self._fleet.agents[agent.name]
                self._fleet.say(agent.name, "Forget()")
