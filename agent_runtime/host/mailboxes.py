"""The part of the host core that receives messages, keeps them in mailboxes, chooses an agent's next turn, and consumes messages.

Each message enters through `arrive`, whether it came from another host or from an agent on this host. Each message leaves through
`consume`, either when its turn has ended or when it is dead-lettered. This module also fires agents' timers and retries messages.
"""

import heapq
from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from snapline.agent_runtime.durable import refusal_of
from snapline.agent_runtime.host import approvals, dead_letters
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.entries import (
    IDLE,
    IN_TURN,
    CreationEntry,
    Entry,
    InputEntry,
    Mark,
    MessageEntry,
    OperatorCommandEntry,
    SegmentEntry,
    Stage,
    StartEntry,
    StashedEntry,
    TimerEntry,
    is_from_others,
    is_on,
    sender_of,
    stashed_entry,
)
from snapline.agent_runtime.host.failures import HostFailures
from snapline.agent_runtime.host.host_events import TurnKind
from snapline.agent_runtime.host.host_state import (
    AgentInlet,
    AgentOutlet,
    HostState,
    LocalAgent,
    OpenWait,
    Peer,
)
from snapline.agent_runtime.host.modes.mode import HostMode
from snapline.channels.channel import CHANNEL_CREDIT, PART_BYTES
from snapline.messages.approvals import is_approval_answer
from snapline.messages.payloads import CREATE
from snapline.storage.log.log_record import LoggedInput


class OutletSender(Protocol):
    """Interface that `Mailboxes` requires from `Outlets`, the sending ends of channels."""

    def unpark(self, outlet: AgentOutlet) -> None:
        """Send the outgoing channel's parked messages, as far as the channel's credit and the link's capacity allow."""

    def leave(self, agent: LocalAgent, sends: Iterable[tuple[str, bytes]]) -> None:
        """Send these messages, and park those that cannot be sent yet."""


class AgentRetention(Protocol):
    """Interface that `Mailboxes` requires from the host's membership module."""

    def keep_early(self, inlet: AgentInlet, mark: Mark, payload: bytes | None) -> bool:
        """Keep a message if its receiver is being created on this host, and return whether it was kept."""

    def retire_if_drained(self, agent: LocalAgent) -> None:
        """Retire the agent if it has stopped and nothing requires it to remain."""


class InputConsumer(Protocol):
    """Interface that `Mailboxes` requires from the module that handles client inputs."""

    def consume(self, logged: LoggedInput, *, is_dead_lettered: bool, reply: bytes, is_open: bool) -> None:
        """Record an input as consumed. Either its turn has ended, or it has become a dead letter, or its turn continues (`is_open`)."""

    def close(self, agent: LocalAgent, key: str, *, is_dead_lettered: bool, reply: bytes) -> None:
        """Record that the turn of an earlier consumed input has ended."""


class DurableTurnRunner(Protocol):
    """Interface that `Mailboxes` requires from the module that handles durable turns."""

    def next_entry(self, agent: LocalAgent) -> Entry | None:
        """Return the next entry for an agent with a waiting durable turn or stashed messages, or None if no entry is ready."""

    def start(self, agent: LocalAgent) -> None:
        """Run the next segment of the agent's durable turn."""


