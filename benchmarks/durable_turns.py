"""What durable turns cost: groups and races of steps, checkpoints taken in the middle of long turns, and running them again.

    .venv/bin/python benchmarks/durable_turns.py [--entries 100 1000 10000] [--messages 1000 4000 8000] [--rounds 5]

Each figure is the median over the rounds, in one process, beside its lowest and highest.

    checkpoint   20 new entries, then an epoch: bytes of its pack; time on the event loop (the core's image of the agent); CPU of the worker
    whole        the same with the whole journal in each checkpoint, as before runs were sealed
    replay       the handler is run again by the journal it has, until it stands where it stood
    turns        whole turns of one agent on a host, all kinds by turns: CPU of core and handler for a turn, with steps that take no time and
                 a log that syncs nothing; batches of the log that a turn waits for; bytes of its journal, and of its entries in the log
    adopted      a turn of eight steps runs again after a recovery, and finds them in the log instead of in its journal: CPU for a step
    mailbox      so many messages of 40 senders come while a turn waits for one of another type: time of the core for each
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

import snapline
from snapline.agent_runtime.durable import Pause, argument_digest
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.checkpoint_writer import ChunkTables
from snapline.agent_runtime.host.core import HostCore
from snapline.agent_runtime.host.epoch_files import Capture, write_epoch
from snapline.agent_runtime.host.host_state import DurableTurn, LocalAgent
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import encode_message
from snapline.messages import host_messages as msg
from snapline.messages.payloads import split_message
from snapline.protocols.epoch_stamped import RecordedPart
from snapline.storage.capture import chunking
from snapline.storage.log.log_record import LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn
from snapline.storage.packs.manifest import Manifest, Metadata, agent_line
from snapline.storage.packs.pack import PackReference
from snapline.storage.store.store import Store

NEW_ENTRIES = 20
SENDERS = 40
"""Number of senders, each of at most 200 messages: less than the limit of a channel."""


class Walk(snapline.Message):
    steps: int


class WalkerState(msgspec.Struct):
    total: int = 0


def look(number: int) -> int:
    return number


class Walker(snapline.Agent):
    state: WalkerState

    @snapline.handler(durable=True)
    async def on_walk(self, walk: Walk, ctx: snapline.Context) -> None:
        for number in range(walk.steps):
            self.state.total += await ctx.step("look", look, number)


fleet = snapline.Fleet("walkers", agents={"a": Walker(WalkerState())})


class Bench:
    """One agent in the middle of a turn, its store, and a coordinator that completes each epoch."""

    def __init__(self, folder: Path, entries: int) -> None:
        self.store = Store.create(folder)
        self.turns = Turns(fleet, lambda event: None, lambda text: None)
        self.turns.add("a", fleet.make("a"))
        self.agent = LocalAgent("a", "", 1)
        turn = SavedTurn("message", "", encode_message(Walk(10**9)), bytes(16))
        self.agent.turn = DurableTurn(turn)
        self.tables = ChunkTables()
        self.roots: dict[int, str] = {}
        self.asked: list[JournalEntry] = []
        self.go_on(entries)

    def go_on(self, count: int) -> None:
        """So many steps have ended, one after the other, as the turn itself would ask for them."""
        assert self.agent.turn is not None
        for _ in range(count):
            number = len(self.agent.turn.journal)
            result = msgspec.msgpack.encode(number)
            self.agent.turn.journal.append(
                JournalEntry("step", "look", argument_digest("look", (number,)), "done", result)
            )

    def checkpoint(self) -> tuple[int, float, float]:
        """Bytes, seconds on the loop, CPU seconds of the worker."""
        epoch = len(self.roots) + 1
        start = time.perf_counter()
        control = self.agent.control(0)
        took_s = time.perf_counter() - start
        base = self.tables.base_of("a")
        known, version, image = self.turns.capture("a", base)
        capture = Capture(known, version, image, control, 1, 2, self.tables.base_epoch, base)
        command = ev.StoreEpoch(epoch, 1, {"a": RecordedPart(epoch, False, {}, {}, {})}, {})
        start = time.process_time()
        stored = write_epoch(self.store, "h-1", 1, command, {"a": capture})
        cpu_s = time.process_time() - start
        pack = stored.report.pack
        self._complete(epoch, PackReference(pack.path, pack.size_bytes, pack.index_digest))
        self.tables.written(epoch, stored.tables)
        self.tables.ended(epoch, is_complete=True)
        return pack.size_bytes, took_s, cpu_s

    def _complete(self, epoch: int, reference: PackReference) -> None:
        gathered = self.store.gather([reference], epoch=epoch, bases=self.roots)
        lines = [agent_line(x, pack=0, kind="", host="h", incarnation=1) for x in gathered.checkpoints[0].values()]
        self.roots[epoch] = self.store.write_manifest(
            Manifest(Metadata(epoch=epoch), lines, gathered.packs, gathered.chunks)
        )
        self.store.publish(epoch, self.roots[epoch])

    def replay(self) -> float:
        """Seconds."""
        turn = self.agent.turn
        assert turn is not None
        self.turns.forget_all()
        self.turns.add("a", fleet.make("a"))
        start = time.perf_counter()
        ended = self.turns.run(ev.StartTurn("a", 1, "segment", "", b"", None, turn.whole()))
        took_s = time.perf_counter() - start
        assert isinstance(ended, ev.TurnEnded) and ended.pause is not None, ended
        return took_s


def measured(entries: int, rounds: int) -> tuple[list[tuple[int, float, float]], list[float]]:
    """Checkpoints, and replays."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "store", entries)
        for _ in range(3):  # sealed entries are written, and the worker is warm
            bench.checkpoint()
        results = []
        for _ in range(rounds):
            bench.go_on(NEW_ENTRIES)
            results.append(bench.checkpoint())
        return results, [bench.replay() for _ in range(rounds)]


