"""The explorer: every run of a small fleet keeps what is promised, each mutant is found, a naive search agrees on the counts.

The mutants have one fault each, in a core or in what surrounds it; the length of the shortest path to each is pinned. The
naive explorers at the end share no code with the explorer: live cores, deep copies, no memory of what a core did before.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.naive_explorer import InducedFleet, StampedFleet, count

from snapline.errors import UsageError
from snapline.protocols.epoch_stamped import EpochStampedCore, MessageArrived, TurnBoundaryReached
from snapline.protocols.koo_toueg import ChannelTables, CheckpointRequested, KooTouegCore
from snapline.protocols.names import CIC_PROTOCOLS
from snapline.protocols.rule import CheckpointRule
from snapline.protocols.rules import RULES
from snapline.recovery.dependency_history import FleetHistory
from snapline.sim.explorer.chandy_lamport import (
    ChandyLamportCore,
    MarkerReceived,
    MessageReceived,
    PlainModel,
    SendMarker,
)
from snapline.sim.explorer.cuts import AllCuts, Cut, Relation
from snapline.sim.explorer.epoch_model import EpochCoordinator, EpochNode, MarkerItem, StampedModel
from snapline.sim.explorer.epoch_model import ExploredCut as EpochCut
from snapline.sim.explorer.exploration import (
    EXPLORED,
    PLAIN_CHANDY_LAMPORT,
    Exploration,
    ModelFactory,
    explore,
    model_of,
)
from snapline.sim.explorer.logged_model import RDT_PROTOCOLS, Columns, InducedModel, Recoveries
from snapline.sim.explorer.round_model import RoundModel
from snapline.sim.explorer.state_search import Bounds, Fault, Interner, Model, Outputs, ProposedMove, Search, State

PAIR = Bounds(agents=2)


# -- all is well --------------------------------------------------------------------------------------------------------


SLOW = (PLAIN_CHANDY_LAMPORT, "chandy-lamport", "bcs", "fdas", "cbr", "fdi", "nras", "cas", "bhmr")
"""Most of the time. Pairs of both kinds of Chandy-Lamport are explored below; the others are rules that force, of which one stays."""


@cache
def explored(protocol: str) -> tuple[Exploration, Any]:
    """Every run of three agents, and the model after the exploration."""
    models: list[Model] = []

    def keep_model(bounds: Bounds) -> Model:
        models.append(model_of(protocol)(bounds))
        return models[0]

    return explore(protocol, model=keep_model), models[0]


@pytest.mark.parametrize("protocol", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in EXPLORED])
def test_every_run_of_three_agents_with_one_crash_keeps_every_promise(protocol: str) -> None:
    found = explored(protocol)[0]
    assert found.violation is None, f"{found.violation}\n" + "\n".join(found.path)
    assert found.is_complete and not found.uses_digests


def test_the_model_is_what_it_was() -> None:
    """A changed count is a changed model or a changed core: look at what it explores now, then pin it."""
    counts = {}
    for protocol in (PLAIN_CHANDY_LAMPORT, "chandy-lamport", "koo-toueg", "uncoordinated", "bcs", "fdas"):
        found = explore(protocol, PAIR)
        assert found.violation is None and found.is_complete, protocol
        counts[protocol] = (found.states, found.transitions, found.depth)
    assert counts == {
        PLAIN_CHANDY_LAMPORT: (505, 1_244, 12),
        "chandy-lamport": (5_038, 18_031, 18),
        "koo-toueg": (1_164, 3_662, 14),
        "uncoordinated": (194, 506, 7),
        "bcs": (290, 660, 9),
        "fdas": (396, 878, 8),
    }
    found, _ = explored("koo-toueg")
    assert (found.states, found.transitions, found.depth) == (41_576, 179_289, 18)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", EXPLORED)
def test_a_pair_with_two_epochs_or_checkpoints_and_two_crashes_keeps_every_promise(protocol: str) -> None:
    """Epochs overlap, aborted ones are followed by others, recoveries by recoveries."""
    crashes = 1 if protocol == "chandy-lamport" else 2  # two take six times as long
    found = explore(protocol, Bounds(agents=2, crashes=crashes, epochs=2, checkpoints=2))
    assert found.violation is None and found.is_complete


def test_the_search_stops_at_its_limit_and_says_so() -> None:
    found = explore("chandy-lamport", Bounds(states_max=1_000))
    assert not found.is_complete and 1_000 <= found.states <= 1_100 and found.violation is None


def test_the_same_exploration_twice_is_the_same() -> None:
    first, second = explore("hmnr", PAIR), explore("hmnr", PAIR)
    first.cpu_s = second.cpu_s = 0.0
    assert first == second


def test_what_cannot_be_explored_is_refused() -> None:
    with pytest.raises(UsageError, match="chandy-lamport-plain"):
        explore("paxos")
    with pytest.raises(UsageError, match="agents is 1"):
        Bounds(agents=1)
    with pytest.raises(UsageError, match="sends is -1"):
        Bounds(sends=-1)


# -- against vacuity ----------------------------------------------------------------------------------------------------


def steps_of(protocol: str, bounds: Bounds) -> tuple[Any, list[str]]:
    """The model after its exploration, and every step that was ever worked out."""
    model = model_of(protocol)(bounds)
    Search(model, bounds.states_max).run()
    return model, model.labels.values


@pytest.mark.parametrize("protocol", [PLAIN_CHANDY_LAMPORT, "chandy-lamport"])
def test_epochs_complete_with_messages_in_transit_and_crashes_go_back_to_them(protocol: str) -> None:
    model, steps = steps_of(protocol, PAIR)
    assert any(any(map(any, found.cut.in_transit)) for found in model.coordinators.values)
    assert {"a crash; all go back to epoch 0", "a crash; all go back to epoch 1"} <= set(steps)


def test_rounds_are_committed_aborted_refused_and_joined_by_some_and_by_all() -> None:
    _, model = explored("koo-toueg")
    steps = model.labels.values
    assert {"a hears that round 1 is committed", "a hears that round 1 is aborted", "a crashes"} <= set(steps)
    assert any("refuses" in step for step in steps) and any("store fails" in step for step in steps)
    participants = {len(image.participants) for image in model.rounds.images.values if image.decision}
    assert participants == {1, 2, 3}


def test_without_forced_checkpoints_some_are_useless_and_agents_fall_back_to_the_initial_state() -> None:
    model, _ = steps_of("uncoordinated", PAIR)
    assert any(judgement.useless for judgement in model.cuts.judgements.values())
    assert any(
        line == (0, 0) and judgement.sizes == (3, 3)
        for (relation, _), line in model.cuts.lines.items()
        for judgement in [model.cuts.judgements[relation]]
    )


# -- mutants ------------------------------------------------------------------------------------------------------------


class MarkersAfterTheNextSend(PlainModel):
    """A marker waits for the next send, if one is left, and goes behind it."""

    def execute(self, agent: int, node: EpochNode, command: Any) -> tuple[EpochNode, Outputs]:
        if isinstance(command, SendMarker) and sum(node.ledger.sent) < self.bounds.sends:
            held = (self.names.index(command.channel), MarkerItem("marker", command.snapshot))
            return node._replace(held=(*node.held, held)), ()
        return super().execute(agent, node, command)

    def agent_step(self, agent: int, node: EpochNode, proposal: ProposedMove) -> tuple[EpochNode, Outputs]:
        node, outputs = super().agent_step(agent, node, proposal)
        if proposal.kind == "send" and node.held:
            outputs += tuple((to, self.items.of((agent, marker))) for to, marker in node.held)
            node = node._replace(held=())
        return node, outputs


class ChannelsWithoutFifo(PlainModel):
    """Of two items of a channel the second may come first."""

    def arrivals(self, agent: int, node: EpochNode) -> Iterator[ProposedMove]:
        yield from super().arrivals(agent, node)
        for sender, items in enumerate(node.channels):
            if len(items) > 1:
                yield ProposedMove(f"{items[1]} overtakes", "receive", sender + len(self.agents))

    def take(self, node: EpochNode, sender: int) -> tuple[Any, EpochNode]:
        sender, is_second = sender % len(self.agents), sender >= len(self.agents)
        items = node.channels[sender]
        channels = list(node.channels)
        channels[sender] = items[:is_second] + items[is_second + 1 :]
        return items[is_second], node._replace(channels=tuple(channels))

    def agent_step(self, agent: int, node: EpochNode, proposal: ProposedMove) -> tuple[EpochNode, Outputs]:
        if proposal.kind != "receive":
            return super().agent_step(agent, node, proposal)
        sender = proposal.detail % len(self.agents)
        item, node = self.take(node, proposal.detail)
        if isinstance(item, MarkerItem):
            return self.feed(agent, node, MarkerReceived(self.names[sender], item.epoch))
        node, outputs = self.feed(agent, node, MessageReceived(self.names[sender], b"%d" % item.number))
        return self.consume(node, sender, item), outputs


class PlainDropsChannelState(ChandyLamportCore):
    def _record_message(self, channel: str, payload: bytes) -> None:
        pass


class PlainRecordsPastTheMarker(ChandyLamportCore):
    """The marker of an epoch closes its channel only together with the last one."""

    def _record_message(self, channel: str, payload: bytes) -> None:
        super()._record_message(channel, payload)
        for recording in self._recordings.values():
            if channel in recording.closed:
                recording.closed[channel] += (payload,)


class StampedDropsChannelState(EpochStampedCore):
    """What arrives after the record with an older stamp is not recorded."""

    def _on_message_arrived(self, event: MessageArrived) -> list[Any]:
        return [] if event.stamp < self.recorded else super()._on_message_arrived(event)


class StampedForgetsTheMailbox(EpochStampedCore):
    """What waits at the record is not recorded."""

    def _on_turn_boundary_reached(self, event: TurnBoundaryReached) -> list[Any]:
        return super()._on_turn_boundary_reached(TurnBoundaryReached(event.sent, event.received))


class DeliversBeforeRecording(StampedModel):
    """Duty 1 is ignored: a message that brings the news of an epoch is consumed at once."""

    def must_wait(self, agent: int, node: EpochNode) -> bool:
        return False


class StampsTooHigh(StampedModel):
    """A message is stamped with the epoch that is owed, not with the one recorded; sends go on meanwhile."""

    def agent_proposals(self, agent: int, node: EpochNode) -> Iterator[ProposedMove]:
        yield from super().agent_proposals(agent, node)
        if self.owes(agent, node):
            yield from self.sends(agent, node)

    def agent_step(self, agent: int, node: EpochNode, proposal: ProposedMove) -> tuple[EpochNode, Outputs]:
        if proposal.kind == "send":
            return self.message_to(agent, node, proposal.detail, self.image_of(agent, node).owed)
        return super().agent_step(agent, node, proposal)


class GoesBackToAnOpenEpoch(StampedModel):
    """The line is one too new: of an epoch that all have reported and that is not whole."""

    def line_of(self, found: EpochCoordinator) -> EpochCut:
        for opened in found.open_epochs:
            reports = tuple(report for report in opened.reports if report is not None)
            if len(reports) == len(opened.reports):
                ledger, states = zip(*((report.ledger, report.in_transit) for report in reports), strict=True)
                return EpochCut(opened.epoch, ledger, states)
        return found.cut


class ForgetsWhatWasInTransit(PlainModel):
    """A recovery delivers nothing again."""

    def line_of(self, found: EpochCoordinator) -> EpochCut:
        count = len(self.agents)
        return found.cut._replace(in_transit=(((),) * count,) * count)


class CompletesTooEarly(StampedModel):
    """An epoch counts as whole as soon as all have reported."""

    def is_whole(self, reports: tuple[Any, ...]) -> bool:
        return True


class NeverHearsOfEnds(StampedModel):
    """An epoch that is whole is not completed."""

    def is_whole(self, reports: tuple[Any, ...]) -> bool:
        return False


class KooTouegAsksNobody(KooTouegCore):
    def _requests(self) -> dict[str, int]:
        return {}


class KooTouegForgetsFirstSent(KooTouegCore):
    """A discarded checkpoint's tables are not merged back."""

    def _merge_back(self, saved: ChannelTables) -> None:
        pass


