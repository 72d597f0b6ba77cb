"""A coordinator without processes, for `benchmarks/scale.py --simulated`: its leader core and state machine, hosts that report as soon as they are asked."""

import time

from tests.coordinator.bench import Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.fleet_view import FleetView
from snapline.messages import host_messages as msg
from snapline.messages.wire import decode_host_message, encode_host_message

CHANNELS_EACH = 4
KIND = "benchmarks.scale_fleet:Passer"
EPOCHS = 3


def _nothing(_state: FleetView) -> None:
    """Instead of the checks of the tests' bench."""


class LargeLeader(Bench):
    """So many hosts, with so many agents each, which send to the next four of all agents; one in `one_in` has done so since the epoch before."""

    def __init__(self, hosts: int, each: int, one_in: int = 1) -> None:
        self.one_in = one_in
        self.names = tuple(f"h{number}" for number in range(hosts))
        self.agents = hosts * each
        FleetState.validate = _nothing  # type: ignore[method-assign, assignment]  # slow at this size
        super().__init__(hosts, agents=1, keep_epochs=2)
        kinds = tuple(msg.AgentKind(f"passer-{number}", KIND) for number in range(self.agents))
        self.definition = msg.FleetDefinition("passers", "chandy-lamport", 0, 0, kinds)
        self.start_fleet(*self.names)

    def measure(self) -> dict[str, float]:
        """CPU of an epoch, behind the first, and of the recovery from the loss of a host; what hosts say is encoded before, and decoded in the time."""
        self._epoch_s()
        per_epoch_s = sum([self._epoch_s() for _ in range(EPOCHS)]) / EPOCHS
        assert self.state.newest_complete() == EPOCHS + 1, self.state.image.epochs
        start_s = time.process_time()
        self.recover()
        recovery_s = time.process_time() - start_s
        return {
            "coordinator ms": per_epoch_s * 1e3,
            "µs an agent": per_epoch_s / self.agents * 1e6,
            "recovery s": recovery_s,
        }

    def _epoch_s(self) -> float:
        start_s = time.process_time()
        self.feed(ev.SnapshotRequested(1))
        spent_s = time.process_time() - start_s
        here = self.numbers_by_host()
        reports = [(host, encode_host_message(self.report_of(host, here[host]))) for host in self.names]
        start_s = time.process_time()
        for host, data in reports:
            self.say(host, decode_host_message(data))
        return spent_s + time.process_time() - start_s

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
        numbers: dict[str, list[int]] = {host: [] for host in self.names}
        for number in range(self.agents):
            numbers[self.state.image.agents[f"passer-{number}"].host].append(number)
        return numbers

    def report_of(self, host: str, mine: list[int]) -> msg.EpochReport:
        """Its agents, with those of their channels that have got on, or all if nothing has been told before."""
        names: dict[int, int] = {number: index for index, number in enumerate(mine)}
        epoch_told = next(x.told for x in reversed(self.directives(host)) if isinstance(x, msg.BeginEpoch))
        one_in = self.one_in if epoch_told else 1
        steps = range(1, CHANNELS_EACH + 1)
        sent = [(a, (a + step) % self.agents) for a in mine for step in steps if a % one_in == 0]
        received = [(from_, a) for a in mine for step in steps if (from_ := (a - step) % self.agents) % one_in == 0]
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
            since=epoch_told,
        )
