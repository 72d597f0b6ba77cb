"""The host: many agents, their mailboxes and channels, and their part in epochs and recoveries. No I/O.

Theory of operation
-------------------
Model: agents are single-threaded and their turns atomic; links between hosts deliver in order, each item once
(`channels/link.py`); hosts crash and may come back, agents of a host crash with it.

A message's life. A turn ends with a list of sends. Each is put into its channel's *outlet*. It leaves, and only then is
numbered and stamped with its agent's recorded epoch, when the channel has credit and the link has room; until then it is
*parked*: outbox, hence the sender's state, and sent as new after a restore. At the receiver it goes through the protocol
into the mailbox and becomes a turn. It counts as received when that turn has ended. Between agents of one host the same
path is taken; only the frame is missing.

An epoch's life (protocols.md, 2.2, after Chandy and Lamport 1985 and Lai and Yang 1987). The first of the coordinator's
word, a marker, and a message stamped with it makes the epoch known here. Every agent owes a record from then on and takes
it before its next turn. When all of them have recorded, one marker item goes on each link: everything stamped older on
that link is before it. When the marker items of all other hosts have arrived as well, nothing of this epoch can arrive
any more, so the host's part is closed and goes to the store in the background.

A plan's life. A plan ends the history of every agent here: mailboxes, links and turns are dropped, agents are loaded from
the line, their channels get the line's numbers back, and the in-transit messages of the line stand in their mailboxes
again. Links carry the plan's number in their Hello, so nothing of an older plan is ever heard (G9).

Invariants (`validate`): a channel's arrived − consumed messages are exactly those waiting or in the running turn; an
agent that may start a turn has an empty mailbox; a parked message has no number.

Carries G1 and G2 (with `protocols/epoch_stamped.py`), G3 and G9 for its agents.

The caller's duties:
1. Carry out commands in order, before the next event.
2. Run one turn for each StartTurn, and answer it with TurnEnded or TurnFailed.
3. Take a CaptureState's image at once: the state must not change between the command and the image.
4. Say BatchEnded when there are no more turns to run right now.
"""

import heapq
from collections.abc import Callable
from typing import Any

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.creation import CREATE
from snapline.agent_runtime.host.failures import HostFailures, is_creation, is_first, poison_key
from snapline.agent_runtime.host.local_agent import (
    PARKED_MESSAGES_MAX,
    START,
    AgentInlet,
    AgentOutlet,
    Entry,
    LocalAgent,
    Mark,
    Peer,
)
from snapline.channels.channel import PART_BYTES
from snapline.protocols.epoch_stamped import MessageArrived
from snapline.protocols.names import CHANDY_LAMPORT, is_autonomous, is_logged
from snapline.protocols.policy import ByHand, Policy

BY_HAND: Policy = ByHand()


