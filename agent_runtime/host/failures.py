"""The host core's component for failures. The component keeps failed agents, messages that crashed agents or whole processes, dead letters,
and rollback requests.

*Process crashes.* A message that has crashed more processes than its limit allows is not handled again. The coordinator counts the crashes
(`coordinator/state/operation_rules.py`), and sends the counts with each plan. A turn is identified by its agent and by a digest of its
message and sender, because both remain the same after any recovery. The message's sequence number may change, because a sender that was
rolled back may send in a different order. Equal messages from the same sender are therefore counted together.

*Rollback requests* (`ctx.rollback`). An agent that requests a rollback is suspended. The requesting turn has no effect, and its message
remains first in the mailbox. Like any agent between two turns, a suspended agent can still take checkpoints. Every plan ends the
suspension.
"""

import zlib
from collections.abc import Sequence

from snapline.agent_runtime.host import dead_letters
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import Entry, OperatorCommandEntry, StartEntry, key_of, sender_of
from snapline.agent_runtime.host.host_state import NEVER_RETRIED_NS, HostState, LocalAgent
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.agent_runtime.message_encoding import without_tail
from snapline.agent_runtime.rollback_errors import RollbackRequest
from snapline.messages import host_messages as msg
from snapline.messages.host_messages import CAPTURE, TurnDeath
from snapline.messages.past_rollbacks import encode_requests
from snapline.messages.payloads import MARK
from snapline.storage.disk.record import digest_of
from snapline.storage.packs.checkpoint import DeadLetterRecord

DIGEST_BYTES = 8

HEAD_BYTES, END_BYTES = 1024, 65_536
"""Sizes of the head and the end of a message that are digested. To digest all of 64 MiB would take 30 ms."""

_SEPARATELY_DIGESTED = (CAPTURE, "letter")
"""Kinds of turns with separate digests. So an operator's retry of a dead letter always runs, even if the message has killed processes
before."""


class MessageSample:
    """The beginning of a message, its size, and a checksum of its end, from which the digest of a turn is computed."""

    __slots__ = ("end", "head", "size_bytes")

    def __init__(self, payload: bytes) -> None:
        plain = without_tail(payload) if payload.find(MARK, 0, HEAD_BYTES) >= 0 else payload
        self.head = plain[:HEAD_BYTES]
        self.size_bytes = len(plain)
        self.end = zlib.crc32(plain[-END_BYTES:])


def digest_of_turn(what: str, sender: str, sample: MessageSample) -> bytes:
    """Return a digest that is equal for equal messages from the same sender."""
    prefix = what if what in _SEPARATELY_DIGESTED else ""
    head = f"{prefix}\0{sender}\0{sample.size_bytes}\0{sample.end}\0".encode()
    return digest_of(head + sample.head)[:DIGEST_BYTES]


class TurnDeaths:
    """The turns of this host's agents during which processes have crashed.

    Attributes:
        known: mapping from (agent, digest) to the record of the crashes in the current plan. The mapping is almost always empty, so callers
            check this first.
    """

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self.known: dict[tuple[str, bytes], TurnDeath] = {}
        self._survived: list[msg.TurnSurvived] = []

    def plan_received(self, deaths: tuple[TurnDeath, ...]) -> None:
        """Replace the known crashes with the crashes in a new plan."""
        self.known.clear()
        self.known.update({(death.agent, death.digest): death for death in deaths})
        self._survived.clear()

    def welcomed(self) -> None:
        """Resend reports that the coordinator may not have received."""
        self._shared.out.extend(self._survived)

    def against(self, agent: str, what: str, sender: str, payload: bytes) -> TurnDeath | None:
        """Return the record of the crashes that forbid this turn, or None if the turn may run."""
        if not any(name == agent for name, _ in self.known):
            return None
        death = self.known.get((agent, digest_of_turn(what, sender, MessageSample(payload))))
        return None if death is None or death.times <= death.limit else death

    def survived(self, agent: str, what: str, sender: str, payload: bytes) -> None:
        """Report to the coordinator that a turn during which processes had crashed has now succeeded. If the turn was a successful retry by
        an operator, the original message may be handled again too."""
        sample = MessageSample(payload)
        for kind in dict.fromkeys((what, "message") if what == "letter" else (what,)):
            key = agent, digest_of_turn(kind, sender, sample)
            if self.known.pop(key, None) is not None:
                message = msg.TurnSurvived(*key)
                self._survived.append(message)
                self._shared.out.append(message)


class HostRollbacks:
    """The rollback requests of this host's agents.

    Attributes:
        wanted: rollback requests made under the current plan, by agent.
        refused: reasons why requests were refused, by agent. Agents whose requests were refused stay suspended.
    """

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self.wanted: dict[str, msg.WantRollback] = {}
        self.refused: dict[str, str] = {}

    def reset(self) -> None:
        """Clear all requests when a recovery plan ends the history of all agents on this host."""
        self.wanted.clear()
        self.refused.clear()

    def welcomed(self) -> None:
        """Resend all requests, because the coordinator may not have received them or may have a new leader. Refused requests are resent
        too, because the command `status` shows them."""
        self._shared.out.extend(self.wanted.values())

    def want(
        self, agent: LocalAgent, rollback_request: RollbackRequest, turn: int, requests: Sequence[tuple[str, str, str]]
    ) -> None:
        """Suspend an agent whose turn ended with the given rollback request. Before the call, the caller must have put the turn's message
        back into the mailbox. `turn` is the number of a durable turn or 0, and `requests` is what it had requested."""
        agent.retry_ns = NEVER_RETRIED_NS
        message = msg.WantRollback(
            *(agent.id, agent.incarnation, rollback_request.snapshot, rollback_request.reason, rollback_request.place),
            done=encode_requests(requests),
            turn=turn,
            at_most=rollback_request.at_most,
        )
        self.wanted[agent.id] = message
        self._shared.note(
            "warning",
            f"agent {agent.id} stands: it asks to go back, at {rollback_request.place}: {rollback_request.reason}",
        )
        self._shared.out.append(message)

    def on_refused(self, event: msg.RollbackRefused) -> None:
        """Record that a rollback request was refused, and log the refusal once. The requesting agent stays suspended."""
        request = self.wanted.get(event.agent)
        if request is not None and request.incarnation == event.incarnation and event.agent not in self.refused:
            self.refused[event.agent] = event.reason
            self._shared.note("error", event.reason)


