"""A logged fleet on plain message lists: what was ever sent on a channel, and what each checkpoint has sent and received.

It writes real checkpoint packs, and is the oracle for what the coordinator makes of them; it shares nothing with that.
"""

import random
from collections.abc import Callable, Iterable

import msgspec
from tests.storage.simulated_disk import SimulatedDisk

from snapline.coordinator.leader import events as ev
from snapline.coordinator.service.store_keeper import StoreKeeper
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages import host_messages as messages
from snapline.storage.packs.checkpoint import AgentCheckpoint, InTransitMessage, ParkedMessage, encode_checkpoint
from snapline.storage.store.store import Store

INITIAL = ("a", "b", "c")


class Taken(msgspec.Struct):
    """A checkpoint as the simulated fleet remembers it."""

    number: int
    sent: dict[str, int]
    received: dict[str, int]
    path: str = ""


class Simulated:
    """A logged fleet on plain lists, and its store.

    Attributes:
        sent: channel → payloads of all messages ever sent on it.
        taken: agent → its checkpoints since the base, that of the base first; the one before birth has no path.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk()
        self.store = Store.create("simulated", disk=self.disk, random_bytes=random.Random(seed).randbytes)
        view = FleetView()
        view.image.name, view.image.protocol, view.image.cluster = "tests", "bcs", "cluster"
        self.keeper = StoreKeeper(self.store, view)
        self.plan, self.epoch = 1, 0
        self.base_epoch, self.base_root = 0, ""
        self.base: dict[str, int] = {}
        self.sent: dict[tuple[str, str], list[bytes]] = {}
        self.received: dict[tuple[str, str], int] = {}
        self.logged: dict[tuple[str, str], int] = {}
        self.packs: dict[str, messages.ReportedPack] = {}
        self.taken: dict[str, list[Taken]] = {agent: [] for agent in INITIAL}
        self.created = 0
        self.take(INITIAL, basis="initial", first=0)

    # -- life ------------------------------------------------------------------------------------------------------

    def send(self, sender: str, receiver: str) -> None:
        log = self.sent.setdefault((sender, receiver), [])
        log.append(f"{sender}{receiver}{len(log) + 1} ".encode() * self.random.choice((1, 1, 9)))

    def receive(self, sender: str, receiver: str) -> None:
        channel = (sender, receiver)
        if self.received.get(channel, 0) < len(self.sent.get(channel, ())):
            self.received[channel] = self.received.get(channel, 0) + 1

    def create(self, creator: str) -> None:
        self.created += 1
        agent = f"n{self.created}"
        self.taken[agent] = [Taken(0, {}, {})]
        self.send(creator, agent)

    def is_made(self, agent: str) -> bool:
        return agent in INITIAL or any(count for (_, receiver), count in self.received.items() if receiver == agent)

    def step(self) -> None:
        made = [agent for agent in self.taken if self.is_made(agent)]
        match self.random.randrange(12):
            case 0 if self.created < 4:
                self.create(self.random.choice(made))
            case 1 | 2:
                agents = self.random.choices(made, k=self.random.randint(1, 2 * len(made)))
                self.take(agents, on_the_way=self.move)
            case _:
                self.move()

    def move(self) -> None:
        """A message is sent or received."""
        made = [agent for agent in self.taken if self.is_made(agent)]
        if self.random.random() < 0.45 or not self.sent:
            self.send(self.random.choice(made), self.random.choice(list(self.taken)))
        else:
            self.receive(*self.random.choice(sorted(self.sent)))

    def take(
        self, agents: Iterable[str], *, basis: str = "basic", first: int | None = None, round_: int = 0,
        on_the_way: Callable[[], None] | None = None,
    ) -> str:  # fmt: skip
        """Checkpoint these agents into one pack, some perhaps several times; return its path."""
        blobs, taken = [], list[Taken]()
        for place, agent in enumerate(agents):
            if place and on_the_way is not None:
                on_the_way()
            sent = {receiver: len(log) for (sender, receiver), log in self.sent.items() if sender == agent}
            received = {sender: count for (sender, receiver), count in self.received.items() if receiver == agent}
            log = {}
            for receiver, count in sent.items():
                start = self.logged.get((agent, receiver), 0)
                if count > start:
                    log[receiver] = [self.message((agent, receiver), number) for number in range(start + 1, count + 1)]
                    self.logged[agent, receiver] = count
            number = self.taken[agent][-1].number + 1 if first is None else first
            made = AgentCheckpoint(
                agent=agent, kind="t:A", epoch=0, incarnation=self.plan, number=number, basis=basis, round=round_,
                turns=number, state=self.state_of(agent, number), sent=sent, received=received, sender_log=log,
                protocol_state=b"protocol", outbox=[ParkedMessage("a", b"parked")],
            )  # fmt: skip
            blobs.append((agent, number, encode_checkpoint(made)))
            taken.append(Taken(number, sent, received))
            self.taken[agent].append(taken[-1])
        pack = self.store.write_checkpoints(writer="h1-1", plan=self.plan, blobs=blobs)
        self.packs[pack.path] = messages.ReportedPack(pack.path, pack.size_bytes, pack.index_digest)
        for one in taken:
            one.path = pack.path
        return pack.path

    def message(self, channel: tuple[str, str], number: int) -> InTransitMessage:
        return InTransitMessage(number, 0, self.sent[channel][number - 1], b"piggyback")

    def state_of(self, agent: str, number: int) -> bytes:
        return f"{agent} at {number} of plan {self.plan} ".encode() * 3

    # -- lines -----------------------------------------------------------------------------------------------------

    def line(self) -> dict[str, Taken]:
        """The greatest consistent cut: while there is an orphan, its receiver goes back."""
        line = {agent: list(known) for agent, known in self.taken.items()}
        while True:
            for sender, receiver in self.sent:
                if line[receiver][-1].received.get(sender, 0) > line[sender][-1].sent.get(receiver, 0):
                    line[receiver].pop()
                    break
            else:
                return {agent: known[-1] for agent, known in line.items()}

    def command(self, line: dict[str, Taken]) -> ev.MaterialiseLine:
        agents = []
        for agent, known in self.taken.items():
            base = self.base.get(agent, -1)
            paths = tuple([x.path for x in known if base < x.number <= line[agent].number and x.path])
            agents.append(ev.LineAgent(agent, "t:A", "h1", self.plan, line[agent].number, base, paths))
        packs = {path: self.packs[path] for agent in agents for path in agent.paths}
        return ev.MaterialiseLine(
            self.epoch + 1, self.plan, "test", self.base_epoch, self.base_root, {"h1": 1}, tuple(agents), packs,
            "coordinator-0",
        )  # fmt: skip

    def materialise(self, command: ev.MaterialiseLine) -> ev.LineMaterialised:
        done = self.keeper.materialise(command)
        if not done.error:
            assert not self.keeper.publish(ev.PublishEpoch(command.epoch, done.root)).error
        return done

    def rebase(self, line: dict[str, Taken], root: str) -> None:
        """The line has become the base; the fleet runs on."""
        self.epoch += 1
        self.base_epoch, self.base_root = self.epoch, root
        self.base = {agent: x.number for agent, x in line.items() if x.path}
        self.taken = {
            agent: [x for x in known if x.number >= line[agent].number] for agent, known in self.taken.items()
        }

    def roll_back(self, line: dict[str, Taken]) -> None:
        """A plan starts the fleet from the line, which is the base."""
        self.plan += 1
        self.taken = {agent: [line[agent]] for agent in self.taken}
        for channel, log in self.sent.items():
            sender, receiver = channel
            count = line[sender].sent.get(receiver, 0)
            del log[count:]
            self.received[channel] = line[receiver].received.get(sender, 0)
            self.logged[channel] = count

    def check_epoch(self, line: dict[str, Taken], done: ev.LineMaterialised, states: dict[str, bytes]) -> None:
        """Assert that the published epoch holds the line and exactly the messages in transit."""
        assert done.error == "" and done.damaged_path == ""
        epoch = self.epoch + 1
        assert self.store.read_ref(epoch) == done.root
        manifest = self.store.read_manifest(done.root, epoch=epoch)
        assert len(manifest.packs) == 1 and manifest.packs[0].path.startswith("packs/coordinator-0/")
        assert [x.agent for x in manifest.agents if x.is_unborn] == sorted(done.unborn)
        metadata = manifest.metadata
        assert (metadata.plan, metadata.trigger, metadata.protocol) == (self.plan, "test", "bcs")
        assert "line of bcs" in metadata.validity
        messages_found = bytes_found = 0
        found = {x.agent: x for x in self.store.read_checkpoints(manifest)}
        assert found.keys() == line.keys()
        for agent, checkpoint in found.items():
            wanted = line[agent]
            expected = {}
            for (sender, receiver), log in self.sent.items():
                if receiver == agent:
                    start, end = wanted.received.get(sender, 0), line[sender].sent.get(receiver, 0)
                    if end > start:
                        expected[sender] = list(enumerate(log[start:end], start + 1))
            assert {
                sender: [(x.number, x.payload) for x in channel] for sender, channel in checkpoint.in_transit.items()
            } == expected
            assert all(x.piggyback == b"piggyback" for channel in checkpoint.in_transit.values() for x in channel)
            messages_found += sum(map(len, expected.values()))
            bytes_found += sum(len(payload) + 9 for channel in expected.values() for _, payload in channel)
            assert (checkpoint.number, checkpoint.epoch) == (wanted.number, epoch)
            assert (checkpoint.sent, checkpoint.received) == (wanted.sent, wanted.received)
            assert checkpoint.sender_log == {} and checkpoint.is_unborn is (not wanted.path)
            if wanted.path:
                assert checkpoint.state == states[agent] and checkpoint.protocol_state == b"protocol"
                assert checkpoint.outbox and checkpoint.basis in ("initial", "basic")
        assert (done.channel_state_messages, done.channel_state_bytes) == (messages_found, bytes_found)
        assert done.state_bytes == sum(len(x.state) for x in found.values())
        assert (metadata.channel_state_messages, metadata.state_bytes) == (messages_found, done.state_bytes)
