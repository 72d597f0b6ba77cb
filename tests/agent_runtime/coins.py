"""Players that pass coins, and an oracle that knows every coin by its id.

Some players spawn children, some of these leave again; handlers raise, now and then or always for one coin; turns take
their time; coins are sent to agents that do not exist, or no longer. The oracle never looks at stamps, numbers or markers:
from the states of a cut alone it knows which ids must be where.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec
from tests.kit.fleet import Cut, FleetWorld
from tests.kit.logged_fleet import LoggedFleet

import snapline
from snapline.agent_runtime.fleet import restored
from snapline.messages.payloads import describe_payload
from snapline.protocols.epoch_stamped import AgentReport, check_coverage
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterRecord

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


class Oracle:
    """Checks every complete cut: no orphan (G1), channel states exact and in order (G2), no coin lost or made (G3)."""

    def __init__(self, world: FleetWorld) -> None:
        self.world = world
        self.coins = COINS * len(world.fleet.agents)
        self.in_transit = self.unborn = self.dead = self.left = 0

    def __call__(self, epoch: int, cut: Cut) -> None:
        states = {agent: self._state(found) for agent, found in cut.items() if not found.is_unborn}
        letters = {agent: list(found.dead_letters) for agent, found in cut.items()}
        self.unborn += len(cut) - len(states)
        gone = {agent: kept for agent, kept in self.world.left.items() if kept.epoch < epoch}
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
        coverage = check_coverage(reports, set(gone))
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


class LineOracle(Oracle):
    """In logged protocols agents that have stopped stay in the cut for a while, and consume what comes without a trace."""

    def _check_channel(
        self, epoch: int, sender: str, receiver: str, cut: Cut, states: Any, letters: Any, gone: Any
    ) -> int:
        found = cut.get(receiver)
        if found is None or not found.is_leaving:
            return super()._check_channel(epoch, sender, receiver, cut, states, letters, gone)
        sent = states[sender].sent.get(receiver, []) if sender in states else []
        lost = _buried(letters.get(sender, []), sender) if sender != receiver else []
        sent = [coin for coin in sent if coin not in lost]
        got = states[receiver].got.get(sender, [])
        held = _coins([message.payload for message in found.in_transit.get(sender, [])])
        parked = self._parked(cut[sender], receiver) if sender in cut else []
        assert [coin for coin in sent if coin in got] == got, (epoch, sender, receiver, sent, got)
        assert sent[len(sent) - len(held) - len(parked) :] == held + parked, (epoch, sender, receiver, sent, held)
        everything = states[sender].sent.get(receiver, []) if sender in states else []
        return len(everything) - len(got)

    def _check_coverage(self, epoch: int, cut: Cut, gone: Any) -> None:
        """The composition has checked the numbers."""


def play(seed: int, *, steps: int = 2000) -> FleetWorld:
    """One run: steps with faults, then rest, then a last epoch. Raises AssertionError or ProtocolError if it is wrong."""
    world = FleetWorld(make_fleet(3 + seed % 5), 2 + seed % 3, seed)
    world.on_cut = Oracle(world)
    _inject_faults(world, steps)
    world.begin_epoch()
    assert world.settle(), "the last epoch did not end"
    world.validate()
    _check_rest(world)
    return world


def play_logged(seed: int, protocol: str, *, steps: int = 2000) -> LoggedFleet:
    """The same in a logged protocol, where the last epoch is made of the live states."""
    triggers = (
        [snapline.Every(0.05 + 0.01 * (seed % 7))]
        if seed % 3 or protocol == "koo-toueg"
        else [snapline.EveryMessages(4 + seed % 9)]
    )
    world = LoggedFleet(make_fleet(3 + seed % 5, protocol=protocol, triggers=triggers), 2 + seed % 3, seed)
    world.on_cut = LineOracle(world)
    _inject_faults(world, steps)
    if world.is_autonomous:
        world.fail()
    else:
        world.begin_round(world.living)
    assert world.settle(), "the last epoch did not end"
    world.validate()
    _check_logged_rest(world)
    assert world.settle(), "agents that may leave do not"
    check_gone(world)
    return world


SETTLING_STEPS = 100_000
"""No epoch begins meanwhile, so each failure of a reckless agent takes everything back to the same one: ten of them are not rare."""


def _inject_faults(world: FleetWorld, steps: int) -> None:
    """Epochs and faults for so many steps, then rest."""
    chance = world.random.random
    for step in range(steps):
        world.step()
        if chance() < 0.012:
            world.begin_epoch()
        if chance() < 0.002:
            first, second = world.random.sample(world.names, 2)
            world.cut(first, second)
        if chance() < 0.001:
            world.abort_epoch()
        if chance() < 0.0008:
            world.crash()
        if isinstance(world, LoggedFleet) and chance() < 0.01 and world.begun:
            world.say_again()
        if step % 4 == 0:
            world.validate()
    assert world.settle(SETTLING_STEPS), "did not come to rest"
    world.validate()


def _check_rest(world: FleetWorld) -> None:
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


def check_gone(world: LoggedFleet) -> None:
    """Of agents that have left no host knows anything more: neither numbers nor channels."""
    for host in world.hosts.values():
        core = host.core
        assert not core._ends.ending and not core.agents.keys() & world.left.keys()
        for agent in core.agents.values():
            # Channels that were not used since they were restored go with the next plan.
            used = {outlet.receiver for outlet in agent.outlets.values() if outlet.peer is not None}
            assert not used & world.left.keys(), (agent.id, "sends to", world.left.keys())
            used = {inlet.sender for inlet in agent.inlets.values() if inlet.channel}
            assert not used & world.left.keys(), (agent.id, "receives from", world.left.keys())
        for peer in core.peers.values():
            ends = {(end.sender, end.receiver) for end in peer.inlets.values()}
            ends |= {(end.sender, end.receiver) for end in peer.outlets.values()}
            assert not {agent for channel in ends for agent in channel} & world.left.keys(), (host.name, peer.host)


def _check_logged_rest(world: LoggedFleet) -> None:
    """At rest, the last cut holds everything, and nobody still waits for a timer."""
    for agent, found in world.base.items():
        if not found.is_unborn:
            state = restored(world.fleet, found).state
            assert isinstance(state, Purse)
            assert not found.outbox and not found.spawns, agent
            assert found.is_leaving or not state.is_ticking or found.timers, f"a timer of {agent} was lost"
