"""Host cores in one process, in a seeded order of single events: the driver, and the coordinator of coordinated epochs.

The world plays what surrounds host cores: streams that lose their tail when they are cut (`streams`), a store in memory, and the
smallest coordinator that begins epochs, collects them, and rolls the fleet back after a crash. The cores, the links, the
protocol, the turns and the agents (`host`) are the production code. Every choice comes from one `random.Random`, so a seed is
a run: what may happen next, whatever it is, is equally likely, so turns take their time, words of the coordinator come late, and
it comes to what it is asked when it likes.

Nothing here judges; `on_cut` is called with every complete cut.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from tests.kit.host import Host
from tests.kit.streams import Action, Streams

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.epoch_files import checkpoint_of
from snapline.messages import host_messages as msg
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterRecord, decode_checkpoint, encode_checkpoint

STEP_NS = 1_000_000
"""Virtual time that passes with each event."""

IDLE_STEPS = 400
"""So many choices in a row with nothing to do: whatever could have happened has been picked by then."""

OPEN_MAX = 4
"""Epochs that are open at once, as at the coordinator."""

Cut = dict[str, AgentCheckpoint]


class Member(NamedTuple):
    """An agent: the epochs begun when it was born, and when it left."""

    host: str
    incarnation: int
    born: int
    left: int | None = None


class Left(NamedTuple):
    """An agent that left: the epoch begun last, the state and the dead letters it left with."""

    epoch: int
    state: Any
    dead_letters: list[DeadLetterRecord]


class FleetWorld:
    """A fleet on simulated hosts.

    Attributes:
        lines: complete epochs, by number; 0 is the initial states.
        on_cut: called with every complete cut, to check it.
        asked: what hosts asked of the coordinator and it has not come to yet.
        left: agents that left. departed: by open epoch, what hosts reported of agents that have left.
        trace: what happened, as `snapline analyze` reads it, in its true order; hosts tell it of each `trace_every`th message.
        runs: all runs of hosts so far.
        completed, aborted, crashes, failures, streams.cuts: counted, so that a test can tell that it tested something.
    """

    def __init__(
        self,
        fleet: Fleet,
        hosts: int,
        seed: int,
        on_cut: Callable[[int, Cut], None] = lambda epoch, cut: None,
        *,
        trace_every: int = 1,
        host_class: type[Host] = Host,
    ) -> None:
        self.fleet = fleet
        self.host_class = host_class
        self.trace_every = trace_every
        self.random = random.Random(seed)
        self.now_ns = 0
        self.on_cut = on_cut
        self.warnings: list[str] = []
        self.names = [f"h{number}" for number in range(1, hosts + 1)]
        self.hosts: dict[str, Host] = {}
        self.runs: list[Host] = []
        self.streams = Streams(self.hosts)
        self.lines: dict[int, Cut] = {0: {}}
        self.members: dict[str, Member] = {}
        self.ordinals: dict[str, int] = {}
        self.plan = self.begun = 0
        self.unborn: dict[str, None] = {}
        self.open: dict[int, dict[str, Cut]] = {}
        self.confirmed: dict[str, None] = {}
        self.asked: deque[tuple[Host, ev.HostOutput]] = deque()
        self.left: dict[str, Left] = {}
        self.departed: dict[int, dict[str, dict[str, int]]] = {}
        self.trace: list[dict[str, object]] = []
        self._ids: dict[tuple[str, str, int], str] = {}
        self.completed = self.aborted = self.crashes = self.failures = 0
        for number, agent in enumerate(fleet.agents):
            self.members[agent] = Member(self.names[number % hosts], 0, 0)
            self.ordinal_of(agent)
        for name in self.names:
            self.boot(name)
        self._recover()

    # ---- the trace --------------------------------------------------------------------------------------------------

    def note_checkpoint(self, agent: str, number: int, kind: str = "basic") -> None:
        self.trace.append({"event": "checkpoint", "agent": agent, "index": number, "kind": kind})

    def note_message(self, command: ev.Trace) -> None:
        """Message ids hold the plan under which they were sent: numbers are used again after a recovery. Markers are no agent's."""
        if command.what in ("send_marker", "receive_marker"):
            return
        if command.what == "send":
            key = (command.agent, command.other, command.number)
            self._ids[key] = f"{command.agent}/{self.plan}>{command.other}:{command.number}"
            ends = {"agent": command.agent, "message": self._ids[key], "to": command.other}
            self.trace.append({"event": "send", **ends})
        else:
            key = (command.other, command.agent, command.number)
            self.trace.append({"event": "receive", "agent": command.agent, "message": self._ids[key]})

    def _note_recovery(self) -> None:
        """Agents that have left before the line are in no cut, and keep what they did."""
        epoch = max(self.lines)
        cut = self.lines[epoch]
        stay = [agent for agent in self.ordinals if agent not in self.left or self.left[agent].epoch >= epoch]
        line = {agent: cut[agent].number if agent in cut else 0 for agent in stay}
        self.trace.append({"event": "recovery", "line": line})

    # ---- the coordinator ------------------------------------------------------------------------------------------

    def boot(self, name: str) -> None:
        start = self.hosts[name].start + 1 if name in self.hosts else 1
        host = self.hosts[name] = self.host_class(self, name, start)
        self.runs.append(host)
        host.feed(msg.Welcome(start, "sim"))

    def ordinal_of(self, agent: str) -> int:
        """The agent's place in the protocols' vectors, given once."""
        return self.ordinals.setdefault(agent, len(self.ordinals))

    def _tell_all(self, event: ev.Heard) -> None:
        for host in self.hosts.values():
            host.directives.append(event)

    def begin_epoch(self) -> None:
        if len(self.open) < OPEN_MAX and len(self.confirmed) == len(self.names):
            self.begun += 1
            self.open[self.begun] = {}
            self._tell_all(msg.BeginEpoch(self.begun, self.plan))

    def _end_epoch(self, epoch: int, *, is_complete: bool) -> None:
        self.open.pop(epoch)
        self._tell_all(msg.EndEpoch(epoch, is_complete))

    def abort_epoch(self) -> None:
        if self.open:
            self.aborted += 1
            self._end_epoch(self.random.choice(list(self.open)), is_complete=False)

    def store_epoch(self, host: Host, command: ev.StoreEpoch) -> None:
        captures = host.captures.pop(command.epoch, {})
        part = {}
        for agent, record in command.records.items():
            blob = encode_checkpoint(checkpoint_of(agent, record, captures.get(agent), []))
            part[agent] = decode_checkpoint(blob)
        parts = self.open.get(command.epoch)
        if parts is None or command.plan != self.plan:
            return
        self.departed.setdefault(command.epoch, {}).update(command.departed)
        parts[host.name] = part
        if len(parts) == len(self.names):
            self._complete(command.epoch, {agent: found for each in parts.values() for agent, found in each.items()})

    def _complete(self, epoch: int, cut: Cut) -> None:
        members = {agent for agent, x in self.members.items() if x.born < epoch and (x.left is None or x.left >= epoch)}
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
            self.boot(name)
        self.fail()

    def fail(self) -> None:
        """A failure has been noticed."""
        self._recover()

    def _recover(self) -> None:
        line = max(self.lines)
        if self.plan:
            self._note_recovery()
        self.left = {agent: kept for agent, kept in self.left.items() if kept.epoch < line}
        for epoch in list(self.open):
            self._end_epoch(epoch, is_complete=False)
        self.plan += 1
        self.confirmed = {}
        cut = self.lines[line]
        self.unborn = {agent: None for agent, found in cut.items() if found.is_unborn}
        survivors = set(cut) if line else set(self.fleet.agents)
        self.members = {
            agent: Member(x.host, x.incarnation + 1, min(x.born, line))
            for agent, x in self.members.items()
            if agent in survivors
        }
        placements = tuple(
            ev.Placement(agent, "", x.host, x.incarnation, self.ordinals[agent]) for agent, x in self.members.items()
        )
        roster = tuple(msg.RosterEntry(host.name, "", host.start) for host in self.hosts.values())
        self._tell_all(msg.Roster(roster))
        self._tell_all(ev.PlanReceived(self.plan, line, "", self.begun, tuple(self.names), placements))

    # ---- questions ------------------------------------------------------------------------------------------------

    def ask_coordinator(self, host: Host, command: ev.HostOutput) -> None:
        match command:
            case msg.PlanApplied() if command.plan == self.plan:
                self.confirmed[host.name] = None
            case msg.ReserveAgents() | msg.RetireAgent() | msg.LocateAgents() | msg.AgentFailed():
                self.asked.append((host, command))

    def answer(self) -> None:
        """The coordinator comes to the oldest question."""
        if self.random.random() < 0.7:
            return
        host, command = self.asked.popleft()
        if self.hosts[host.name] is not host or host.core.plan != self.plan:
            return
        match command:
            case msg.ReserveAgents() if command.plan == self.plan:
                self._reserve(host, command)
            case msg.RetireAgent() if command.plan == self.plan:
                self._retire(host, command)
            case msg.LocateAgents():
                host.directives.append(self._located(command))
            case msg.AgentFailed() if is_failed(host.core, command.agent):
                self.failures += 1
                self.fail()

    def _reserve(self, host: Host, command: msg.ReserveAgents) -> None:
        asked = [each.agent for each in command.agents]
        gone = [agent for agent in asked if agent in self.left]
        taken = [agent for agent in asked if agent in self.members and agent not in self.unborn]
        if gone:
            answer = msg.AgentsReserved(command.request, self.begun, tuple(self.open), 1, f"{gone[0]} has existed")
            host.directives.append(answer)
            return
        for agent in asked if not taken else ():
            self.members.setdefault(agent, Member(host.name, 1, self.begun))
            self.unborn.pop(agent, None)
        reason = f"{taken[0]} exists" if taken else ""
        ordinals = tuple(self.ordinal_of(agent) for agent in asked)
        host.directives.append(msg.AgentsReserved(command.request, self.begun, tuple(self.open), 1, reason, ordinals))

    def _retire(self, host: Host, command: msg.RetireAgent) -> None:
        state = host.turns.object_of(command.agent).state
        copy = msgspec.convert(msgspec.to_builtins(state), type(state))
        self._let_go(host, command, copy, list(host.core.agents[command.agent].dead_letters))

    def _let_go(self, host: Host, command: msg.RetireAgent, state: Any, letters: list[DeadLetterRecord]) -> None:
        self.left[command.agent] = Left(self.begun, state, letters)
        self.members[command.agent] = self.members[command.agent]._replace(left=self.begun)
        host.directives.append(msg.AgentRetired(command.request, tuple(self.open), ""))

    def _located(self, command: msg.LocateAgents) -> msg.AgentsLocated:
        members = [self.members.get(agent, Member("", 0, 0)) for agent in command.agents]
        hosts = tuple(member.host if member.left is None else "" for member in members)
        ordinals = tuple(self.ordinals.get(agent, 0) for agent in command.agents)
        incarnations = tuple(member.incarnation for member in members)
        return msg.AgentsLocated(command.request, command.agents, hosts, incarnations, ordinals)

    # ---- time -----------------------------------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        self.streams.cut(one, other)

    def actions(self) -> list[Action]:
        """Everything that could happen next."""
        found: list[Action] = []
        for host in self.hosts.values():
            if host.queue:
                found.append(host.run_turn)
            if host.directives:
                found.append(lambda host=host: host.feed(host.directives.popleft()))  # type: ignore[misc]
            found.append(lambda host=host: host.feed(ev.BatchEnded()))  # type: ignore[misc]
            if host.wakeup_ns is not None and host.wakeup_ns <= self.now_ns:
                found.append(lambda host=host: host.feed(ev.TimerFired()))  # type: ignore[misc]
            found.extend(self.streams.dials(host))
        found.extend(self.streams.actions())
        found.extend(host.end_turn for host in self.hosts.values() if host.running)
        if self.asked:
            found.append(self.answer)
        return found

    def step(self) -> None:
        self.now_ns += STEP_NS
        self.random.choice(self.actions())()

    def settle(self, steps: int = 20_000) -> bool:
        """Run without faults until nothing is left to do; returns whether that came within `steps`: sound fleets need 10,000."""
        idle = 0
        turns = self._turns()
        for _ in range(steps):
            self.step()
            is_idle = self._turns() == turns and not self.is_busy()
            idle = idle + 1 if is_idle else 0
            turns = self._turns()
            if idle > IDLE_STEPS:
                return True
        return False

    def _turns(self) -> int:
        return sum(host.core.shared.counts.turns for host in self.hosts.values())

    def is_busy(self) -> bool:
        """Is a turn, a message, an epoch or a recovery on its way? An agent that nobody creates again keeps its messages."""
        if self.open or self.asked or len(self.confirmed) < len(self.names):
            return True
        for host in self.hosts.values():
            if host.queue or host.directives or host.running or host.writing:
                return True
            agents, peers = host.core.agents.values(), host.core.peers.values()
            if any(agent.parked or (agent.mailbox and not agent.awaits_creation) for agent in agents):
                return True
            if any(peer.link is not None and peer.link.has_unacked for peer in peers):
                return True
        return False

    def validate(self) -> None:
        for host in self.hosts.values():
            host.core.validate()


def is_failed(core: HostCore, agent: str) -> bool:
    """Is it here, and takes no more turns under this plan?"""
    found = core.agents.get(agent)
    return found is not None and found.is_failed
