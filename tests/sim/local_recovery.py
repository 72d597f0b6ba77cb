"""Model of local recovery: hosts commit their agents' states to a log, and a failure restarts only the failed host's agents.

The model fixes the rules before a host follows them, so it contains no production core. A *host* is an actor, and the last actor is the
coordinator with the store. Each process on a host is a *run*, with a number that is never reused and a log of its own.

- *Commit.* Between two turns, a host appends the states of all its agents to its log, as one record. The record also contains each
  agent's messages that their receivers may still need. One commit is in progress at a time.
- *Hold.* A message to another host departs when a commit that contains it is durable. Messages between agents of one host are delivered
  at once, because both agents are in the same records.
- *Retain.* After a commit, a host acknowledges to each sender the number of consumed messages that the record contains. A sender keeps its
  messages above the acknowledged number. For a channel within the host, the record keeps the messages that are not consumed in it.
- *Plan.* When a run is lost, the coordinator moves its agents, with new incarnations, to a running host or to a new run of the lost host.
  The new host seals the logs that may contain the agents, and loads each agent's record of the highest version. It then sends the retained
  messages again, from the first number that is not acknowledged.
- *Survivors* keep their agents. They send retained messages again to agents that have moved. A receiver drops the numbers that it has.
- *Adoption.* Until the new host has a durable commit with the agent, a further plan names the agent's old logs as well.
- *Move.* An agent of a running host moves when the host has committed it as *left*. It takes no turn from that record on, and stays in the
  host's later records. The new host reads the log without sealing it.
- *Epoch.* An epoch begins when all moved agents are adopted, and a loss aborts it. It is complete when all messages before its markers have
  arrived, even if no log holds its turns yet. It is then the *base*: senders drop the messages that its channel states hold, and logs may
  drop records that are not newer. A new host loads the base or a record, whichever has the higher version, and from the base's channel
  state the messages above its consumed numbers.

A run may be evicted although it still works. It continues until it learns of the plan, or fails to append to its sealed log.

The ground truth is each agent's history: for each turn, message and consumption, the incarnation in which it happened. The true state of
an agent is its state on its host or, if it is not loaded there, its record of highest version. In every state, what an agent has consumed
must be a prefix of what its sender has sent (G3), and what the outside has been told must be a prefix of the agent's turns (output commit).
When nothing more can happen, all messages must be acknowledged, so none is lost, and no host may be waiting (G10).

The model combines taking a commit and appending it, because a host that fails between the two has not committed. It loses no frames on a
working link. An epoch is captured at one instant, because each consistent cut is the state at some instant of an equivalent run.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from snapline.sim.explorer.cuts import Numbers, replaced
from snapline.sim.explorer.state_search import Bounds, Fault, Interner, Memo, Model, Outputs, ProposedMove, State


class Place(NamedTuple):
    """The host, the host's run, and the incarnation in which an agent runs there."""

    host: int
    run: int
    incarnation: int


class AgentState(NamedTuple):
    """An agent on a host, or in a record. Tuples have one entry per other agent.

    Attributes:
        turns, sent, consumed: the incarnation of each turn, of each message sent, and of each message consumed. The version of the state
            is the number of turns.
        waiting: messages that have arrived and are not consumed.
        acked: number of messages whose consumption the receiver has committed.
        departed: number of messages that may have left the host.
        durable: number of consumed messages in the host's newest durable commit.
        outlets: the receiver's place to which the channel is open, or None.
    """

    incarnation: int
    turns: Numbers
    sent: tuple[Numbers, ...]
    consumed: tuple[Numbers, ...]
    waiting: tuple[Numbers, ...]
    acked: Numbers
    departed: Numbers
    durable: Numbers
    outlets: tuple[Place | None, ...]

    def arrived(self, sender: int) -> int:
        """Return the number of messages from the sender that have arrived."""
        return len(self.consumed[sender]) + len(self.waiting[sender])


Record = tuple[AgentState | None, ...]
"""A host's commit: the states of its agents, and None for other agents."""


class OpenItem(msgspec.Struct, frozen=True):
    """Opens a channel on a link. The next message on the channel has number `first`."""

    run: int
    target: int
    sender: int
    receiver: int
    incarnations: tuple[int, int]
    first: int


class MessageItem(msgspec.Struct, frozen=True):
    """A message on a link. `sent` is the incarnation in which it was sent."""

    run: int
    target: int
    sender: int
    receiver: int
    number: int
    sent: int


class AckItem(msgspec.Struct, frozen=True):
    """Tells a sender that the receiver has committed the consumption of the messages up to `number`."""

    run: int
    target: int
    sender: int
    receiver: int
    number: int


LinkItem = OpenItem | MessageItem | AckItem


class Start(msgspec.Struct, frozen=True):
    """Starts a new run on a host, instead of the previous one."""

    start: int
    places: tuple[Place, ...]
    lost: Numbers


class Plan(msgspec.Struct, frozen=True):
    """A local plan. `sources` lists the logs that may contain each agent that moves."""

    places: tuple[Place, ...]
    lost: Numbers
    sources: tuple[Numbers, ...]


