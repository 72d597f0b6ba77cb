"""State that all parts of a simulated world share: time, choices, stores, failpoints, network, counters and observers.

- `Stores`: each node's view of the disk, the duration of store calls, and a view that faults do not affect.
- `Points`: the failpoints, which are named lines in the product's code, and the actions armed at them.
- `OutputInjector`: adds outputs to turns of simulated agents. Outputs may be added to any agent's turns, regardless of the pattern. A
  separate random stream selects the turns, and every added output has unique bytes.
- `RunCounters`: counters from which the run's metrics are computed.
"""

import traceback
from collections.abc import Callable, Hashable

import msgspec
from msgspec.structs import replace

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.message_encoding import encode_message
from snapline.sim.choices import Choices, RandomStreams, stream_of
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.judge import Judge, JudgeTerms
from snapline.sim.oracles.line_oracles import ExpectedRetention
from snapline.sim.result import ExecutedFault, Violation
from snapline.sim.scenario import DelayPart, Scenario, coordinator_names, host_names
from snapline.sim.workloads.workload import Workload
from snapline.sim.world.disk import VirtualDisk
from snapline.sim.world.kernel import Clocks, Journal, Kernel, NotSimulatedError
from snapline.sim.world.network import DELAY_STEPS, Network
from snapline.sim.world.recording import Recording, SharedTrace
from snapline.storage.disk.store_files import OpenedDisk
from snapline.storage.retention.epoch_retention import parse_policy
from snapline.storage.store.store import Store


class RunCounters:
    """Counters of one run.

    Attributes:
        turns: number of successful turns so far.
        last_turn_ns: time of the latest successful turn.
        handled: number of successful turns that handled a message, a timer or an input.
        busy_ns: CPU time used by all hosts.
    """

    def __init__(self) -> None:
        self.turns = self.handled = self.last_turn_ns = self.busy_ns = 0
        self.counts: dict[str, float] = {}

    def count(self, name: str, amount: float = 1) -> None:
        """Add an amount to a counter."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def raise_to(self, name: str, value: float) -> None:
        """Set a counter to a value if the value is higher than the counter."""
        self.counts[name] = max(self.counts.get(name, 0), value)

    def on_turn(self, now_ns: int, what: str) -> None:
        """Count a successful turn."""
        self.turns += 1
        self.handled += what in ("message", "timer", "input")
        self.last_turn_ns = now_ns

    def on_saved(self, took_ns: int) -> None:
        """Count a checkpoint that has become durable. Under an autonomous protocol, a checkpoint belongs to one agent, and otherwise to all
        agents together."""
        self.count("checkpoints_saved")
        self.count("saving_s", took_ns / 1e9)


TOPICS = ("news", "totals")
TWICE_ONE_IN = 4


class InjectedOutput(msgspec.Struct, frozen=True):
    """An output that the simulator adds to an agent's turn."""

    agent: str
    plan: int
    turn: int
    place: int


class OutputInjector:
    """Adds outputs to about one in `one_in` turns, selected at random. If `one_in` is 0, no outputs are added."""

    def __init__(self, choices: Choices, ground_truth: GroundTruth, one_in: int) -> None:
        self._choices = choices
        self._ground_truth = ground_truth
        self._one_in = one_in

    def with_outputs(self, turn: ev.StartTurn, ended: ev.Event | None, now_ns: int) -> ev.Event | None:
        """Return the end of a turn, with outputs added if the turn is selected."""
        if not self._one_in or type(ended) is not ev.TurnEnded:
            return ended
        key = (turn.agent, turn.incarnation, self._ground_truth.history_of(turn.incarnation, turn.agent).turns + 1)
        if not self._is_one_in(self._one_in, "speaks", *key):
            return ended
        injected = [InjectedOutput(*key, place) for place in range(1 + self._is_one_in(TWICE_ONE_IN, "twice", *key))]
        encoded = [(TOPICS[each.turn % 2], encode_message(each), now_ns) for each in injected]
        return replace(ended, outputs=[*ended.outputs, *encoded])

    def _is_one_in(self, n: int, *key: str | int) -> bool:
        return self._choices.pick("outputs", key, n) == n - 1


class Points:
    """All failpoints of a run. If an action is armed at a failpoint, it is applied to the node that reaches the failpoint.

    Attributes:
        acting: the node whose code is currently running.
    """

    def __init__(self) -> None:
        self.acting = ""
        self._armed: dict[str, list[tuple[int, Callable[[str], None]]]] = {}

    def passed(self, name: str) -> None:
        """Record that the node `acting` has reached this failpoint. If an action is due at the failpoint, execute the action, which may
        raise an exception."""
        armed = self._armed.get(name) if self._armed else None
        if not armed or not self.acting:
            return
        due = next((act for hit, act in armed if hit == 1), None)
        self._armed[name] = [(hit - 1, act) for hit, act in armed if hit > 1]
        if due is not None:
            due(self.acting)

    def arm(self, name: str, hit: int, act: Callable[[str], None]) -> None:
        """Arm an action, which will be applied when the failpoint is reached for the `hit`-th time from now on."""
        self._armed.setdefault(name, []).append((hit, act))

    def waits_at(self, name: str) -> bool:
        """Return whether an action is armed at the failpoint and still waits to be executed."""
        return bool(self._armed.get(name))

    def disarm(self) -> None:
        """Disarm all failpoints."""
        self._armed.clear()


SLOW_FACTOR = 100
"""Factor by which a call takes longer on a slow disk."""


