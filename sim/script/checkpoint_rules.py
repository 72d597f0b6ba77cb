"""Scripts of fleets with autonomous checkpoints: uncoordinated, and with each communication-induced rule.

Duties: `protocols/rule.py`. Steps of a message's turn: ask the rule, checkpoint if it forces one, merge, then deliver.
"""

from snapline.protocols.rule import CheckpointRule
from snapline.protocols.rules import make_rule, restore_rule
from snapline.recovery.zigzag import untracked
from snapline.sim.script.line_commands import ScriptedLines
from snapline.sim.script.script_text import ScriptCommand, Verb, format_call, piggyback_of
from snapline.sim.script.scripted_fleet import Image, ScriptedAgent, ScriptedFleet, ScriptedMessage, ScriptedProtocol


class ScriptedRule(ScriptedProtocol):
    """Script part of a rule of `rules.RULES`."""

    def __init__(self, fleet: ScriptedFleet, name: str) -> None:
        """`name`: name of the rule."""
        self._fleet = fleet
        self._name = name
        self._lines = ScriptedLines(fleet)
        self._rules: dict[str, CheckpointRule] = {}

    def recover(self, failed: list[str]) -> None:
        self._lines.recover_fleet(failed)

    def verbs(self) -> dict[str, Verb]:
        return self._lines.verbs() | {
            "checkpoint": Verb("checkpoint AGENT,AGENT,…", self._do_checkpoint),
            "untracked": Verb("untracked", self._do_untracked),
        }

    def make_core(self, name: str) -> Image:
        self._rules[name] = make_rule(self._name, self._fleet.book.agents.index(name), len(self._fleet.book.agents))
        return Image(core=self._rules[name].freeze())

    def restore_core(self, agent: ScriptedAgent, image: Image) -> None:
        self._rules[agent.name] = restore_rule(self._name, self._fleet.book.agents.index(agent.name), image.core)

    def mark(self, agent: ScriptedAgent, receiver: str) -> tuple[int, bytes, dict[str, object]]:
        piggyback = self._rules[agent.name].send(self._fleet.book.agents.index(receiver))
        return 0, piggyback, piggyback_of(self._name, piggyback, self._fleet.book.agents)

    def admit(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        rule, sender = self._rules[agent.name], self._fleet.book.agents.index(message.sender)
        if rule.forces(sender, message.piggyback):
            rule.checkpoint(message.piggyback)
            self._fleet.store(agent, agent.image(rule.freeze()), basis="forced", by=message.name)
        rule.receive(sender, message.piggyback)

    def note_sends(self, agent: ScriptedAgent) -> None:
        if self._rules[agent.name].checkpoints_after_sends:
            self._take(agent, "forced")

    def _take(self, agent: ScriptedAgent, basis: str) -> None:
        rule = self._rules[agent.name]
        rule.checkpoint()
        self._fleet.store(agent, agent.image(rule.freeze()), basis=basis)

    def _do_checkpoint(self, command: ScriptCommand) -> None:
        for agent in self._fleet.agents_of(command, command.words[0]):
            self._take(self._fleet.idle_agent(command, agent.name), "basic")

    def _do_untracked(self, command: ScriptCommand) -> None:
        """Print the Z-paths without a causal twin, by the intervals that they join."""
        for path in untracked(self._fleet.book.trace()):
            start = f"interval {path.sender_interval} of {path.sender}"
            end = f"interval {path.receiver_interval} of {path.receiver}"
            self._fleet.trace.append(f"a Z-path leads from {start} to {end}, and no causal path does")
        if not self._fleet.trace:
            self._fleet.trace.append("every Z-path is tracked")

    def show_core(self, agent: ScriptedAgent) -> list[str]:
        """Show everything that a message could carry. It uses a copy, because sending changes a rule."""
        ordinal = self._fleet.book.agents.index(agent.name)
        copied = restore_rule(self._name, ordinal, self._rules[agent.name].freeze())
        words = piggyback_of(self._name, copied.send_full(ordinal), self._fleet.book.agents)
        return [format_call("Rule", **words)]