class KooTouegNeverNeeded(KooTouegCore):
    def _is_needed(self, event: CheckpointRequested) -> bool:
        return event.by is None


class SendsWhileBlocked(RoundModel):
    """Duty 1 is ignored, and the core is not told."""

    def is_held(self, agent: int, node: Any) -> bool:
        return False


class OneTooNew(Recoveries):
    """`recovery.lines`: of the failed agent, and everybody, what comes after the line, where there is something."""

    def _lines_of(self, columns: Columns) -> tuple[Cut, ...]:
        ends = [len(self._cuts.columns.values[column]) - 1 for column in columns]
        return tuple(
            tuple(
                min(place + 1, end - (agent == failed))
                for agent, (place, end) in enumerate(zip(line, ends, strict=True))
            )
            for failed, line in enumerate(super()._lines_of(columns))
        )


class Unchecked(OneTooNew):
    def check(self, columns: Columns, relation: Relation) -> None:
        pass


class KeepsTheLatest(FleetHistory):
    """Everything below an agent's last checkpoint is called obsolete."""

    def obsolete(self) -> dict[str, list[int]]:
        return {agent: numbers for agent in "abc" if (numbers := self.checkpoints_of(agent)[:-1])}


class CollectsTooMuch(Recoveries):
    history_type = KeepsTheLatest


