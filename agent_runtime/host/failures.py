"""The part of a host core that keeps failures: failed agents, messages that crashed them, and dead letters."""

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host import host_events as lt
from snapline.agent_runtime.host import host_operator_commands
from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.host.local_agent import START, Entry, LocalAgent
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.agent_runtime.host.rollback_requests import HostRollbacks
from snapline.agent_runtime.host.turn_deaths import TurnDeaths
from snapline.messages import host_messages as msg
from snapline.messages.payloads import CREATE
from snapline.storage.log.record import LoggedInput
from snapline.storage.packs.checkpoint import DeadLetterRecord, StashedMessage

POISON_KEPT = 1000
"""Largest number of messages remembered that crashed an agent with on_error "recover"; the oldest are forgotten first."""

Poison = tuple[str, str, bytes]
"""Identity of a message that crashed its agent: agent, sender, payload."""


class HostFailures:
    """Failed agents and messages. Dead letters count as consumed.

    Attributes:
        failed: agent that takes no more turns under this plan → reason.
        poison: message that crashed its agent → number of crashes, and its limit. Kept across plans.
        rollbacks: agents that request a rollback of the fleet.
        deaths: turns in which processes have died.
    """

    _mode: HostMode

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self.failed: dict[str, str] = {}
        self.poison: dict[Poison, tuple[int, int]] = {}
        self.rollbacks = HostRollbacks(shared)
        self.deaths = TurnDeaths(shared)

    def wire(self, mode: HostMode) -> None:
        """Connect the parts above."""
        self._mode = mode

    def reset(self) -> None:
        """A plan ends the history of every agent here."""
        self.failed.clear()
        self.rollbacks.reset()

    def welcomed(self) -> None:
        """Repeat what the coordinator may not have received."""
        for agent, reason in self.failed.items():
            self._shared.out.append(msg.AgentFailed(agent, self._shared.agents[agent].incarnation, reason))
        self.rollbacks.welcomed()
        self.deaths.welcomed()

    # ---- agents ---------------------------------------------------------------------------------------------------

    def fail(self, agent: LocalAgent, reason: str) -> None:
        """Fail the agent: it takes no more turns, and nothing leaves it, until a plan has restored it."""
        agent.is_failed = True
        self.failed[agent.id] = reason
        self._shared.out.append(msg.AgentFailed(agent.id, agent.incarnation, reason))
        self._mode.failed(agent)

    def crash(self, agent: LocalAgent, entry: Entry, event: ev.TurnFailed) -> None:
        """Fail the agent: its state cannot be trusted after this entry's turn."""
        key = _poison_of(agent, entry)
        self.poison[key] = (self.poison.get(key, (0, 0))[0] + 1, event.retries)
        while len(self.poison) > POISON_KEPT:
            del self.poison[next(iter(self.poison))]
        self.fail(agent, event.error)

    def forgive(self, agent: LocalAgent, entry: Entry) -> None:
        """Drop the crash count of an entry whose turn has succeeded."""
        self.poison.pop(_poison_of(agent, entry), None)

    def is_poison(self, agent: LocalAgent, entry: Entry) -> bool:
        """Return whether this message has crashed the agent more often than it may. Then it is dead-lettered without a turn."""
        times, retries = self.poison.get(_poison_of(agent, entry), (0, 0))
        if times <= retries:
            return False
        if entry[1] == START:
            agent.is_started = True
        self.dead_letter(agent, entry, f"crashed the agent {times} times", times, 0)
        return True

    # ---- messages -------------------------------------------------------------------------------------------------

    def dead_letter(self, agent: LocalAgent, entry: Entry, error: str, attempts: int, time_ns: int) -> None:
        """Make the entry a dead letter of its receiver; the caller consumes it."""
        kind, sender, payload = turn_kind_of(entry), sender_of(agent, entry), entry[2]
        again, key = (
            host_operator_commands.take_failed_retry(agent, entry)
            if host_operator_commands.is_operator_command(entry)
            else None,
            host_operator_commands.parse_effect_key(entry),
        )
        if again is not None:
            sender, payload, key = again.sender, again.payload, again.key
        elif agent.inputs is not None:
            key = agent.inputs.retries.get(key, key)
        self._add_letter(agent, DeadLetterRecord(sender, payload, error, attempts, time_ns, key))
        self._shared.out.append(lt.MessageDeadLettered(agent.id, kind, sender, entry[2], last_line(error)))

    def void(
        self, agent: LocalAgent, receiver: str, payload: bytes, error: str, *, is_refused_creation: bool = False
    ) -> None:
        """Make a message that can never arrive a dead letter of its sender."""
        self._add_letter(agent, DeadLetterRecord(agent.id, payload, error, 1, 0))
        self._shared.out.append(
            lt.UnroutableMessageDeadLettered(agent.id, receiver, payload, last_line(error), is_refused_creation)
        )

    def _add_letter(self, agent: LocalAgent, letter: DeadLetterRecord) -> None:
        host_operator_commands.add(agent, letter)
        self._shared.counts.dead_letters += 1
        self._mode.moved(agent)


def is_creation(entry: Entry) -> bool:
    """Return whether this message creates its receiver."""
    return entry[0] is not None and entry[2][:1] == CREATE


def is_first(entry: Entry) -> bool:
    """Return whether the entry runs `on_start`."""
    return entry[1] == START or is_creation(entry)


def is_from_others(entry: Entry) -> bool:
    """Return whether another agent, or a client outside, sent it. Operator commands are about messages that were counted."""
    is_reported = entry[0] is not None or isinstance(entry[1], LoggedInput | StashedMessage)
    return is_reported and not host_operator_commands.is_operator_command(entry)


def turn_kind_of(entry: Entry) -> str:
    """Return the name of a turn: "start", "create", "message", "timer", "input", "letter": an operator command, or "stashed": consumed before."""
    inlet, name, payload = entry
    if inlet is None and host_operator_commands.is_operator_command(entry):
        return "letter"
    if inlet is None:
        if isinstance(name, StashedMessage):
            return "stashed"
        return "input" if isinstance(name, LoggedInput) else "start" if name == START else "timer"
    return "create" if payload[:1] == CREATE else "message"


def sender_of(agent: LocalAgent, entry: Entry) -> str:
    """Return the sender: for timers and the first turn the agent itself; for inputs `@` and the client's name, which no agent has."""
    inlet, name, _ = entry
    if inlet is not None:
        return inlet.sender
    if isinstance(name, StashedMessage):
        return name.sender
    return f"@{name.client}" if isinstance(name, LoggedInput) else agent.id


def last_line(text: str) -> str:
    """Return the message of an error, without its traceback."""
    return text.rstrip().rpartition("\n")[2]


def _poison_of(agent: LocalAgent, entry: Entry) -> Poison:
    return agent.id, sender_of(agent, entry), entry[2]
