"""Replays a trace under a protocol: drops its forced checkpoints and decides them again.

The messages, their order, and the basic checkpoints stay; before each receive the protocol's rule decides whether a checkpoint is taken first
(`cas`: always after each send). Each agent has the same rule as in a live fleet, fed with the trace's events. In a live fleet `cas`
takes one checkpoint after all sends of a turn; a trace has no turns.

Rules may send deltas against the last message on a channel, which only FIFO channels carry. In a trace messages
may overtake each other. If the receives on a channel are not a gapless prefix of its sends, in order, each message gets
its full piggyback. (A gap is a lost message, whose delta is lost too.)
"""

from collections import defaultdict

from snapline.errors import UsageError
from snapline.protocols.rule import CheckpointRule
from snapline.protocols.rules import RULES, make_rule
from snapline.recovery.trace import CheckpointTaken, Event, Kind, MessageReceived, MessageSent, Trace

NONE = "none"
"""Name that drops the forced checkpoints and adds none."""

UNCOORDINATED = "uncoordinated"


def redecide(trace: Trace, protocol: str) -> tuple[Trace, dict[str, list[int]]]:
    """Return the execution as it would have been under `protocol`, and the events that forced checkpoints.

    Args:
        trace: its forced checkpoints are ignored, those that remain are renumbered.
        protocol: a name of `RULES`, or "none".

    Returns:
        The new trace; and by agent, for those with any, the ordinals of the events that forced: receives, for `cas`
        sends. Ordinals count the agent's sends, receives and basic checkpoints from 0.

    Raises:
        UsageError: the protocol does not exist.
    """
    decision = _Decision(trace, check_protocol(protocol))
    for event in trace.events:
        match event:
            case CheckpointTaken():
                if event.kind == "basic":
                    decision.take_basic(event)
            case MessageSent():
                decision.send(event)
            case MessageReceived():
                decision.receive(event)
    forced = {agent: ordinals for agent, ordinals in decision.forced.items() if ordinals}
    return Trace(list(trace.agents), decision.events), forced


def check_protocol(protocol: str) -> str:
    """Check the name of a protocol.

    Raises:
        UsageError: `protocol` is neither a rule nor "none".
    """
    name = UNCOORDINATED if protocol == NONE else protocol
    if name not in RULES:
        raise UsageError(f"--protocol {protocol!r} is unknown: choose one of {', '.join([NONE, *RULES])}")
    return name


class _Decision:
    """Replays a trace with one rule per agent, and collects the new execution.

    Attributes:
        events: events of the new trace so far.
        forced: by agent, the ordinals of events that forced.
        _seen: by agent, the number of its events so far, without forced checkpoints.
        _numbers: by agent, its last checkpoint in the new trace.
        _carried: by message that will be received, its sender and piggyback.
    """

    def __init__(self, trace: Trace, name: str) -> None:
        count = len(trace.agents)
        self.events: list[Event] = []
        self.forced: dict[str, list[int]] = {agent: [] for agent in trace.agents}
        self._ordinals = {agent: i for i, agent in enumerate(trace.agents)}
        self._rules: dict[str, CheckpointRule] = {
            agent: make_rule(name, i, count) for agent, i in self._ordinals.items()
        }
        self._takes_after_sends = RULES[name].checkpoints_after_sends
        self._reordering = _reordering_channels(trace)
        self._received = {event.message for event in trace.events if isinstance(event, MessageReceived)}
        self._seen = dict.fromkeys(trace.agents, 0)
        self._numbers = dict.fromkeys(trace.agents, 0)
        self._carried: dict[str, tuple[int, bytes]] = {}

    def take_basic(self, event: CheckpointTaken) -> None:
        self._rules[event.agent].checkpoint()
        self._add_checkpoint(event.agent, "basic")
        self._seen[event.agent] += 1

    def send(self, event: MessageSent) -> None:
        sender, rule, to = event.agent, self._rules[event.agent], self._ordinals[event.to]
        piggyback = rule.send_full(to) if (sender, event.to) in self._reordering else rule.send(to)
        if event.message in self._received:
            self._carried[event.message] = (self._ordinals[sender], piggyback)
        self.events.append(event)
        if self._takes_after_sends:
            rule.checkpoint()
            self._force(sender)
        self._seen[sender] += 1

    def receive(self, event: MessageReceived) -> None:
        agent, rule = event.agent, self._rules[event.agent]
        sender, piggyback = self._carried.pop(event.message)
        if rule.forces(sender, piggyback):
            rule.checkpoint(piggyback)
            self._force(agent)
        rule.receive(sender, piggyback)
        self.events.append(event)
        self._seen[agent] += 1

    def _force(self, agent: str) -> None:
        self.forced[agent].append(self._seen[agent])
        self._add_checkpoint(agent, "forced")

    def _add_checkpoint(self, agent: str, kind: Kind) -> None:
        self._numbers[agent] += 1
        self.events.append(CheckpointTaken(agent, self._numbers[agent], kind))


def _reordering_channels(trace: Trace) -> set[tuple[str, str]]:
    """Return the channels on which the nth receive is not that of the nth send."""
    sent: defaultdict[tuple[str, str], int] = defaultdict(int)
    received: defaultdict[tuple[str, str], int] = defaultdict(int)
    sent_at: dict[str, tuple[tuple[str, str], int]] = {}
    reordering = set()
    for event in trace.events:
        if isinstance(event, MessageSent):
            channel = (event.agent, event.to)
            sent_at[event.message] = (channel, sent[channel])
            sent[channel] += 1
        elif isinstance(event, MessageReceived):
            channel, index = sent_at[event.message]
            if index != received[channel]:
                reordering.add(channel)
            received[channel] += 1
    return reordering
