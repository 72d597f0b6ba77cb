"""Scripted protocols in which agents take checkpoints individually. After a failure, the recovery line is computed, and surviving agents
are rolled back as little as possible.

*Koo-toueg* (`ScriptedKooToueg`; for the caller's duties, see `protocols/koo_toueg.py`): each agent has a core, and the coordinator runs
rounds. Requests, answers and decisions are delivered at once. However, an agent answers only between turns, so a request to a busy agent
waits for the script command `end`. A blocked agent takes no turns, and its outgoing messages stay in its outbox until the decision.

*Autonomous checkpoints* (`ScriptedRule`; for the caller's duties, see `protocols/rule.py`): agents take checkpoints without coordination,
or when a communication-induced rule forces a checkpoint. A turn that consumes a message first asks the rule whether it must take a
checkpoint, and takes the checkpoint if so. After that, the turn merges the piggybacked data and delivers the message.
"""

from collections import deque

from snapline.protocols import koo_toueg as kt
from snapline.protocols.koo_toueg import (
    AgentLost,
    AnswerReceived,
    AskAgent,
    Decide,
    KooTouegCore,
    KooTouegRound,
    RoundCommand,
    RoundStarted,
    TimedOut,
)
from snapline.protocols.rule import CheckpointRule
from snapline.protocols.rules import make_rule, restore_rule
from snapline.recovery.trace_analysis import untracked
from snapline.sim.script.script_text import ScriptCommand, Verb, format_call, format_command, format_value, piggyback_of
from snapline.sim.script.scripted_fleet import (
    COORDINATOR,
    LINE_USAGE,
    Image,
    ScriptedAgent,
    ScriptedFleet,
    ScriptedMessage,
    ScriptedProtocol,
    format_channels,
    format_line,
)


class ScriptedLines:
    """Script commands for fleets that recover by computing a recovery line."""

    def __init__(self, fleet: ScriptedFleet) -> None:
        self._fleet = fleet

    def verbs(self) -> dict[str, Verb]:
        """Return the script commands for recovery lines and individual checkpoints."""
        return {
            "line": Verb(LINE_USAGE, self._do_line),
            "join": Verb("join AGENT", self._fleet.add),
            "useless": Verb("useless", self._do_useless),
        }

    def recover_fleet(self, failed: list[str]) -> None:
        """Roll the fleet back to its recovery line after these agents have failed."""
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