class Mailboxes:
    """Manages the mailboxes of the agents on this host."""

    _mode: HostMode
    _outlets: OutletSender
    _membership: AgentRetention
    _inputs: InputConsumer
    _durable: DurableTurnRunner

    def __init__(self, shared: HostState, failures: HostFailures) -> None:
        self._shared = shared
        self._failures = failures
        self._poison, self._deaths = failures.poison, failures.deaths.known

    def wire(
        self,
        mode: HostMode,
        outlets: OutletSender,
        membership: AgentRetention,
        inputs: InputConsumer,
        durable: DurableTurnRunner,
    ) -> None:
        """Store references to parts of the host core that are created after this part."""
        self._mode, self._outlets, self._membership, self._inputs = mode, outlets, membership, inputs
        self._durable = durable
        self._arrived, self._before_turn = mode.arrived, mode.before_turn
        self.consuming, self._consumed = mode.consuming, mode.consumed

    # ---- arrival----------------------------------------------------------------------------------------------------

    def arrive(self, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """Accept an arrived message. The protocol processes the message first. The message then waits in the mailbox for its turn."""
        inlet.arrived += 1
        owner = inlet.owner
        if owner is None:
            self._discard(inlet, mark, payload)
            return
        if owner.awaits_creation or owner.turn is not None:
            self._free_window(inlet, payload)
        self._arrived(owner, inlet, mark, payload)
        owner.mailbox.append((CreationEntry if payload[:1] == CREATE else MessageEntry)(inlet, mark, payload))
        if owner.stage is IDLE:
            self.next_turn(owner)

    def _free_window(self, inlet: AgentInlet, payload: bytes) -> None:
        """Return a message's flow-control credit to the link if its agent awaits creation or is in a durable turn.

        Other messages may need the credit, in particular the message that the agent awaits, which may come on any link, even a full one.
        The channel's credit still limits the number of waiting messages.
        """
        if inlet.arrived >= inlet.first_number:
            _give_back(inlet.peer, payload)
            inlet.first_number = inlet.arrived + 1

    def free_windows(self, agent: LocalAgent) -> None:
        """Return the flow-control credit of all messages in the agent's mailbox to their links when a durable turn begins."""
        number = {inlet: inlet.consumed for inlet in agent.inlets.values()}
        for entry in agent.mailbox:
            if isinstance(entry, MessageEntry):
                inlet = entry.inlet
                number[inlet] += 1
                if number[inlet] >= inlet.first_number:
                    _give_back(inlet.peer, entry.payload)
        for inlet in number:
            inlet.first_number = max(inlet.first_number, inlet.arrived + 1)

    def _discard(self, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """Accept a message to an agent that is not on this host. Keep the message if the agent is being created, otherwise consume it as a
        dead letter."""
        if inlet.next is not None:
            self._drop_repeated(inlet, inlet.next, payload)
        elif not self._membership.keep_early(inlet, mark, payload):
            self._shared.counts.dead_letters += 1
            self.consume_message(MessageEntry(inlet, mark, payload))

    def _drop_repeated(self, inlet: AgentInlet, following: AgentInlet, payload: bytes) -> None:
        """Drop a message that had arrived before its sender was restarted. After the last one, the receiving end takes over again."""
        _give_back(inlet.peer, payload)
        if inlet.arrived == following.first_number - 1:
            inlet.peer.inlets[inlet.channel] = following

    # ---- the next turn --------------------------------------------------------------------------------------------

    def next_turn(self, agent: LocalAgent) -> None:
        """Start the agent's next turn if the agent may start one. If the agent owes a checkpoint, it is taken first."""
        if agent.stage is not IDLE or agent.is_failed:
            return
        if agent.owes:
            self._before_turn(agent)
            if agent.is_repeating:
                return  # its checkpoint would contain messages that may already have arrived
        if agent.is_leaving:
            self._settle_what_waits(agent)
            return
        if (agent.turn is not None or agent.stash) and not self._next_segment(agent):
            return
        is_odd = bool(self._poison)
        if not agent.is_born:
            _bring_creation_forward(agent)
            is_odd = True
        is_dead_lettered = False
        mailbox = agent.mailbox
        while mailbox and agent.may_start:
            entry = mailbox.popleft()
            if (agent.is_full or (agent.parked and agent.is_crowded)) and _is_own(agent, entry):
                agent.deferred.append(entry)
                agent.attempts = 0  # the count may be from a failed attempt with this entry
                continue
            self.consuming(agent, entry)
            if (is_odd or type(entry) is not MessageEntry) and self._is_settled(agent, entry):
                is_dead_lettered = True
                continue
            self.start(agent, entry)
            return
        if is_dead_lettered and agent.owes and not agent.is_busy:
            self._before_turn(agent)  # consumed entries may require a checkpoint

    def go_on(self, agent: LocalAgent) -> None:
        """Move the agent's deferred entries back to the mailbox if the reason for deferring them no longer holds."""
        if not agent.is_crowded and not agent.is_full:
            if agent.turn is not None and agent.deferred:
                agent.turn.look = OpenWait(agent.turn.look.ends_at)  # deferred entries now precede the compared ones
            agent.mailbox.extendleft(reversed(agent.deferred))
            agent.deferred.clear()
            self.next_turn(agent)

    def _is_settled(self, agent: LocalAgent, entry: Entry) -> bool:
        """Consume an entry if it is a dead letter or an operator command that needs no turn. Return whether the entry was consumed."""
        if self._is_word_settled(agent, entry):
            return True
        if not self._is_dead_lettered(agent, entry):
            return False
        elif isinstance(entry, MessageEntry):
            self.consume_message(entry)
            self._refuse(agent, entry)
        else:
            self.consume_own(entry, is_dead_lettered=True, agent=agent)
        return True

    def _is_word_settled(self, agent: LocalAgent, entry: Entry) -> bool:
        """Execute the entry if it is an operator command that needs no turn. Return whether the entry was such a command."""
        if not isinstance(entry, OperatorCommandEntry):
            return False
        is_answer = is_approval_answer(entry.payload)
        reply = approvals.settled(agent, entry) if is_answer else dead_letters.settled(agent, entry.payload)
        if reply is None:
            return False
        if self._shared.is_watched:
            self._shared.out.append(ev.OperatorCommandConsumed(agent.id, entry.payload, reply))
        # The reply to a waiting operator may cause a checkpoint, and then the agent's next turn, for which the caller has another entry.
        stage, agent.stage = agent.stage, Stage.BETWEEN_SEGMENTS
        self.consume_own(entry, is_dead_lettered=False, reply=reply, agent=agent)
        agent.stage = stage
        self._mode.moved(agent)
        if agent.owes and stage is IDLE:
            self._before_turn(agent)
        return True

    def _refuse(self, agent: LocalAgent, entry: Entry) -> None:
        """Send an empty reply to the caller if the entry is a call, because no other reply will follow."""
        refusal, stage = refusal_of(entry.payload), agent.stage
        if refusal:
            agent.stage = Stage.SENDING
            self._outlets.leave(agent, ((sender_of(agent, entry), refusal),))
            agent.stage = stage

    def _next_segment(self, agent: LocalAgent) -> bool:
        """Start the next segment of a durable turn, or a turn for a stashed entry. Return True if only commands without a turn were
        consumed, so that the caller may continue with the mailbox."""
        entry = self._durable.next_entry(agent) if agent.may_start else None
        while isinstance(entry, OperatorCommandEntry) and self._is_settled(agent, entry):
            if not agent.stash:
                return True
            entry = self._durable.next_entry(agent)
        if entry is not None:
            self.start(agent, entry)
        elif agent.owes and not agent.is_busy:
            self._before_turn(agent)  # consumed entries may require a checkpoint
        return False

    def _is_dead_lettered(self, agent: LocalAgent, entry: Entry) -> bool:
        """Dead-letter an entry if no turn can handle it. Return whether it was dead-lettered."""
        if agent.is_born and isinstance(entry, CreationEntry):
            reason = f"agent {agent.id!r} exists already: ids are never used twice"
            self._failures.dead_letter(agent, entry, reason, attempts=1, time_ns=0)
            return True
        if not agent.is_born and _is_before_creation(agent, entry):
            reason = f"it left before its sender created agent {agent.id!r}"
            self._failures.dead_letter(agent, entry, reason, attempts=1, time_ns=0)
            return True
        return self._failures.is_poison(agent, entry)

    def start(self, agent: LocalAgent, entry: Entry) -> None:
        """Start the turn that handles this entry, or retry that turn."""
        agent.current, agent.stage = entry, IN_TURN
        kind: TurnKind
        if type(entry) is MessageEntry:
            kind, sender, payload = "message", entry.inlet.sender, entry.payload
        elif isinstance(entry, SegmentEntry):
            self._durable.start(agent)
            return
        else:
            kind, sender, payload = about(agent, entry)
        turn = ev.StartTurn(agent.id, agent.incarnation, kind, sender, payload)
        if self._deaths:
            turn = self.refused_if_deadly(agent, turn, kind, sender, payload)
        if isinstance(entry, StashedEntry) and entry.stashed.abandoned:
            turn = replace(turn, abandoned=tuple(entry.stashed.abandoned))
        begun = agent.begun
        if begun is not None:
            turn = replace(turn, number=begun.count + 1, logged=begun.logged.get(begun.count + 1, ()))
        self._shared.out.append(turn)

    def refused_if_deadly(
        self, agent: LocalAgent, turn: ev.StartTurn, what: str, sender: str, payload: bytes
    ) -> ev.StartTurn:
        """Return the turn. If too many processes have died during the turn, mark the turn as refused."""
        death = self._failures.deaths.against(agent.id, what, sender, payload)
        if death is None:
            return turn
        agent.attempts = death.times - 1
        is_made = death.times == death.limit + 1  # after one more death the agent is not created
        return replace(turn, refusal=death.sentence(), is_made=is_made)

    def put_back(self, agent: LocalAgent) -> None:
        """Put the current entry back at the front of its queue for another attempt, so that no other entry overtakes it."""
        entry, agent.current, agent.stage = agent.current, None, IDLE
        assert entry is not None
        if isinstance(entry, StashedEntry):
            agent.stash.insert(0, entry.stashed)
        elif not isinstance(entry, SegmentEntry):  # a segment's entry is in the journal
            agent.mailbox.appendleft(entry)

    # ---- consuming---------------------------------------------------------------------------------------------------

    def _settle_what_waits(self, agent: LocalAgent) -> None:
        """Consume the waiting entries of a stopped agent. Inputs become dead letters, which keep the agent on this host, and the clients
        receive a reply. Other agents' messages are discarded."""
        if agent.is_retiring or agent.is_held or agent.spawns:
            return
        inputs = _take_inputs(agent)
        agent.stage = Stage.SENDING  # a reply to a waiting client may cause a checkpoint
        for entry in inputs:
            if not self._is_word_settled(agent, entry):
                self._dead_letter_unread(agent, entry)
                self.consume_own(entry, is_dead_lettered=True, agent=agent)
        if any(dead_letters.is_from_outside(dead_letter) for dead_letter in agent.dead_letters):
            self.drain(agent)
        agent.stage = IDLE
        if agent.owes:
            self._before_turn(agent)
        if inputs:
            self._membership.retire_if_drained(agent)

    def _dead_letter_unread(self, agent: LocalAgent, entry: Entry) -> None:
        self._failures.dead_letter(agent, entry, f"agent {agent.id!r} stopped before this had its turn", 0, 0)

    def drain(self, agent: LocalAgent) -> None:
        """Consume the waiting messages of a stopped agent without running turns. As long as the agent may send messages, callers are
        informed that no reply will follow."""
        while agent.mailbox:
            entry = agent.mailbox.popleft()
            self.consuming(agent, entry)
            self._drop(agent, entry)
        while agent.stash:
            stashed = agent.stash.pop(0)
            self._drop(agent, stashed_entry(stashed))

    def _drop(self, agent: LocalAgent, entry: Entry) -> None:
        is_call = bool(refusal_of(entry.payload)) and not agent.is_retiring
        if is_call:
            self._dead_letter_unread(agent, entry)
        else:
            self._shared.counts.dead_letters += is_from_others(entry)
        if isinstance(entry, MessageEntry):
            self.consume_message(entry)
        else:
            self.consume_own(entry, is_dead_lettered=True, agent=agent)
            self._mode.moved(agent)
        if is_call:
            self._refuse(agent, entry)

    def consume(self, entry: Entry, *, is_open: bool = False, reply: bytes = b"") -> None:
        """Consume an entry of any kind because its turn has ended or, if `is_open`, while its turn continues. If it is an input, its client
        gets `reply`."""
        if isinstance(entry, MessageEntry):
            self.consume_message(entry)
        else:
            self.consume_own(entry, is_dead_lettered=False, is_open=is_open, reply=reply)

    def consume_message(self, entry: MessageEntry) -> None:
        """Count a message as received, return its flow-control credit to the link, and grant its channel new credit."""
        inlet = entry.inlet
        shared = self._shared
        credit = 0
        if not shared.commits.is_on or inlet.peer.link is None:
            credit = inlet.consume()
        else:
            self._consume_in_commit(inlet)
        if shared.commits.is_on and inlet.owner is not None:
            shared.note_change(inlet.receiver)
        if shared.trace_every and inlet.owner is not None and inlet.consumed % shared.trace_every == 0:
            shared.out.append(ev.Trace("receive", inlet.receiver, inlet.sender, inlet.consumed))
        self._consumed(inlet)
        peer = inlet.peer
        if inlet.consumed >= inlet.first_number:
            _give_back(peer, entry.payload)
        if credit:
            if peer.link is None:
                self._raise_credit(inlet, credit)
            else:
                peer.credit_channels.append(inlet.channel)
                peer.credit_numbers.append(credit)

    def _consume_in_commit(self, inlet: AgentInlet) -> None:
        """Count a message as consumed. Its sender gets credit when a commit with the consumption is durable (`commits.py`)."""
        inlet.consumed += 1
        if inlet.owner is not None:
            self._shared.commits.is_wanted |= inlet.consumed - inlet.durable >= CHANNEL_CREDIT // 4
        else:
            inlet.peer.credit_channels.append(inlet.channel)
            inlet.peer.credit_numbers.append(inlet.consumed + CHANNEL_CREDIT)

    def consume_own(
        self,
        entry: Entry,
        *,
        is_dead_lettered: bool,
        reply: bytes = b"",
        is_open: bool = False,
        agent: LocalAgent | None = None,
    ) -> None:
        """Consume an entry that did not come over a channel: a client's input, a command or a stashed entry. An input is recorded as
        consumed, together with its reply.

        `agent` must be given if the entry may be a stashed entry.
        """
        if isinstance(entry, InputEntry):
            self._inputs.consume(entry.input, is_dead_lettered=is_dead_lettered, reply=reply, is_open=is_open)
        elif agent is not None and isinstance(entry, StashedEntry) and entry.stashed.key:
            self._inputs.close(agent, entry.stashed.key, is_dead_lettered=is_dead_lettered, reply=reply)

    def _raise_credit(self, inlet: AgentInlet, credit: int) -> None:
        sender = self._shared.agents.get(inlet.sender)
        outlet = sender.outlets.get(inlet.receiver) if sender is not None else None
        if outlet is not None:
            outlet.credit = credit
            if inlet.owner is not None:  # otherwise `unpark` is running and continues by itself
                self._outlets.unpark(outlet)

    # ---- invariants -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        for agent in self._shared.agents.values():
            assert agent.stage is (IDLE if agent.current is None else IN_TURN), agent.id
            waiting: dict[str, int] = {}
            for entry in [*agent.mailbox, *agent.deferred, agent.current]:
                if isinstance(entry, MessageEntry):
                    waiting[entry.inlet.sender] = waiting.get(entry.inlet.sender, 0) + 1
            for sender, inlet in agent.inlets.items():
                open_messages = inlet.arrived - inlet.consumed
                assert open_messages == waiting.get(sender, 0), (agent.id, sender, open_messages, waiting)
            waits = agent.owes and agent.is_repeating
            may_start = agent.may_start and agent.turn is None and self._shared.is_loaded and not waits
            assert not (may_start and (agent.mailbox or agent.stash)), f"{agent.id} could start a turn"


def about(agent: LocalAgent, entry: Entry) -> tuple[TurnKind, str, bytes]:
    """Return the kind, sender and payload of the turn that handles an entry."""
    if isinstance(entry, OperatorCommandEntry):
        return dead_letters.turn_of(agent, entry.payload)
    return entry.kind, sender_of(agent, entry), entry.payload


def _give_back(peer: Peer, payload: bytes) -> None:
    """Return the flow-control credit of a message to the link."""
    size = len(payload)
    peer.consumed_items += 1
    peer.consumed_bytes += size if size < PART_BYTES else PART_BYTES


def _bring_creation_forward(agent: LocalAgent) -> None:
    """Move an agent's creation message to the front of the agent's mailbox. The creation message must be handled in the agent's first turn,
    but after a recovery other messages may arrive earlier.

    Earlier messages on the same channel stay before the creation message, and are dead-lettered. A channel's messages must be consumed in
    order, since a checkpoint contains only the sequence number of the last consumed message.
    """
    mailbox = agent.mailbox
    waiting = list(mailbox)
    creation = next((entry for entry in waiting if isinstance(entry, CreationEntry)), None)
    if creation is None:
        return
    agent.awaits_creation = False
    if waiting[0] is creation:
        return
    end = waiting.index(creation)
    first = [entry for entry in waiting[: end + 1] if is_on(entry, creation.inlet)]
    others = [entry for entry in waiting[:end] if not is_on(entry, creation.inlet)]
    mailbox.clear()
    mailbox.extend([*first, *others, *waiting[end + 1 :]])


def _is_before_creation(agent: LocalAgent, entry: Entry) -> bool:
    """Return whether the agent's creation message follows this message on the same channel."""
    if not isinstance(entry, MessageEntry) or isinstance(entry, CreationEntry):
        return False
    return any(isinstance(other, CreationEntry) and other.inlet is entry.inlet for other in agent.mailbox)


def _take_inputs(agent: LocalAgent) -> list[Entry]:
    """Remove the inputs from clients and operators from the stash and both queues. Return the inputs in order."""
    entries: list[Entry] = [stashed_entry(stashed) for stashed in agent.stash if stashed.key]
    agent.stash = [stashed for stashed in agent.stash if not stashed.key]
    for queue in (agent.deferred, agent.mailbox):
        entries += [entry for entry in queue if isinstance(entry, InputEntry)]
        others = [entry for entry in queue if not isinstance(entry, InputEntry)]
        queue.clear()
        queue.extend(others)
    return entries


def _is_own(agent: LocalAgent, entry: Entry) -> bool:
    if isinstance(entry, MessageEntry):
        return entry.inlet.sender == agent.id
    return not isinstance(entry, StartEntry)


class Timers:
    """Manages timers and retries of the agents on this host. Two heaps order timers and retries by time. An agent's own fields determine
    which heap entries are still valid."""

    def __init__(self, shared: HostState, mailboxes: Mailboxes) -> None:
        self._shared = shared
        self._mailboxes = mailboxes
        self._timers: list[tuple[int, int, str, str]] = []
        self._retries: list[tuple[int, str, int]] = []
        self._count = 0

    def reset(self) -> None:
        """Clear all timers and retries when a recovery plan ends the history of all agents on this host."""
        self._timers.clear()
        self._retries.clear()

    def set(self, agent: LocalAgent, name: str, delay_ns: int, payload: bytes) -> None:
        """Set a timer. The new timer replaces an existing timer with the same name."""
        self._count += 1
        due_ns = self._shared.now + delay_ns
        agent.timers[name] = (due_ns, self._count, payload)
        heapq.heappush(self._timers, (due_ns, self._count, agent.id, name))

    def retry_in(self, agent: LocalAgent, wait_ns: int) -> None:
        """Schedule the retry of the first entry in the agent's mailbox after `wait_ns`."""
        agent.retry_ns = self._shared.now + wait_ns
        heapq.heappush(self._retries, (agent.retry_ns, agent.id, agent.incarnation))

    def wakeups_ns(self) -> list[int]:
        """Return the times at which the caller must next call `fire` and `retry`."""
        return [heap[0][0] for heap in (self._timers, self._retries) if heap]

    def fire(self) -> None:
        """Put each timer that is due into its agent's mailbox as an entry."""
        shared = self._shared
        while self._timers and self._timers[0][0] <= shared.now:
            _, count, agent_id, name = heapq.heappop(self._timers)
            agent = shared.agents.get(agent_id)
            timer = agent.timers.get(name) if agent is not None else None
            if agent is None or timer is None or timer[1] != count:
                continue  # the timer was cancelled, or set again
            del agent.timers[name]
            shared.note_change(agent.id)
            agent.mailbox.append(TimerEntry(name or "timer", timer[2]))
            self._mailboxes.next_turn(agent)

    def retry(self) -> None:
        """Retry the entries whose waiting time has passed."""
        shared = self._shared
        while self._retries and self._retries[0][0] <= shared.now:
            due_ns, agent_id, incarnation = heapq.heappop(self._retries)
            agent = shared.agents.get(agent_id)
            if agent is not None and (agent.retry_ns, agent.incarnation) == (due_ns, incarnation):
                agent.retry_ns = None
                self._mailboxes.next_turn(agent)
