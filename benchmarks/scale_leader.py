"""A coordinator without processes, for `benchmarks/scale.py --simulated`: its leader core and state machine, hosts that report as soon as they are asked."""

import time

from tests.coordinator.bench import Bench

from snapline.conversation import messages as msg
from snapline.conversation.wire import decode_host_message, encode_host_message
from snapline.coordinator.leader import events as ev
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.fleet_view import FleetView

CHANNELS_EACH = 4
KIND = "benchmarks.scale_fleet:Passer"
EPOCHS = 3


def _nothing(_state: FleetView) -> None:
    """Instead of the checks of the tests' bench."""


class LargeLeader(Bench):
    """So many hosts, with so many agents each, which send to the next four of all agents."""

    def __init__(self, hosts: int, each: int) -> None:
        self.names = tuple(f"h{number}" for number in range(hosts))
        self.agents = hosts * each
        FleetState.validate = _nothing  # type: ignore[method-assign, assignment]  # at this size it takes longer than all the rest
        super().__init__(hosts, agents=1, keep_epochs=2)
        kinds = tuple(msg.AgentKind(f"passer-{number}", KIND) for number in range(self.agents))
        self.definition = msg.FleetDefinition("passers", "chandy-lamport", 0, 0, kinds)
        self.start_fleet(*self.names)

    def measure(self) -> dict[str, float]:
        """CPU of an epoch, and of the recovery from the loss of a host; what hosts say is encoded before, and decoded in the time."""
        spent_s = 0.0
        for _ in range(EPOCHS):
            start_s = time.process_time()
            self.feed(ev.SnapshotRequested(1))
            spent_s += time.process_time() - start_s
            here = self.numbers_by_host()
            reports = [(host, encode_host_message(self.report_of(host, here[host]))) for host in self.names]
            start_s = time.process_time()
            for host, data in reports:
                self.say(host, decode_host_message(data))
            spent_s += time.process_time() - start_s
        assert self.state.newest_complete() == EPOCHS, self.state.image.epochs
        start_s = time.process_time()
        self.recover()
        recovery_s = time.process_time() - start_s
        per_epoch_s = spent_s / EPOCHS
        return {
            "coordinator ms": per_epoch_s * 1e3,
            "µs an agent": per_epoch_s / self.agents * 1e6,
            "recovery s": recovery_s,
        }

    def recover(self) -> None:
        """The last host dies, and all others apply the plan that follows."""
        last = self.names[-1]
        record = self.state.image.hosts[last]
        self.feed(ev.HostExitReported(last, record.instance, "killed"))
        self.pass_time(4, silent=(last,))
        self.apply_plan(*self.names[:-1])
        assert self.state.phase == "running" and self.state.plan_number == 2, self.state.phase

    def numbers_by_host(self) -> dict[str, list[int]]:
        """Who is where."""
        found: dict[str, list[int]] = {host: [] for host in self.names}
        for number in range(self.agents):
            found[self.state.image.agents[f"passer-{number}"].host].append(number)
        return found

    def report_of(self, host: str, mine: list[int]) -> msg.EpochReport:
        """Its agents, each idle, with their channels."""
        names: dict[int, int] = {number: place for place, number in enumerate(mine)}
        sent = [(a, (a + step) % self.agents) for a in mine for step in range(1, CHANNELS_EACH + 1)]
        received = [((a - step) % self.agents, a) for a in mine for step in range(1, CHANNELS_EACH + 1)]
        for pair in sent + received:
            for number in pair:
                names.setdefault(number, len(names))
        epoch = self.state.image.begun
        return msg.EpochReport(
            epoch,
            self.state.image.hosts[host].start,
            msg.ReportedPack(f"packs/{epoch}/{host}", 1_000_000, bytes(32)),
            names=tuple([f"passer-{number}" for number in names]),
            agents=tuple(range(len(mine))),
            unborn=(False,) * len(mine),
            sent_from=tuple([names[a] for a, _ in sent]),
            sent_to=tuple([names[b] for _, b in sent]),
            sent_number=(1000 * epoch,) * len(sent),
            received_from=tuple([names[a] for a, _ in received]),
            received_to=tuple([names[b] for _, b in received]),
            received_number=(1000 * epoch - 1,) * len(received),
            recorded_count=(1,) * len(received),
        )