class Appended(msgspec.Struct, frozen=True):
    """The store's answer to a commit."""

    is_durable: bool


class Contents(msgspec.Struct, frozen=True):
    """Contents of sealed logs, for the agents of a plan."""

    loading: "Plan"
    records: tuple[tuple[int, Record | None], ...]
    base: Record


class Release(msgspec.Struct, frozen=True):
    """Asks a host to commit an agent as left, so that it can move."""

    agent: int


class Base(msgspec.Struct, frozen=True):
    """A complete epoch, whose checkpoints and channel states replace older records and retained messages."""

    epoch: Record


Word = Plan | Release | Base
"""What the coordinator sends."""

Answer = Appended | Contents
"""What the store sends."""


class Append(msgspec.Struct, frozen=True):
    """Request to append a record to a run's log."""

    host: int
    run: int
    record: Record


class Seal(msgspec.Struct, frozen=True):
    """Request to seal logs, and to send their contents."""

    host: int
    run: int
    loading: Plan
    logs: Numbers


class Told(msgspec.Struct, frozen=True):
    """What a host lets out after a durable commit: the turns of an agent in its incarnation."""

    run: int
    agent: int
    incarnation: int
    turns: Numbers


class Left(msgspec.Struct, frozen=True):
    """Tells the coordinator that an agent is committed as left."""

    agent: int
    place: Place


class FromHost(msgspec.Struct, frozen=True):
    """An item on the link from a host."""

    host: int
    item: LinkItem


class FromStore(msgspec.Struct, frozen=True):
    """An answer of the store to a run."""

    run: int
    answer: Answer


class HostNode(NamedTuple):
    """State of a host. `run` is 0 if no process runs on the host. `left` contains the agents that have left, which stay in its records."""

    run: int
    places: tuple[Place, ...] = ()
    lost: Numbers = ()
    agents: Record = ()
    left: Record = ()
    links: tuple[tuple[LinkItem, ...], ...] = ()
    words: tuple[Word, ...] = ()
    answers: tuple[Answer, ...] = ()
    commit: Record | None = None
    is_changed: bool = False


class Log(NamedTuple):
    """A run's log, of which only the last record matters."""

    run: int
    record: Record | None
    is_sealed: bool


class CoordinatorNode(NamedTuple):
    """State of the coordinator and the store.

    Attributes:
        running: for each host, the run that the coordinator takes to be working, or 0.
        sources: for each agent, the logs that may contain its newest record.
        told: for each agent, the turns that have been let out.
        moves: number of moves on purpose that were begun.
        leaving: agents that have left their host, and wait for a plan.
        epochs: number of epochs that were begun.
        captured: the epoch that is not complete yet, or None.
        base: the newest complete epoch.
    """

    failures: int
    runs: int
    running: Numbers
    places: tuple[Place, ...]
    lost: Numbers
    sources: tuple[Numbers, ...]
    logs: tuple[Log, ...]
    told: tuple[Numbers, ...]
    base: Record
    moves: int = 0
    leaving: Numbers = ()
    epochs: int = 0
    captured: Record | None = None


