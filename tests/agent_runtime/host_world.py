"""Several host cores in one process, in a seeded order of single events.

The world plays what surrounds a host core: streams that lose their tail when they are cut, a store in memory, and the
smallest coordinator that begins epochs, collects them, and rolls the fleet back after a crash. The cores, the links, the
protocol, the turns and the agents are the production code. Every choice comes from one `random.Random`, so a seed is a
run.
"""

import random
from collections import deque
from collections.abc import Callable

from snapline.agent_runtime.context import Outside
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.epoch_files import Capture, checkpoint_of
from snapline.agent_runtime.host.turns import Turns, restored
from snapline.channels.frame import Frame, LinkHello
from snapline.storage.checkpoint import AgentCheckpoint, decode_checkpoint, encode_checkpoint

STEP_NS = 1_000_000
"""Virtual time that passes with each event."""

IDLE_STEPS = 400
"""So many choices in a row with nothing to do: whatever could have happened has been picked by then."""

Cut = dict[str, AgentCheckpoint]


class _Stream:
    """One attempt of a link: frames in flight, both ways."""

    def __init__(self, dialler: str, acceptor: str, attempt: int) -> None:
        self.ends = (dialler, acceptor)
        self.attempt = attempt
        self.frames: dict[str, deque[Frame]] = {dialler: deque(), acceptor: deque()}  # by receiver
        self.is_accepted = False

    def other(self, host: str) -> str:
        return self.ends[1] if host == self.ends[0] else self.ends[0]


class _VirtualWorld(Outside):
    """Time and chance of handlers, from the seed."""

    def __init__(self, world: "HostWorld") -> None:
        self._of = world

    def now_ns(self) -> int:
        return self._of.now_ns

    def random(self) -> float:
        return self._of.random.random()


class SimHost:
    """One run of a host."""

    def __init__(self, world: "HostWorld", name: str, start: int) -> None:
        self.world = world
        self.name = name
        self.start = start
        self.core = HostCore(name, protocol=world.fleet.protocol, policy=world.fleet.policy)
        self.turns = Turns(world.fleet, self.feed, world.warnings.append, _VirtualWorld(world))
        self.queue: deque[ev.StartTurn] = deque()
        self.captures: dict[int, dict[str, Capture]] = {}
        self.dialled: dict[str, int] = {}
        self.directives: deque[ev.Event] = deque()
        self.frame: Frame | None = None

    def feed(self, event: ev.Event) -> None:
        for command in self.core.handle(self.world.now_ns, event):
            self._carry(command)

    def run_turn(self) -> None:
        ended = self.turns.run(self.queue.popleft())
        assert ended is not None, "agents of this world must not await"
        self.feed(ended)

    def _carry(self, command: ev.Command) -> None:
        world = self.world
        match command:
            case ev.StartTurn():
                self.queue.append(command)
            case ev.WriteFrame():
                self.frame = command.frame
            case ev.UndoTurn():
                self.turns.undo(command.agent)
            case ev.CaptureState() if command.control.is_born:
                known, version, image = self.turns.capture(command.agent)
                for epoch in command.epochs:
                    found = Capture(known, version, image, command.control, world.now_ns, 0)
                    self.captures.setdefault(epoch, {})[command.agent] = found
            case ev.StoreEpoch():
                world.store_epoch(self, command)
            case ev.DropEpoch():
                self.captures.pop(command.epoch, None)
            case ev.CancelTurns():
                self.queue.clear()
                self.turns.forget_all()
            case ev.LoadAgents():
                self._load(command)
            case ev.ForgetAgent():
                self.turns.forget(command.agent)
            case ev.DialPeer():
                self.dialled[command.peer] = self.dialled.get(command.peer, 0)
            case ev.UndialPeer():
                self.dialled.pop(command.peer, None)
                world.cut(self.name, command.peer)
            case ev.CloseStream() | ev.RefuseStream():
                world.cut(self.name, command.peer)
            case _:
                world.ask_coordinator(self, command)

    def _load(self, command: ev.LoadAgents) -> None:
        line = self.world.lines.get(command.line_epoch, {})
        loaded = []
        for place in command.agents:
            checkpoint = line.get(place.agent)
            if checkpoint is None:
                self.turns.add(place.agent, self.world.fleet.make(place.agent))
            elif not checkpoint.is_unborn:
                self.turns.add(place.agent, restored(self.world.fleet, checkpoint))
            loaded.append(ev.LoadedAgent(place.agent, place.incarnation, checkpoint))
        self.directives.append(ev.AgentsLoaded(command.plan, tuple(loaded)))


