"""What a simulated world consists of, and what its hosts and coordinators ask of it: time, chance, disks, each other.

The parts of the world build on each other: `world/base.py`, `world/notes.py` (what is told to judge and recording),
`world/actions.py` (what faults may do), `world.py`.
"""

from collections.abc import Callable, Hashable

from snapline.sim.choices import Choices, Randoms, stream_of
from snapline.sim.faults.executor import Hanging
from snapline.sim.oracles.judge import Judge
from snapline.sim.oracles.retention import Wanted
from snapline.sim.result import ExecutedFault
from snapline.sim.scenario import Scenario, coordinator_names, host_names
from snapline.sim.workloads.workload import Workload
from snapline.sim.world.disk import VirtualDisk
from snapline.sim.world.host import SimHost, Watched
from snapline.sim.world.kernel import Journal, Kernel
from snapline.sim.world.network import DELAY_STEPS, Network
from snapline.sim.world.recording import Recording
from snapline.sim.world.replicated_log import ReplicatedLog
from snapline.sim.world.seat import Seat
from snapline.sim.world.steps import Steps
from snapline.sim.world.tracing import HostTrace, SharedTrace
from snapline.storage.retention_policy import parse_policy
from snapline.storage.store import Store

START_OF_TIME_NS = 1_700_000_000_000_000_000
"""What wall clocks show at first."""

SLOW_FACTOR = 100
"""A slow disk takes so many times as long."""

CLOCKS_AGENTS_MAX = 16
"""Vector clocks cost as much as there are agents, for each turn: beyond this only counts are compared."""


class WorldBase:
    """What there is.

    Attributes:
        kernel, network, disk, log: of this run.
        judge: the oracles.
        acting: the node whose code runs at this moment.
        runs: host → its present or last run. seats: coordinator → its process.
        random_of: what `ctx.random()` says: a stream for each agent, so that another order of turns draws the same.
        turns, last_turn_ns: ended so far, and when. handled: those that were for a message or a timer. busy_ns: what hosts spent. counts: figures by name. points: failpoints passed. faults: as executed.
        hanging: (host, what) of which nothing comes back.
        misuse: why the user's agents cannot be simulated.
    """

    core_type = Watched
    log: ReplicatedLog
    seats: dict[str, Seat]

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        choices: Choices,
        workload: Workload,
        *,
        recording: Recording | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        self.choices = choices
        self.workload = workload
        self.fleet = workload.fleet
        self.recording = recording
        self.journal = journal or Journal()
        self.kernel = Kernel()
        self.hosts = host_names(scenario)
        self.coordinators = coordinator_names(scenario)
        self.agents = tuple(self.fleet.agents)
        self.hosts_expected = scenario.fleet.hosts
        self.keep_epochs = max(2, scenario.run.keep_epochs)
        self.rejoin_grace_ns = scenario.run.rejoin_grace_ns
        self.turns_in_a_row = scenario.run.turns_in_a_row
        delay = scenario.network.delay
        paths = {
            (sender, receiver): (path.least_ns, path.jitter_ns)
            for name, path in scenario.network.paths.items()
            for sender, _, receiver in [name.partition(">")]
        }
        self.network = Network(self.kernel, choices, least_ns=delay.least_ns, jitter_ns=delay.jitter_ns, paths=paths)
        self.steps = Steps()
        self.judge = self._make_judge()
        self.runs: dict[str, SimHost] = {}
        self.acting = ""
        self.turns = self.handled = self.last_turn_ns = self.busy_ns = 0
        self.faults: list[ExecutedFault] = []
        self.counts: dict[str, float] = {}
        self.points: dict[str, int] = {}
        self.misuse = ""
        self._speeds: dict[str, int] = {}
        self._clocks: dict[str, tuple[int, int, int]] = {}
        self.hanging: dict[tuple[str, Hanging], None] = {}
        self.random_of = Randoms(seed, "agent").random
        self._raft_messages = 0
        self._store_delay = (scenario.store.delay.least_ns, scenario.store.delay.jitter_ns)
        self.disk = VirtualDisk(lambda: self.kernel.now_ns)
        self._bytes = stream_of(seed, "ids")
        store = Store.create("", disk=self.disk.reader(), random_bytes=self.random_bytes)
        self.store_id = store.store_id
        self.reader = Store(self.disk.reader(), self.store_id, random_bytes=self.random_bytes)
        self.trace = SharedTrace(self, recording) if recording is not None else None

    def _make_judge(self) -> Judge:
        count = len(self.agents)
        return Judge(
            protocol=self.fleet.protocol,
            agents=self.agents,
            budget=self.scenario.budget,
            with_clocks=count <= CLOCKS_AGENTS_MAX,
            with_replay=count <= CLOCKS_AGENTS_MAX,
            check_cut=self.workload.check_cut,
            fleet=self.fleet,
            wanted=_wanted(self.scenario) if self.scenario.run.retention else None,
        )

    # ---- what hosts and seats ask for -----------------------------------------------------------------------------

    def random_bytes(self, count: int) -> bytes:
        """For names of files: any, as long as they differ."""
        return int(self._bytes.random() * (1 << 53)).to_bytes(7, "big").rjust(count, b"\0")

    def store_of(self, node: str) -> Store:
        return Store(self.disk.of(node), self.store_id, random_bytes=self.random_bytes)

    def store_ns(self, node: str, key: Hashable) -> int:
        """How long one call of the store takes."""
        least_ns, jitter_ns = self._store_delay
        cost_ns = least_ns + jitter_ns * self.choices.pick("storage", (key,), DELAY_STEPS) // DELAY_STEPS
        return cost_ns * SLOW_FACTOR if self.disk.is_slow(node) else cost_ns

    def wall_ns(self, node: str) -> int:
        now_ns = self.kernel.now_ns
        if not self._clocks or node not in self._clocks:
            return START_OF_TIME_NS + now_ns
        skew_ns, drift_ppm, since_ns = self._clocks[node]
        return START_OF_TIME_NS + now_ns + skew_ns + (now_ns - since_ns) * drift_ppm // 1_000_000

    def speed_of(self, host: str) -> int:
        return self._speeds.get(host, 100) if self._speeds else 100

    def run_of(self, host: str) -> SimHost | None:
        """The run of a host that answers on its port."""
        run = self.runs.get(host)
        return run if run is not None and run.is_alive else None

    def is_up(self, node: str) -> bool:
        return self.seats[node].is_up

    def seat(self, node: str) -> Seat:
        return self.seats[node]

    def trace_of(self, run: SimHost) -> HostTrace | None:
        return self.trace.of(run) if self.trace is not None else None

    def _raft_delay_ns(self, one: str, other: str) -> int | None:
        self._raft_messages += 1
        return self.network.path_ns(one, other, ("raft", one, other, self._raft_messages))

    def count(self, name: str, amount: float = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def call_at(self, t_ns: int, call: Callable[[], None]) -> None:
        """Call at that time."""
        self.kernel.at(t_ns, _call, call)


def _wanted(scenario: Scenario) -> Wanted:
    policy, limits = parse_policy(scenario.run.retention), scenario.limits
    hour_s, day_s = limits.get("hour_s", 3600), limits.get("day_s", 86_400)
    return Wanted(policy.keep_last, policy.hourly, policy.daily, hour_s * 1000, day_s * 1000)


def _call(call: Callable[[], None]) -> None:
    call()
