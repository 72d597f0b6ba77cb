"""The example fleets, run turn by turn in memory, without hosts: what they promise at every cut, and at the end."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.message_encoding import encode_message
from snapline.errors import UsageError
from snapline.examples import bank, hello, pagerank
from snapline.examples.forward_push import UNIT, Problem, choose_seeds, gather, messages_in_all, rounds_for
from snapline.examples.import_graph import ImportGraph, write_graph
from snapline.messages.payloads import split_message

TURNS_MAX = 100_000


class Transit(msgspec.Struct):
    sender: str
    receiver: str
    number: int
    message: Any


class MadeUpCut(msgspec.Struct):
    """What the examples read of a cut."""

    states: dict[str, Any]
    in_transit: tuple[Transit, ...]
    is_started: bool = True
    timers: int = 0

    @property
    def is_quiet(self) -> bool:
        return self.is_started and not self.in_transit and not self.timers


class TurnContext:
    """What the examples ask of a context."""

    def __init__(self, agent: str, sender: str, source: random.Random) -> None:
        self.agent = agent
        self.sender = sender
        self.random = source.random
        self.sends: list[tuple[str, bytes]] = []
        self.timers: dict[str, bytes] = {}

    def set_timer(self, name: str, delay_s: float, message: object) -> None:
        assert 0 <= delay_s < 1
        self.timers[name] = encode_message(message)

    def send(self, to: str, message: object) -> None:
        self.sends.append((to, encode_message(message)))


class MemoryRun:
    """Every agent of a fleet and its FIFO channels.

    A step starts an agent, delivers some channel's first message, or fires some timer, which may take any time.
    """

    def __init__(self, fleet: snapline.Fleet, seed: int) -> None:
        self.random = random.Random(seed)
        self.agents = {agent: fleet.make(agent) for agent in fleet.agents}
        self.not_started = list(fleet.agents)
        self.channels: dict[tuple[str, str], deque[bytes]] = {}
        self.timers: dict[tuple[str, str], bytes] = {}
        self.deliveries = 0

    def step(self) -> bool:
        """False when nothing is left to do."""
        filled = [channel for channel, queue in self.channels.items() if queue]
        if self.not_started and (not filled or self.random.random() < 0.3):
            agent = self.not_started.pop(self.random.randrange(len(self.not_started)))
            self._turn(agent, agent, None)
        elif self.timers and (not filled or self.random.random() < 0.2):
            agent, name = self.random.choice(list(self.timers))
            self._turn(agent, agent, self.timers.pop((agent, name)))
        elif ready := [channel for channel in filled if channel[1] not in self.not_started]:
            sender, receiver = self.random.choice(ready)
            self.deliveries += 1
            self._turn(receiver, sender, self.channels[sender, receiver].popleft())
        else:
            return bool(self.not_started)
        return True

    def finish(self) -> None:
        for _ in range(TURNS_MAX):
            if not self.step():
                return
        raise AssertionError("it does not end")

    def _turn(self, agent: str, sender: str, payload: bytes | None) -> None:
        ctx = TurnContext(agent, sender, self.random)
        made = self.agents[agent]
        if payload is None:
            turn = made.on_start(ctx)
        else:
            name, _ = split_message(payload)
            handler = agent_type(type(made)).handlers[name]
            turn = handler.function(made, self._decode(agent, payload), ctx)
        with pytest.raises(StopIteration):  # none of the examples awaits anything
            turn.send(None)
        for to, sent in ctx.sends:
            self.channels.setdefault((agent, to), deque()).append(sent)
        self.timers.update({(agent, name): payload for name, payload in ctx.timers.items()})

    def _decode(self, agent: str, payload: bytes) -> object:
        name, body = split_message(payload)
        return agent_type(type(self.agents[agent])).handlers[name].decoder.decode(body)

    def cut(self) -> Any:
        """All that there is now, as a cut: between two turns the present is consistent."""
        transits = tuple(
            Transit(sender, receiver, number, self._decode(receiver, payload))
            for (sender, receiver), queue in self.channels.items()
            for number, payload in enumerate(queue, start=1)
        )
        states = {agent: made.state for agent, made in self.agents.items()}
        return MadeUpCut(states, transits, is_started=not self.not_started, timers=len(self.timers))

    def cuts(self, every: int) -> Iterator[Any]:
        for turn in range(TURNS_MAX):
            if turn % every == 0:
                yield self.cut()
            if not self.step():
                return


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    """Thirty modules, tangled, the last five without imports."""
    source = random.Random(4)
    imports = [sorted(source.sample([other for other in range(30) if other != module], 3)) for module in range(25)]
    graph = ImportGraph(modules=[f"m{index:02}" for index in range(30)], imports=[*imports, *([[]] * 5)], unparsed=[])
    write_graph(graph, tmp_path / "graph.json")
    return str(tmp_path / "graph.json")


def small_pagerank(graph_file: str, **arguments: str) -> snapline.Fleet:
    return pagerank.fleet(graph=graph_file, **{"shards": "5", "seeds": "6", "batch": "4", **arguments})


def problem_of(graph: ImportGraph) -> Problem:
    seeds = choose_seeds(graph.imports, 6)
    return Problem(imports=graph.imports, seeds=seeds, shards=5, batch=4, part=2, rounds=rounds_for(1e-8))


@pytest.mark.parametrize("seed", range(3))
def test_pagerank_accounts_for_every_unit_at_every_cut(graph_file: str, seed: int) -> None:
    fractions = []
    for cut in MemoryRun(small_pagerank(graph_file), seed).cuts(every=50):
        account = pagerank.account(cut)
        assert account.is_exact, account
        fractions.append(account.in_transit_fraction)
    assert fractions[0] == 0
    assert max(fractions) > 0.05


def test_pagerank_ends_within_its_bound_of_the_sequential_result(graph_file: str) -> None:
    run = MemoryRun(small_pagerank(graph_file), seed=1)
    fleet = small_pagerank(graph_file)
    assert fleet.stop_when is not None
    assert not fleet.stop_when(run.cut())
    run.finish()
    assert fleet.stop_when(run.cut())
    graph = pagerank.load_graph(graph=graph_file)
    comparison = pagerank.compare(run.cut(), graph)
    assert comparison.is_within
    assert comparison.bound < 1e-8
    assert run.deliveries == messages_in_all(problem_of(graph))
    top = pagerank.top_modules(run.cut(), graph, count=30)
    assert sum(rank for _, rank in top) == pytest.approx(1, abs=1e-8)
    assert top == sorted(top, key=lambda item: -item[1])


def test_pagerank_does_not_stop_while_mass_is_only_in_messages(graph_file: str) -> None:
    """All rounds pushed, one message under way: stopping there would drop it."""
    run = MemoryRun(small_pagerank(graph_file), seed=2)
    for cut in run.cuts(every=5):
        all_is_pushed = pagerank.is_finished(MadeUpCut(cut.states, ()))  # type: ignore[arg-type]  # read alike
        if all_is_pushed and cut.in_transit:
            assert not pagerank.is_finished(cut)
            return
    pytest.fail("no such moment in this run")


def test_pagerank_does_not_stop_while_all_shards_only_wait_for_their_timers(graph_file: str) -> None:
    """No message is in transit then; only the timers tell that there is work left."""
    run = MemoryRun(small_pagerank(graph_file), seed=2)
    for cut in run.cuts(every=1):
        if not cut.in_transit and cut.is_started:
            assert cut.timers == 5 * 2
            assert not pagerank.is_finished(cut)
            return
    pytest.fail("no such moment in this run")


@pytest.mark.parametrize("damage", ["lost", "doubled"])
def test_the_account_of_a_cut_shows_a_damaged_channel_state(graph_file: str, damage: str) -> None:
    run = MemoryRun(small_pagerank(graph_file), seed=3)
    cut = next(cut for cut in run.cuts(every=20) if pagerank.account(cut).messages > 3)
    masses = [
        transit
        for transit in cut.in_transit
        if isinstance(transit.message, pagerank.Mass) and transit.message.amounts.any()
    ]
    others = tuple(transit for transit in cut.in_transit if transit is not masses[0])
    cut.in_transit = others if damage == "lost" else (*others, masses[0], masses[0])
    account = pagerank.account(cut)
    assert not account.is_exact
    assert account.seeds_wrong > 0


def test_a_state_without_channel_states_has_lost_what_was_in_transit(graph_file: str) -> None:
    run = MemoryRun(small_pagerank(graph_file), seed=3)
    cut = next(cut for cut in run.cuts(every=20) if pagerank.account(cut).in_transit_fraction > 0.05)
    whole = pagerank.account(cut)
    cut.in_transit = ()
    assert pagerank.account(cut).in_states == whole.expected - whole.in_transit


def test_a_refused_message_leaves_the_shard_as_it_was(graph_file: str) -> None:
    """`on_error = "keep"` is a promise: an error comes before any change."""
    shard = cast(pagerank.Shard, small_pagerank(graph_file).make("shard-0"))
    before = msgspec.msgpack.encode(shard.state, enc_hook=lambda array: array.tolist())
    amounts = np.ones((1, 2), dtype=np.int64)
    too_far = pagerank.Mass(round=0, column=0, rows=np.array([99], dtype=np.int32), amounts=amounts)
    with pytest.raises(ValueError, match="row"):
        shard.on_mass(too_far, cast(Any, TurnContext("shard-0", "shard-1", random.Random(0)))).send(None)
    assert msgspec.msgpack.encode(shard.state, enc_hook=lambda array: array.tolist()) == before


def test_a_shard_saved_in_the_middle_goes_on_to_the_same_unit(graph_file: str) -> None:
    """Every agent is encoded and decoded at some moment, as by a recovery; the result is that of another whole run."""
    run = MemoryRun(small_pagerank(graph_file), seed=5)
    for _ in range(300):
        run.step()
    for agent, made in run.agents.items():
        known = agent_type(type(made))
        body = encode_message(made.state)[1 + len(type(made.state).__qualname__) :]
        run.agents[agent] = type(made)(known.state_decoder.decode(body))
    run.finish()
    account = pagerank.account(run.cut())
    assert account.is_exact
    assert account.in_states == 6 * UNIT
    other = MemoryRun(small_pagerank(graph_file), seed=6)
    other.finish()
    assert (gather(pagerank.shard_states(run.cut())) == gather(pagerank.shard_states(other.cut()))).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"shards": "x"},
        {"shards": "0"},
        {"shards": "31"},
        {"tolerance": "2"},
        {"seconds": "-1"},
        {"period": "soon"},
        {"source": "here"},
    ],
)
def test_a_wrong_argument_is_named(graph_file: str, arguments: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments)).removesuffix("s")):
        small_pagerank(graph_file, **arguments)


@pytest.mark.parametrize("seed", range(3))
def test_the_bank_keeps_its_tokens(seed: int) -> None:
    fleet = bank.fleet(agents="5", tokens="100", transfers="200")
    run = MemoryRun(fleet, seed)
    for cut in run.cuts(every=7):
        assert bank.tokens_in(cut) == 500
    assert fleet.stop_when is not None
    assert fleet.stop_when(run.cut())
    left = [made.state.transfers_left for made in run.agents.values()]
    assert 0 in left  # it ended because somebody had passed on all it was to


def test_hello_ends_after_a_thousand_hits() -> None:
    run = MemoryRun(hello.fleet, seed=0)
    stop_when = cast(Callable[[Any], bool], hello.fleet.stop_when)
    assert not stop_when(run.cut())
    run.finish()
    assert {agent: made.state.hits_seen for agent, made in run.agents.items()} == {"ping": 1000, "pong": 999}
    assert stop_when(run.cut())