class BcsPromisingTracking(InducedModel):
    """No checkpoint is useless, and yet some dependency is untracked."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds, RULES["fdas"])
        self.rule_type = RULES["bcs"]


def with_recoveries(rule: str, recoveries: Callable[[list[str], AllCuts], Recoveries]) -> ModelFactory:
    def make(bounds: Bounds) -> InducedModel:
        model = InducedModel(bounds, RULES[rule])
        model.recoveries = recoveries(model.names, model.cuts)
        return model

    return make


class KeepsTheUndone(InducedModel):
    """A recovery leaves in the channels what was in them."""

    def recovered(self, nodes: State, places: Cut, *, begun: int = 0) -> State:
        found = super().recovered(nodes, places, begun=begun)
        pairs = zip(self.nodes, found, nodes, strict=False)
        return tuple(
            interner.of(interner.values[new]._replace(channels=interner.values[old].channels))
            for interner, new, old in pairs
        )


def never_forcing(rule: type[CheckpointRule]) -> ModelFactory:
    class NeverForcing(rule):  # type: ignore[misc, valid-type]  # a mutant of any rule
        checkpoints_after_sends = False

        def forces(self, sender: int, piggyback: bytes) -> bool:
            return False

    return lambda bounds: InducedModel(bounds, NeverForcing)


def stamped(core: type[EpochStampedCore]) -> ModelFactory:
    return lambda bounds: StampedModel(bounds, core)


def plain(core: type[ChandyLamportCore]) -> ModelFactory:
    return lambda bounds: PlainModel(bounds, core)


def rounds(core: type[KooTouegCore]) -> ModelFactory:
    return lambda bounds: RoundModel(bounds, core)


TRIO = Bounds()

MUTANTS: dict[str, tuple[ModelFactory, Bounds, str, int]] = {
    "marker after the next send": (MarkersAfterTheNextSend, PAIR, "G2", 8),
    "channels without FIFO": (ChannelsWithoutFifo, PAIR, "G2", 5),
    "plain: channel state dropped": (plain(PlainDropsChannelState), PAIR, "G2", 6),
    "plain: channel state kept past its marker": (plain(PlainRecordsPastTheMarker), TRIO, "G2", 10),
    "plain: nothing is delivered again": (ForgetsWhatWasInTransit, PAIR, "G3", 7),
    "stamped: channel state dropped": (stamped(StampedDropsChannelState), PAIR, "core", 9),
    "stamped: mailbox dropped": (stamped(StampedForgetsTheMailbox), PAIR, "core", 9),
    "stamped: deliver before recording": (DeliversBeforeRecording, PAIR, "G1", 8),
    "stamped: stamp of an epoch not recorded": (StampsTooHigh, PAIR, "core", 8),
    "stamped: line one too new": (GoesBackToAnOpenEpoch, PAIR, "G3", 9),
    "stamped: complete before covered": (CompletesTooEarly, PAIR, "G2", 8),
    "stamped: never complete": (NeverHearsOfEnds, PAIR, "G10", 12),
    "koo-toueg: asks nobody": (rounds(KooTouegAsksNobody), PAIR, "G1", 5),
    "koo-toueg: nobody is needed": (rounds(KooTouegNeverNeeded), PAIR, "G1", 7),
    "koo-toueg: tables not merged back": (rounds(KooTouegForgetsFirstSent), Bounds(agents=2, epochs=2), "G1", 9),
    "koo-toueg: sends while blocked": (SendsWhileBlocked, PAIR, "core", 3),
    "line one too new": (with_recoveries("bcs", OneTooNew), PAIR, "G5", 2),
    "line one too new, seen by the books alone": (with_recoveries("bcs", Unchecked), PAIR, "G3", 3),
    "collects one too many": (with_recoveries("bcs", CollectsTooMuch), TRIO, "G7", 3),
    "bcs: promises tracking": (BcsPromisingTracking, TRIO, "G6", 4),
    "the undone stays under way": (lambda bounds: KeepsTheUndone(bounds, RULES["bcs"]), PAIR, "G3", 2),
    **{f"{name}: never forces": (never_forcing(RULES[name]), PAIR, "G6", 5) for name in CIC_PROTOCOLS},
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_found_by_a_shortest_path(name: str) -> None:
    model, bounds, guarantee, steps = MUTANTS[name]
    found = explore("chandy-lamport", bounds, model=model)
    assert found.violation is not None and not found.is_complete, "not found"
    assert (found.violation.guarantee, len(found.path), found.violation.t_ns) == (guarantee, steps, steps)


# -- the search ---------------------------------------------------------------------------------------------------------


class Graph(Model):
    """Any graph as a fleet of one actor. `wrong` steps and states are violations, and so is a `stuck` end."""

    def __init__(
        self, edges: list[tuple[int, int]], wrong: list[tuple[int, int]], bad: list[int], stuck: list[int]
    ) -> None:
        self.actors, self.labels = 1, Interner()
        self.edges, self.wrong, self.bad, self.stuck = edges, wrong, bad, stuck

    def start(self) -> State:
        return (0,)

    def proposals(self, actor: int, node: int) -> Iterator[ProposedMove]:
        yield from (ProposedMove(f"{node}>{target}", "go", target) for source, target in self.edges if source == node)

    def carry_out(self, actor: int, node: int, proposal: ProposedMove) -> tuple[int, Outputs]:
        if (node, proposal.detail) in self.wrong:
            raise Fault("step", "G1", "a wrong step")
        return proposal.detail, ()

    def arrive(self, actor: int, node: int, item: int) -> tuple[int, Outputs]:
        raise AssertionError("nothing is ever sent")

    def crashes(self, state: State) -> list[tuple[int, State]]:
        return []

    def check(self, state: State) -> None:
        if state[0] in self.bad:
            raise Fault("state", "G2", "a bad state")

    def unfinished(self, actor: int, node: int) -> str:
        return "stuck" if node in self.stuck else ""

    def distances(self) -> dict[int, int]:
        """Of all states, by relaxing every edge as often as there are states."""
        found = {0: 0}
        for _ in range(STATES):
            for source, target in self.edges:
                if source in found:
                    found[target] = min(found.get(target, STATES), found[source] + 1)
        return found

    def shortest(self) -> int | None:
        """The least number of steps to any violation."""
        far = self.distances()
        ends = [state for state in self.stuck if all(source != state for source, _ in self.edges)]
        lengths = [far[source] + 1 for source, target in self.wrong if (source, target) in self.edges and source in far]
        lengths += [far[state] for state in self.bad if state in far] + [
            far[state] + 1 for state in ends if state in far
        ]
        return min(lengths, default=None)


STATES = 12

nodes = st.integers(0, STATES - 1)
pairs = st.tuples(nodes, nodes)


@given(
    st.lists(pairs, max_size=40), st.lists(pairs, max_size=3), st.lists(nodes, max_size=2), st.lists(nodes, max_size=2)
)
def test_the_path_is_a_shortest_one_and_without_a_fault_all_is_seen(
    edges: list[tuple[int, int]], wrong: list[tuple[int, int]], bad: list[int], stuck: list[int]
) -> None:
    graph = Graph(edges, wrong, bad, stuck)
    found = Search(graph, 1_000).run()
    expected = graph.shortest()
    if found.fault is None:
        assert expected is None and found.is_complete
        assert found.states == len(graph.distances())
        assert found.depth == max(graph.distances().values())
    else:
        assert len(found.path) == expected
        steps = [step for step in found.path if step != "nothing more happens"]
        assert [step.split(">")[0] for step in steps] == ["0", *(step.split(">")[1] for step in steps)][: len(steps)]


# -- the naive explorer -------------------------------------------------------------------------------------------------


NAIVE_SLOW = ("cbr", "fdas", "fdi", "bhmr", "cas")
"""Rules whose pairs take longest. Those that stay have vectors, stamps alone, and checkpoints after sends."""


@pytest.mark.slow
def test_a_naive_explorer_of_stamped_epochs_counts_the_same() -> None:
    found = explore("chandy-lamport", PAIR)
    assert count(StampedFleet()) == (found.states, found.transitions)


@pytest.mark.parametrize("protocol", [pytest.param(x, marks=[pytest.mark.slow] * (x in NAIVE_SLOW)) for x in RULES])
def test_a_naive_explorer_of_rules_counts_the_same(protocol: str) -> None:
    found = explore(protocol, PAIR)
    fleet = InducedFleet(protocol, has_vectors=protocol in RDT_PROTOCOLS)
    assert count(fleet) == (found.states, found.transitions)
