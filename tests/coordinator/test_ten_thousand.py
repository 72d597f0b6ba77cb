"""Ten thousand agents: they register, and two epochs of theirs commit, within the limits of log, wire and state."""

import gc
import time
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from tests.coordinator.bench import Bench

from snapline.channels.channel import MESSAGE_BYTES_MAX
from snapline.coordinator.leader import events as ev
from snapline.coordinator.raft.pysyncobj_adapter import ELECTION_S_MIN, ENTRY_BYTES_MAX
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import COMPLETE, ProposalOutcome
from snapline.coordinator.state.fleet_state import FleetState
from snapline.messages import host_messages as msg
from snapline.messages.wire import encode_directive, encode_host_message

AGENTS = 10_000
HOSTS = tuple(f"host-{number}.rack-{number % 3}.example" for number in range(8))
CHANNELS_EACH = 8
KIND = "warehouse.simulation.agents.picking:PickingRobot"
STATE_BYTES_MAX = 16 * 1024 * 1024
"""Of the whole state, encoded: what a dump may have."""

FREEZE_S_MAX = ELECTION_S_MIN / 2
"""No tick happens while the state is encoded: followers must not miss so many heartbeats that they stand for election."""


def agent_name(number: int) -> str:
    """As long as users make them."""
    return f"robot-{number:05}.aisle-{number % 97:02}.hall-{number % 7}"


class Large(Bench):
    """Ten thousand agents on eight hosts; the sizes of all that goes into the log and over the wire are kept.

    Attributes:
        entries: bytes of each entry of the log.
        said: bytes of the largest message of a host.
    """

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.said = 0
        super().__init__(len(HOSTS), agents=1, keep_epochs=2)
        kinds = tuple(msg.AgentKind(agent_name(number), KIND) for number in range(AGENTS))
        self.definition = msg.FleetDefinition("warehouse", "chandy-lamport", 0, 0, kinds)
        chance = Random(1)
        self.channels = sorted(
            {
                (number, other)
                for number in range(AGENTS)
                for other in chance.sample(range(AGENTS), CHANNELS_EACH)
                if other != number
            }
        )

    def feed(self, event: ev.Event) -> None:
        # As the bench, but validated by the tests: at this size that takes longer than all the rest.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FleetState, "validate", lambda self: None)
            super().feed(event)

    def propose(self, command: ev.Propose, entry: bytes, ended: Callable[[ProposalOutcome], None]) -> None:
        self.entries.append(len(entry))
        super().propose(command, entry, ended)

    def say(self, host: str, message: msg.HostMessage) -> None:
        self.said = max(self.said, len(encode_host_message(message)))
        super().say(host, message)

    def report_all(self, *epochs: int) -> None:
        """Each host reports all its agents, with their channels, in one message for each epoch. All name all agents alike."""
        names = tuple(self.state.image.agents)
        host_of = [self.state.image.agents[agent].host for agent in names]
        place = {agent: index for index, agent in enumerate(names)}
        numbered = [place[agent_name(number)] for number in range(AGENTS)]
        channels = [(numbered[sender], numbered[receiver]) for sender, receiver in self.channels]
        for host in HOSTS:
            mine = tuple([index for index, on in enumerate(host_of) if on == host])
            out = [pair for pair in channels if host_of[pair[0]] == host]
            into = [pair for pair in channels if host_of[pair[1]] == host]
            report = msg.EpochReport(
                0,
                self.state.image.hosts[host].start,
                msg.ReportedPack(f"packs/{host}", 1_000_000, bytes(32)),
                names=names,
                agents=mine,
                unborn=(False,) * len(mine),
                sent_from=tuple([sender for sender, _ in out]),
                sent_to=tuple([receiver for _, receiver in out]),
                received_from=tuple([sender for sender, _ in into]),
                received_to=tuple([receiver for _, receiver in into]),
                recorded_count=(1,) * len(into),
            )
            for epoch in epochs:
                sent, received = (1000 * epoch,) * len(out), (1000 * epoch - 1,) * len(into)
                self.say(host, msgspec.structs.replace(report, epoch=epoch, sent_number=sent, received_number=received))


@pytest.fixture(scope="module")
def large() -> Large:
    """All have registered, and two epochs are complete."""
    bench = Large()
    bench.start_fleet(*HOSTS)
    for number in (1, 2):
        bench.feed(ev.SnapshotRequested(number))
        assert bench.state.image.begun == number
    bench.report_all(1, 2)
    return bench


def test_ten_thousand_agents_register_and_two_epochs_of_theirs_complete(large: Large) -> None:
    large.state.validate()
    assert len(large.state.image.agents) == AGENTS and large.count(op.DefineAgents) >= 10
    assert {epoch: record.status for epoch, record in large.state.image.epochs.items()} == {1: COMPLETE, 2: COMPLETE}
    assert [answer.is_complete for answer in large.answers] == [True, True]
    manifests = [command for command in large.commands if isinstance(command, ev.WriteManifest)]
    assert [len(manifest.agents) for manifest in manifests] == [AGENTS, AGENTS]
    assert [len(manifest.channels) for manifest in manifests] == [len(large.channels)] * 2
    assert not [note for note in large.notes if note.level == "error"]


def test_every_entry_fits_into_the_log_and_every_message_onto_the_wire(large: Large) -> None:
    assert len(large.entries) == len(large.log) and max(large.entries) <= op.OPERATION_BYTES_MAX <= ENTRY_BYTES_MAX
    assert max(large.entries) > 32 * 1024, "agents register one by one"
    assert large.said <= MESSAGE_BYTES_MAX
    directives = {id(x): x for heard in large.heard.values() for x in heard}
    assert max(len(encode_directive(x)) for x in directives.values()) <= MESSAGE_BYTES_MAX


def test_their_state_is_dumped_within_half_an_election(large: Large) -> None:
    image = large.state.freeze()
    assert len(image) <= STATE_BYTES_MAX
    took_s = []
    for _ in range(5):  # the best: what disturbs is the machine's, not the state's
        gc.collect()
        began_s = time.perf_counter()
        assert large.state.freeze() == image
        took_s.append(time.perf_counter() - began_s)
    began_s = time.perf_counter()
    again = FleetState.restore(image)
    restored_s = time.perf_counter() - began_s
    assert again.freeze() == image
    print(f"{len(image):,} bytes, frozen in {1e3 * min(took_s):.1f} ms, restored in {1e3 * restored_s:.1f} ms")
    assert min(took_s) < FREEZE_S_MAX