class Stores:
    """The checkpoint store, with a view for each node and a view for the judge.

    Attributes:
        reader: a view of the store that is not affected by the nodes' faults.
    """

    def __init__(self, seed: int, choices: Choices, delay: DelayPart, now: Callable[[], int]) -> None:
        self.disk = VirtualDisk(now)
        self._choices = choices
        self._delay = (delay.least_ns, delay.jitter_ns)
        self._bytes = stream_of(seed, "ids")
        self.id = Store.create("", disk=self.disk.reader(), random_bytes=self._random_bytes).store_id
        self.reader = Store(self.disk.reader(), self.id, random_bytes=self._random_bytes)

    def _random_bytes(self, count: int) -> bytes:
        """Return random bytes for file names. The bytes only need to differ between calls."""
        return int(self._bytes.random() * (1 << 53)).to_bytes(7, "big").rjust(count, b"\0")

    def of(self, node: str) -> Store:
        """Open the store on this node's view of the disk."""
        return Store(OpenedDisk(self.disk.of(node), self.id), self.id, random_bytes=self._random_bytes)

    def cost_ns(self, node: str, key: Hashable) -> int:
        """Return how long a store call on this node takes, in nanoseconds."""
        least_ns, jitter_ns = self._delay
        cost_ns = least_ns + jitter_ns * self._choices.pick("storage", (key,), DELAY_STEPS) // DELAY_STEPS
        return cost_ns * SLOW_FACTOR if self.disk.is_slow(node) else cost_ns


CLOCKS_AGENTS_MAX = 16
"""Maximum number of agents in a fleet with vector clocks, whose cost per turn grows with the number of agents. In
larger fleets, only message counts are compared."""


class WorldState:
    """State that all parts of a simulated world share.

    Attributes:
        kernel, network, clocks, stores, points: the simulated environment of the run.
        output_injector: object that adds outputs to randomly selected turns.
        journal, figures: the run's journal and counters, which all parts update.
        recording, trace: the run's recording and trace, or None if they were not requested.
        hosts, coordinators, agents: names of all hosts, coordinators and agents that can exist in the run.
        random_of: source of `ctx.random()`. Each agent draws from its own random stream, so that its numbers do not depend on the order of
            turns.
        misuse: the reason why the user's agents cannot be simulated, or "" if there is none.
    """

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
        self.choices = choices
        self.workload = workload
        self.journal = journal or Journal()
        self.kernel = Kernel()
        self.hosts = host_names(scenario)
        self.coordinators = coordinator_names(scenario)
        self.agents = tuple(workload.fleet.agents)
        self.network = _network_of(scenario, self.kernel, choices)
        self.judge = _judge_of(scenario, workload)
        self.output_injector = OutputInjector(choices, self.judge.ground_truth, scenario.outputs.one_in)
        self.clocks = Clocks(self.kernel)
        self.points = Points()
        self.random_of = RandomStreams(seed, "agent").random
        self.figures = RunCounters()
        self.stores = Stores(seed, choices, scenario.store.delay, lambda: self.kernel.now_ns)
        self.recording = recording
        self.trace = SharedTrace(self.kernel, recording, self.agents) if recording is not None else None
        self.faults: list[ExecutedFault] = []
        self.misuse = ""

    def call_at(self, t_ns: int, call: Callable[[], None]) -> None:
        """Schedule a call for a virtual time."""
        self.kernel.at(t_ns, _call, call)

    def say(self, oracle: str, guarantee: str, text: str) -> None:
        """Report a violation that was detected by the simulated world itself."""
        self.judge.violations.append(Violation(oracle, guarantee, self.kernel.now_ns, text))

    def misused(self, why: str) -> None:
        """End the run, because the user's code cannot be simulated. `why` is the reason."""
        self.misuse = self.misuse or why
        self.kernel.is_over = True

    def core_failed(self, node: str, error: Exception) -> None:
        """Report an error that was raised by the product as a violation. If the error was raised by the simulator itself, raise it again,
        which makes the run "broken"."""
        if isinstance(error, NotSimulatedError):
            self.misused(str(error))
            return
        where = traceback.extract_tb(error.__traceback__)[-1]
        if "/sim/" in where.filename:
            raise error
        if not self.kernel.is_over:
            place = f"{where.name}, {where.filename.rpartition('/')[2]}:{where.lineno}"
            self.judge.on_core_failed(self.kernel.now_ns, node, error, place)
        self.kernel.is_over = True


def _network_of(scenario: Scenario, kernel: Kernel, choices: Choices) -> Network:
    delay = scenario.network.delay
    paths = {
        (sender, receiver): (path.least_ns, path.jitter_ns)
        for name, path in scenario.network.paths.items()
        for sender, _, receiver in [name.partition(">")]
    }
    return Network(kernel, choices, least_ns=delay.least_ns, jitter_ns=delay.jitter_ns, paths=paths)


def _judge_of(scenario: Scenario, workload: Workload) -> Judge:
    fleet = workload.fleet
    is_small = len(fleet.agents) <= CLOCKS_AGENTS_MAX
    terms = JudgeTerms(
        protocol=fleet.protocol,
        budget=scenario.budget,
        check_cut=workload.check_cut,
        with_clocks=is_small,
        with_replay=is_small,
        is_own=bool(scenario.fleet.module),
        wanted=_wanted(scenario) if scenario.run.retention else None,
    )
    return Judge(terms, fleet=fleet, agents=tuple(fleet.agents))


def _wanted(scenario: Scenario) -> ExpectedRetention:
    policy, limits = parse_policy(scenario.run.retention), scenario.limits
    hour_s, day_s = limits.get("hour_s", 3600), limits.get("day_s", 86_400)
    return ExpectedRetention(policy.keep_last, policy.hourly, policy.daily, hour_s * 1000, day_s * 1000)


def _call(call: Callable[[], None]) -> None:
    call()
