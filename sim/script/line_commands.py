"""Common part of protocols with per-agent checkpoints: the line is computed, and survivors keep as much as possible."""

from snapline.sim.script.script_text import ScriptCommand, Verb
from snapline.sim.script.scripted_fleet import COORDINATOR, LINE_USAGE, ScriptedFleet, format_channels, format_line


class ScriptedLines:
    """Commands of a fleet with recovery lines."""

    def __init__(self, fleet: ScriptedFleet) -> None:
        self._fleet = fleet

    def verbs(self) -> dict[str, Verb]:
        """Return the commands for recovery lines."""
        return {
            "line": Verb(LINE_USAGE, self._do_line),
            "join": Verb("join AGENT", self._fleet.add),
            "useless": Verb("useless", self._do_useless),
        }

    def recover_fleet(self, failed: list[str]) -> None:
        """Roll the fleet back to its recovery line."""
        book = self._fleet.book
        line = book.line(failed)
        self._fleet.say(COORDINATOR, f"recovery line {format_line(line)}")
        self._fleet.roll_back(line, book.in_transit(line))

    def _do_line(self, command: ScriptCommand) -> None:
        book, names = self._fleet.book, command.options.get("failed", "all")
        failed = [agent.name for agent in self._fleet.agents_of(command, names)]
        line = book.line(failed)
        self._fleet.trace += [f"if {','.join(failed)} fails: {format_line(line)}", *book.rounds(failed)]
        self._fleet.trace.append(f"in transit: {format_channels(book.in_transit(line))}")

    def _do_useless(self, command: ScriptCommand) -> None:
        useless = self._fleet.book.useless().items()
        checkpoints = [f"{agent} {number}" for agent, numbers in useless for number in numbers]
        self._fleet.trace.append(f"useless checkpoints: {', '.join(checkpoints) or 'none'}")