class HostWorld:
    """A fleet on simulated hosts.

    Attributes:
        lines: complete epochs, by number; 0 is the initial states.
        on_cut: called with every complete cut, to check it.
        completed, aborted, crashes, cuts: counted, so that a test can tell that it tested something.
    """

    def __init__(self, fleet: Fleet, hosts: int, seed: int, on_cut: Callable[[int, Cut], None]) -> None:
        self.fleet = fleet
        self.random = random.Random(seed)
        self.now_ns = 0
        self.on_cut = on_cut
        self.warnings: list[str] = []
        self.names = [f"h{number}" for number in range(1, hosts + 1)]
        self.hosts: dict[str, SimHost] = {}
        self.streams: dict[tuple[str, str], _Stream] = {}
        self.lines: dict[int, Cut] = {0: {}}
        self.members: dict[str, tuple[str, int, int, int | None]] = {}  # host, incarnation, born, left
        self.ordinals: dict[str, int] = {}
        self.plan = 0
        self.begun = 0
        self.unborn: dict[str, None] = {}
        self.open: dict[int, dict[str, Cut]] = {}
        self.confirmed: dict[str, None] = {}
        self.completed = self.aborted = self.crashes = self.cuts = 0
        for number, agent in enumerate(fleet.agents):
            self.members[agent] = (self.names[number % hosts], 0, 0, None)
            self.ordinal_of(agent)
        for name in self.names:
            self._boot(name)
        self._recover()

    # ---- the coordinator ------------------------------------------------------------------------------------------

    def _boot(self, name: str) -> None:
        start = self.hosts[name].start + 1 if name in self.hosts else 1
        host = self.hosts[name] = SimHost(self, name, start)
        host.feed(ev.Welcomed(start, "sim"))

    def ordinal_of(self, agent: str) -> int:
        """The agent's place in the protocols' vectors, given once."""
        return self.ordinals.setdefault(agent, len(self.ordinals))

    def _tell_all(self, event: ev.Event) -> None:
        for host in self.hosts.values():
            host.directives.append(event)

    def begin_epoch(self) -> None:
        if len(self.open) < 4 and len(self.confirmed) == len(self.names):
            self.begun += 1
            self.open[self.begun] = {}
            self._tell_all(ev.EpochBegun(self.begun, self.plan))

    def _end_epoch(self, epoch: int, *, is_complete: bool) -> None:
        self.open.pop(epoch)
        self._tell_all(ev.EpochEnded(epoch, is_complete))

    def abort_epoch(self) -> None:
        if self.open:
            self.aborted += 1
            self._end_epoch(self.random.choice(list(self.open)), is_complete=False)

    def store_epoch(self, host: SimHost, command: ev.StoreEpoch) -> None:
        captures = host.captures.pop(command.epoch, {})
        part = {}
        for agent, record in command.records.items():
            blob = encode_checkpoint(checkpoint_of(agent, record, captures.get(agent), []))
            part[agent] = decode_checkpoint(blob)
        parts = self.open.get(command.epoch)
        if parts is None or command.plan != self.plan:
            return
        parts[host.name] = part
        if len(parts) == len(self.names):
            self._complete(command.epoch, {agent: found for each in parts.values() for agent, found in each.items()})

    def _complete(self, epoch: int, cut: Cut) -> None:
        members = {
            agent
            for agent, (_, _, born, left) in self.members.items()
            if born < epoch and (left is None or left >= epoch)
        }
        cut = {agent: found for agent, found in cut.items() if agent in members or found.is_unborn}
        assert members <= set(cut), f"epoch {epoch} lacks {members - set(cut)}"
        self.on_cut(epoch, cut)
        self.completed += 1
        self.lines[epoch] = cut
        self._end_epoch(epoch, is_complete=True)

    def crash(self) -> None:
        """Some hosts die and come back empty; the fleet goes back to the last complete epoch."""
        self.crashes += 1
        for name in self.random.sample(self.names, self.random.choice([1, 1, 1, len(self.names)])):
            for other in self.names:
                if other != name:
                    self.cut(name, other)
            self._boot(name)
        self._recover()

    def _recover(self) -> None:
        line = max(self.lines)
        for epoch in list(self.open):
            self._end_epoch(epoch, is_complete=False)
        self.plan += 1
        self.confirmed = {}
        cut = self.lines[line]
        self.unborn = {agent: None for agent, found in cut.items() if found.is_unborn}
        survivors = set(cut) if line else set(self.fleet.agents)
        self.members = {
            agent: (host, incarnation + 1, min(born, line), None)
            for agent, (host, incarnation, born, _) in self.members.items()
            if agent in survivors
        }
        placements = tuple(
            ev.Placement(agent, "", host, incarnation, self.ordinals[agent])
            for agent, (host, incarnation, _, _) in self.members.items()
        )
        roster = tuple(ev.RosterEntry(host.name, "", host.start) for host in self.hosts.values())
        self._tell_all(ev.RosterReceived(roster))
        self._tell_all(ev.PlanReceived(self.plan, line, "", self.begun, tuple(self.names), placements))

    def ask_coordinator(self, host: SimHost, command: ev.Command) -> None:
        match command:
            case ev.ConfirmPlan() if command.plan == self.plan:
                self.confirmed[host.name] = None
            case ev.ReserveAgents() if command.plan == self.plan:
                taken = [agent for agent, _ in command.agents if agent in self.members and agent not in self.unborn]
                for agent, _ in command.agents if not taken else ():
                    self.members.setdefault(agent, (host.name, 1, self.begun, None))
                    self.unborn.pop(agent, None)
                reason = f"{taken[0]} exists" if taken else ""
                ordinals = tuple(self.ordinal_of(agent) for agent, _ in command.agents)
                host.directives.append(
                    ev.AgentsReserved(command.request, self.begun, tuple(self.open), 1, reason, ordinals)
                )
            case ev.RetireAgent() if command.plan == self.plan:
                place, incarnation, born, _ = self.members[command.agent]
                self.members[command.agent] = (place, incarnation, born, self.begun)
                host.directives.append(ev.AgentRetired(command.request, tuple(self.open), ""))
            case ev.LocateAgents():
                places = []
                for agent in command.agents:
                    place, incarnation, _, left = self.members.get(agent, ("", 0, 0, None))
                    there = place if left is None else ""
                    places.append(ev.Placement(agent, "", there, incarnation, self.ordinals.get(agent, 0)))
                host.directives.append(ev.AgentsLocated(command.request, tuple(places)))

    # ---- the network ----------------------------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        """A stream ends: what was in flight on it is lost."""
        first, second = sorted((one, other))
        stream = self.streams.pop((first, second), None)
        if stream is not None:
            self.cuts += 1
            for host in stream.ends:
                if (host == stream.ends[0] or stream.is_accepted) and stream.other(host) in self.hosts[host].core.peers:
                    self.hosts[host].feed(ev.StreamClosed(stream.other(host)))

    def _dial(self, host: SimHost, peer: str) -> None:
        key = (host.name, peer)
        if key not in self.streams:
            attempt = host.dialled[peer] = host.dialled[peer] + 1
            self.streams[key] = _Stream(host.name, peer, attempt)
            host.feed(ev.StreamOpened(peer, attempt))

    def _pull(self, stream: _Stream, host: SimHost) -> None:
        """The writer asks the core for a frame."""
        peer = stream.other(host.name)
        if peer in host.core.peers and (host.name == stream.ends[0] or stream.is_accepted):
            host.frame = None
            host.feed(ev.WriteReady(peer))
            if host.frame is not None and (self.streams.get(stream.ends) is stream):
                stream.frames[peer].append(host.frame)

    def _deliver(self, stream: _Stream, host: SimHost) -> None:
        frame = stream.frames[host.name].popleft()
        peer = stream.other(host.name)
        if isinstance(frame.body, LinkHello) and host.name == stream.ends[1]:
            if host.core.judge(frame.body) is not None:
                self.cut(*stream.ends)
                return
            stream.is_accepted = True
            host.feed(ev.StreamOpened(peer, frame.body.attempt))
        host.feed(ev.FrameReceived(peer, frame))

    # ---- time -----------------------------------------------------------------------------------------------------

    def actions(self) -> list[Callable[[], None]]:
        """Everything that could happen next."""
        found: list[Callable[[], None]] = []
        for host in self.hosts.values():
            if host.queue:
                found.append(host.run_turn)
            if host.directives:
                found.append(lambda host=host: host.feed(host.directives.popleft()))  # type: ignore[misc]
            found.append(lambda host=host: host.feed(ev.BatchEnded()))  # type: ignore[misc]
            if host.core.wakeup_ns is not None and host.core.wakeup_ns <= self.now_ns:
                found.append(lambda host=host: host.feed(ev.TimerFired()))  # type: ignore[misc]
            found.extend(
                lambda host=host, peer=peer: self._dial(host, peer)  # type: ignore[misc]
                for peer in host.dialled
                if (host.name, peer) not in self.streams
            )
        for stream in self.streams.values():
            for name in stream.ends:
                host = self.hosts[name]
                peer = host.core.peers.get(stream.other(name))
                if peer is not None and peer.link is not None and peer.link.wants_write:
                    found.append(lambda stream=stream, host=host: self._pull(stream, host))  # type: ignore[misc]
                if stream.frames[name]:
                    found.append(lambda stream=stream, host=host: self._deliver(stream, host))  # type: ignore[misc]
        return found

    def step(self) -> None:
        self.now_ns += STEP_NS
        self.random.choice(self.actions())()

    def settle(self, steps: int = 200_000) -> bool:
        """Run without faults until nothing is left to do; returns whether that came within `steps`."""
        idle = 0
        turns = self._turns()
        for _ in range(steps):
            self.step()
            is_idle = self._turns() == turns and not self._is_busy()
            idle = idle + 1 if is_idle else 0
            turns = self._turns()
            if idle > IDLE_STEPS:
                return True
        return False

    def _turns(self) -> int:
        return sum(host.core.turns for host in self.hosts.values())

    def _is_busy(self) -> bool:
        """Is a turn, a message, an epoch or a recovery on its way?"""
        if self.open or len(self.confirmed) < len(self.names):
            return True
        for host in self.hosts.values():
            agents, peers = host.core.agents.values(), host.core.peers.values()
            if host.queue or host.directives or any(agent.parked or agent.mailbox for agent in agents):
                return True
            if any(peer.link is not None and peer.link.has_unacked for peer in peers):
                return True
        return False

    def state(self, agent: str) -> object:
        """The live state of an agent, wherever it is."""
        return self.hosts[self.members[agent][0]].turns.object_of(agent).state