class ScriptedKooToueg(ScriptedProtocol):
    """Scripted koo-toueg protocol.

    Attributes:
        _round: the open round, or the last round if none is open.
        _latest: number of the latest round.
        _refusing: agents that refuse to take a checkpoint in this round.
        _questions: checkpoint requests that have not been delivered to their agents yet.
    """

    def __init__(self, fleet: ScriptedFleet) -> None:
        self._fleet = fleet
        self._lines = ScriptedLines(fleet)
        self._cores: dict[str, KooTouegCore] = {}
        self._round: KooTouegRound | None = None
        self._latest = 0
        self._refusing: list[str] = []
        self._questions: deque[AskAgent] = deque()
        self._tentative: dict[str, Image] = {}
        self._crashed: list[str] = []

    def verbs(self) -> dict[str, Verb]:
        return self._lines.verbs() | {
            "checkpoint": Verb("checkpoint AGENT,AGENT,… [refusing=AGENT,AGENT,…]", self._do_checkpoint),
            "timeout": Verb("timeout", self._do_timeout),
        }

    def make_core(self, name: str) -> Image:
        self._cores[name] = KooTouegCore(name, latest_round=self._latest)
        return Image(core=self._cores[name].freeze())

    def restore_core(self, agent: ScriptedAgent, image: Image) -> None:
        self._cores[agent.name] = KooTouegCore.restart(image.core, latest_round=self._latest)

    def mark(self, agent: ScriptedAgent, receiver: str) -> tuple[int, bytes, dict[str, object]]:
        self._cores[agent.name].sent(receiver, agent.sent.get(receiver, 0) + 1)
        return 0, b"", {}

    def note_consumed(self, agent: ScriptedAgent, message: ScriptedMessage) -> None:
        self._cores[agent.name].consumed(message.sender, message.number)

    def is_blocked(self, agent: ScriptedAgent) -> bool:
        return self._cores[agent.name].is_blocked

    def between_turns(self, agent: ScriptedAgent) -> None:
        self._carry([])

    def validate(self) -> None:
        for core in self._cores.values():
            core.validate()
        if self._round is not None:
            self._round.validate()

    def _do_checkpoint(self, command: ScriptCommand) -> None:
        if self._round is not None and self._round.decision is None:
            raise command.error(f"round {self._latest} is open: end the turns it waits for, or use `timeout`")
        initiators = [agent.name for agent in self._fleet.agents_of(command, command.words[0])]
        refusing = command.options.get("refusing")
        self._refusing = [agent.name for agent in self._fleet.agents_of(command, refusing)] if refusing else []
        self._latest += 1
        self._round = KooTouegRound(self._latest, initiators)
        self._fleet.say(COORDINATOR, format_call("BeginRound", round=self._latest, initiators=initiators))
        self._carry(self._round.handle(0, RoundStarted()))

    def _do_timeout(self, command: ScriptCommand) -> None:
        if self._round is None or self._round.decision is not None:
            raise command.error("no round is open: begin one with `checkpoint AGENT`")
        self._carry(self._round.handle(0, TimedOut()))

    def _carry(self, commands: list[RoundCommand]) -> None:
        """Execute the round's commands. Deliver each checkpoint request whose agent can answer now."""
        for command in commands:
            self._fleet.say(COORDINATOR, format_command(command))
            if isinstance(command, AskAgent):
                self._questions.append(command)
            else:
                self._send_decision(command)
        for _ in range(len(self._questions)):
            if not self._questions:
                return  # a refusal has ended the round
            question = self._questions.popleft()
            if self._fleet.agents[question.agent].has_running_turn:
                self._questions.append(question)
            else:
                self._ask(question)

    def _ask(self, question: AskAgent) -> None:
        agent, core = self._fleet.agents[question.agent], self._cores[question.agent]
        is_willing = question.agent not in self._refusing
        request = kt.CheckpointRequested(self._latest, question.by, question.number, is_willing)
        for command in core.handle(0, request):
            self._fleet.say(agent.name, format_command(command))
            match command:
                case kt.TakeTentative():
                    self._tentative[agent.name] = agent.image(core.freeze())
                case kt.Answer():
                    assert self._round is not None
                    self._carry(self._round.handle(0, AnswerReceived(agent.name, command)))

    def _send_decision(self, decision: Decide) -> None:
        """Send the round's decision to all agents that were asked to take a checkpoint. After the decision, send the messages in the
        agents' outboxes."""
        assert self._round is not None
        self._questions.clear()
        recipients = [self._fleet.agents[name] for name in self._round.asked if name not in self._crashed]
        for agent in recipients:
            for command in self._cores[agent.name].handle(0, kt.RoundDecided(self._latest, decision.is_committed)):
                self._fleet.say(agent.name, format_command(command))
                image = self._tentative.pop(agent.name)
                if isinstance(command, kt.MakePermanent):
                    self._fleet.store(agent, image)
        for agent in recipients:
            if not agent.has_running_turn:
                self._fleet.empty_outbox(agent)

    def recover(self, failed: list[str]) -> None:
        """Recover the fleet after these agents have crashed. First end the open round, so that the surviving agents learn the round's
        outcome before the recovery."""
        self._crashed = failed
        if self._round is not None:
            for name in failed:
                self._carry(self._round.handle(0, AgentLost(name)))
            self._carry(self._round.handle(0, TimedOut()))
        self._tentative.clear()
        self._lines.recover_fleet(failed)
        self._crashed = []

    def show_core(self, agent: ScriptedAgent) -> list[str]:
        core = self._cores[agent.name]
        tables = {"received_from": core.received_from, "first_sent": core.first_sent}
        return [format_call("Core", round=core.round, blocked=format_value(core.is_blocked), **tables)]


class ScriptedRule(ScriptedProtocol):
    """Scripted protocol that follows one of the checkpointing rules in `rules.RULES`."""

    def __init__(self, fleet: ScriptedFleet, name: str) -> None:
        """`name` is the name of the checkpointing rule."""
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
        """Write to the trace each Z-path without a causal twin, with the two checkpoint intervals that it connects."""
        for path in untracked(self._fleet.book.trace()):
            start = f"interval {path.sender_interval} of {path.sender}"
            end = f"interval {path.receiver_interval} of {path.receiver}"
            self._fleet.trace.append(f"a Z-path leads from {start} to {end}, and no causal path does")
        if not self._fleet.trace:
            self._fleet.trace.append("every Z-path is tracked")

    def show_core(self, agent: ScriptedAgent) -> list[str]:
        """Describe the information that a message from this agent could carry. The description is computed from a copy of the rule, because
        sending a message changes the rule's state."""
        ordinal = self._fleet.book.agents.index(agent.name)
        copied = restore_rule(self._name, ordinal, self._rules[agent.name].freeze())
        words = piggyback_of(self._name, copied.send_full(ordinal), self._fleet.book.agents)
        return [format_call("Rule", **words)]