class LocalRecoveryModel(Model):
    """Model of local recovery. Subclasses that override a method are mutants.

    Args:
        bounds: `crashes` limits crashes and evictions together. `epochs` and `checkpoints` are not used.
        homes: for each agent, the host on which it runs first. By default, each agent has a host of its own.
        hosts: number of hosts. By default, as many as `homes` needs.
        moves: maximum number of moves on purpose.
        epochs: maximum number of epochs.
    """

    def __init__(self, bounds: Bounds, homes: Numbers = (), *, hosts: int = 0, moves: int = 0, epochs: int = 0) -> None:
        self.bounds = bounds
        self.homes = homes or tuple(range(bounds.agents))
        self.agents = range(len(self.homes))
        self.hosts = range(hosts or max(self.homes) + 1)
        self.moves_max, self.epochs_max = moves, epochs
        self.actors = len(self.hosts) + 1
        self.labels: Interner[str] = Interner()
        self.names = [chr(ord("a") + agent) for agent in self.agents]
        self.nodes: list[Interner[HostNode]] = [Interner() for _ in self.hosts]
        self.coordinators: Interner[CoordinatorNode] = Interner()
        self.items: Interner[Hashable] = Interner()
        self._judged: Memo[tuple[object, ...], str] = Memo(lambda key: self._judge(*key))  # type: ignore[arg-type]

    def start(self) -> State:
        places = tuple(Place(home, home + 1, 1) for home in self.homes)
        nodes = []
        for host in self.hosts:
            agents = tuple(self.initial(1) if home == host else None for home in self.homes)
            nodes.append(self.nodes[host].of(self._fresh(host + 1, places, ())._replace(agents=agents)))
        running = tuple(host + 1 for host in self.hosts)
        sources = tuple((place.run,) for place in places)
        logs = tuple(Log(run, None, False) for run in running)
        base: Record = tuple(self.initial(0) for _ in self.agents)
        told: tuple[Numbers, ...] = ((),) * len(self.agents)
        found = CoordinatorNode(0, len(running), running, places, (), sources, logs, told, base)
        return (*nodes, self.coordinators.of(found))

    def initial(self, incarnation: int) -> AgentState:
        """Return the state of an agent that has done nothing."""
        count = len(self.agents)
        lists, zeros, nothing = ((),) * count, (0,) * count, (None,) * count
        return AgentState(incarnation, (), lists, lists, lists, zeros, zeros, zeros, nothing)

    def _fresh(self, run: int, places: tuple[Place, ...], lost: Numbers) -> HostNode:
        nobody: Record = (None,) * len(self.agents)
        return HostNode(run, places, lost, nobody, nobody, ((),) * len(self.hosts))

    # -- steps ----------------------------------------------------------------------------------------------------------

    def proposals(self, actor: int, node: int) -> Iterator[ProposedMove]:
        if actor == len(self.hosts):
            yield from self._coordinator_proposals(self.coordinators.values[node])
            return
        found = self.nodes[actor].values[node]
        if not found.run:
            return
        for kind, queue in (("hear", found.words), ("answer", found.answers)):
            if queue:
                yield ProposedMove(f"host {actor} hears {type(queue[0]).__name__.lower()}", kind)
        for source, items in enumerate(found.links):
            if items and not self._waits(found, items[0]):
                yield ProposedMove(f"host {actor} takes {self._text(items[0])}", "take", source)
        for agent, state in enumerate(found.agents):
            if state is None or self.is_at_rest(found, agent):
                continue
            if sum(map(len, state.sent)) < self.bounds.sends:
                for to in self.agents:
                    if to != agent:
                        label = f"{self.names[agent]} sends to {self.names[to]}"
                        yield ProposedMove(label, "send", agent * len(self.agents) + to)
            for sender, waiting in enumerate(state.waiting):
                if waiting:
                    label = f"{self.names[agent]} consumes from {self.names[sender]}"
                    yield ProposedMove(label, "consume", agent * len(self.agents) + sender)
        if found.is_changed and found.commit is None:
            yield ProposedMove(f"host {actor} commits", "commit")

    def _text(self, item: LinkItem) -> str:
        channel = f"{self.names[item.sender]} → {self.names[item.receiver]}"
        match item:
            case OpenItem():
                return f"the opening of {channel} from {item.first}"
            case MessageItem():
                return f"message {item.number} of {channel}"
            case AckItem():
                return f"the acknowledgement of {item.number} of {channel}"

    def carry_out(self, actor: int, node: int, proposal: ProposedMove) -> tuple[int, Outputs]:
        if actor == len(self.hosts):
            return self._coordinate(self.coordinators.values[node], proposal)
        step = HostStep(self, actor, self.nodes[actor].values[node])
        first, second = divmod(proposal.detail, len(self.agents))
        match proposal.kind:
            case "send":
                step.send(first, second)
            case "consume":
                step.consume(first, second)
            case "commit":
                step.commit()
            case "take":
                step.take(proposal.detail)
            case "answer":
                step.answered()
            case _:
                step.hear()
        return self.nodes[actor].of(step.node), tuple(step.outputs)

    def arrive(self, actor: int, node: int, item: int) -> tuple[int, Outputs]:
        value = self.items.values[item]
        if actor == len(self.hosts):
            return self._requested(self.coordinators.values[node], value)
        found = self.nodes[actor].values[node]
        if isinstance(value, Start):
            fresh = self._fresh(value.start, value.places, value.lost)
            return self.nodes[actor].of(fresh), ()
        if not found.run:
            return node, ()
        if isinstance(value, FromHost):
            if value.item.target == found.run and value.item.run not in found.lost:
                links = replaced(found.links, value.host, (*found.links[value.host], value.item))
                found = found._replace(links=links)
        elif isinstance(value, FromStore):
            if value.run == found.run:
                found = found._replace(answers=(*found.answers, value.answer))
        else:
            assert isinstance(value, Plan | Release | Base)
            found = found._replace(words=(*found.words, value))
        return self.nodes[actor].of(found), ()

    def _waits(self, node: HostNode, item: LinkItem) -> bool:
        """Return whether a link waits, because its next item concerns a plan that this host has not heard of or is still loading."""
        if not isinstance(item, OpenItem):
            return False
        known = node.places[item.sender].incarnation, node.places[item.receiver].incarnation
        if item.incarnations[0] > known[0] or item.incarnations[1] > known[1]:
            return True
        is_here = node.places[item.receiver].run == node.run
        return item.incarnations == known and is_here and node.agents[item.receiver] is None

    # -- rules that mutants break ---------------------------------------------------------------------------------------

    def recorded(self, node: HostNode) -> Record:
        """Return the host's record: its agents, with the messages that their receivers may still need."""
        return tuple(
            self._recorded_agent(node, state) if state is not None else left
            for state, left in zip(node.agents, node.left, strict=True)
        )

    def _recorded_agent(self, node: HostNode, state: AgentState) -> AgentState:
        acked = list(state.acked)
        for receiver, other in enumerate(node.agents):
            if other is not None:
                acked[receiver] = self.acked_within(state, other, receiver, node.agents.index(state))
        return self.initial(state.incarnation)._replace(
            turns=state.turns, sent=state.sent, consumed=state.consumed, acked=tuple(acked)
        )

    def acked_within(self, state: AgentState, receiver_state: AgentState, receiver: int, sender: int) -> int:
        """Return the number of a channel's messages that need not be kept, if both agents are on this host."""
        return len(receiver_state.consumed[sender])

    def departing(self, durable: AgentState, now: AgentState, receiver: int) -> int:
        """Return the number of messages that may depart, after a commit that contains the state `durable`."""
        return len(durable.sent[receiver])

    def sends_at_once(self) -> bool:
        """Return whether messages to other hosts depart when their turn ends."""
        return False

    def acknowledged(self, durable: AgentState, now: AgentState, sender: int) -> int:
        """Return the number that is acknowledged to a sender after a commit that contains the state `durable`."""
        return len(durable.consumed[sender])

    def first_resent(self, state: AgentState, receiver: int) -> int:
        """Return the number of the first message that is sent again when a channel is opened."""
        return state.acked[receiver] + 1

    def is_duplicate(self, state: AgentState, sender: int, number: int) -> bool:
        return number <= state.arrived(sender)

    def is_at_rest(self, node: HostNode, agent: int) -> bool:
        """Return whether an agent takes no turns, because it has left."""
        return node.left[agent] is not None

    def sealed_by(self, found: CoordinatorNode, logs: Numbers) -> Numbers:
        """Return the logs that a host seals before it loads agents from `logs`."""
        return tuple(run for run in logs if run in found.lost)

    def sources_after(self, sources: Numbers, run: int) -> Numbers:
        """Return the logs that may contain an agent that moves to a run and is not adopted yet."""
        return (*sources, run)

    def is_complete(self, captured: Record, live: list[AgentState]) -> bool:
        """Return whether an epoch is complete: all messages before the markers have arrived."""
        for agent, state in enumerate(captured):
            assert state is not None
            for sender in self.agents:
                if live[agent].arrived(sender) < len(state.consumed[sender]) + len(state.waiting[sender]):
                    return False
        return True

    def may_be_deleted(self, record: Record, base: Record) -> bool:
        """Return whether a log's record is not newer than the base."""
        return all(
            mine is None or theirs is None or len(mine.turns) <= len(theirs.turns)
            for mine, theirs in zip(record, base, strict=True)
        )

    def in_transit(self, base: AgentState, consumed: Numbers, sender: int) -> Numbers:
        """Return the messages of the base's channel state that an agent has not consumed."""
        return (*base.consumed[sender], *base.waiting[sender])[len(consumed) :]

    def newest(self, states: list[AgentState]) -> AgentState:
        """Return the state to load, of the states in all sources."""
        return max(states, key=lambda state: len(state.turns))

    # -- the coordinator and the store ------------------------------------------------------------------------------------

    def _coordinator_proposals(self, found: CoordinatorNode) -> Iterator[ProposedMove]:
        if found.failures < self.bounds.crashes:
            for host, run in enumerate(found.running):
                if run:
                    yield ProposedMove(f"host {host} is evicted", "evict", host)
        if found.moves < self.moves_max:
            for agent, place in enumerate(found.places):
                if found.running[place.host] == place.run:
                    yield ProposedMove(f"host {place.host} is asked to release {self.names[agent]}", "release", agent)
        moving = self._moving(found)
        for choice in range(len(self.hosts) ** len(moving) if moving else 0):
            targets = self._targets(moving, choice)
            if any(found.running[host] == found.places[agent].run for agent, host in zip(moving, targets, strict=True)):
                continue  # an agent that leaves goes to another run
            where = ", ".join(
                f"{self.names[agent]} to host {host}" for agent, host in zip(moving, targets, strict=True)
            )
            yield ProposedMove(f"a plan moves {where}", "plan", choice)

    def _moving(self, found: CoordinatorNode) -> list[int]:
        """Return the agents that need a plan, because their run is lost, or because they have left their host."""
        return [
            agent
            for agent, place in enumerate(found.places)
            if found.running[place.host] != place.run or agent in found.leaving
        ]

    def _targets(self, moving: list[int], choice: int) -> list[int]:
        return [choice // len(self.hosts) ** place % len(self.hosts) for place in range(len(moving))]

    def _coordinate(self, found: CoordinatorNode, proposal: ProposedMove) -> tuple[int, Outputs]:
        if proposal.kind == "evict":
            return self.coordinators.of(self._without(found, proposal.detail)), ()
        if proposal.kind == "release":
            asked = found._replace(moves=found.moves + 1)
            return self.coordinators.of(asked), (
                (found.places[proposal.detail].host, self.items.of(Release(proposal.detail))),
            )
        moving = self._moving(found)
        targets = self._targets(moving, proposal.detail)
        runs, running, places = found.runs, list(found.running), list(found.places)
        sources, logs = list(found.sources), list(found.logs)
        read: list[Numbers] = [()] * len(self.agents)
        outputs: list[tuple[int, int]] = []
        started = []
        for agent, host in zip(moving, targets, strict=True):
            if not running[host]:
                runs += 1
                running[host] = runs
                logs.append(Log(runs, None, False))
                started.append(host)
            places[agent] = Place(host, running[host], places[agent].incarnation + 1)
            read[agent] = sources[agent]
            sources[agent] = self.sources_after(sources[agent], running[host])
        word = Plan(tuple(places), found.lost, tuple(read))
        for host in self.hosts:
            if host in started:
                start = Start(running[host], found.places, found.lost)
                outputs.append((host, self.items.of(start)))
            outputs.append((host, self.items.of(word)))
        after = found._replace(
            runs=runs,
            running=tuple(running),
            places=tuple(places),
            sources=tuple(sources),
            logs=tuple(logs),
            leaving=(),
        )
        return self.coordinators.of(after), tuple(outputs)

    def _without(self, found: CoordinatorNode, host: int) -> CoordinatorNode:
        """Return the coordinator's state after it has recorded the loss of a host's run."""
        return found._replace(
            failures=found.failures + 1,
            lost=(*found.lost, found.running[host]),
            running=replaced(found.running, host, 0),
            captured=None,
        )

    def _requested(self, found: CoordinatorNode, request: object) -> tuple[int, Outputs]:
        outputs: Outputs = ()
        match request:
            case Append():
                found, outputs = self._append(found, request)
            case Seal():
                found, outputs = self._seal(found, request)
            case Told():
                found = self._tell(found, request)
            case Left():
                place = request.place
                is_known = request.agent in found.leaving or found.running[place.host] != place.run
                if found.places[request.agent] == place and not is_known:
                    found = found._replace(leaving=(*found.leaving, request.agent))
            case _:
                raise AssertionError(request)
        return self.coordinators.of(found), outputs

    def _append(self, found: CoordinatorNode, request: Append) -> tuple[CoordinatorNode, Outputs]:
        place, log = next((place, log) for place, log in enumerate(found.logs) if log.run == request.run)
        answer = self.items.of(FromStore(request.run, Appended(not log.is_sealed)))
        if not log.is_sealed:
            found = found._replace(logs=replaced(found.logs, place, log._replace(record=request.record)))
        return found, ((request.host, answer),)

    def _seal(self, found: CoordinatorNode, request: Seal) -> tuple[CoordinatorNode, Outputs]:
        sealed = self.sealed_by(found, request.logs)
        logs = tuple(log._replace(is_sealed=log.is_sealed or log.run in sealed) for log in found.logs)
        records = tuple((log.run, log.record) for log in logs if log.run in request.logs)
        answer = self.items.of(FromStore(request.run, Contents(request.loading, records, found.base)))
        return found._replace(logs=logs), ((request.host, answer),)

    def _tell(self, found: CoordinatorNode, request: Told) -> CoordinatorNode:
        """Compare what a host lets out with what has been let out before. The first commit in its incarnation adopts an agent."""
        known, turns, agent = found.told[request.agent], request.turns, request.agent
        common = min(len(known), len(turns))
        if known[:common] != turns[:common]:
            raise Fault("output commit", "G3", f"{self.names[agent]} has told {known}, and tells {turns}")
        place = found.places[agent]
        if (place.run, place.incarnation) == (request.run, request.incarnation):
            found = found._replace(sources=replaced(found.sources, agent, (request.run,)))
        return found._replace(told=replaced(found.told, agent, max(known, turns, key=len)))

    # -- failures and epochs --------------------------------------------------------------------------------------------

    def crashes(self, state: State) -> list[tuple[int, State]]:
        found = self.coordinators.values[state[-1]]
        following = list(self._epoch_steps(found, state))
        if found.failures == self.bounds.crashes:
            return following
        for host in self.hosts:
            run = self.nodes[host].values[state[host]].run
            if run and run == found.running[host]:
                after = list(state)
                after[host] = self.nodes[host].of(HostNode(0))
                after[-1] = self.coordinators.of(self._without(found, host))
                following.append((self.labels.of(f"host {host} crashes"), tuple(after)))
        return following

    def _epoch_steps(self, found: CoordinatorNode, state: State) -> Iterator[tuple[int, State]]:
        nodes = [self.nodes[host].values[state[host]] for host in self.hosts]
        for place, log in enumerate(found.logs):
            if found.epochs and log.record is not None and self.may_be_deleted(log.record, found.base):
                logs = replaced(found.logs, place, log._replace(record=None))
                after = self.coordinators.of(found._replace(logs=logs))
                yield self.labels.of(f"the log of run {log.run} is shortened"), (*state[:-1], after)
        live = self._live(found, nodes)
        if live is None:
            return
        if found.captured is None and found.epochs < self.epochs_max:
            captured = tuple(self._captured(live, found, agent) for agent in self.agents)
            after = self.coordinators.of(found._replace(epochs=found.epochs + 1, captured=captured))
            yield self.labels.of("an epoch is captured"), (*state[:-1], after)
        if found.captured is not None and self.is_complete(found.captured, live):
            hosts = [
                self.nodes[host].of(node._replace(words=(*node.words, Base(found.captured))))
                for host, node in enumerate(nodes)
            ]
            turns = [state.turns for state in found.captured if state is not None]
            told = tuple(max(pair, key=len) for pair in zip(found.told, turns, strict=True))
            after = self.coordinators.of(found._replace(captured=None, base=found.captured, told=told))
            yield self.labels.of("the epoch is complete"), (*hosts, after)

    def _live(self, found: CoordinatorNode, nodes: list[HostNode]) -> list[AgentState] | None:
        """Return the states of all agents if no host is lost, all hosts know the same places, and all agents are adopted there."""
        live = []
        for agent, place in enumerate(found.places):
            node = nodes[place.host]
            state = node.agents[agent] if node.run else None
            is_settled = found.running[place.host] == place.run == node.run and found.sources[agent] == (place.run,)
            if (
                state is None
                or state.incarnation != place.incarnation
                or not is_settled
                or node.left[agent] is not None
            ):
                return None
            live.append(state)
        runs = [node.run for node in nodes]
        if runs != list(found.running) or any(node.run and node.places != found.places for node in nodes):
            return None
        return live

    def _captured(self, live: list[AgentState], found: CoordinatorNode, agent: int) -> AgentState:
        """Return an agent's part of an epoch: its checkpoint, and the messages to it that have departed."""
        count = [self._departed(live, found, agent, other) for other in self.agents]
        waiting = [
            live[sender].sent[agent][len(live[agent].consumed[sender]) : self._departed(live, found, sender, agent)]
            for sender in self.agents
        ]
        state = live[agent]
        return self.initial(0)._replace(
            turns=state.turns,
            sent=state.sent,
            consumed=state.consumed,
            waiting=tuple(waiting),
            acked=tuple(count),
            departed=tuple(count),
        )

    def _departed(self, live: list[AgentState], found: CoordinatorNode, sender: int, receiver: int) -> int:
        is_here = found.places[sender].run == found.places[receiver].run
        return len(live[sender].sent[receiver]) if is_here else live[sender].departed[receiver]

    # -- oracles --------------------------------------------------------------------------------------------------------

    def check(self, state: State) -> None:
        found = self.coordinators.values[state[-1]]
        truth = tuple(self._truth(found, state, agent) for agent in self.agents)
        text = self._judged[truth, found.told]
        if text:
            raise Fault("exactly once", "G3", text)

    def _truth(self, found: CoordinatorNode, state: State, agent: int) -> tuple[object, ...]:
        place = found.places[agent]
        node = self.nodes[place.host].values[state[place.host]]
        live = node.agents[agent] if node.run == place.run and found.running[place.host] == place.run else None
        if live is None or live.incarnation != place.incarnation:
            live = self.point(found, agent)
        return live.turns, live.sent, live.consumed

    def point(self, found: CoordinatorNode, agent: int) -> AgentState:
        """Return the agent's state of the highest version, in its logs and in the base."""
        records = [log.record for log in found.logs if log.run in found.sources[agent] and log.record is not None]
        states = [found.base[agent], *[record[agent] for record in records]]
        return max([state for state in states if state is not None], key=lambda state: len(state.turns))

    def _judge(
        self,
        truth: tuple[tuple[Numbers, tuple[Numbers, ...], tuple[Numbers, ...]], ...],
        told: tuple[Numbers, ...],
    ) -> str:
        for agent, (turns, _, consumed) in enumerate(truth):
            if turns[: len(told[agent])] != told[agent]:
                return f"{self.names[agent]} has told {told[agent]}, and its turns are {turns}"
            for sender, (_, sent, _) in enumerate(truth):
                if sent[agent][: len(consumed[sender])] != consumed[sender]:
                    channel = f"{self.names[sender]} to {self.names[agent]}"
                    return f"from {channel}: {consumed[sender]} consumed, {sent[agent]} sent"
        return ""

    def unfinished(self, actor: int, node: int) -> str:
        if actor == len(self.hosts):
            moving = self._moving(self.coordinators.values[node])
            return "an agent is nowhere" if moving else ""
        found = self.nodes[actor].values[node]
        if not found.run:
            return ""
        if any(found.links) or found.words or found.answers or found.commit is not None or found.is_changed:
            return f"host {actor} is stuck"
        for agent, place in enumerate(found.places):
            state = found.agents[agent]
            if place.run != found.run:
                continue
            if state is None:
                return f"{self.names[agent]} is not loaded"
            for receiver, sent in enumerate(state.sent):
                if found.agents[receiver] is None and state.acked[receiver] < len(sent):
                    channel = f"from {self.names[agent]} to {self.names[receiver]}"
                    return f"{channel}: {state.acked[receiver]} of {len(sent)} messages arrived"
        return ""


class HostStep:
    """One step of a host. It collects the host's next state and the items that the host sends."""

    def __init__(self, model: LocalRecoveryModel, host: int, node: HostNode) -> None:
        self.model = model
        self.host = host
        self.node = node
        self.outputs: list[tuple[int, int]] = []

    def _put(self, agent: int, state: AgentState) -> None:
        self.node = self.node._replace(agents=replaced(self.node.agents, agent, state))

    def _state(self, agent: int) -> AgentState:
        state = self.node.agents[agent]
        assert state is not None
        return state

    def _emit(self, to: int, item: LinkItem) -> None:
        self.outputs.append((to, self.model.items.of(FromHost(self.host, item))))

    def _request(self, request: Append | Seal | Told | Left) -> None:
        self.outputs.append((len(self.model.hosts), self.model.items.of(request)))

    # -- turns ----------------------------------------------------------------------------------------------------------

    def send(self, agent: int, to: int) -> None:
        state = self._state(agent)
        sent = replaced(state.sent, to, (*state.sent[to], state.incarnation))
        self._put(agent, state._replace(sent=sent, turns=(*state.turns, state.incarnation)))
        self.node = self.node._replace(is_changed=True)
        if self.node.agents[to] is not None:
            self._deliver_here(agent, to)
        elif self.model.sends_at_once():
            self._depart(agent, to, len(sent[to]))

    def consume(self, agent: int, sender: int) -> None:
        state = self._state(agent)
        waiting = state.waiting[sender]
        self._put(
            agent,
            state._replace(
                turns=(*state.turns, state.incarnation),
                consumed=replaced(state.consumed, sender, (*state.consumed[sender], waiting[0])),
                waiting=replaced(state.waiting, sender, waiting[1:]),
            ),
        )
        self.node = self.node._replace(is_changed=True)

    def _deliver_here(self, sender: int, receiver: int) -> None:
        """Deliver all messages between two agents of this host that have not arrived."""
        sent, state = self._state(sender).sent[receiver], self._state(receiver)
        waiting = (*state.waiting[sender], *sent[state.arrived(sender) :])
        self._put(receiver, state._replace(waiting=replaced(state.waiting, sender, waiting)))

    # -- commits --------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        record = self.model.recorded(self.node)
        self.node = self.node._replace(commit=record, is_changed=False)
        self._request(Append(self.host, self.node.run, record))

    def _committed(self, record: Record) -> None:
        """Let out what a durable commit contains."""
        self.node = self.node._replace(commit=None)
        for agent, durable in enumerate(record):
            now = self.node.agents[agent]
            if durable is None or now is None:
                continue
            self._request(Told(self.node.run, agent, durable.incarnation, durable.turns))
            left = self.node.left[agent]
            if left is not None and len(left.turns) == len(durable.turns):
                self._request(Left(agent, self.node.places[agent]))
            for other in self.model.agents:
                self._depart(agent, other, self.model.departing(durable, now, other))
                self._acknowledge(agent, other, self.model.acknowledged(durable, now, other))

    def _acknowledge(self, agent: int, sender: int, number: int) -> None:
        state = self._state(agent)
        if number > state.durable[sender]:
            self._put(agent, state._replace(durable=replaced(state.durable, sender, number)))
            self._tell_acked(agent, sender, number)

    def _tell_acked(self, agent: int, sender: int, number: int) -> None:
        place = self.node.places[sender]
        if place.run != self.node.run:
            self._emit(place.host, AckItem(self.node.run, place.run, sender, agent, number))

    # -- channels -------------------------------------------------------------------------------------------------------

    def _depart(self, agent: int, receiver: int, number: int) -> None:
        """Send messages up to `number` to another host."""
        state = self._state(agent)
        before, place = state.departed[receiver], self.node.places[receiver]
        if number <= before:
            return
        self._put(agent, state._replace(departed=replaced(state.departed, receiver, number)))
        if place.run == self.node.run:
            return
        if state.outlets[receiver] is None:
            self._open(agent, receiver)
        else:
            self._send_items(agent, receiver, range(before + 1, number + 1))

    def _open(self, agent: int, receiver: int) -> None:
        """Open a channel to the receiver's place, and send everything that the receiver may not have."""
        state, place = self._state(agent), self.node.places[receiver]
        self._put(agent, state._replace(outlets=replaced(state.outlets, receiver, place)))
        incarnations = state.incarnation, place.incarnation
        first = self.model.first_resent(state, receiver)
        self._emit(place.host, OpenItem(self.node.run, place.run, agent, receiver, incarnations, first))
        self._send_items(agent, receiver, range(first, state.departed[receiver] + 1))

    def _send_items(self, agent: int, receiver: int, numbers: Iterable[int]) -> None:
        state = self._state(agent)
        place = state.outlets[receiver]
        assert place is not None
        for number in numbers:
            sent = state.sent[receiver][number - 1]
            item = MessageItem(self.node.run, place.run, agent, receiver, number, sent)
            self._emit(place.host, item)

    def take(self, source: int) -> None:
        """Take the next item of a link."""
        item, rest = self.node.links[source][0], self.node.links[source][1:]
        self.node = self.node._replace(links=replaced(self.node.links, source, rest))
        match item:
            case OpenItem():
                self._accept(item)
            case MessageItem():
                self._receive(item)
            case AckItem():
                state = self.node.agents[item.sender]
                if state is not None and item.number > state.acked[item.receiver]:
                    self._put(item.sender, state._replace(acked=replaced(state.acked, item.receiver, item.number)))

    def _accept(self, item: OpenItem) -> None:
        state = self.node.agents[item.receiver]
        if state is None:
            return
        assert item.first <= state.arrived(item.sender) + 1, f"{item} leaves out messages of {state}"
        self._tell_acked(item.receiver, item.sender, state.durable[item.sender])

    def _receive(self, item: MessageItem) -> None:
        state = self.node.agents[item.receiver]
        if state is None or self.model.is_duplicate(state, item.sender, item.number):
            return
        assert item.number <= state.arrived(item.sender) + 1, f"{item} leaves out messages of {state}"
        waiting = (*state.waiting[item.sender], item.sent)
        self._put(item.receiver, state._replace(waiting=replaced(state.waiting, item.sender, waiting)))

    # -- words ----------------------------------------------------------------------------------------------------------

    def answered(self) -> None:
        """Handle the store's next answer."""
        answer = self.node.answers[0]
        self.node = self.node._replace(answers=self.node.answers[1:])
        if isinstance(answer, Contents):
            self._load(answer)
        elif answer.is_durable:
            assert self.node.commit is not None
            self._committed(self.node.commit)
        else:
            self.node = HostNode(0)

    def hear(self) -> None:
        """Handle the coordinator's next word."""
        word = self.node.words[0]
        self.node = self.node._replace(words=self.node.words[1:])
        match word:
            case Plan():
                self._apply(word)
            case Release():
                self._release(word.agent)
            case Base():
                self._drop_retained(word.epoch)

    def _drop_retained(self, base: Record) -> None:
        """Drop the messages that the channel states of the base hold."""
        for agent, part in enumerate(base):
            state = self.node.agents[agent]
            if state is not None and part is not None:
                acked = tuple(map(max, state.acked, part.acked))
                self._put(agent, state._replace(acked=acked))

    def _release(self, agent: int) -> None:
        """Let an agent take no more turns, and commit it."""
        state = self.node.agents[agent]
        if state is not None:
            left = self.model.recorded(self.node)[agent]
            self.node = self.node._replace(left=replaced(self.node.left, agent, left), is_changed=True)

    def _apply(self, plan: Plan) -> None:
        node = self.node
        if node.run in plan.lost:
            self.node = HostNode(0)
            return
        links = tuple(tuple(item for item in items if item.run not in plan.lost) for items in node.links)
        self.node = node._replace(places=plan.places, lost=plan.lost, links=links)
        moved = [agent for agent in self.model.agents if plan.places[agent] != node.places[agent]]
        agents = tuple(None if agent in moved else state for agent, state in enumerate(node.agents))
        self.node = self.node._replace(agents=agents)
        for agent, other in itertools.product(self.model.agents, moved):
            state = self.node.agents[agent]
            if state is None:
                continue
            self._put(agent, state._replace(outlets=replaced(state.outlets, other, None)))
            if plan.places[other].run != node.run and state.departed[other]:
                self._open(agent, other)
        here = [agent for agent in moved if plan.places[agent].run == node.run]
        if here:
            logs = tuple(sorted({run for agent in here for run in plan.sources[agent]}))
            self._request(Seal(self.host, node.run, plan, logs))

    def _load(self, found: Contents) -> None:
        plan = found.loading
        loaded = []
        for agent, sources in enumerate(plan.sources):
            if not sources or plan.places[agent].run != self.node.run:
                continue
            incarnation = plan.places[agent].incarnation
            records = [record for run, record in found.records if run in sources]
            states = [record[agent] for record in records if record is not None and record[agent] is not None]
            base = found.base[agent]
            assert base is not None
            state = self.model.newest([base, *states])  # type: ignore[list-item]
            waiting = tuple(self.model.in_transit(base, state.consumed[sender], sender) for sender in self.model.agents)
            state = state._replace(waiting=waiting)
            departed = tuple(map(len, state.sent))
            durable = tuple(map(len, state.consumed))
            self._put(agent, state._replace(incarnation=incarnation, departed=departed, durable=durable))
            self.node = self.node._replace(left=replaced(self.node.left, agent, None))
            loaded.append(agent)
        self.node = self.node._replace(is_changed=True)
        for agent, other in itertools.product(loaded, self.model.agents):
            if agent == other:
                continue
            if self.node.agents[other] is not None:
                self._deliver_here(agent, other)
                self._deliver_here(other, agent)
            elif self._state(agent).departed[other] and self.node.places[other].run != self.node.run:
                self._open(agent, other)