class HostCore(HostFailures):
    """Decides for one host. `handle` is the only door.

    Attributes:
        host: id of this host.
        plan: number of the plan applied, or being applied; 0 before the first.
        protocol, policy: which checkpointing protocol the fleet runs, and when its agents checkpoint on their own.
        trace_every: of each channel, every so manieth message is traced; 0 = none.
        agents: the agents here, by id.
        routes: agent → (host, incarnation) as far as known.
        peers: the other hosts of the plan that have a link, by id.
        wakeup_ns: next time TimerFired is wanted, or None.
    """

    def __init__(
        self, host: str, *, protocol: str = CHANDY_LAMPORT, policy: Policy = BY_HAND, trace_every: int = 0
    ) -> None:
        self.host = host
        self.protocol = protocol
        self.policy = policy
        self.is_logged, self.is_autonomous = is_logged(protocol), is_autonomous(protocol)
        self.trace_every = trace_every
        self.start = 0
        self.cluster = ""
        self.plan = 0
        self.plan_hosts: tuple[str, ...] = ()
        self.begun_epoch = 0
        self.is_loaded = False
        self.agents: dict[str, LocalAgent] = {}
        self.routes: dict[str, tuple[str, int]] = {}
        self.roster: dict[str, ev.RosterEntry] = {}
        self.peers: dict[str, Peer] = {}
        self.local = Peer(host, 0, None)
        self.ordinals: dict[str, int] = {}
        self.checkpoints = self.forced = self.put_off = 0
        self.piggybacked = self.piggyback_bytes = self.dead_letters = self.turns = 0
        self._now = 0
        self._out: list[ev.Command] = []
        self._timers: list[tuple[int, int, str, str]] = []
        self._timer_count = self._requests = 0
        self._retries: list[tuple[int, str, int]] = []
        self._reservations: dict[int, tuple[str, tuple[tuple[str, str], ...]]] = {}
        self._retirements: dict[int, str] = {}
        self._locating: dict[int, tuple[str, ...]] = {}
        self._early: dict[str, list[tuple[AgentInlet, Mark, bytes | None]]] = {}
        self._ending: dict[tuple[str, str], AgentInlet] = {}
        self._poison: dict[tuple[str, str, bytes], tuple[int, int]] = {}
        self._failed: dict[str, str] = {}
        self._load_failure: ev.LoadFailed | None = None
        self._loading: ev.LoadAgents | None = None
        self._load_tries = self._load_again_ns = 0
        self._plans_applied = self._first_plan_ns = 0
        self._init_epochs()
        self._init_checkpoints()
        self._handlers: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.TurnEnded: self._on_turn_ended,
            ev.FrameReceived: self._on_frame_received,
            ev.BatchEnded: self._on_batch_ended,
            ev.WriteReady: self._on_write_ready,
            ev.TimerFired: self._on_timer_fired,
            ev.TurnFailed: self._on_turn_failed,
            ev.StreamOpened: self._on_stream_opened,
            ev.StreamClosed: self._on_stream_closed,
            ev.Welcomed: self._on_welcomed,
            ev.RosterReceived: self._on_roster_received,
            ev.PlanReceived: self._on_plan_received,
            ev.AgentsLoaded: self._on_agents_loaded,
            ev.LoadFailed: self._on_load_failed,
            ev.EpochBegun: self._on_epoch_begun,
            ev.EpochEnded: self._on_epoch_ended,
            ev.EpochStored: self._on_epoch_stored,
            ev.EpochNotStored: self._on_epoch_not_stored,
            ev.CaptureFailed: self._on_capture_failed,
            ev.AgentsReserved: self._on_agents_reserved,
            ev.AgentRetired: self._on_agent_retired,
            ev.AgentsLocated: self._on_agents_located,
            ev.AgentsFreezeRequested: self._on_agents_freeze_requested,
            ev.AgentsThawed: self._on_agents_thawed,
            ev.CheckpointsRequested: self._on_checkpoints_requested,
            ev.NumbersRequested: self._on_numbers_requested,
            ev.CheckpointMeasured: self._on_checkpoint_measured,
            ev.CheckpointFailed: self._on_checkpoint_failed,
            ev.StoreWatched: self._on_store_watched,
        }

    def handle(self, now_ns: int, event: ev.Event) -> list[ev.Command]:
        """Take one event; returns what to do, in order."""
        self._now = now_ns
        out: list[ev.Command] = []
        self._out = out
        self._handlers[type(event)](event)
        return out

    @property
    def wakeup_ns(self) -> int | None:
        wakeup_ns = self._timers[0][0] if self._timers else self._load_again_ns or None  # no agents, no timers
        for peer in self.peers.values():
            time_ns = peer.link.wakeup_ns if peer.link is not None else None
            if time_ns is not None and (wakeup_ns is None or time_ns < wakeup_ns):
                wakeup_ns = time_ns
        retries = [self._retries[0][0]] if self._retries else []
        for due_ns in [*retries, *self._checkpoints_wakeup_ns()]:
            if wakeup_ns is None or due_ns < wakeup_ns:
                wakeup_ns = due_ns
        return wakeup_ns

    @property
    def has_batch(self) -> bool:
        """Would BatchEnded change anything? Something is queued for a link, or waits for room there, or was consumed."""
        return any(peer.out_channels or peer.consumed_items or peer.waiting for peer in self.peers.values())

    # ---- turns ----------------------------------------------------------------------------------------------------

    def _next_turn(self, agent: LocalAgent) -> None:
        """Start the agent's next turn, if it may; a record that it owes comes first."""
        if agent.current is not None or agent.is_failed:
            return
        if agent.logged is not None:
            self._settle_debts(agent)
            if agent.is_retiring and not agent.is_held:
                self._drain_mailbox(agent)
                self._settle_debts(agent)
        elif agent.protocol.owed > agent.protocol.recorded and agent.retired_in is None:
            self._record(agent)
        if not agent.is_born:
            self._bring_creation_forward(agent)
        while agent.mailbox and agent.may_start:
            entry = agent.mailbox.popleft()
            if agent.parked > PARKED_MESSAGES_MAX and _is_own(agent, entry):
                agent.deferred.append(entry)
                agent.attempts = 0  # they were this entry's, if it was to be tried again
                continue
            self._begin_consuming(agent, entry)
            if agent.is_born and is_creation(entry):
                self._bury(agent, entry, f"agent {agent.id!r} exists already: ids are never used twice", 1, 0)
                self._consume(entry)
            elif self._poison and self._is_poison(agent, entry):
                self._consume(entry)
            else:
                agent.current = entry
                self._emit_turn(agent, entry)
                return
        if agent.logged is not None and agent.logged.owed:
            self._settle_debts(agent)  # for what was consumed without a turn

    def _bring_creation_forward(self, agent: LocalAgent) -> None:
        """An agent that is not born yet takes no other message first; after a recovery others may come earlier."""
        for index, (inlet, _, payload) in enumerate(agent.mailbox):
            if inlet is not None and payload[:1] == CREATE:
                creation = agent.mailbox[index]
                del agent.mailbox[index]
                agent.mailbox.appendleft(creation)
                agent.awaits_creation = False
                return

    def _begin_consuming(self, agent: LocalAgent, entry: Entry) -> None:
        """The entry's time has come, whether a turn or the dead letters will consume it."""
        if agent.logged is not None:
            self._admit(agent, entry)

    def _drain_mailbox(self, agent: LocalAgent) -> None:
        """The agent has stopped: what still comes is consumed, without a turn."""
        while agent.mailbox:
            entry = agent.mailbox.popleft()
            self._begin_consuming(agent, entry)
            self.dead_letters += entry[0] is not None
            self._consume(entry)
            if entry[0] is None:
                self._note_move(agent)

    def _emit_turn(self, agent: LocalAgent, entry: Entry) -> None:
        inlet, name, payload = entry
        if inlet is not None:
            what = "create" if payload[:1] == CREATE else "message"
            sender = inlet.sender
        else:
            what = "start" if name == START else "timer"
            sender = agent.id
        self._out.append(ev.StartTurn(agent.id, agent.incarnation, what, sender, payload))

    def _on_turn_ended(self, event: ev.TurnEnded) -> None:
        agent = self.agents.get(event.agent)
        if agent is None or agent.incarnation != event.incarnation or agent.current is None:
            return
        if agent.is_failed:
            self._discard_turn(agent)
            return
        entry = agent.current
        agent.attempts = 0
        self.turns += 1
        if entry[0] is not None:
            self._consume(entry)
        if not agent.is_started and is_first(entry):
            agent.is_started = agent.is_born = True
        if self._poison:
            self._poison.pop(poison_key(agent, entry), None)
        for name in event.cancelled:
            agent.timers.pop(name, None)
        for name, delay_ns, payload in event.timers:
            self._set_timer(agent, name, delay_ns, payload)
        if event.stops:
            agent.is_leaving = True
        if event.spawns:
            self._hold(agent, event)
        else:
            self._leave_all(agent, event.sends)
        agent.current = None
        if agent.logged is not None:
            self._note_turn(agent, wants_checkpoint=event.wants_checkpoint, is_own=entry[0] is None)
        if agent.is_leaving:
            self._retire_if_drained(agent)
        self._next_turn(agent)

    def _leave_all(self, agent: LocalAgent, sends: list[tuple[str, bytes]]) -> None:
        """A turn's sends leave together. The agent counts as busy: a record in their middle would tear the turn."""
        assert agent.current is not None
        for receiver, payload in sends:
            self._leave(agent, receiver, payload)

    def _consume(self, entry: Entry) -> None:
        """The message counts as received; its place in the windows is free again."""
        inlet = entry[0]
        if inlet is None:
            return
        credit = inlet.consume()
        if self.trace_every and inlet.owner is not None and inlet.consumed % self.trace_every == 0:
            self._out.append(ev.Trace("receive", inlet.receiver, inlet.sender, inlet.consumed))
        if self.is_logged:
            self._note_consumed(inlet)
        peer = inlet.peer
        if inlet.consumed >= inlet.first_number:
            size = len(entry[2])
            peer.consumed_items += 1
            peer.consumed_bytes += size if size < PART_BYTES else PART_BYTES
        if credit:
            if peer.link is None:
                self._raise_credit(inlet, credit)
            else:
                peer.credit_channels.append(inlet.channel)
                peer.credit_numbers.append(credit)

    def _raise_credit(self, inlet: AgentInlet, credit: int) -> None:
        sender = self.agents.get(inlet.sender)
        outlet = sender.outlets.get(inlet.receiver) if sender is not None else None
        if outlet is not None:
            outlet.credit = credit
            if inlet.owner is not None:  # else `_unpark` is at work already: each message it lets go comes back here
                self._unpark(outlet)

    # ---- sending and arriving -------------------------------------------------------------------------------------

    def _leave(self, agent: LocalAgent, receiver: str, payload: bytes) -> None:
        """Send, or park where the channel has no credit or the link no room."""
        outlet = agent.outlets.get(receiver)
        if outlet is None or outlet.peer is None:
            outlet = self._open_outlet(agent, receiver)
            self._unpark(outlet)
        peer = outlet.peer
        if (
            peer is None
            or outlet.queue
            or outlet.number >= outlet.credit
            or peer.items_room <= 0
            or peer.bytes_room <= 0
            or agent.is_silent
        ):
            self._park(outlet, payload)
        else:
            self._depart(outlet, peer, payload)

    def _depart(self, outlet: AgentOutlet, peer: Peer, payload: bytes) -> None:
        """Number and stamp a message, at one instant: this is the moment it leaves its sender."""
        outlet.number += 1
        logged = outlet.owner.logged
        stamp = outlet.owner.protocol.recorded
        mark: Mark = stamp if logged is None else self._keep(logged, outlet, payload)
        if self.trace_every and outlet.number % self.trace_every == 0:
            self._out.append(ev.Trace("send", outlet.sender, outlet.receiver, outlet.number))
        if outlet.inlet is not None:
            self._arrive(outlet.inlet, mark, payload)
            return
        size = len(payload)
        peer.items_room -= 1
        peer.bytes_room -= size
        peer.pending_bytes += size
        peer.out_channels.append(outlet.channel)
        peer.out_payloads.append(payload)
        peer.out_epochs.append(stamp)
        if logged is not None:
            assert isinstance(mark, bytes)
            peer.out_piggybacks.append(mark)

    def _park(self, outlet: AgentOutlet, payload: bytes) -> None:
        outlet.parked.append(payload)
        outlet.owner.parked += 1
        if outlet.peer is not None and outlet.number < outlet.credit:
            self._wait_for_room(outlet, outlet.peer)

    def _wait_for_room(self, outlet: AgentOutlet, peer: Peer) -> None:
        if not outlet.is_waiting:
            outlet.is_waiting = True
            peer.waiting.append(outlet)

    def _unpark(self, outlet: AgentOutlet) -> None:
        """Let parked messages go as far as credit and room allow."""
        peer = outlet.peer
        owner = outlet.owner
        queue = outlet.queue
        if peer is None or not queue or owner.is_silent:
            return
        while queue and outlet.number < outlet.credit:
            if peer.items_room <= 0 or peer.bytes_room <= 0:
                self._wait_for_room(outlet, peer)
                break
            owner.parked -= 1
            self._depart(outlet, peer, queue.popleft())
        if not queue and outlet.queue is queue:
            outlet.queue = None
        self._outbox_shrank(owner)

    def _outbox_shrank(self, owner: LocalAgent) -> None:
        if owner.deferred and owner.parked <= PARKED_MESSAGES_MAX:
            owner.mailbox.extendleft(reversed(owner.deferred))
            owner.deferred.clear()
            self._next_turn(owner)
        elif owner.logged is not None and owner.logged.owed and owner.current is None:
            self._next_turn(owner)  # a checkpoint fell due as messages left: perhaps no turn follows
        if owner.is_leaving:
            self._retire_if_drained(owner)

    def _arrive(self, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """A message is here: the protocol sees it, then it waits for its turn."""
        owner = inlet.owner
        inlet.arrived += 1
        if owner is None:
            self._discard(inlet, mark, payload)
            return
        if isinstance(mark, int) and mark != owner.protocol.recorded:
            self._show_protocol(owner, inlet, mark, payload)
        owner.mailbox.append((inlet, mark, payload))
        if owner.current is None:
            self._next_turn(owner)

    def _show_protocol(self, owner: LocalAgent, inlet: AgentInlet, stamp: int, payload: bytes) -> None:
        owner.protocol.handle(self._now, MessageArrived(inlet.sender, inlet.arrived, stamp, payload))
        if stamp > self.begun_epoch:
            self._begin_epoch(stamp)

    def _discard(self, inlet: AgentInlet, mark: Mark, payload: bytes) -> None:
        """For an agent that is not here: kept if it is just being created, else a dead letter."""
        if self._is_reserving(inlet.receiver):
            self._early.setdefault(inlet.receiver, []).append((inlet, mark, payload))
            return
        self.dead_letters += 1
        self._consume((inlet, mark, payload))

    def _is_reserving(self, name: str) -> bool:
        """Is this agent just being created here?"""
        return any(name == wanted for _, agents in self._reservations.values() for wanted, _ in agents)

    # ---- timers ---------------------------------------------------------------------------------------------------

    def _set_timer(self, agent: LocalAgent, name: str, delay_ns: int, payload: bytes) -> None:
        self._timer_count += 1
        due = self._now + delay_ns
        agent.timers[name] = (due, self._timer_count, payload)
        heapq.heappush(self._timers, (due, self._timer_count, agent.id, name))

    def _on_timer_fired(self, _event: ev.TimerFired) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            _, count, agent_id, name = heapq.heappop(self._timers)
            agent = self.agents.get(agent_id)
            timer = agent.timers.get(name) if agent is not None else None
            if agent is None or timer is None or timer[1] != count:
                continue  # cancelled, or set again since
            del agent.timers[name]
            agent.mailbox.append((None, name or "timer", timer[2]))
            self._next_turn(agent)
        self._retry()
        self._look()
        self._load_again()
        for peer in self.peers.values():
            self._tick_link(peer)

    # ---- invariants -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Cross-check all invariants.

        Raises:
            AssertionError: one does not hold.
        """
        for agent in self.agents.values():
            agent.protocol.validate()
            waiting: dict[str, int] = {}
            entries = [*agent.mailbox, *agent.deferred, *([agent.current] if agent.current is not None else [])]
            for inlet, _, _ in entries:
                if inlet is not None:
                    waiting[inlet.sender] = waiting.get(inlet.sender, 0) + 1
            for sender, inlet in agent.inlets.items():
                open_messages = inlet.arrived - inlet.consumed
                assert open_messages == waiting.get(sender, 0), (agent.id, sender, open_messages, waiting)
            assert agent.parked == sum(len(outlet.queue or ()) for outlet in agent.outlets.values()), agent.id
            assert not (agent.mailbox and agent.may_start and self.is_loaded), f"{agent.id} could start a turn"
            assert agent.protocol.recorded <= self.begun_epoch, agent.id
        self._validate_links()
        self._validate_epochs()
        self._validate_checkpoints()


def _is_own(agent: LocalAgent, entry: Entry) -> bool:
    inlet, name, _ = entry
    return (name != START) if inlet is None else inlet.sender == agent.id
