"""Replicas of the modelled log under random faults, and oracles that judge what callers see, with a fold of their own.

The oracles know outcomes, standings and states only. They do not know reigns, votes or terms as the model keeps them.
"""

from collections import Counter
from random import Random

import msgspec
from tests.kit.virtual_time import VirtualTime

from snapline.coordinator.state.fleet_records import Committed, OperationResult, ProposalOutcome, Rejected
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.operations import AdmitHost, Operation, decode_operation, encode_operation
from snapline.messages.status import Standing
from snapline.sim.choices import RandomChoices, RecordedChoices
from snapline.sim.world import replicated_log
from snapline.sim.world.product_patches import patched
from snapline.sim.world.replicated_log import MS, RaftModel, SimulatedLog

SECOND = 1_000 * MS
FAULTS_NS = 6 * SECOND
CALM_NS = 7 * SECOND
"""Longer than a proposal's deadline."""

NODES = ("c1", "c2", "c3", "c4", "c5")


class Proposal(msgspec.Struct):
    """One proposal, as its proposer knows it."""

    node: str
    entry: bytes
    begun_ns: int
    may_be_silent: bool = False
    outcomes: list[ProposalOutcome] = []
    ended_ns: int = 0


class World(VirtualTime):
    """Replicas in virtual time; a random source breaks things until `FAULTS_NS`. `bad` collects what must not be."""

    def __init__(
        self, seed: int, *, count: int = 3, kind: type[SimulatedLog | RaftModel] = SimulatedLog, calm: bool = False
    ) -> None:
        super().__init__()
        self.random = Random(seed)
        self.bad: list[str] = []
        self.seen: Counter[str] = Counter()
        self.trace: list[object] = []
        self.nodes = NODES[:count]
        self.blocked: dict[tuple[str, str], None] = {}
        self.standings = dict.fromkeys(self.nodes, Standing())
        self.leaders: dict[int, str] = {}
        self.proposals: list[Proposal] = []
        self.acknowledged: list[bytes] = []
        self.committed: list[tuple[str, bytes, OperationResult]] = []
        with patched([(replicated_log, "RaftModel", kind)] if issubclass(kind, RaftModel) else []):
            self.log = (SimulatedLog if issubclass(kind, RaftModel) else kind)(
                self.nodes,
                at=self.at,
                now=lambda: self.now_ns,
                choices=RecordedChoices({}) if calm else RandomChoices(seed),
                delay_ns=self.delay_ns,
                on_standing=self._on_standing,
                on_committed=self._on_committed,
            )
        for node in self.nodes:
            self.log.start(node)

    # ---- the surroundings -----------------------------------------------------------------------------------------

    def delay_ns(self, source: str, target: str) -> int | None:
        assert source != target and self.log.is_up(source) and self.log.is_up(target)
        return None if (source, target) in self.blocked else MS + self.random.randrange(4 * MS)

    def _on_standing(self, node: str, standing: Standing) -> None:
        self.trace.append((self.now_ns, node, standing))
        self.standings[node] = standing
        if standing.is_leader:
            self.seen["leader"] += 1
            if self.leaders.setdefault(standing.term, node) != node:
                self.bad.append(f"two leaders in term {standing.term}")
            image = self.log.state_of(node).image
            if any(client_of(entry) not in image.requests for entry in self.acknowledged):
                self.bad.append(f"{node} leads and lacks acknowledged entries")

    def _on_committed(self, index: int, node: str, entry: bytes, result: OperationResult) -> None:
        if index != len(self.committed):
            self.bad.append(f"entry {index} is committed after {len(self.committed)} others")
        self.trace.append((self.now_ns, node, entry))
        self.committed.append((node, entry, result))

    # ---- proposers ------------------------------------------------------------------------------------------------

    def propose(self, node: str) -> Proposal:
        number = len(self.proposals)
        kind = AdmitHost(f"h{number % 3}", f"i{number}", "", number % 5)
        entry = encode_operation(Operation(number, f"w{number}", 1, kind))
        proposal = Proposal(node, entry, self.now_ns, may_be_silent=not self.log.is_up(node))
        self.proposals.append(proposal)
        self.log.propose(node, entry, lambda outcome: self._on_outcome(proposal, outcome))
        if proposal.outcomes:
            self.bad.append("an outcome was told from within propose")
        return proposal

    def _on_outcome(self, proposal: Proposal, outcome: ProposalOutcome) -> None:
        self.trace.append((self.now_ns, proposal.node, outcome))
        proposal.outcomes.append(outcome)
        proposal.ended_ns = self.now_ns
        if proposal.may_be_silent:
            self.bad.append(f"{proposal.node} heard an outcome after it had crashed")
        if isinstance(outcome, Committed):
            self.acknowledged.append(proposal.entry)
            if client_of(proposal.entry) not in self.log.state_of(proposal.node).image.requests:
                self.bad.append(f"{proposal.node} has not applied what it was told is committed")
            if not self.standings[proposal.node].is_leader:
                self.seen["committed through the successor"] += 1
        else:
            self.seen[outcome.reason] += 1

    def propose_at_random(self) -> None:
        if self.random.random() < 0.9:
            believing = [node for node in self.nodes if self.standings[node].is_leader]
            self.seen["two believe"] += len(believing) > 1
            for node in believing:
                self.propose(node)
        else:
            self.propose(self.random.choice(self.nodes))
        if self.now_ns < FAULTS_NS:
            self.at(self.now_ns + self.random.randrange(1, 40 * MS), self.propose_at_random)

    # ---- faults ---------------------------------------------------------------------------------------------------

    def crash(self, node: str) -> None:
        self.log.crash(node)
        self.standings[node] = Standing()
        for proposal in self.proposals:
            if proposal.node == node and not proposal.outcomes:
                proposal.may_be_silent = True

    def start(self, node: str) -> None:
        if not self.log.is_up(node):
            self.log.start(node)

    def fault_at_random(self) -> None:
        if self.now_ns >= FAULTS_NS:
            return
        one, other = self.random.choice(self.nodes), self.random.choice(self.nodes)
        for _ in range(self.random.choice((1, 1, len(self.nodes)))):
            match self.random.randrange(8):
                case 0 | 1:
                    self.crash(self.random.choice((one, self.log.leader or one)))
                case 2:
                    self.start(one)
                case 3:
                    self.blocked[one, other] = None
                case 4:
                    self.blocked |= {pair: None for node in self.nodes for pair in ((one, node), (node, one))}
                case 5:
                    self.blocked.clear()
                case 6:
                    self.log.depose()
                case 7:
                    self.log.set_unknown(self.random.choice((0, 100)))
        self.at(self.now_ns + self.random.randrange(MS, 500 * MS), self.fault_at_random)

    def run(self) -> list[str]:
        """Break things, heal, judge; returns what was wrong."""
        try:
            self.at(100 * MS, self.propose_at_random)
            self.at(400 * MS, self.fault_at_random)
            self.run_until(FAULTS_NS)
            self.heal()
            self.run_until(FAULTS_NS + CALM_NS)
            final = self.propose(self.log.leader or self.nodes[0])
            self.run_until(FAULTS_NS + CALM_NS + SECOND)
            if not any(isinstance(outcome, Committed) for outcome in final.outcomes):
                self.bad.append("nobody commits although everybody is well")
            self.log.validate()
        except (AssertionError, IndexError) as error:
            self.bad.append(f"{error!r}")
        self._judge()
        return self.bad

    def heal(self) -> None:
        self.blocked.clear()
        self.log.set_unknown(0)
        for node in self.nodes:
            self.start(node)

    # ---- oracles --------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        entries = [entry for _, entry, _ in self.committed]
        if entries != self.log.entries:
            self.bad.append("entries are not what was committed, in that order")
        self._judge_states(entries)
        places = {entry: place for place, entry in enumerate(entries)}
        counts = Counter(entries)
        ended: list[tuple[int, int, int]] = []
        for proposal in self.proposals:
            if len(proposal.outcomes) != 1 and not proposal.may_be_silent:
                self.bad.append(f"{len(proposal.outcomes)} outcomes of one proposal")
            count = counts[proposal.entry]
            if count > 1:
                self.bad.append(f"an entry is in the log {count} times")
            match proposal.outcomes:
                case [Committed(result)]:
                    place = places.get(proposal.entry)
                    if place is None or self.committed[place] != (proposal.node, proposal.entry, result):
                        self.bad.append("an acknowledged entry is not in the log, or with another result")
                    else:
                        ended.append((proposal.begun_ns, proposal.ended_ns, place))
                case [Rejected()] if count:
                    self.bad.append("a rejected entry is in the log")
        by_end, newest = sorted([(end, place) for _, end, place in ended], reverse=True), -1
        for begun, _, place in sorted(ended):
            while by_end and by_end[-1][0] < begun:
                newest = max(newest, by_end.pop()[1])
            if place < newest:
                self.bad.append("who ended before another began stands behind it")

    def _judge_states(self, entries: list[bytes]) -> None:
        """Agreement: after catching up, every state is the fold over the entries."""
        state = FleetState()
        results = [state.apply(decode_operation(entry)) for entry in entries]
        if results != [result for _, _, result in self.committed]:
            self.bad.append("results are not those of the fold")
        for node in self.nodes:
            if self.log.state_of(node).freeze() != state.freeze():
                self.bad.append(f"{node} disagrees")


def client_of(entry: bytes) -> str:
    return decode_operation(entry).client