POISON_KEPT = 1000
"""Largest number of remembered messages that crashed an agent with on_error "recover". Above it, the oldest are forgotten."""

Poison = tuple[str, str, bytes]
"""Identity of a message that crashed its agent: the agent, the sender and the payload."""


class HostFailures:
    """Keeps failed agents and crash counts, and turns messages into dead letters. A message that has become a dead letter counts as
    consumed.

    Attributes:
        failed: agents that run no more turns under the current plan, with the reason for each agent.
        poison: mapping from each message that crashed its agent to the number of crashes and the retry limit. This mapping is kept when the
            plan changes.
    """

    _mode: HostMode

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self.failed: dict[str, str] = {}
        self.poison: dict[Poison, tuple[int, int]] = {}
        self.rollbacks = HostRollbacks(shared)
        self.deaths = TurnDeaths(shared)

    def wire(self, mode: HostMode) -> None:
        """Connect this component to the components of the host core above it."""
        self._mode = mode

    def reset(self) -> None:
        """Clear failed agents and rollback requests when a recovery plan ends the history of all agents on this host."""
        self.failed.clear()
        self.rollbacks.reset()

    def welcomed(self) -> None:
        """Resend reports that the coordinator may not have received."""
        self.repeat_failed()
        self.rollbacks.welcomed()
        self.deaths.welcomed()

    def repeat_failed(self) -> None:
        """Report the failed agents again, because the coordinator may not have received the reports or may have made a plan without
        them."""
        for agent, reason in self.failed.items():
            self._shared.out.append(msg.AgentFailed(agent, self._shared.agents[agent].incarnation, reason))

    # ---- agents ---------------------------------------------------------------------------------------------------

    def fail(self, agent: LocalAgent, reason: str) -> None:
        """Mark the agent as failed, and report the failure to the coordinator. Until a plan has restored the failed agent, it starts no
        turns and sends no messages."""
        agent.is_failed = True
        self.failed[agent.id] = reason
        self._shared.out.append(msg.AgentFailed(agent.id, agent.incarnation, reason))
        self._mode.failed(agent)

    def crash(self, agent: LocalAgent, entry: Entry, event: ev.TurnFailed) -> None:
        """Count a crash of the agent. Mark the agent as failed, because its state is unreliable after the failed turn of this entry."""
        key = _poison_of(agent, entry)
        self.poison[key] = (self.poison.get(key, (0, 0))[0] + 1, event.retries)
        while len(self.poison) > POISON_KEPT:
            del self.poison[next(iter(self.poison))]
        self.fail(agent, event.error)

    def forgive(self, agent: LocalAgent, entry: Entry) -> None:
        """Forget the crash count of an entry whose turn has succeeded."""
        self.poison.pop(_poison_of(agent, entry), None)

    def is_poison(self, agent: LocalAgent, entry: Entry) -> bool:
        """Return whether this message has crashed the agent more often than its limit allows. If the limit is exceeded, make the message a
        dead letter without running a turn."""
        times, retries = self.poison.get(_poison_of(agent, entry), (0, 0))
        if times <= retries:
            return False
        if isinstance(entry, StartEntry):
            agent.is_started = True
        self.dead_letter(agent, entry, f"crashed the agent {times} times", times, 0)
        return True

    # ---- messages -------------------------------------------------------------------------------------------------

    def dead_letter(self, agent: LocalAgent, entry: Entry, error: str, attempts: int, time_ns: int) -> None:
        """Make a mailbox entry a dead letter of its receiver. The caller must then consume the entry."""
        sender, payload, key = sender_of(agent, entry), entry.payload, key_of(entry)
        is_command = isinstance(entry, OperatorCommandEntry)
        again = dead_letters.take_failed_retry(agent, payload, key) if is_command else None
        if again is not None:
            sender, payload, key = again.sender, again.payload, again.key
        elif agent.inputs is not None:
            key = agent.inputs.retries.get(key, key)
        self._add_dead_letter(agent, DeadLetterRecord(sender, payload, error, attempts, time_ns, key))
        self._shared.out.append(ev.MessageDeadLettered(agent.id, entry.kind, sender, entry.payload, last_line(error)))

    def void(
        self, agent: LocalAgent, receiver: str, payload: bytes, error: str, *, is_refused_creation: bool = False
    ) -> None:
        """Make a message that can never be delivered a dead letter of its sender."""
        self._add_dead_letter(agent, DeadLetterRecord(agent.id, payload, error, 1, 0))
        self._shared.out.append(
            ev.UnroutableMessageDeadLettered(agent.id, receiver, payload, last_line(error), is_refused_creation)
        )

    def _add_dead_letter(self, agent: LocalAgent, dead_letter: DeadLetterRecord) -> None:
        dead_letters.add(agent, dead_letter)
        self._shared.counts.dead_letters += 1
        self._mode.moved(agent)


def last_line(text: str) -> str:
    """Return the last line of an error's text, which contains the error message without the traceback."""
    return text.rstrip().rpartition("\n")[2]


def _poison_of(agent: LocalAgent, entry: Entry) -> Poison:
    return agent.id, sender_of(agent, entry), entry.payload
