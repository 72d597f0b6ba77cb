"""The part of a host core that applies plans: everything here ends, and begins again from the line."""

from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.agents import HostAgents
from snapline.agent_runtime.host.local_agent import DEAD_LETTERS_KEPT, START, LocalAgent, Peer
from snapline.errors import ProtocolError
from snapline.protocols.epoch_stamped import EpochStampedCore
from snapline.storage.checkpoint import AgentCheckpoint

LOAD_RETRY_NS = 1_000_000_000
LOAD_TRIES_MAX = 60
"""As the coordinator, which reads the line before it commits a plan."""


class HostPlans(HostAgents):
    """A plan's commit ended the history of all agents; links carry its number, so nothing older is heard (G9)."""

    def _on_welcomed(self, event: ev.Welcomed) -> None:
        """Say again what the coordinator may not have heard."""
        self.start = event.start
        self.cluster = event.cluster
        if self.is_loaded:
            self._out.append(ev.ConfirmPlan(self.plan))
        elif self._load_failure is not None:
            self._on_load_failed(self._load_failure)
        self._repeat_reports()
        for agent, reason in self._failed.items():
            self._out.append(ev.ReportAgentFailed(agent, self.agents[agent].incarnation, reason))
        for request, (_, wanted) in self._reservations.items():
            self._out.append(ev.ReserveAgents(request, self.plan, wanted))
        for request, agent in self._retirements.items():
            self._out.append(ev.RetireAgent(request, self.plan, agent))
        for request, agents in self._locating.items():
            self._out.append(ev.LocateAgents(request, agents))

    def _on_plan_received(self, event: ev.PlanReceived) -> None:
        if event.number <= self.plan:
            if event.number == self.plan and self.is_loaded:
                self._out.append(ev.ConfirmPlan(self.plan))
            return
        self._drop_everything()
        self.plan = event.number
        self.plan_hosts = event.hosts
        self.begun_epoch = event.begun_epoch
        # One object for all agents of a host: there may be very many.
        known: dict[tuple[str, int], tuple[str, int]] = {}
        routes = [(place.agent, (place.host, place.incarnation)) for place in event.agents]
        self.routes = {agent: known.setdefault(route, route) for agent, route in routes}
        self.ordinals = {place.agent: place.ordinal for place in event.agents}
        mine = tuple(place for place in event.agents if place.host == self.host)
        self._loading = ev.LoadAgents(event.number, event.line_epoch, event.line_root, mine)
        self._load_tries = self._load_again_ns = 0
        self._out.append(self._loading)

    def _drop_everything(self) -> None:
        """The plan's commit ended the history of all agents here; mailboxes and held turns go with it."""
        self._drop_links()
        self._drop_epochs()
        self._init_checkpoints()
        self.is_loaded = False
        self.agents.clear()
        self._timers.clear()
        self._retries.clear()
        for pending in (self._reservations, self._retirements, self._locating, self._early, self._failed):
            pending.clear()
        self._load_failure = None
        self.local = Peer(self.host, self.start, None)
        self._out.append(ev.CancelTurns())

    def _on_agents_loaded(self, event: ev.AgentsLoaded) -> None:
        if event.plan != self.plan or self.is_loaded:
            return
        self.is_loaded = True
        self._loading = None
        self._count_plan()
        for loaded in event.agents:
            self._place(loaded)
        for loaded in event.agents:
            if loaded.checkpoint is not None:
                self._restore_channels(self.agents[loaded.agent], loaded.checkpoint)
        if self.is_logged:
            self._take_initial_checkpoints(event)
        self._make_links()
        self._out.append(ev.ConfirmPlan(self.plan))
        for agent in list(self.agents.values()):
            for outlet in [outlet for outlet in agent.outlets.values() if outlet.queue and outlet.peer is None]:
                self._open_outlet(agent, outlet.receiver)
                self._unpark(outlet)
            if agent.spawns:
                self._reserve(agent)
            elif agent.is_leaving:
                self._retire_if_drained(agent)
            self._next_turn(agent)

    def _take_initial_checkpoints(self, event: ev.AgentsLoaded) -> None:
        """Line 0 is nowhere in the store: without these, no line could hold an agent that has taken no other."""
        for loaded in event.agents:
            if loaded.checkpoint is None:
                self._take(self.agents[loaded.agent], "initial")

    def _on_load_failed(self, event: ev.LoadFailed) -> None:
        """A store that cannot be read is tried for a minute: another plan would ask for the same line."""
        if event.plan != self.plan:
            return
        if event.may_pass and self._load_tries < LOAD_TRIES_MAX:
            self._load_tries += 1
            self._load_again_ns = self._now + LOAD_RETRY_NS
            return
        self._load_failure = event
        self._out.append(ev.RefusePlan(event.plan, event.damaged_epoch, event.path, event.reason))

    def _load_again(self) -> None:
        if self._loading is not None and 0 < self._load_again_ns <= self._now:
            self._load_again_ns = 0
            self._out.append(self._loading)

    def _place(self, loaded: ev.LoadedAgent) -> None:
        core = EpochStampedCore(loaded.agent, recorded=self.begun_epoch)
        checkpoint = loaded.checkpoint
        agent = LocalAgent(loaded.agent, "", loaded.incarnation, core)
        agent.logged = self._make_logged(agent.id, self.ordinals[agent.id], checkpoint)
        self.agents[agent.id] = agent
        if checkpoint is None:
            agent.mailbox.append((None, START, b""))
            return
        agent.kind = checkpoint.kind
        agent.is_born = not checkpoint.is_unborn
        agent.awaits_creation = checkpoint.is_unborn and not checkpoint.received
        agent.is_started = checkpoint.is_started
        agent.is_leaving = checkpoint.is_leaving
        agent.checkpoints = checkpoint.number
        agent.dead_letters = checkpoint.dead_letters[-DEAD_LETTERS_KEPT:]
        agent.dead_letter_count = checkpoint.dead_letter_count
        if agent.is_born and not agent.is_started:
            agent.mailbox.append((None, START, b""))
        for timer in checkpoint.timers:
            if timer.remaining_ns:
                self._set_timer(agent, timer.name, timer.remaining_ns, timer.payload)
            else:  # it had fired; another one of its name may have been set since
                agent.mailbox.append((None, timer.name or "timer", timer.payload))

    def _restore_channels(self, agent: LocalAgent, checkpoint: AgentCheckpoint) -> None:
        """Channels get the line's numbers back, and the line's in-transit messages wait in the mailbox again.

        Those of agents that are gone have none; of such a sender a last message may wait.
        """
        for sender in dict.fromkeys([*checkpoint.received, *checkpoint.in_transit]):
            is_gone = sender not in self.routes
            if is_gone and not checkpoint.in_transit.get(sender):
                continue
            inlet = self._new_inlet(agent, sender)
            if is_gone:
                self._ending[sender, agent.id] = inlet
            inlet.consumed = inlet.arrived = checkpoint.received.get(sender, 0)
            for message in checkpoint.in_transit.get(sender, ()):
                inlet.arrived += 1
                if message.number != inlet.arrived:
                    raise ProtocolError(
                        f"channel {sender} → {agent.id}: message {message.number} is saved where {inlet.arrived} is due"
                    )
                mark = message.piggyback if self.is_logged else message.stamp
                agent.mailbox.append((inlet, mark, message.payload))
        for receiver, number in checkpoint.sent.items():
            if receiver not in self.routes:
                continue
            outlet = self._new_outlet(agent, receiver)
            outlet.number = number
            outlet.credit = max(outlet.credit, number)
        agent.spawns = [(spawn.agent, spawn.kind, spawn.payload) for spawn in checkpoint.spawns]
        if agent.spawns:
            agent.held = [(parked.receiver, parked.payload) for parked in checkpoint.outbox]
            return
        for parked in checkpoint.outbox:
            outlet = agent.outlets.get(parked.receiver) or self._new_outlet(agent, parked.receiver)
            outlet.parked.append(parked.payload)
            agent.parked += 1
