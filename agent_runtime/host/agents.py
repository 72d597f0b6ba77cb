"""The part of a host core where agents come, go, and are looked for."""

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.checkpoints import HostCheckpoints
from snapline.agent_runtime.host.creation import creation_payload
from snapline.agent_runtime.host.local_agent import AgentOutlet, Entry, LocalAgent
from snapline.protocols.epoch_stamped import EpochStampedCore

RESUMED: Entry = (None, "resumed", b"")
"""Stands for the running turn while the sends of an earlier one, held for a reservation, leave."""


class HostAgents(HostCheckpoints):
    """Creation after the coordinator has reserved the id; departure once the epochs begun before have ended."""

    def _hold(self, agent: LocalAgent, event: ev.TurnEnded) -> None:
        """The turn spawned: its sends wait until the coordinator has reserved the ids."""
        agent.held = event.sends
        agent.spawns = event.spawns
        self._reserve(agent)

    def _reserve(self, agent: LocalAgent) -> None:
        self._requests += 1
        wanted = tuple((name, kind) for name, kind, _ in agent.spawns)
        self._reservations[self._requests] = (agent.id, wanted)
        self._out.append(ev.ReserveAgents(self._requests, self.plan, wanted))

    def _on_agents_reserved(self, event: ev.AgentsReserved) -> None:
        if event.request not in self._reservations:
            return
        parent, wanted = self._reservations.pop(event.request)
        agent = self.agents[parent]
        self.ordinals.update(zip([name for name, _ in wanted], event.ordinals, strict=False))
        spawns, agent.spawns = agent.spawns, []
        held, agent.held = agent.held, []
        agent.current = RESUMED
        if event.refused:
            for name, kind, state in spawns:
                reason = f"agent {name!r} was not created: {event.refused}"
                self._bury_letter(agent, agent.id, creation_payload(kind, state), reason, 1, 0)
                for inlet, stamp, payload in self._early.pop(name, ()):
                    if payload is not None:
                        self.dead_letters += 1
                        self._consume((inlet, stamp, payload))
        else:
            for name, kind, state in spawns:
                self._create(agent, name, kind, state, event)
        self._leave_all(agent, held)
        agent.current = None
        self._note_move(agent)  # a checkpoint may have been taken since the turn: these sends are not in it
        if agent.is_leaving:
            self._retire_if_drained(agent)
        self._next_turn(agent)
        self._check_epochs()

    def _create(self, parent: LocalAgent, name: str, kind: str, state: bytes, event: ev.AgentsReserved) -> None:
        """A new agent starts with r = the latest epoch begun when its creation was committed (rule 6 of its core).

        After a recovery it may be here, or elsewhere, already: unborn, because a third agent's message to it was inside
        the cut while its creation was not.
        """
        if name in self.routes:
            self._leave(parent, name, creation_payload(kind, state))
            return
        if self.is_logged:
            core = EpochStampedCore(name, recorded=self.begun_epoch)
        else:
            unborn_in = [epoch for epoch in event.open_epochs if epoch <= event.recorded and not self._has_ended(epoch)]
            core = EpochStampedCore(name, recorded=event.recorded, unborn_in=unborn_in)
        child = LocalAgent(name, kind, event.incarnation, core)
        child.logged = self._make_logged(name, self.ordinals.get(name, 0), None)
        child.is_held = self._freeze > 0 or self.backlog.is_standing
        child.is_born = False
        child.awaits_creation = True
        self.agents[name] = child
        self.routes[name] = (self.host, event.incarnation)
        if not self.is_logged:
            if event.recorded > self.begun_epoch:
                self._begin_epoch(event.recorded)
            self._join_epochs(child)
        self._leave(parent, name, creation_payload(kind, state))
        early = self._early.pop(name, [])
        for inlet, _, payload in early:
            inlet.owner = child
            inlet.arrived -= payload is not None
            child.inlets[inlet.sender] = inlet
        for inlet, stamp, payload in early:
            if payload is not None:
                self._arrive(inlet, stamp, payload)

    def _retire_if_drained(self, agent: LocalAgent) -> None:
        """A leaving agent's outbox drains before its numbers are final."""
        if agent.parked or agent.spawns or agent.is_retiring or agent.current is not None:
            return
        agent.is_retiring = True
        if agent.logged is not None:
            agent.logged.owe(
                "basic"
            )  # its last one: the agent may go when an epoch holds it, and all it sent as received
            self._next_turn(agent)
        self._requests += 1
        self._retirements[self._requests] = agent.id
        self._out.append(ev.RetireAgent(self._requests, self.plan, agent.id))

    def _on_agent_retired(self, event: ev.AgentRetired) -> None:
        agent = self.agents.get(self._retirements.pop(event.request, ""))
        if agent is None:
            return
        newest = max(event.open_epochs, default=0)
        if newest > self.begun_epoch and not self.is_logged:
            self._begin_epoch(newest)  # the agent is in it; the stream that was to tell so broke
        agent.retired_in = {epoch: None for epoch in event.open_epochs if not self._has_ended(epoch)}
        if not self.is_logged:
            self._excuse(agent, event.open_epochs)
        self._remove_if_done(agent)

    def _remove_if_done(self, agent: LocalAgent) -> None:
        if agent.retired_in is None or agent.retired_in:
            return
        del self.agents[agent.id]
        self.routes.pop(agent.id, None)
        for inlet in agent.inlets.values():
            inlet.owner = None
        for entry in [*agent.mailbox, *agent.deferred]:
            self.dead_letters += entry[0] is not None
            self._consume(entry)
        for sender in list(agent.inlets):
            if sender in self.agents and agent.id in self.agents[sender].outlets:
                self._unpark(self.agents[sender].outlets[agent.id])
        for outlet in agent.outlets.values():
            if outlet.inlet is not None:
                outlet.inlet = None
        if agent.logged is not None:
            agent.logged.drop_log()
            self._close_channels(agent)
        else:
            self.departed[agent.id] = (self.begun_epoch, agent)
        self._out.append(ev.ForgetAgent(agent.id))

    def _on_agents_located(self, event: ev.AgentsLocated) -> None:
        if self._locating.pop(event.request, None) is None:
            return
        for place in event.places:
            if place.host:
                self.routes[place.agent] = (place.host, place.incarnation)
                self.ordinals[place.agent] = place.ordinal
            for agent in list(self.agents.values()):
                outlet = agent.outlets.get(place.agent)
                if outlet is not None and outlet.peer is None:
                    self._settle(agent, outlet, is_found=place.agent in self.routes)

    def _settle(self, agent: LocalAgent, outlet: AgentOutlet, *, is_found: bool) -> None:
        """The receiver's whereabouts are known: what was parked for it leaves, or is dead letters."""
        if is_found:
            self._open_outlet(agent, outlet.receiver)
            self._unpark(outlet)
            return
        del agent.outlets[outlet.receiver]
        for payload in outlet.queue or ():
            agent.parked -= 1
            reason = f"there is no agent {outlet.receiver!r}: check the id, or spawn it first"
            self._bury_letter(agent, agent.id, payload, reason, 1, 0)
        self._outbox_shrank(agent)
