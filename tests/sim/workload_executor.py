"""The smallest world in which a fleet runs: no hosts, network or protocol, one global order of events.

So each of its global states is a consistent cut, and it shares no assumption with what makes cuts elsewhere.
"""

from collections import deque
from collections.abc import Callable
from random import Random

import msgspec

import snapline
from snapline.agent_runtime.agent import Agent, agent_type
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.fleet import encode_state, find_class, restore_agent
from snapline.agent_runtime.host.plans import creation_payload
from snapline.agent_runtime.turn_environment import TurnEnvironment
from snapline.messages.payloads import CREATE, read_creation, split_message
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, ParkedMessage, SavedTimer, SpawnRequest

STEPS_MAX = 200_000


class SeededEnvironment(TurnEnvironment):
    """Chance from a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def now_ns(self) -> int:
        return 0

    def random(self) -> float:
        return self._random.random()


class Player:
    """One agent: its object (None: unborn), what waits for it, and what waits to leave it."""

    def __init__(self, made: Agent | None) -> None:
        self.made = made
        self.is_started = False
        self.timers: dict[str, tuple[int, bytes]] = {}
        self.outbox: list[tuple[str, bytes]] = []
        self.held: list[tuple[str, bytes]] = []
        self.spawns: list[tuple[str, str, bytes]] = []
        self.sent: dict[str, int] = {}


class Executor:
    """Runs a fleet one small step at a time, in an order drawn from a seed, without hosts, network or protocol.

    A step is one turn, or one message leaving an outbox, or one spawn that is granted. Channels are FIFO.
    """

    def __init__(self, fleet: snapline.Fleet, seed: int) -> None:
        self.fleet = fleet
        self.random = Random(seed)
        self.world = SeededEnvironment(self.random)
        self.players = {agent: Player(fleet.make(agent)) for agent in fleet.agents}
        self.channels: dict[tuple[str, str], deque[tuple[int, bytes]]] = {}
        self.ids: dict[str, None] = {}
        self.now_ns = 0
        self.messages = self.dead_letters = self.left = self.most_in_transit = self.spawned = 0
        self.checkpoints_asked = 0

    # -- steps --------------------------------------------------------------------------------------------------------

    def steps(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for agent, player in self.players.items():
            if player.outbox:
                found.append(lambda agent=agent: self._leave(agent))  # type: ignore[misc]
            if player.spawns:
                found.append(lambda agent=agent: self._grant(agent))  # type: ignore[misc]
            elif player.made is not None and not player.is_started:
                found.append(lambda agent=agent: self._start(agent))  # type: ignore[misc]
            else:
                found.extend(self._timers(agent, player))
        for (sender, receiver), channel in self.channels.items():
            if channel and self._may_take(receiver, channel[0][1]):
                found.append(lambda sender=sender, receiver=receiver: self._deliver(sender, receiver))  # type: ignore[misc]
        return found

    def _timers(self, agent: str, player: Player) -> list[Callable[[], None]]:
        return [lambda name=name: self._fire(agent, name) for name in player.timers]  # type: ignore[misc]

    def step(self) -> bool:
        steps = self.steps()
        if steps:
            steps[int(self.random.random() * len(steps))]()
        return bool(steps)

    def run(self) -> None:
        for _ in range(STEPS_MAX):
            if not self.step():
                return
        raise AssertionError("it does not end")

    def _may_take(self, receiver: str, payload: bytes) -> bool:
        player = self.players.get(receiver)
        if player is None:
            return True  # a dead letter
        if player.made is None:
            return payload[:1] == CREATE
        return player.is_started and not player.spawns

    def _leave(self, agent: str) -> None:
        """One message, the first of its channel, leaves the outbox: only now it has a number."""
        player = self.players[agent]
        receiver, payload = player.outbox.pop(0)
        number = player.sent[receiver] = player.sent.get(receiver, 0) + 1
        self.channels.setdefault((agent, receiver), deque()).append((number, payload))
        self.most_in_transit = max(self.most_in_transit, sum(map(len, self.channels.values())))

    def _grant(self, agent: str) -> None:
        player = self.players[agent]
        for name, kind, state in player.spawns:
            assert name not in self.players, name
            self.players[name] = Player(None)
            player.outbox.append((name, creation_payload(kind, state)))
            self.spawned += 1
        player.outbox += player.held
        player.spawns, player.held = [], []

    def _start(self, agent: str) -> None:
        made = self.players[agent].made
        assert made is not None
        self.players[agent].is_started = True
        self._turn(agent, agent, lambda ctx: made.on_start(ctx))

    def _fire(self, agent: str, name: str) -> None:
        due_ns, payload = self.players[agent].timers.pop(name)
        self.now_ns = max(self.now_ns, due_ns)
        self._handle(agent, agent, payload)

    def _deliver(self, sender: str, receiver: str) -> None:
        _, payload = self.channels[sender, receiver].popleft()
        player = self.players.get(receiver)
        if player is None:
            self.dead_letters += 1
        elif payload[:1] == CREATE:
            kind, state = read_creation(payload)
            player.made = restore_agent(find_class(self.fleet, kind), state)
            self._start(receiver)
        else:
            self._handle(receiver, sender, payload)

    def _handle(self, agent: str, sender: str, payload: bytes) -> None:
        made = self.players[agent].made
        assert made is not None
        name, body = split_message(payload)
        handler = agent_type(type(made)).handlers[name]
        assert not handler.awaits
        message = handler.decoder.decode(body)
        self._turn(agent, sender, lambda ctx: handler.function(made, message, ctx))

    def _turn(self, agent: str, sender: str, call: Callable[[Context], object]) -> None:
        ctx = Context(agent, 1, sender, self.world)
        coroutine = call(ctx)
        try:
            coroutine.send(None)  # type: ignore[attr-defined]
            raise AssertionError("handlers of patterns never wait")
        except StopIteration:
            pass
        ended = ctx.outcome()
        player = self.players[agent]
        player.timers.update({name: (self.now_ns + delay_ns, payload) for name, delay_ns, payload in ended.timers})
        assert not ended.cancelled
        self._note_sends(ended.sends)
        (player.held if ended.spawns else player.outbox).extend(ended.sends)
        player.spawns += ended.spawns
        self.checkpoints_asked += ended.wants_checkpoint
        if ended.stops:
            self._stop(agent)

    def _note_sends(self, sends: list[tuple[str, bytes]]) -> None:
        for _, payload in sends:
            fields = msgspec.msgpack.decode(split_message(payload)[1], type=dict[str, msgspec.Raw])
            if "id" in fields:
                identity = msgspec.msgpack.decode(fields["id"], type=str)
                assert identity not in self.ids, identity
                self.ids[identity] = None
        self.messages += len(sends)

    def _stop(self, agent: str) -> None:
        """It leaves when its outbox is empty."""
        while self.players[agent].outbox:
            self._leave(agent)
        assert not self.players[agent].timers
        del self.players[agent]
        self.left += 1

    # -- cuts ---------------------------------------------------------------------------------------------------------

    def states(self) -> dict[str, object]:
        return {agent: player.made.state for agent, player in self.players.items() if player.made is not None}

    def checkpoints(self) -> dict[str, AgentCheckpoint]:
        """The whole fleet at this moment: a consistent cut."""
        found = {agent: self._checkpoint(agent, player) for agent, player in self.players.items()}
        for (sender, receiver), channel in self.channels.items():
            if receiver in found and channel:
                found[receiver].in_transit[sender] = [
                    InTransitMessage(number, 0, payload) for number, payload in channel
                ]
        return found

    def _checkpoint(self, agent: str, player: Player) -> AgentCheckpoint:
        if player.made is None:
            return AgentCheckpoint(agent=agent, kind="", epoch=1, is_unborn=True, in_transit={})
        known = agent_type(type(player.made))
        return AgentCheckpoint(
            agent=agent,
            kind=known.kind,
            epoch=1,
            is_started=player.is_started,
            state_version=type(player.made).state_version,
            state_fields=known.state_fields,
            state=encode_state(agent, player.made, known),
            in_transit={},
            outbox=[ParkedMessage(receiver, payload) for receiver, payload in [*player.outbox, *player.held]],
            spawns=[SpawnRequest(name, kind, state) for name, kind, state in player.spawns],
            timers=[SavedTimer(name, 0, payload) for name, (_, payload) in player.timers.items()],
        )


class PunctualExecutor(Executor):
    """Timers fire on time, and everything else takes none."""

    def steps(self) -> list[Callable[[], None]]:
        return super().steps()[:1] or self._next_timer()

    def _timers(self, agent: str, player: Player) -> list[Callable[[], None]]:
        return []

    def _next_timer(self) -> list[Callable[[], None]]:
        players = self.players.items()
        timers = [(due_ns, agent, name) for agent, player in players for name, (due_ns, _) in player.timers.items()]
        if not timers:
            return []
        _, agent, name = min(timers)
        return [lambda: self._fire(agent, name)]