@contextmanager
def unsealed() -> Iterator[None]:
    """No run is ever full."""
    kept = chunking.RUN_ENTRIES, chunking.RUN_BYTES
    chunking.RUN_ENTRIES = chunking.RUN_BYTES = sys.maxsize
    try:
        yield
    finally:
        chunking.RUN_ENTRIES, chunking.RUN_BYTES = kept


def arrivals(messages: int) -> float:
    """Seconds for each message."""
    core = HostCore("h1")
    agents = ["a", *[f"s{number}" for number in range(SENDERS)]]
    core.handle(0, msg.Welcome(1, "c"))
    core.handle(0, msg.Roster((msg.RosterEntry("h1", "", 1),)))
    core.handle(0, ev.PlanReceived(1, 0, "", 0, ("h1",), tuple([ev.Placement(x, "k", "h1", 1) for x in agents])))
    core.handle(0, ev.AgentsLoaded(1, tuple([ev.LoadedAgent(agent, 1, None) for agent in agents]), ()))
    waits = JournalEntry("receive", "Never")
    core.handle(0, ev.TurnEnded("a", 1, timers=[("begin", 0, b"\x05Begin")]))
    core.handle(1, ev.TimerFired())
    core.handle(1, ev.TurnEnded("a", 1, pause=Pause(bytes(16), waits, None, [])))
    events = [ev.TurnEnded(agent, 1, [("a", b"\x05Other")] * (messages // SENDERS)) for agent in agents[1:]]
    start = time.perf_counter()
    for event in events:
        core.handle(2, event)
    took_s = time.perf_counter() - start
    agent = core.agents["a"]
    assert agent.turn is not None and len(agent.mailbox) + len(agent.stash) == messages
    return took_s / messages


STEPS = 8
TURNS = 40
"""Number of turns of each kind in a round. Their messages fit into one channel."""

KINDS = ("row", "group", "one", "race")


class Ask(snapline.Message):
    kind: str


async def quote(number: int) -> int:
    return number


class Asker(snapline.Agent):
    state: WalkerState

    @snapline.handler(durable=True)
    async def on_ask(self, ask: Ask, ctx: snapline.Context) -> None:
        if ask.kind == "row":
            for number in range(STEPS):
                await ctx.step("quote", quote, number)
        elif ask.kind == "group":
            await ctx.gather(*[ctx.step("quote", quote, number) for number in range(STEPS)])
        elif ask.kind == "race":
            await ctx.race(ctx.step("quote", quote, 1), ctx.step("quote", quote, 2))
        else:
            await ctx.step("quote", quote, 1)


askers = snapline.Fleet("askers", agents={"a": Asker(WalkerState())})


class _Ended:
    """A step that has run to its end."""

    def __init__(self, coroutine: Coroutine[object, None, None]) -> None:
        with suppress(StopIteration):
            coroutine.send(None)

    def cancel(self) -> None: ...


class KindCost:
    """Costs of the turns of one kind in one round: CPU seconds, batches, and bytes of the last turn's journal and log entries."""

    def __init__(self) -> None:
        self.cpu_s = self.batches = 0.0
        self.journal_bytes = self.log_bytes = 0
        self.number = 0
        self.entries: list[LoggedEntry] = []


class OneHost:
    """A host with one agent, whose log and steps are done at once."""

    def __init__(self) -> None:
        self._events: deque[ev.Event] = deque()
        self.turns = Turns(askers, lambda event: None, lambda text: None, start=_Ended, step_ended=self._events.append)
        self.core = HostCore("h1")
        self.costs = {kind: KindCost() for kind in KINDS}
        self._kind = KINDS[0]
        agents = ("a", "s")
        self.core.handle(0, msg.Welcome(1, "c"))
        self.core.handle(0, msg.Roster((msg.RosterEntry("h1", "", 1),)))
        placements = tuple([ev.Placement(agent, "k", "h1", 1) for agent in agents])
        self.core.handle(0, ev.PlanReceived(1, 0, "", 0, ("h1",), placements))
        self.core.handle(0, ev.AgentsLoaded(1, tuple([ev.LoadedAgent(agent, 1, None) for agent in agents]), ()))
        self.core.handle(0, msg.LogOpened(1))
        self.turns.add("a", askers.make("a"))

    def run(self, messages: Sequence[Ask]) -> None:
        """Run a turn for each message."""
        self.core.handle(0, ev.TurnEnded("a", 1))
        self._events.append(ev.TurnEnded("s", 1, [("a", encode_message(message)) for message in messages]))
        start_s = time.process_time()
        while self._events:
            for command in self.core.handle(1, self._events.popleft()):
                if isinstance(command, ev.StartTurn) and command.what == "message":
                    now_s = time.process_time()
                    self.costs[self._kind].cpu_s += now_s - start_s
                    start_s, self._kind = now_s, msgspec.msgpack.decode(split_message(command.payload)[1])["kind"]
                    self.costs[self._kind].number, self.costs[self._kind].entries = command.number, []
                self._carry_out(command)
        self.costs[self._kind].cpu_s += time.process_time() - start_s

    def _carry_out(self, command: object) -> None:
        cost = self.costs[self._kind]
        match command:
            case ev.StartTurn():
                ended = self.turns.run(command)
                assert isinstance(ended, ev.TurnEnded), ended
                turn = self.core.agents["a"].turn
                if ended.pause is None and turn is not None:
                    cost.journal_bytes = len(msgspec.msgpack.encode(turn.journal))
                self._events.append(ended)
            case ev.RunStep():
                self.turns.run_step(command)
            case ev.AppendBatch():
                cost.batches += 1
                cost.entries += command.entries
                self._events.append(ev.BatchAppended(command.log, command.number))

    def adopted(self) -> tuple[float, float]:
        """Return the CPU seconds of a step that a rerun turn finds in the log, and of one that it finds in its journal."""
        cost, payload, took_s = self.costs["row"], encode_message(Ask("row")), [0.0, 0.0]
        first = ev.StartTurn("a", 1, "message", "s", payload, number=cost.number, logged=tuple(cost.entries))
        journal = [logged.entry for logged in cost.entries]
        saved = SavedTurn("message", "s", payload, cost.entries[0].seed, "", journal)
        again = ev.StartTurn("a", 1, "segment", "s", payload, turn=saved, number=cost.number)
        for _ in range(5 * TURNS):
            for index, start in enumerate((first, again)):
                start_s = time.process_time()
                ended = self.turns.run(start)
                took_s[index] += (time.process_time() - start_s) / (5 * TURNS * STEPS)
                assert isinstance(ended, ev.TurnEnded) and ended.pause is None, ended
        return took_s[0], took_s[1]


def print_kinds(rounds: int) -> None:
    """Print the costs of groups and races, relative to steps in a row and to one step, in rounds that contain all kinds by turns."""
    hosts = []
    for _ in range(rounds + 1):
        hosts.append(OneHost())
        hosts[-1].run([Ask(kind) for _ in range(TURNS) for kind in KINDS])
    del hosts[0]  # the first one warms up
    for kind, base in (("row", "row"), ("group", "row"), ("one", "one"), ("race", "one")):
        costs = [host.costs[kind] for host in hosts]
        ratios = [cost.cpu_s / host.costs[base].cpu_s for cost, host in zip(costs, hosts, strict=True)]
        last = costs[-1]
        print(
            f"turns     {kind:6} ÷ {base:4} {spread(ratios, '', 1)}  CPU {spread([cost.cpu_s / TURNS for cost in costs], 'us', 1e6)}"
            f"  batches {last.batches / TURNS:.1f}  journal {last.journal_bytes} bytes"
            f"  log {len(msgspec.msgpack.encode(last.entries))} bytes"
        )
    adopted = [host.adopted() for host in hosts]
    ratios = [from_log / from_journal for from_log, from_journal in adopted]
    cpu = spread([from_log for from_log, _ in adopted], "us", 1e6)
    print(f"adopted   step ÷ journal {spread(ratios, '', 1)}  CPU {cpu}")


def spread(values: list[float], unit: str, scale: float) -> str:
    scaled = [value * scale for value in values]
    return f"{statistics.median(scaled):8.2f} {unit}{' ' * bool(unit)}({min(scaled):.2f}-{max(scaled):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000, 4_000, 8_000])
    options = parser.parse_args()
    print_kinds(options.rounds)
    for messages in options.messages:
        print(
            f"{messages:6} messages mailbox    {spread([arrivals(messages) for _ in range(options.rounds)], 'us', 1e6)}"
        )
    for entries in options.entries:
        checkpoints, replays = measured(entries, options.rounds)
        with unsealed():
            whole, _ = measured(entries, options.rounds)
        for name, results in (("checkpoint", checkpoints), ("whole", whole)):
            sizes, loop, cpu = zip(*results, strict=True)
            print(
                f"{entries:6} entries  {name:10} {statistics.median(sizes):9,.0f} bytes"
                f"  loop {spread(list(loop), 'ms', 1e3)}  worker CPU {spread(list(cpu), 'ms', 1e3)}"
            )
        print(f"{entries:6} entries  replay     {spread(replays, 'ms', 1e3)}")


if __name__ == "__main__":
    main()
