"""Players that pass coins, and an oracle that knows every coin by its id.

Some players spawn children, some of these leave again; handlers raise, now and then or always for one coin; turns take
their time; coins are sent to agents that do not exist, or no longer. The oracle never looks at stamps, numbers or markers:
from the states of a cut alone it knows which ids must be where.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec
from tests.agent_runtime.host_world import Cut, HostWorld, SimHost

import snapline
from snapline.agent_runtime.host import events as ev
from snapline.agent_runtime.host.turns import restored
from snapline.agent_runtime.snapshots.cut import describe_payload
from snapline.protocols.coverage import AgentReport, uncovered
from snapline.storage.checkpoint import AgentCheckpoint, DeadLetterRecord

COINS = 20
"""What each player has at first."""


class Coin(snapline.Message):
    id: str
    is_cursed: bool = False


class Tick(snapline.Message):
    pass


class Purse(msgspec.Struct):
    coins: int
    peers: list[str]
    rolls: int = 0  # position in a private random sequence: replays may differ, as they do in life
    sent: dict[str, list[str]] = {}
    got: dict[str, list[str]] = {}
    to_pass: int = 30
    is_ticking: bool = False


class Player(snapline.Agent):
    """Passes coins on. Its turns fail after they have changed something; that is undone."""

    state: Purse
    on_error: ClassVar[Literal["undo", "keep", "recover"]] = "undo"

    async def on_start(self, ctx: snapline.Context) -> None:
        self._set_timer(ctx)
        self._pass(ctx, 3)

    @snapline.handler
    async def on_coin(self, message: Coin, ctx: snapline.Context) -> None:
        self._perhaps_fail(message, ctx, before=True)
        self.state.coins += 1
        self._perhaps_fail(message, ctx, before=False)
        self.state.got.setdefault(ctx.sender, []).append(message.id)
        self._pass(ctx, 1)

    @snapline.handler
    def on_tick(self, message: Tick, ctx: snapline.Context) -> None:
        state = self.state
        state.is_ticking = False
        depth = ctx.agent.count("-")
        name = "shared-c" if depth == 0 and state.to_pass <= 10 else f"{ctx.agent}-c"
        if depth < 2 and state.to_pass <= 20 and name not in state.peers:
            ctx.spawn(name, type(self)(Purse(0, list(state.peers), to_pass=8)))
            self._give(ctx, name)
            state.peers.append(name)
        self._pass(ctx, 1)
        if depth:
            state.to_pass -= 1
        if depth and state.to_pass <= 2:
            ctx.stop()
        elif depth or (state.to_pass > 0 and state.coins > 0):
            self._set_timer(ctx)

    def _perhaps_fail(self, message: Coin, ctx: snapline.Context, *, before: bool) -> None:
        if not before and (message.is_cursed or ctx.random() < 0.05):
            raise ValueError(f"{ctx.agent} drops {message.id}")

    def _set_timer(self, ctx: snapline.Context) -> None:
        ctx.set_timer("tick", 0.01, Tick())
        self.state.is_ticking = True

    def _pass(self, ctx: snapline.Context, count: int) -> None:
        for _ in range(count):
            if self.state.coins > 0 and self.state.to_pass > 0:
                self.state.to_pass -= 1
                to = self.state.peers[int(ctx.random() * len(self.state.peers))]
                self._give(ctx, f"{to}-c" if ctx.random() < 0.2 and to != ctx.agent else to)

    def _give(self, ctx: snapline.Context, to: str) -> None:
        if self.state.coins <= 0:
            return
        self.state.coins -= 1
        self.state.rolls += 1
        coin = Coin(f"{ctx.agent}#{ctx.incarnation}.{self.state.rolls}", ctx.random() < 0.02)
        self.state.sent.setdefault(to, []).append(coin.id)
        ctx.send(to, coin)


class Careful(Player):
    """Fails before it changes anything, and promises so."""

    on_error = "keep"

    def _perhaps_fail(self, message: Coin, ctx: snapline.Context, *, before: bool) -> None:
        super()._perhaps_fail(message, ctx, before=not before)


class Reckless(Player):
    """Fails with its state half changed, and needs a recovery. Rarely: each one costs the fleet a rollback."""

    on_error = "recover"
    retries = 1

    def _perhaps_fail(self, message: Coin, ctx: snapline.Context, *, before: bool) -> None:
        if not before and (message.is_cursed or ctx.random() < 0.01):
            raise ValueError(f"{ctx.agent} drops {message.id}")


def make_fleet(agents: int, **options: Any) -> snapline.Fleet:
    names = [f"a{number}" for number in range(agents)]
    kinds: list[Callable[[Any], Player]] = [Player, Reckless, Careful, Player, Player]
    return snapline.Fleet(
        "coins",
        agents={name: kinds[number % 5](Purse(COINS, list(names))) for number, name in enumerate(names)},
        **options,
    )


class SlowHost(SimHost):
    """A host on which some turns take their time: the handler has run, its end is reported later."""

    def __init__(self, world: HostWorld, name: str, start: int) -> None:
        super().__init__(world, name, start)
        self.running: list[Any] = []

    def run_turn(self) -> None:
        ended = self.turns.run(self.queue.popleft())
        assert isinstance(ended, ev.TurnEnded | ev.TurnFailed)
        if self.world.random.random() < 0.15:
            self.running.append(ended)
        else:
            self.feed(ended)

    def end_turn(self) -> None:
        self.feed(self.running.pop(self.world.random.randrange(len(self.running))))

    def _carry(self, command: ev.Command) -> None:
        if isinstance(command, ev.CaptureState):
            busy = [ended.agent for ended in self.running]
            assert command.agent not in busy, f"{command.agent} is recorded in the middle of a turn"
        if isinstance(command, ev.CancelTurns):
            self.running.clear()
        super()._carry(command)


class CoinWorld(HostWorld):
    """The world of `sim`, with slow turns, failing agents, a slow coordinator, and a memory of those that left.

    Attributes:
        asked: what hosts asked of the coordinator and it has not come to yet.
        left: agents that left: the epoch begun last, the state and the dead letters they left with.
        departed: by open epoch, what hosts reported of agents that have left.
        failures: agents that asked for a recovery.
    """

    def __init__(self, agents: int, hosts: int, seed: int, **options: Any) -> None:
        self.left: dict[str, tuple[int, Purse, list[DeadLetterRecord]]] = {}
        self.departed: dict[int, dict[str, dict[str, int]]] = {}
        self.failures = 0
        self.asked: deque[tuple[SimHost, ev.Command]] = deque()
        self.oracle = Oracle(self, agents * COINS)
        super().__init__(options.pop("fleet", None) or make_fleet(agents, **options), hosts, seed, self.oracle)

    def _boot(self, name: str) -> None:
        start = self.hosts[name].start + 1 if name in self.hosts else 1
        host = self.hosts[name] = SlowHost(self, name, start)
        host.feed(ev.Welcomed(start, "sim"))

    def _recover(self) -> None:
        line = max(self.lines)
        self.left = {agent: kept for agent, kept in self.left.items() if kept[0] < line}
        super()._recover()

    def ask_coordinator(self, host: SimHost, command: ev.Command) -> None:
        if isinstance(command, ev.ReserveAgents | ev.RetireAgent | ev.LocateAgents | ev.ReportAgentFailed):
            self.asked.append((host, command))
        else:
            super().ask_coordinator(host, command)

    def answer(self) -> None:
        """The coordinator comes to the oldest question."""
        if self.random.random() < 0.7:
            return
        host, command = self.asked.popleft()
        if self.hosts[host.name] is not host or host.core.plan != self.plan:
            return
        if isinstance(command, ev.RetireAgent) and command.plan == self.plan:
            state = host.turns.object_of(command.agent).state
            copy = msgspec.convert(msgspec.to_builtins(state), Purse)
            self.left[command.agent] = (self.begun, copy, list(host.core.agents[command.agent].dead_letters))
        if isinstance(command, ev.ReserveAgents):
            gone = [agent for agent, _ in command.agents if agent in self.left]
            if gone:
                answer = ev.AgentsReserved(command.request, self.begun, tuple(self.open), 1, f"{gone[0]} has existed")
                host.directives.append(answer)
                return
        if isinstance(command, ev.ReportAgentFailed) and command.agent in host.core._failed:
            self.failures += 1
            self._recover()
        super().ask_coordinator(host, command)

    def store_epoch(self, host: SimHost, command: ev.StoreEpoch) -> None:
        if command.epoch in self.open and command.plan == self.plan:
            self.departed.setdefault(command.epoch, {}).update(command.departed)
        super().store_epoch(host, command)

    def actions(self) -> list[Callable[[], None]]:
        slow = [host for host in self.hosts.values() if isinstance(host, SlowHost) and host.running]
        questions = [self.answer] if self.asked else []
        return super().actions() + [host.end_turn for host in slow] + questions

    def _is_busy(self) -> bool:
        """An agent that nobody creates again keeps its messages: that is no work."""
        if self.open or self.asked or len(self.confirmed) < len(self.names):
            return True
        for host in self.hosts.values():
            if host.queue or host.directives or (isinstance(host, SlowHost) and host.running):
                return True
            agents, peers = host.core.agents.values(), host.core.peers.values()
            if any(agent.parked or (agent.mailbox and not agent.awaits_creation) for agent in agents):
                return True
            if any(peer.link is not None and peer.link.has_unacked for peer in peers):
                return True
        return False


class Oracle:
    """Checks every complete cut: no orphan (G1), channel states exact and in order (G2), no coin lost or made (G3)."""

    def __init__(self, world: CoinWorld, coins: int) -> None:
        self.world = world
        self.coins = coins
        self.in_transit = self.unborn = self.dead = self.left = 0

    def __call__(self, epoch: int, cut: Cut) -> None:
        states = {agent: self._state(found) for agent, found in cut.items() if not found.is_unborn}
        letters = {agent: list(found.dead_letters) for agent, found in cut.items()}
        self.unborn += len(cut) - len(states)
        gone = {agent: kept for agent, kept in self.world.left.items() if kept[0] < epoch}
        self.left += len(gone)
        for agent, (_, state, buried) in gone.items():
            assert agent not in cut, f"epoch {epoch}: {agent} has left"
            states[agent], letters[agent] = state, buried
        channels = {(sender, receiver) for sender, state in states.items() for receiver in state.sent}
        channels |= {(sender, receiver) for receiver, state in states.items() for sender in state.got}
        channels |= {(sender, receiver) for receiver, found in cut.items() for sender in found.in_transit}
        total = sum(state.coins for state in states.values())
        for sender, receiver in sorted(channels):
            total += self._check_channel(epoch, sender, receiver, cut, states, letters, gone)
        assert total == self.coins, f"epoch {epoch}: {total} coins"
        self._check_coverage(epoch, cut, gone)

    def _check_channel(
        self, epoch: int, sender: str, receiver: str, cut: Cut, states: Any, letters: Any, gone: Any
    ) -> int:
        """Every id sent is in its place; returns how many are in none of the states."""
        sent = states[sender].sent.get(receiver, []) if sender in states else []
        lost = _buried(letters.get(sender, []), sender) if sender != receiver else []
        lost = [coin for coin in sent if coin in lost]
        if receiver == f"{sender}-c" and receiver not in self.world.left:
            assert not lost, f"epoch {epoch}: {sender} sent to {receiver} after it had spawned it"
        sent = [coin for coin in sent if coin not in lost]
        got = states[receiver].got.get(sender, []) if receiver in states else []
        dead = _buried(letters.get(receiver, []), sender)
        held = _coins([m.payload for m in cut[receiver].in_transit.get(sender, [])]) if receiver in cut else []
        parked = self._parked(cut[sender], receiver) if sender in cut else []
        evidence = (epoch, sender, receiver, sent, got, dead, held, parked)
        dead = [coin for coin in dead if coin in sent]
        consumed, rest = sent[: len(got) + len(dead)], sent[len(got) + len(dead) :]
        assert [coin for coin in consumed if coin not in dead] == got, evidence
        assert [coin for coin in consumed if coin in dead] == dead, evidence
        if receiver in gone:  # what came after it left is dead letters of its host
            assert rest[len(rest) - len(parked) :] == parked, evidence
        else:
            assert rest == held + parked, evidence
        self.in_transit += len(held)
        self.dead += len(dead)
        everything = states[sender].sent.get(receiver, []) if sender in states else []
        return len(everything) - len(got)

    def _check_coverage(self, epoch: int, cut: Cut, gone: Any) -> None:
        """The numbers that hosts report balance as well: the coordinator would complete this epoch."""
        reports = {
            agent: AgentReport(agent, False, sent, {}, {})
            for agent, sent in self.world.departed.pop(epoch, {}).items()
            if agent not in cut
        }
        for agent, found in cut.items():
            counts = {sender: len(messages) for sender, messages in found.in_transit.items()}
            reports[agent] = AgentReport(agent, found.is_unborn, found.sent, found.received, counts)
        coverage = uncovered(reports, set(gone))
        assert coverage.is_whole, (epoch, coverage)

    def _state(self, found: AgentCheckpoint) -> Purse:
        state = restored(self.world.fleet, found).state
        assert isinstance(state, Purse)
        return state

    def _parked(self, found: AgentCheckpoint, receiver: str) -> list[str]:
        return _coins([parked.payload for parked in found.outbox if parked.receiver == receiver])


def _buried(letters: list[DeadLetterRecord], sender: str) -> list[str]:
    return _coins([letter.payload for letter in letters if letter.sender == sender])


def _coins(payloads: list[bytes]) -> list[str]:
    described = [describe_payload(payload) for payload in payloads]
    return [each["fields"]["id"] for each in described if isinstance(each, dict) and each.get("type") == "Coin"]


def play(seed: int, *, steps: int = 2000, faults: bool = True) -> CoinWorld:
    """One run: steps with faults, then rest, then a last epoch. Raises AssertionError or ProtocolError if it is wrong."""
    world = CoinWorld(3 + seed % 5, 2 + seed % 3, seed)
    chance = world.random.random
    for step in range(steps):
        world.step()
        if chance() < 0.012:
            world.begin_epoch()
        if faults and chance() < 0.002:
            first, second = world.random.sample(world.names, 2)
            world.cut(first, second)
        if faults and chance() < 0.001:
            world.abort_epoch()
        if faults and chance() < 0.0008:
            world.crash()
        if step % 4 == 0:
            validate(world)
    assert world.settle(), "did not come to rest"
    world.begin_epoch()
    assert world.settle(), "the last epoch did not end"
    validate(world)
    check_rest(world)
    return world


def validate(world: CoinWorld) -> None:
    for host in world.hosts.values():
        host.core.validate()


def check_rest(world: CoinWorld) -> None:
    """At rest, the last cut holds everything, and nobody still waits for a timer."""
    assert max(world.lines) == world.begun, "the last epoch was not completed"
    for agent, found in world.lines[world.begun].items():
        if not found.is_unborn:
            assert not found.in_transit and not found.outbox and not found.spawns and not found.timers, agent
            state = restored(world.fleet, found).state
            assert found.is_leaving or not state.is_ticking, f"a timer of {agent} was lost"
            child = f"{agent}-c"
            is_there = child in world.lines[world.begun] or child in world.left
            assert is_there or child not in state.peers, f"{child} was never created"
